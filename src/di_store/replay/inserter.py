"""Inserting without a stream: rows, finished transitions, whole sequences and episodes.

Each process has one writer with one lane for each table. Its threads take turns (`_core.Turn`). A turn is released even
if a signal handler raises an exception.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from di_store import _core
from di_store._core import ITEM_FINISHED
from di_store.base import tree
from di_store.base.config import listed
from di_store.base.dtypes import Array
from di_store.base.errors import SchemaMismatch, StoreError
from di_store.columns.schema import Schema
from di_store.layout.native_views import finished_schema
from di_store.layout.plan import VALUE, make_layout
from di_store.layout.shape import UNLIMITED
from di_store.policy.views import NEXT, Episode, Group, Sequence, Step, Transition, answers_of
from di_store.replay.batch import encode_blob
from di_store.replay.handle import TableHandle, not_now
from di_store.replay.stream import build_inserter, check_priority, rows_of, tracked_versions
from di_store.replay.timed import TimedItems, split
from di_store.runtime.waits import InsertWait, Steps, Wait, check_timeout, core_seconds, run

Made: TypeAlias = "Array | Steps[Array]"
"""The keys of items that were inserted at once, or the steps of a call that has to wait."""


class Inserter:
    """Inserts single items into one table.

    Attributes:
        put: takes a value, a priority and a timeout. Inserts one item and returns its key, uint64[1], if the core can
            do that at once. None: nothing was done; call `insert`. The same holds after a SchemaMismatch, which
            `insert` explains.
    """

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self._ended: StoreError | None = None
        self._native: _core.Writer | None = None
        self._schema: Schema | None = None
        self._turn = _core.Turn()
        self._pid = os.getpid()
        self.put: Callable[[Any, Any, Any], Array | None] = not_now
        self._tracked: list[tuple[int, dict[str, int], str]] = []
        self._version = -1  # of the weights, for the rows of the call under way
        self._view = handle.settings.view
        self._plain = isinstance(self._view, (Step, Group))
        self._timed = TimedItems(self._view) if isinstance(self._view, (Sequence, Episode)) else None

    def inserting(self, value: Any, priority: Any, timeout: Any, one: bool = True) -> Steps[Array]:
        """Insert one item, or (`one=False`) one for each entry of the leading axis. Returns their keys, uint64[n].

        A call waits while another one inserts. A call inside another call of the same thread raises `StoreError`:
        a signal handler may make such a call, or the `__array__` of a value that is being written.
        """
        timeout = None if timeout is None else check_timeout(timeout)
        if self._pid != os.getpid():  # forked: a thread that this child lacks may hold the turn; the parent's writer
            self._begin_anew()
        wait: Wait | None = None
        while True:
            with self._turn.take(wait is None) or _refuse() as mine:
                if mine:
                    if self._native is None:
                        self._prepare(priority)
                    if not one:
                        made = self._items(value, priority, timeout)
                    elif self._plain:
                        made = self._steps(value, None, priority, timeout)
                    else:
                        made = self._item(value, priority, timeout)
                    keys = made if isinstance(made, np.ndarray) else (yield from made)
                    self._handle.warn_evicted()
                    return keys
            wait = wait or self._turn_wait(timeout)
            yield from wait.pausing_turn(self._turn, _OTHER)

    def end_with(self, why: StoreError) -> None:
        """Called when the store's handle is closed: drop the table as soon as no call uses it.

        Later calls raise `why`.
        """
        if self._pid != os.getpid():
            self._begin_anew()
        wait: Wait | None = None
        while True:
            with self._turn.take(wait is None) or _refuse() as mine:
                if mine:
                    self._ended, self.put = why, not_now
                    native, self._native = self._native, None
                    self._handle = None  # type: ignore[assignment]  # the last handle to go unmaps the store
                    if native is not None:
                        native.close()
                    return
            try:
                wait = wait or self._turn_wait(None)
            except StoreError:
                return  # another thread ends it too, and holds the turn
            run(wait.pausing_turn(self._turn, _OTHER))

    def _begin_anew(self) -> None:
        self._turn, self._native, self.put = _core.Turn(), None, not_now
        self._pid = os.getpid()

    def _turn_wait(self, timeout: float | None) -> Wait:
        handle = self._handle  # read before `_ended`: end_with() sets `_ended` first, so this is not None below
        if self._ended is not None:
            raise copy.copy(self._ended)
        return Wait(handle.arena, timeout, f"insert into table {handle.name!r}")

    def _prepare(self, priority: Any) -> None:
        if self._ended is not None:
            raise copy.copy(self._ended)
        if self._handle.schema is None:
            check_priority(priority)

    def _item(self, value: Any, priority: Any, timeout: float | None) -> Made:
        if self._handle.opaque:
            return self._opaque([value], priority, timeout)
        if self._timed is not None:
            return self._whole(self._timed, value, priority, timeout)
        return self._finished(value, None, priority, timeout)

    def _items(self, batch: Any, priority: Any, timeout: float | None) -> Made:
        if self._handle.opaque:
            return self._opaque(listed("batch", batch, "a list of values"), priority, timeout)
        n = rows_of(batch)
        self._check_count(n)
        if self._plain:
            return self._steps(batch, n, priority, timeout)
        if self._timed is not None:
            return self._wholes(self._timed, batch, n, priority, timeout)
        return self._finished(batch, n, priority, timeout)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _check_count(self, n: int) -> None:
        if n == 0:
            raise ValueError("extend() needs at least one item")
        if n <= (capacity := self._handle.native.capacity):
            return
        answers = answers_of(self._view)
        if n > capacity * answers and capacity < UNLIMITED:
            what, groups = ("items", "") if answers == 1 else ("rows", f" groups of {answers} rows")
            raise ValueError(
                f"extend() with {n} {what} into a table of capacity={capacity}{groups}, which holds fewer; "
                "give fewer at once, or make the table larger with resize()"
            )

    def _steps(self, value: Any, n: int | None, priority: Any, timeout: float | None) -> Made:
        """Rows of a table of single steps: the core takes them unchanged."""
        self._declare(value, n, timeout)
        native = self._writer(timeout)
        try:
            if n is None:
                return self._made(native.append, value, None, None, None, priority, timeout=timeout)
            return self._made(native.extend, value, None, None, None, priority, n, timeout=timeout)
        except SchemaMismatch as error:
            raise self._explained(error, value, n, timeout) from None

    def _finished(self, value: Any, n: int | None, priority: Any, timeout: float | None) -> Made:
        """Finished transitions, a single one (n is None) or n: the core takes them unchanged."""
        if isinstance(self._view, Transition) and self._view.future:
            raise ValueError(
                "a transition that is inserted whole has no later steps, which "
                f"future={self._view.future!r} needs: append the steps of whole episodes through "
                "table.writer()"
            )
        self._declare(value, n, timeout)
        native = self._writer(timeout)
        items, total = [(1, 1, ITEM_FINISHED)], 1 if n is None else n
        if "steps" in self._columns(timeout) and type(value) is dict and "steps" not in value:
            value = {**value, "steps": self._whole_steps(n)}
        try:
            return self._made(native.insert, value, items, total, priority, n is None, timeout=timeout)
        except SchemaMismatch as error:
            raise self._explained(error, value, n, timeout) from None

    def _whole_steps(self, n: int | None) -> Any:
        """The column `steps` for finished transitions that lack it: n_step, or int[n] of it."""
        assert isinstance(self._view, Transition)
        return self._view.n_step if n is None else np.full(n, self._view.n_step)

    def _opaque(self, values: list[Any], priority: Any, timeout: float | None) -> Made:
        if not values:
            raise ValueError("extend() needs at least one value")
        self._check_count(len(values))
        blobs = [encode_blob(value) for value in values]
        self._handle.reserve_opaque(max(map(len, blobs)), core_seconds(timeout))
        return self._send({VALUE: blobs}, [(1, 1, 0)], len(blobs), priority, timeout)  # each item has one row

    def _explained(self, error: SchemaMismatch, value: Any, n: int | None, timeout: float | None) -> Exception:
        """The error with the full path of the leaf that is wrong; `error` itself if this slow check finds nothing."""
        try:
            leaves, schema = tree.flatten(value, what="row"), self._columns(timeout)
            self._complete(leaves, schema, n)
            for name, leaf in leaves.items():
                schema[name].coerce(leaf, n)
        except (SchemaMismatch, ValueError, TypeError) as told:
            return told
        return error

    def _complete(self, leaves: dict[str, Any], schema: Schema, n: int | None) -> None:
        """Refuse unknown and missing columns. Fills in `steps` of finished transitions."""
        if "steps" in schema and "steps" not in leaves and isinstance(self._view, Transition):
            leaves["steps"] = self._whole_steps(n)
        for name in leaves:
            if name not in schema:
                raise schema.unknown(name, leaves[name])
        given = {*leaves, *(column.name for column in schema if column.late)}
        missing = [f"{name!r} ({schema[name].type_text})" for name in schema.names if name not in given]
        if missing:
            raise SchemaMismatch(
                f"missing column {', '.join(missing[:6])}",
                remedy="every item gives every column; a finished transition also next_<obs> and discount",
            )

    def _columns(self, timeout: float | None) -> Schema:
        self._writer(timeout)
        assert self._schema is not None
        return self._schema

    def _writer(self, timeout: float | None) -> _core.Writer:
        if self._native is None:
            native, self._schema = build_inserter(self._handle, self._turn, core_seconds(timeout))
            self._tracked = tracked_versions([self._handle], self._schema)
            self._handle.inserted = True
            finished = isinstance(self._view, Transition) and not self._view.future
            if self._plain or finished:
                self.put = native.insert_now
            self._native = native  # set last: after an interrupt the next call does all of this again
        if self._tracked:
            _, versions, name = self._tracked[0]
            self._version = versions.get(name, -1)
            self._native.set_version(0, self._version)
        return self._native

    def _declare(self, value: Any, n: int | None, timeout: float | None) -> None:
        """Declare the columns by a first row or finished transition.

        A row that cannot be inserted declares no columns.
        """
        if self._native is not None or self._handle.schema is not None:
            return
        leaves = tree.flatten(value, what="row")
        inferred = self._inferred(leaves, n)
        self._handle.check_declarable(inferred)
        schema = finished_schema(self._view, inferred)
        make_layout(schema)
        self._complete(leaves, schema, n)
        for name, leaf in leaves.items():
            schema[name].coerce(leaf, n)
        self._handle.declare(inferred, core_seconds(timeout))

    def _declare_timed(self, timed: TimedItems, values: list[dict[str, Any]], timeout: float | None) -> None:
        """Declare the columns by first sequences or episodes. Those that cannot be inserted declare no columns."""
        if self._handle.schema is not None:
            return
        schema = timed.schema(values[0])
        self._handle.check_declarable(schema)
        timed.joined(values, schema)
        self._handle.declare(schema, core_seconds(timeout))

    def _inferred(self, leaves: dict[str, Any], n: int | None) -> Schema:
        """The columns that a first inserted item declares. The columns of a step, for a finished transition."""
        view = self._view
        if not isinstance(view, Transition):
            return Schema.infer(tree.unflatten(leaves), n)
        outputs = {"discount", "steps"}
        stacks = dict(view.frame_stack or {})
        own = {}
        for name, leaf in leaves.items():
            if name in outputs or name.startswith(NEXT):
                continue
            if any(tree.is_below(name, stacked) for stacked in stacks):
                leaf = np.asarray(leaf)[(slice(None), 0) if n is not None else 0]
            own[name] = leaf
        return Schema.infer(tree.unflatten(own), n)

    def _send(
        self,
        rows: dict[str, Any],
        items: list[tuple[int, int, int]],
        total: int,
        priority: Any,
        timeout: float | None,
    ) -> Made:
        """Send rows ``[total, …]`` as items of (rows, how many of them are steps, flags); one entry: for all items."""
        return self._made(self._writer(timeout).insert, rows, items, total, priority, timeout=timeout)

    def _made(self, call: Callable[..., Any], *arguments: Any, timeout: float | None) -> Made:
        """Call the core, repeatedly if it is blocked, until it has inserted all items. Returns their keys."""
        made = call(*arguments)
        if type(made) is list:
            keys: Array = made[0][0]
            return keys
        return self._waited(made, partial(call, *arguments), timeout)

    def _waited(self, made: Any, call: Callable[[], Any], timeout: float | None) -> Steps[Array]:
        """`_made`, after a first call that was blocked: its result is `made`."""
        turn, hold, handle, version = self._turn, self._turn.hold(), self._handle, self._version
        with InsertWait(handle.arena, timeout, f"insert into table {handle.name!r}") as wait:
            while type(made) is not list:
                if made.passed:  # some items are in the table: resume() inserts the rest, now or in the next call
                    wait.passed((turn, hold))
                    yield from wait.pausing_for(made, handle.native, handle.arena)
                    handle.check_open()
                    made = self._writer(timeout).resume()
                    continue
                turn.pass_on(hold)  # a blocked call has written nothing, so others may insert meanwhile
                yield from wait.pausing_for(made, handle.native, handle.arena)
                while not turn.take_again(hold):
                    yield from wait.pausing_turn(turn, _OTHER)
                handle.check_open()
                if self._tracked and self._native is not None:  # another thread may have set a newer version
                    self._native.set_version(0, version)
                made = call()
        keys: Array = made[0][0]
        return keys

    # -- sequences and episodes ---------------------------------------------------------------------------------

    def _whole(self, timed: TimedItems, value: Any, priority: Any, timeout: float | None) -> Made:
        """Insert one sequence or episode, leaves ``[time, …]``."""
        leaves = tree.flatten(value, what="item")
        self._declare_timed(timed, [leaves], timeout)
        schema = self._columns(timeout)
        self._complete(leaves, schema, None)
        rows, item = timed.rows(leaves, schema)
        return self._send(tree.unflatten(rows), [item], item[0], priority, timeout)

    def _wholes(self, timed: TimedItems, batch: Any, n: int, priority: Any, timeout: float | None) -> Made:
        """Insert n sequences or episodes, leaves ``[n, time, …]``, in one call of the core: all of them or none."""
        leaves = tree.flatten(batch, what="batch")
        values = split(leaves, n)
        self._declare_timed(timed, values, timeout)
        schema = self._columns(timeout)
        self._complete(leaves, schema, None)
        rows, items, total = timed.joined(values, schema)
        return self._send(tree.unflatten(rows), items, total, priority, timeout)


INSIDE = (
    "insert() or extend() was called during another insert() or extend() of the same table and thread, "
    "from a signal handler or from a value being written: nothing was written"
)
LATER = "call it after that call has returned; a signal handler can set a flag"
_OTHER = "another thread of this process is inside its own insert() or extend() of the table"


def _refuse() -> _core.Hold:
    raise StoreError(INSIDE, remedy=LATER)
