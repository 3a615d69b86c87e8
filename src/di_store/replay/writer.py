"""Writer: appends steps to one or several tables.

A call passes its arguments to the core unchanged. Most of this file handles rare cases: the first step declares
columns, a call waits, a call is refused, another thread closes the writer.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from di_store import _core
from di_store.base import tree
from di_store.base.config import count, flag, listed
from di_store.base.dtypes import Array
from di_store.base.errors import EndOfData, SchemaMismatch, StoreError, WriterClosed, shown
from di_store.columns.schema import Schema
from di_store.lowering.plan import VALUE
from di_store.replay.batch import Items, encode_blob, no_items
from di_store.replay.handle import TableHandle, episodes_reader
from di_store.replay.stream import (
    autoreset_mode,
    build_native,
    check_lane,
    check_priority,
    rows_of,
    step_schema,
    tracked_versions,
)
from di_store.runtime import waits
from di_store.runtime.chores import run_ahead
from di_store.runtime.waits import InsertWait, check_timeout, core_seconds
from di_store.session import Session

WRITER_ROLE = 1
CLOSE_SECONDS = 60.0
_LOOK_EVERY = 1024
_BUSY = (
    "this writer is in the middle of another call, and was called again from a signal handler or from a value being "
    "written: nothing was written"
)
_LATER = "call it after that call has returned; a signal handler can set a flag"

_open: weakref.WeakSet[Writer] = weakref.WeakSet()


def forget_writers() -> None:
    """End all writers in a forked child: they belong to the parent."""
    for writer in _open:
        writer._end(WriterClosed("this writer was opened before fork and belongs to the parent process"))
    _open.clear()


class Writer:
    """Appends steps to one stream per lane. For one thread only. Made by `Table.writer` and `Store.writer`."""

    def __init__(
        self, session: Session, handles: Iterable[TableHandle], lanes: int | None, autoreset: Any, *, single: bool
    ) -> None:
        stream = _Stream(handles, lanes, autoreset)
        self._stream: _Stream | None = stream
        self._names = [handle.name for handle in stream.handles]
        self._episodes = [episodes_reader(handle) for handle in stream.handles]
        self._single = single
        self._thread = 0  # ident of the owner thread; 0: none yet; -1: the writer has ended
        # Acquired once and never released: by the owner, or by a thread that ends a writer without an owner.
        self._claim = threading.Lock()
        self._ended: StoreError | None = None
        self._call: Any = self._first_call if stream.native is None else stream.call
        self._calls = 0
        self._fresh = stream.native is None  # the first step is still to come
        _open.add(self)
        session.follow(self, Writer._end_with)

    # -- the calls ----------------------------------------------------------------------------------------------

    def append(
        self,
        step: Any,
        *,
        next: Any = None,
        final: Any = None,
        lane: Any = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Append one row to every lane, or to those that `lane` names.

        Args:
            step: nested dict of leaves ``[…]``, with lanes ``[lanes, …]``. A row with `terminated` or `truncated` ends
                its lane's episode. If a view needs to know where episodes end, a first step that marks it under
                another name (``done``) is refused.
            next: what the environment returned with the step, usually ``{"obs": nxt}``: the lane's next row, or the
                final observation. With it, items that end at this row are complete at once. Exception: if the step
                has ragged columns without ``max=`` that `next` lacks, they are complete with the following row, or
                with the end of the episode.
            final: final observations of the lanes whose episodes end here: like `next`, for all lanes or only those
                that end; or Gymnasium's ``final_obs``. `end_episode` can supply missing ones later.
            lane: int, int array or bool mask; None: all.
            priority: of every item that this call completes: scalar, one per lane, or a dict by table.
            timeout: seconds to wait for limiters and room; None: no limit.

        Returns:
            The completed `Items`; for a writer over several tables a dict of `Items` by table name.

        Raises:
            Timeout, StoreFull, SchemaMismatch, ValueError: nothing was written in any lane or table. ValueError also
                if the row differs from an earlier `next`, or if more lanes complete items than a table's capacity; a
                queue accepts items of any number of lanes.
            WriterClosed: closed, used from another thread, or made before a fork.
        """
        if get_ident() != self._thread:
            self._enter()
        if timeout is not None or self._fresh:
            timeout = self._prepare(step, next, final, lane, priority, None, timeout)
        try:
            made = self._call(step, next, final, lane, self._by_table(priority) if type(priority) is dict else priority)
        except SchemaMismatch as error:
            raise self._explained(error, step, lane, None) from None
        if type(made) is not list:
            arguments = (step, next, final, lane, self._by_table(priority) if type(priority) is dict else priority)
            stream = self._open()
            made = stream.finish_waiting("append", made, timeout, stream.again, *arguments)
        self._calls += 1
        if not self._calls % _LOOK_EVERY and (own := self._stream) is not None:
            own.look()
        if self._single:
            items = Items(*made[0])
            items._episodes = self._episodes[0]
            return items
        return self._made(made)

    def extend(
        self,
        steps: Any,
        *,
        next: Any = None,
        final: Any = None,
        lane: Any = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Append T rows to every lane in one call, as T calls of `append` would.

        Args:
            steps: nested dict of leaves ``[T, …]``, with lanes ``[T, lanes, …]``.
            next: as `append`, with the same leading axes.
            final: as `append`, with the same leading axes.
            lane: as `append`.
            priority: scalar, ``[T]`` or ``[T, lanes]``: an item gets that of the row that completes it; or a dict of
                these by table.
            timeout: as `append`.

        Returns:
            The completed `Items`, as `append`.

        Raises:
            ValueError: it completes more items than a table's capacity. Others as `append`.
        """
        if get_ident() != self._thread:
            self._enter()
        timeout, stream = check_timeout(timeout), self._open()
        if stream.opaque:
            steps = listed("steps", steps, "a list of values")
        total = len(steps) if stream.opaque else rows_of(steps)
        if total == 0:
            raise ValueError("extend() needs at least one row")
        self._prepare(steps, next, final, lane, priority, total, timeout)
        native = stream.opened()
        stream.take_versions()
        if stream.opaque:
            steps = stream.encoded(steps, next, final, lane, total, core_seconds(timeout))
        arguments = (steps, next, final, lane, self._by_table(priority) if type(priority) is dict else priority, total)
        try:
            made = native.extend(*arguments)
        except SchemaMismatch as error:
            raise self._explained(error, steps, lane, total) from None
        made = stream.finish_waiting("extend", made, timeout, native.extend, *arguments)
        stream.look()
        return self._made(made)

    def end_episode(
        self, final: Any = None, lane: Any = None, discard: bool = False, *, timeout: float | None = None
    ) -> Any:
        """End the episodes of some lanes, or supply the final observation of episodes that have ended.

        This may complete more items than a table's capacity: the last ones then evict the first ones.

        Args:
            final: the final observation, like `next` of `append`.
            lane: as `append`.
            discard: drop the episode's rows that no item uses, and items that still wait for its final observation.
                Windows across episodes stop before the dropped rows, and start again after them.
            timeout: as `append`.

        Returns:
            The completed `Items`, as `append`.

        Raises:
            Timeout, StoreFull, ValueError, WriterClosed: as `append`.
        """
        if get_ident() != self._thread:
            self._enter()
        timeout, stream = check_timeout(timeout), self._open()
        arguments = (final, lane, flag("discard", discard))
        if (native := stream.native) is None:
            return self._made([no_items() for _ in self._names])
        made = stream.finish_waiting(
            "end_episode", native.end_episode(*arguments), timeout, native.end_episode, *arguments
        )
        return self._made(made)

    def close(self, *, timeout: float | None = CLOSE_SECONDS) -> None:
        """End open episodes and release the tables. A second call does nothing.

        Args:
            timeout: seconds to wait for limiters and room; None: no limit.

        Raises:
            Timeout: a limiter did not let the last items pass, and they are lost; the writer is closed anyway.
        """
        if self._ended is not None:
            return
        if get_ident() != self._thread:
            self._enter()
        timeout, stream = check_timeout(timeout), self._open()
        native = stream.native
        if stream.is_busy():
            raise StoreError(_BUSY, remedy=_LATER)
        try:
            if native is not None:
                stream.finish_waiting("close", native.finish(), timeout, native.finish)
        except EndOfData:
            pass  # a finished table accepts no items: the open episodes add none
        finally:
            self._end(WriterClosed("this writer was closed"))
            if native is not None:
                native.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close(timeout=0.0)
        except StoreError:
            pass  # the exception of the with block matters more

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Writer does not pickle: pass the table and call table.writer() where it is used")

    # -- rare cases ---------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Called in a thread that is not the owner. The first thread becomes the owner; any other raises."""
        if self._ended is None and not self._thread and self._claim.acquire(blocking=False):
            self._thread = get_ident()
            return
        raise self._closed()

    def _closed(self) -> StoreError:
        """The error to raise: the writer has ended, or another thread owns it. A copy: several threads may raise it."""
        if self._ended is not None:
            return copy.copy(self._ended)
        return WriterClosed("a writer is for one thread, and this one is used by another")

    def _open(self) -> _Stream:
        """The stream, which a call keeps a reference to until it ends; raises if the writer has ended."""
        stream = self._stream
        if stream is None:
            raise self._closed()
        return stream

    def _refuse(self, *_: Any) -> Any:
        raise self._closed()

    def _prepare(
        self, step: Any, next: Any, final: Any, lane: Any, priority: Any, total: int | None, timeout: Any
    ) -> float | None:
        """Check `timeout` and return it. For a first step, check all arguments, then declare the columns."""
        seconds = check_timeout(timeout)
        if self._fresh:
            for value in self._by_table(priority).values() if type(priority) is dict else (priority,):
                check_priority(value)
            for option, given in (("next", next), ("final", final)):
                if isinstance(given, Mapping) and isinstance(step, Mapping):
                    unknown = sorted(set(tree.flatten(given, what=option)) - set(tree.flatten(step)))
                    if unknown:
                        raise SchemaMismatch(f"{option}= holds column {unknown[0]!r}, which the step lacks")
            self._open().declare(step, lane, total, core_seconds(seconds))
            self._fresh = False
        return seconds

    def _first_call(self, step: Any, next: Any, final: Any, lane: Any, priority: Any) -> Any:
        stream = self._open()
        stream.opened()
        self._call = stream.call
        if self._ended is not None:  # another thread closed the store meanwhile
            self._call = self._refuse
        return stream.call(step, next, final, lane, priority)

    def _end(self, why: StoreError) -> None:
        self._ended = why
        self._thread = -1
        self._call = self._refuse
        # The last handle to go unmaps the store. A call in another thread has its own reference.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end(why)

    def _end_with(self, why: StoreError) -> None:
        """The store's handle is closed: close the writer without waiting."""
        if self._ended is None and (self._thread == get_ident() or self._claim.acquire(blocking=False)):
            self._thread = get_ident()
            try:
                self.close(timeout=0.0)
            except StoreError:
                pass  # items that a limiter did not let pass are lost
        self._end(why)

    def _by_table(self, priority: dict[str, Any]) -> dict[int, Any]:
        if unknown := set(priority) - set(self._names):
            raise ValueError(f"priority= names {shown(list(unknown))}, this writer's tables are {self._names}")
        return {number: priority[name] for number, name in enumerate(self._names) if name in priority}

    def _made(self, made: list[Any]) -> Items | dict[str, Items]:
        found = [Items(*parts) for parts in made]
        for items, episodes in zip(found, self._episodes, strict=True):
            items._episodes = episodes
        return found[0] if self._single else dict(zip(self._names, found, strict=True))

    def _explained(self, error: SchemaMismatch, step: Any, lane: Any, total: int | None) -> Exception:
        """The error with the full path of the leaf that is wrong; `error` itself if this slow check finds nothing."""
        stream = self._stream
        if stream is not None and stream.schema is not None and not stream.opaque and isinstance(step, Mapping):
            try:
                stream.schema.coerce(step, stream.lead(lane, total) or None, partial=True)
            except (SchemaMismatch, ValueError, TypeError) as told:
                return told
        return error


class _Stream:
    """The core's objects of a writer. A call has a reference while it runs, so `close()` cannot free them under it."""

    def __init__(self, handles: Iterable[TableHandle], lanes: int | None, autoreset: Any) -> None:
        self.handles = sorted(handles, key=lambda handle: handle.native.index)
        self.native: _core.Writer | None = None
        self.schema: Schema | None = None
        self.call: Any = None  # append
        self.again: Any = None  # append, to repeat a blocked call: its rows keep the versions set at its first attempt
        self.opaque = self.handles[0].opaque
        self._arena = self.handles[0].arena
        self._lanes = None if lanes is None else count("lanes", lanes, minimum=1, maximum=2**20)
        self._autoreset = autoreset_mode(autoreset)
        self._versions: list[tuple[int, dict[str, int], str]] = []
        self._warned: set[str] = set()
        self._ended: StoreError | None = None
        self._declaring = False
        if self.opaque and len(self.handles) > 1:
            raise ValueError("a table with view=Opaque() cannot share a writer with other tables: give it its own")
        self._arena.set_role(WRITER_ROLE)
        run_ahead(self._arena)
        self._attending: list[_core.Attendance] = []
        if all(handle.schema is not None for handle in self.handles):
            self._build(waits.CALL_SECONDS)
        else:  # the core's writer is made at the first step: until then these marks count as an open writer
            self._attending = [_core.Attendance(handle.native, waits.CALL_SECONDS) for handle in self.handles]

    def declare(self, step: Any, lane: Any, total: int | None, seconds: float) -> None:
        """Declare the columns of a first step for the tables that have none, and make the core's writer."""
        if self._declaring:
            raise StoreError(_BUSY, remedy=_LATER)
        if self.native is not None:
            return
        check_lane(lane, self._lanes or 1)
        self._declaring = True
        try:
            if not self.opaque:
                step_schema(self.handles, step, self.lead(lane, total), seconds)
            self._build(seconds)
        finally:
            self._declaring = False

    def opened(self) -> _core.Writer:
        """The core's writer; the columns must have been declared."""
        assert self.native is not None, "a first step declares the columns"
        return self.native

    def _build(self, seconds: float) -> None:
        self.native, self.schema = build_native(self.handles, self._lanes, self._autoreset, seconds)
        self._end_attendance()
        self._versions = tracked_versions(self.handles, self.schema)
        self.again = self._opaque_append if self.opaque else self.native.append
        self.call = self._versioned_call if self._versions else self.again

    def _versioned_call(self, *arguments: Any) -> Any:
        self.take_versions()
        return self.again(*arguments)

    def take_versions(self) -> None:
        """Set the versions of the weights for rows of the next call, in tables without a column `version`."""
        assert self.native is not None
        for position, versions, name in self._versions:
            self.native.set_version(position, versions.get(name, -1))

    def _opaque_append(self, value: Any, next: Any, final: Any, lane: Any, priority: Any) -> Any:
        assert self.native is not None
        row = self.encoded([value], next, final, lane, None, waits.CALL_SECONDS)
        return self.native.append(row, None, None, lane, priority)

    def encoded(
        self, values: Any, next: Any, final: Any, lane: Any, total: int | None, seconds: float
    ) -> dict[str, Any]:
        """Encode Python values as rows of the single column of an `Opaque` table, with the core's leading axes."""
        if next is not None or final is not None:
            raise ValueError(
                "next= and final= are observations, and a table with view=Opaque() has none: leave them out"
            )
        if self._lanes is None or isinstance(lane, (int, np.integer)):
            blobs: Any = [encode_blob(value) for value in values]
            sizes = [len(blob) for blob in blobs]
        else:
            blobs = [[encode_blob(value) for value in by_lane] for by_lane in values]
            sizes = [len(blob) for by_lane in blobs for blob in by_lane]
        self.handles[0].reserve_opaque(max(sizes, default=0), seconds)
        return {VALUE: blobs[0] if total is None else blobs}

    def lead(self, lane: Any, total: int | None) -> tuple[int, ...]:
        """Leading axes of a call's leaves: time if `total` is given, then lanes if the call names several."""
        lead = () if total is None else (total,)
        if self._lanes is None or isinstance(lane, (int, np.integer)):
            return lead
        if lane is None:
            return (*lead, self._lanes)
        named: Array = np.asarray(lane)
        return (*lead, int(named.sum()) if named.dtype == np.bool_ else named.size)

    def finish_waiting(self, what: str, made: Any, timeout: float | None, call: Any, *arguments: Any) -> Any:
        """Wait and repeat a blocked call until it succeeds; returns its result.

        `made`: the result of the first attempt, a list if that has succeeded.
        """
        if type(made) is list:
            return made
        assert self.native is not None
        with InsertWait(self._arena, timeout, f"{what} to table {self.handles[made.table].name!r}") as wait:
            while type(made) is not list:
                self.look()
                if made.passed:  # some items are in the table: resume() inserts the rest, now or in the next call
                    wait.passed()
                    call, arguments = self.native.resume, ()
                self.native.busy = True  # a call of this writer from a signal handler is refused now
                try:
                    wait.pause_for(made, self.handles[made.table].native, self._arena)
                finally:
                    self.native.busy = False
                if self._ended is not None:
                    raise copy.copy(self._ended)
                made = call(*arguments)
        return made

    def is_busy(self) -> bool:
        """Whether a call is under way: then this one comes from a signal handler, or from converting a value."""
        return self._declaring or (self.native is not None and self.native.busy)

    def look(self) -> None:
        """Warn once for each table whose items need more bytes than was estimated."""
        for handle in self.handles:
            if handle.name not in self._warned and handle.warn_evicted():
                self._warned.add(handle.name)

    def end(self, why: StoreError) -> None:
        """Make waiting calls raise `why`, and no longer count as an open writer."""
        self._ended = why
        try:
            self._end_attendance()
        except StoreError:
            pass  # the table is gone, or its lock is held: the mark is removed when this process ends

    def _end_attendance(self) -> None:
        """Remove the marks that count as an open writer before the first step."""
        while True:
            try:
                mark = self._attending.pop()  # atomic, so each mark is ended by one thread only
            except IndexError:
                return
            mark.end()
