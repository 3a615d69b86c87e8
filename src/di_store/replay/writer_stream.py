"""The core's objects of a writer, and how the writer's calls wait."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np

from di_store import _core
from di_store.base.config import count
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.columns.schema import Schema
from di_store.layout.plan import VALUE
from di_store.replay.batch import encode_blob
from di_store.replay.handle import TableHandle
from di_store.replay.left_out import warn_left_out
from di_store.replay.stream import autoreset_mode, build_native, check_lane, step_schema, tracked_versions
from di_store.runtime import waits
from di_store.runtime.chores import run_ahead, start_again
from di_store.runtime.waits import InsertWait, Steps, run

WRITER_ROLE = 1
BUSY = (
    "this writer is in the middle of another call, and was called again from another task, a signal handler or a value "
    "being written: nothing was written"
)
LATER = "call it after that call has returned; a signal handler can set a flag"


class WriterStream:
    """The core's objects of a writer. A running call has a reference, so `close()` cannot free them under it."""

    def __init__(self, handles: Iterable[TableHandle], lanes: int | None, autoreset: Any, marked: bytes | None) -> None:
        self.seq = 0
        self.marked = marked  # the session whose calls the store counts (`session marks`); None: of no session
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
        """Declare the columns of a first step for the tables without columns, and make the core's writer."""
        if self._declaring:
            raise StoreError(BUSY, remedy=LATER)
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
        self.native, self.schema = build_native(self.handles, self._lanes, self._autoreset, seconds, self.marked)
        if self.seq:
            self.native.begin_call(self.seq)
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
        """As `finishing`, in this thread."""
        return made if type(made) is list else run(self.finishing(what, made, timeout, call, *arguments))

    def finishing(self, what: str, made: Any, timeout: float | None, call: Any, *arguments: Any) -> Steps[Any]:
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
                    yield from wait.pausing_for(made, self.handles[made.table].native, self._arena)
                finally:
                    self.native.busy = False
                if self._ended is not None:
                    raise copy.copy(self._ended)
                made = call(*arguments)
        return made

    def is_busy(self) -> bool:
        """Whether a call is in progress; then this call comes from a signal handler or from converting a value."""
        return self._declaring or (self.native is not None and self.native.busy)

    def look(self) -> None:
        """Warn once for each table that evicted items before it was full, or has steps that make no item.

        Also ensures that the store's chores are done.
        """
        start_again(self._arena)
        for handle in self.handles:
            warn_left_out(handle)
            if handle.name not in self._warned and handle.warn_evicted():
                self._warned.add(handle.name)

    def end(self, why: StoreError) -> None:
        """Make waiting calls raise `why`, and stop counting as an open writer."""
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
