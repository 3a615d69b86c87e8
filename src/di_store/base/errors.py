"""All errors that Di-store raises: a small closed set. Each text names the option or command that helps.

``ValueError`` and ``TypeError`` stand for bad arguments; every other error is a `StoreError`. A text is the message
followed by a remedy in parentheses. Each class has a default remedy; the code that raises may pass a better one, or
``remedy=""`` if the message already says what to do. All errors pickle with their text, remedy and attributes, so they
cross processes (multiprocessing, Ray) unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from di_store import _core
from di_store._core import Code


def _restore(cls: type[StoreError], args: tuple[Any, ...], state: dict[str, Any]) -> StoreError:
    """Rebuild a pickled error without running its constructor, which would add the remedy a second time."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class StoreError(Exception):
    """Base of all errors of the store.

    Attributes:
        message: what happened, without the remedy.
        remedy: the option or command that helps; empty if the message names it.
        holder: place in ``store.stats()["clients"]`` of the process that holds a lock or writes the object; None if the
            error concerns no process.
        keys: uint64[m], keys of the items that the error concerns: values of an `Opaque` table cannot be loaded, items
            cannot be drawn, or shards of a table in parts failed in a call by keys. None if it concerns no items.
        places: positions of these items in the batch that was drawn, or in ``keys=``.
    """

    holder: int | None = None
    keys: Any = None
    places: Sequence[int] = ()
    default_remedy: ClassVar[str] = (
        "`di-store status` shows the stores of this machine, `di-store check` looks for damage"
    )

    def __init__(self, message: str = "", *, remedy: str | None = None) -> None:
        self.message = message
        self.remedy = self.default_remedy if remedy is None else remedy
        super().__init__(_text(message, self.remedy))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


_SHOWN = 120


def shown(value: Any) -> str:
    """`repr` of a user's value for an error text, cut to 120 characters. Never raises, even if `repr` does."""
    try:
        text = repr(value)
    except Exception:  # `__repr__` of a foreign type may raise anything
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _text(message: str, remedy: str) -> str:
    if message and remedy:
        return f"{message} ({remedy})"
    return message or remedy


def with_keys(error: StoreError, keys: Any, front: str) -> StoreError:
    """The error with the keys that it concerns, and more in front of its text."""
    error.message, error.keys = f"{front}: {error.message}", keys
    error.args = (_text(error.message, error.remedy),)
    return error


class StoreNotFound(StoreError):
    """No live process of this user holds a store of that name."""

    default_remedy = (
        "`di-store status` or di_store.list_stores() lists the stores; di_store.open(name) creates one; "
        "attach(name, timeout=) waits for one"
    )


class StoreClosed(StoreError):
    """The handle was closed, or the store was removed by force."""

    default_remedy = "get a new handle with di_store.attach(name) or di_store.open(name)"


class StoreFull(StoreError):
    """No room became free within the timeout. Nothing was written."""

    default_remedy = (
        "raise memory= with store.resize(memory=), delete objects with store.delete(), drop arrays that "
        "are no longer needed, or raise timeout=; `di-store status` shows what is pinned"
    )


class CapacityError(StoreError):
    """The request can never fit into the memory limit. Nothing was reserved."""

    default_remedy = "lower capacity= or max_bytes=, or raise memory= with store.resize(memory=)"


class LayoutMismatch(StoreError):
    """The store was made by a version of Di-store with another memory layout."""

    default_remedy = (
        "use one version of di-store in all processes, or another store name; `di-store rm NAME` removes the old store"
    )


class CorruptData(StoreError):
    """Bytes read from the store contradict themselves."""

    default_remedy = (
        "`di-store check NAME` lists the damage, store.check(repair=True) rebuilds what can be derived from sound data"
    )


class RowsLost(CorruptData):
    """Rows on disk cannot be read. Never leaves this package: the call is repeated after their items are removed."""


class DrawsLost(StoreError):
    """An agent no longer holds some draws. Never leaves this package: the draws are repeated."""


class ObjectNotFound(StoreError):
    """No sealed object of that id within the timeout. Or items that `sample(keys=)` was to draw cannot be drawn now."""

    default_remedy = "timeout= waits for it, store.contains(ref) tells whether it exists, store.keys() lists the ids"


class ObjectExists(StoreError):
    """The id is taken. The object that has it is unchanged."""

    default_remedy = "leave id= out to get a new id, or call store.delete(ref) first"


class TableNotFound(StoreError):
    """The store has no table of that name."""

    default_remedy = (
        "store.table(name, timeout=) waits for it, store.create_table() makes it, `di-store inspect` lists them"
    )


class TableExists(StoreError):
    """A table of that name exists, or exists with other settings."""

    default_remedy = (
        "exist_ok=True opens an existing table with equal settings, store.table(name) opens it, "
        "store.drop_table(name) removes it"
    )


class SchemaMismatch(StoreError):
    """A value does not fit its column. Nothing was written."""

    default_remedy = "cast the value before writing, or declare the columns with schema= in create_table"


class WriterClosed(StoreError):
    """The writer was closed, or belongs to another process or thread."""

    default_remedy = "open one writer per thread and process with table.writer()"


class EndOfData(StoreError):
    """The table was finished, or every epoch of `Once` is over."""

    default_remedy = "table.finish() was called, or all epochs of Once(epochs=) are over; Once(epochs=None) never ends"


class NodeUnavailable(StoreError):
    """The process that serves another node does not answer.

    Attributes:
        may_be_done: True if that process was killed during the call; the call may have taken effect or not.
    """

    may_be_done = False

    default_remedy = "`di-store status` on that node shows whether its agent runs"


class AccessDenied(StoreError):
    """The operating system denies this process access to the store or its folder."""

    default_remedy = (
        "run all processes as the same user and group; DI_STORE_DIR names a folder of this user for the lock files"
    )


class OldEpoch(StoreError):
    """The publisher of these weights was replaced by a later one. Raised by agents, not by calls of a store."""

    default_remedy = "another process publishes under this name now"


class Timeout(StoreError, TimeoutError):
    """The call waited for `timeout` seconds, or can never succeed. Nothing was changed, unless `passed` is True.

    The text comes from `runtime.waits.Wait`; for a lock, from the core's `SharedLock`, which names the owner.

    Calls that change many things one by one (`update_priorities`, `delete`, `reset`) may have changed some of them;
    repeat the call.

    Attributes:
        reason: the condition that the call waited for, with its counts.
        culprit: the process that blocks the call, such as "pid 123, stopped"; None if unknown.
        passed: True if a call of more than 64 items timed out after its rows and some of its items were written. The
            writer's next call first writes the remaining items. Do not repeat the call: that would write its rows
            twice.
    """

    passed = False

    default_remedy = "timeout= waits longer, None without limit; `di-store status` shows who waits for what"

    def __init__(
        self,
        message: str = "",
        reason: str = "",
        culprit: str | None = None,
        *,
        holder: int | None = None,
        remedy: str | None = None,
    ) -> None:
        self.reason = reason
        self.holder = holder
        self.culprit = culprit or None
        parts = [part for part in (message, reason) if part]
        named = culprit is not None and culprit in reason
        text = ": ".join(parts) + (f"; held up by {culprit}" if culprit and not named else "")
        super().__init__(text, remedy=remedy)


_CLASSES: dict[Code, type[StoreError]] = {
    Code.STORE_NOT_FOUND: StoreNotFound,
    Code.STORE_CLOSED: StoreClosed,
    Code.STORE_FULL: StoreFull,
    Code.CAPACITY: CapacityError,
    Code.LAYOUT_MISMATCH: LayoutMismatch,
    Code.CORRUPT_DATA: CorruptData,
    Code.ROWS_LOST: RowsLost,
    Code.OBJECT_NOT_FOUND: ObjectNotFound,
    Code.OBJECT_EXISTS: ObjectExists,
    Code.TABLE_NOT_FOUND: TableNotFound,
    Code.TABLE_EXISTS: TableExists,
    Code.SCHEMA_MISMATCH: SchemaMismatch,
    Code.WRITER_CLOSED: WriterClosed,
    Code.END_OF_DATA: EndOfData,
    Code.ACCESS_DENIED: AccessDenied,
    Code.STORE_ERROR: StoreError,
}


def of_core(failure: _core.Failure) -> Exception:
    """The exception for an error of the core. This is the only place where its codes become classes."""
    code = failure.code
    if code == Code.INVALID:
        return ValueError(failure.text)
    if code == Code.TYPE:
        return TypeError(failure.text)
    if code == Code.COLUMN_MISSING:
        return SchemaMismatch(
            f"missing column {failure.column!r}", remedy="every step gives every column of its schema"
        )
    if code == Code.COLUMN_DIFFERS:
        return ValueError(
            f"lane {failure.lane}: {failure.column!r} differs from what next= gave with the step before: next= takes "
            "the observation that follows its step, so this step must begin with the same one; if the lane's "
            "episode went on elsewhere, call end_episode() first"
        )
    if code == Code.TIMEOUT:
        return Timeout("timed out", failure.text, failure.culprit or None, holder=failure.holder)
    error = _CLASSES[code](failure.text, remedy="" if failure.told else None)
    if failure.holder is not None:
        error.holder = failure.holder
    return error


__all__ = [
    "AccessDenied",
    "CapacityError",
    "CorruptData",
    "EndOfData",
    "LayoutMismatch",
    "NodeUnavailable",
    "ObjectExists",
    "ObjectNotFound",
    "SchemaMismatch",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreNotFound",
    "TableExists",
    "TableNotFound",
    "Timeout",
    "WriterClosed",
    "of_core",
    "shown",
]
