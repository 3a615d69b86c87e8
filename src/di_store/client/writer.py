"""A writer of tables of a remote store: rows are sent ahead, and their items are known when the agent answers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from di_store.base.config import count, listed
from di_store.base.dtypes import Array
from di_store.base.errors import EndOfData, NodeUnavailable, SchemaMismatch, StoreError, WriterClosed
from di_store.client.arguments import blobs, check_priority_of, lane_of, numbers, plain_lane, travelling
from di_store.client.channel import Seconds
from di_store.client.items import RemoteItems
from di_store.client.lanes import WriterLanes
from di_store.client.pipe import WriterPipe
from di_store.client.row_columns import RowColumns
from di_store.client.session import RemoteSession
from di_store.client.turns import OwnedWriter, alone
from di_store.client.writer_calls import Row, Sent
from di_store.policy.settings import Settings
from di_store.policy.views import Group, Opaque, Step
from di_store.protocol.rows import Record
from di_store.replay.batch import Batch
from di_store.replay.stream import autoreset_mode, check_lane, rows_of
from di_store.replay.writer_stream import BUSY, LATER
from di_store.runtime.deadline import Deadline

WINDOW_CALLS, QUEUE_CALLS = 256, 8
"""Calls that may be on their way. For a queue or a limiter they are fewer, because rows become stale if a writer runs
far ahead."""
_MOST_PRIORITIES = _MOST_LANES = 50_000  # of a call that is sent ahead: they lie in the frame's meta
_ENDED: Array = np.ones((1, 1), np.bool_)
_GOES_ON: Array = np.zeros((1, 1), np.bool_)
_NONE: Array = np.empty(0, np.int64)
_FALSE = np.False_


class FarTable(Protocol):
    """The part of a table that a writer needs (`RemoteTable`)."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def target(self) -> tuple[str, str]:
        """The table's name and identity."""

    @property
    def settings(self) -> Settings:
        """The settings with which the table was made."""

    def peek(self, keys: Array, columns: str | Iterable[str] | None) -> Batch:
        """As `Table.peek`."""


class RemoteWriter(OwnedWriter):
    """A writer of tables that an agent serves."""

    closing_seconds = 1.0

    def __init__(
        self,
        session: RemoteSession,
        tables: Sequence[FarTable],
        lanes: int | None,
        autoreset: Any,
        *,
        single: bool,
        timeout: Seconds = None,
    ) -> None:
        session.channel.check_open()
        mode = autoreset_mode(autoreset)
        self._session = session
        self._tables = sorted(tables, key=lambda table: table.name) if len(tables) > 1 else list(tables)
        self.single = single
        self._lanes = None if lanes is None else count("lanes", lanes, minimum=1, maximum=2**20)
        self._opaque = any(table.settings.opaque for table in tables)
        if self._opaque and len(tables) > 1:
            raise ValueError("a table with view=Opaque() cannot share a writer with other tables: give it its own")
        self._tracked = sorted({table.settings.weights for table in tables if table.settings.weights is not None})
        limited = any(table.settings.queued or not _runs_free(table) for table in tables)
        window = int(os.environ.get("DI_STORE_WINDOW", 0)) or (QUEUE_CALLS if limited else WINDOW_CALLS)
        arguments = {
            "tables": [table.name for table in self._tables],
            "identities": [table.target[1] for table in self._tables],
            "lanes": self._lanes,
            "autoreset": getattr(autoreset, "value", autoreset),
            "single": single,
        }
        spans = any(not isinstance(table.settings.view, (Step, Opaque, Group)) for table in tables)
        lanes_open = WriterLanes(self._lanes or 1, mode, spans=spans)
        self._pipe = WriterPipe(session.channel, arguments, lanes_open, window)
        weakref.finalize(self, _abandon, self._pipe, os.getpid())
        self._pipe.start(timeout)
        self._plain: RowColumns | None = None
        self._each = [_episodes_of(table) for table in self._tables]

    @property
    def session(self) -> RemoteSession:
        return self._session

    # -- the calls ----------------------------------------------------------------------------------------------

    def append_now(self, step: Any, next: Any, final: Any, lane: Any, priority: Any) -> Any:
        if self._inside:
            raise StoreError(BUSY, remedy=LATER)
        try:  # as `alone` does; here it would take a fifth of a small row's time
            self._inside = True
            if lane is None and priority is None and final is None and not self._tracked:
                row = self._plain_row(step, next)
                if row is not None:
                    return self._sent(row)
            return self._write("append", step, next, final, lane_of(lane), numbers(priority), None, None)
        finally:
            self._inside = False

    @alone
    def append(self, begun: Any, step: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        return self._write("append", step, next, final, lane_of(lane), numbers(priority), _limit(deadline), None)

    @alone
    def extend(self, steps: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        limit, lane, priority = _limit(deadline), lane_of(lane), numbers(priority)
        if self._opaque:
            steps = listed("steps", steps, "a list of values")
        total = len(steps) if self._opaque else rows_of(steps)
        if total == 0:
            raise ValueError("extend() needs at least one row")
        return self._write("extend", steps, next, final, lane, priority, limit, total)

    @alone
    def end_episode(self, final: Any, lane: Any, discard: bool, deadline: Deadline) -> Any:
        limit, lane = _limit(deadline), lane_of(lane)
        which = self._which(lane)
        self._pipe.lanes.ends = True
        short = which is not None and (lane is None or len(which) <= _MOST_LANES)
        if limit is None and final is None and self._pipe.schema is not None and which is not None and short:
            record = Record(0, "end_episode", [], {}, plain_lane(lane, which), None, discard)
            return self._sent(Sent(record, [], which, _all_end(which)))
        arguments = {"final": self._final(final), "lane": lane, "discard": discard}
        which = self._pipe.lanes.every if which is None else which
        return self._asked("end_episode", arguments, which, _all_end(which), limit)

    @alone
    def flush(self, deadline: Deadline) -> None:
        self._pipe.flush(_limit(deadline))

    @alone
    def close(self, deadline: Deadline) -> None:
        limit = Deadline(0.0) if self._pipe.interrupted else _limit(deadline)  # what is on its way has a second
        failure = None
        try:
            self._pipe.catch_up(Deadline.of(limit), "close")
            failure = self._pipe.window.take_failure()
            self._asked("close", {}, every := self._pipe.lanes.every, _all_end(every), limit)
        except Exception as error:  # an earlier failure is the one to raise
            if failure is None and not isinstance(error, EndOfData):
                raise  # a finished table accepts no items: the open episodes add none
        if failure is not None:
            raise failure

    def owned(self) -> None:
        self._session.channel.owns(self._pipe)

    def end(self, why: StoreError, *, idle: bool) -> None:
        self._pipe.close(why)

    def forget(self, why: StoreError) -> None:
        self._pipe.forget(why)

    # -- what they share ----------------------------------------------------------------------------------------

    def _write(
        self,
        method: str,
        step: Any,
        next: Any,
        final: Any,
        lane: Any,
        priority: Any,
        limit: Deadline | None,
        total: Any,
    ) -> Any:
        """`append`, or `extend` of `total` rows: sent ahead, or made by a call of any form, which is waited for."""
        for name in self._tracked:
            version = self._session.versions.get(name, -1)
            if self._pipe.reported.get(name, -1) != version:  # the agent's rows carry it from now on
                self._pipe.flush(limit)
                self._pipe.reported[name] = version  # before the call: if its connection breaks, the next one tells it
                note = Sent(Record(0, "note_version", [], {}), [], _NONE, _GOES_ON)
                self._pipe.make(note, {"name": name, "version": version}, limit)
        if final is None and limit is None:
            call = self._typed(method, step, next, lane, priority, total)
            if call is not None:
                return self._sent(call)
        argument, rows = ("step", 0) if total is None else ("steps", 1)
        arguments = {argument: self._encoded(step, lane, rows), "next": travelling(next)}
        if self._pipe.schema is None and not self._opaque:
            check_lane(lane, self._lanes or 1)
            check_priority_of(priority)
        arguments |= {"final": self._final(final), "lane": lane, "priority": priority}
        which = self._which(lane)
        which = self._pipe.lanes.every if which is None else which
        return self._asked(method, arguments, which, self._pipe.lanes.ends_in(step, len(which), total), limit)

    def _sent(self, call: Sent) -> Any:
        """Send a call, and return its items without waiting for them, unless the window is of one call."""
        self._pipe.push(call)
        if self._pipe.window.most_calls == 1:
            self._pipe.flush(None)
        return self._items(call)

    def _asked(self, method: str, arguments: dict[str, Any], which: Array, ends: Array, limit: Deadline | None) -> Any:
        """Make a call of any form, and wait for it."""
        call = Sent(Record(0, method, [len(ends)], {}), [], which, ends)
        self._pipe.make(call, arguments, limit)
        return self._items(call)

    def _items(self, call: Sent) -> Any:
        if self.single:
            return RemoteItems(self._pipe, call, 0, self._each[0])
        return {
            table.name: RemoteItems(self._pipe, call, place, episodes)
            for place, (table, episodes) in enumerate(zip(self._tables, self._each, strict=True))
        }

    def _final(self, final: Any) -> Any:
        """``final=`` in the form that is sent."""
        observed = [view.obs[0] for table in self._tables if (view := table.settings.view) and hasattr(view, "obs")]
        return travelling(final, finals=observed[0] if observed else "final")

    def _encoded(self, value: Any, lane: Any, rows: int) -> Any:
        """The rows of a call in the form that is sent; encodes values of an opaque table."""
        if not self._opaque:
            return travelling(value)
        lanes = self._lanes is not None and not isinstance(lane, (int, np.integer))
        return blobs(value, rows + lanes)

    # -- rows of known columns ----------------------------------------------------------------------------------

    def _which(self, lane: Any) -> Array | None:
        """The lanes that `lane` names, int64[k]; None: `lane` is invalid, and the agent raises the error."""
        try:
            return self._pipe.lanes.named(lane)
        except (TypeError, ValueError):
            return None

    def _plain_row(self, step: Any, next: Any) -> Row | None:
        """The call of a row like the previous one, without leading axes, lanes or priorities; None: another call."""
        form = None if self._plain is None else self._plain.plain
        found = None if form is None else form.pack(step, next)
        if form is None or found is None:
            return None
        block, at, ended = found
        lanes = self._pipe.lanes
        if form.flags:
            lanes.ends = True
        record = Record(0, "append", form.axes, form.groups)
        return Row(record, form, block, at, lanes.every, _ENDED if ended else _GOES_ON)

    def _typed(self, method: str, step: Any, next: Any, lane: Any, priority: Any, total: int | None) -> Sent | None:
        """The call in the form that needs no types; None: the call needs a round trip.

        Raises:
            SchemaMismatch: a value does not fit its column; nothing was sent.
        """
        columns, lanes = self._plain, self._pipe.lanes
        if columns is None:
            if self._pipe.schema is None or self._opaque:
                return None
            columns = self._plain = RowColumns(self._pipe.schema)
        which = lanes.every if lane is None else self._which(lane)
        if which is None or not len(which) or (lane is not None and len(which) > _MOST_LANES):
            return None
        lead: tuple[int, ...] = () if total is None else (total,)
        if self._lanes is not None and not (lane is not None and np.ndim(lane) == 0):
            lead = (*lead, len(which))
        if priority is not None and not _travels(priority, lead):
            return None
        found = columns.write("step" if total is None else "steps", step, next, lead)
        if found is None:
            return None
        form, block, at = found
        record = Record(0, method, form.axes, form.groups, plain_lane(lane, which), priority)
        if lead:
            return Row(record, form, block, at, which, lanes.ends_in(step, len(which), total))
        ends = _GOES_ON
        if form.flags:
            lanes.ends = True
            for name in form.flags:
                value = step[name]
                if value is not False and value is not _FALSE and (value is True or bool(np.asarray(value).any())):
                    ends = _ENDED
        return Row(record, form, block, at, which, ends)


def _limit(deadline: Deadline) -> Deadline | None:
    """The deadline; None: there is no limit."""
    return None if deadline.timeout is None else deadline


def _all_end(which: Array) -> Array:
    """`Sent.ends` of a call that ends the episodes of these lanes."""
    return np.ones((1, len(which)), np.bool_)


def _travels(priority: Any, lead: tuple[int, ...]) -> bool:
    """Whether priorities are valid and can be sent ahead; otherwise the agent raises the error."""
    try:
        check_priority_of(priority)
    except (TypeError, ValueError):
        return False
    every = sum(map(np.size, priority.values())) if type(priority) is dict else np.size(priority)
    return every <= _MOST_PRIORITIES and _fits(priority, lead)


def _fits(priority: Any, lead: tuple[int, ...]) -> bool:
    """Whether a priority has one value, or one for each row of the call; otherwise the agent raises the error."""
    if type(priority) is dict:
        return all(_fits(each, lead) for each in priority.values())
    by_step = (lead[:1], (*lead[:1], 1)) if len(lead) == 2 else ()
    return np.shape(priority) in ((), lead, *by_step)


def _runs_free(table: FarTable) -> bool:
    """Whether inserts never wait for draws."""
    return type(table.settings.limiter).__name__ in ("MinSize", "Pace")


def _episodes_of(table: FarTable) -> Any:
    def read(keys: Array) -> Array:
        try:
            batch = table.peek(keys, ())
        except (StoreError, SchemaMismatch, NodeUnavailable):
            return np.full(len(keys), -1, np.int64)
        found: Array = np.where(np.asarray(batch.live), batch.episodes, -1)
        return found

    return read


def _abandon(pipe: WriterPipe, pid: int) -> None:
    """End a writer that was dropped without `close`.

    In a forked child this only forgets the pipe, because the writer is the parent's.
    """
    why = WriterClosed("this writer was dropped")
    if os.getpid() != pid:
        pipe.forget(why)
    else:
        pipe.leave(why)
