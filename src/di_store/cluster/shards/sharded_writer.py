"""A writer of a table in parts: each lane's rows go to its shard, through that shard's own writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.client.agent_client import CONNECT_SECONDS
from di_store.client.lane_values import LaneValues, rows_behind
from di_store.client.lanes import priority_behind
from di_store.client.turns import OwnedWriter, alone
from di_store.cluster.shards.lanes import Lanes
from di_store.cluster.shards.merge import ShardItems
from di_store.cluster.shards.parts import Parts
from di_store.replay.batch import Items
from di_store.replay.stream import autoreset_mode, rows_of
from di_store.replay.table_backend import TableBackend
from di_store.replay.writer import WriterBackend
from di_store.runtime.deadline import Deadline
from di_store.session import Session

Part = tuple[int, Array]
"""Number of a shard, and the positions of its lanes among those of a call."""


class ShardWriter(OwnedWriter):
    """A writer of a table in parts: a backend of the shards' own writers."""

    single = True

    def __init__(self, parts: Parts, lanes: int | None, autoreset: Any) -> None:
        self._parts = parts
        self._count = None if lanes is None else config.count("lanes", lanes, minimum=1, maximum=2**20)
        self._autoreset = autoreset
        self._writers: dict[int, WriterBackend] = {}
        self._owned = False
        deadline = Deadline(CONNECT_SECONDS)
        parts.answers.last(deadline)  # lanes are not given to those that do not answer
        self._lanes = Lanes(parts, self._count or 1, autoreset_mode(autoreset))
        self._open_all(deadline)

    @property
    def session(self) -> Session:
        return self._parts.session

    def _open_all(self, deadline: Deadline) -> None:
        """The writers of all shards that have a lane: learners see that somebody writes."""
        while missing := set(np.unique(self._lanes.at).tolist()) - self._writers.keys():
            for number, step in deadline.steps(sorted(missing)):
                try:
                    self._opened(number, step)
                except StoreError as error:
                    if not self._lose_if_gone(number, error, step) or self._lanes.all_lost():
                        raise

    def _opened(self, number: int, deadline: Deadline) -> WriterBackend:
        """The writer of a shard."""
        found = self._writers.get(number)
        if found is None:

            def opened(table: TableBackend, within: Deadline) -> WriterBackend:
                return table.writer(self._count, self._autoreset, within)

            found = self._writers[number] = self._parts.shards[number].call(deadline, opened)
            if self._owned:
                found.owned()
        return found

    # -- the calls ----------------------------------------------------------------------------------------------

    @alone
    def append(self, begun: Any, step: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        return self._write(step, {"next": next, "final": final, "priority": priority}, lane, deadline, None)

    @alone
    def extend(self, steps: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        opaque = self._parts.settings.opaque
        steps = config.listed("steps", steps, "a list of values") if opaque else steps
        total = len(steps) if opaque else rows_of(steps)
        if total == 0:
            raise ValueError("extend() needs at least one row")
        return self._write(steps, {"next": next, "final": final, "priority": priority}, lane, deadline, total)

    @alone
    def end_episode(self, final: Any, lane: Any, discard: bool, deadline: Deadline) -> Any:
        which = self._lanes.named(lane)
        self._lanes.ends = True
        every = np.ones(len(which), np.bool_)
        values = LaneValues(which, self._count or 1, None)
        single = self._is_single(lane)

        def end(writer: WriterBackend, positions: Array, within: Deadline) -> Any:
            mine = final if single or len(positions) == len(which) else values.final(final, positions, every)
            return writer.end_episode(mine, self._named(lane, which, positions), discard, within)

        items, lost = self._over_shards("end_episode", which, deadline, end)
        self._lanes.begin(which)
        if lost is not None:
            raise lost
        return items

    @alone
    def flush(self, deadline: Deadline) -> None:
        failed: StoreError | None = None
        for number, step in deadline.steps(list(self._writers)):
            try:
                self._parts.shards[number].check_time(step)
                self._writers[number].flush(step)
            except StoreError as error:
                failed = failed or error
                self._lose_if_gone(number, error, step)
        self._parts.answers.forget_empty()
        if failed is not None:
            raise failed

    @alone
    def close(self, deadline: Deadline) -> None:
        failed: Exception | None = None
        for writer, step in deadline.steps(list(self._writers.values())):
            try:
                writer.close(step)
            except Exception as error:  # what rows have raised that were sent ahead: the other shards' writers end too
                failed = failed or error
        self._parts.answers.forget_empty()
        if failed is not None:
            raise failed

    def owned(self) -> None:
        self._owned = True
        for writer in self._writers.values():
            writer.owned()

    def end(self, why: StoreError, *, idle: bool) -> None:
        for writer in self._writers.values():
            writer.end(why, idle=idle)

    def forget(self, why: StoreError) -> None:
        for writer in self._writers.values():
            writer.forget(why)

    # -- what they share ----------------------------------------------------------------------------------------

    def _is_single(self, lane: Any) -> bool:
        """Whether leaves have no axis of lanes."""
        return self._count is None or (lane is not None and np.ndim(lane) == 0)

    def _named(self, lane: Any, which: Array, positions: Array) -> Any:
        """``lane=`` for a shard's writer."""
        return lane if self._is_single(lane) or len(positions) == len(which) == self._count else which[positions]

    def _write(self, step: Any, given: dict[str, Any], lane: Any, deadline: Deadline, total: int | None) -> Any:
        """`append`, or `extend` of `total` rows."""
        which = self._lanes.named(lane)
        ends = self._lanes.ends_in(step, len(which), total)
        values = LaneValues(which, self._count or 1, total)
        single = self._is_single(lane)
        ended: Array = np.atleast_1d(ends.any(axis=0))

        def write(writer: WriterBackend, positions: Array, within: Deadline) -> Any:
            mine, part = step, given
            if not single and len(positions) < len(which):
                mine = values.steps(step, positions)
                part = {**given, "priority": values.priority(given["priority"], positions)}
                if not self._parts.settings.opaque:  # it has neither, and its shard says so
                    part["next"] = values.steps(given["next"], positions)
                    part["final"] = values.final(given["final"], positions, ended)
            named = self._named(lane, which, positions)
            rest = part["next"], part["final"], named, part["priority"], within
            found = writer.append(None, mine, *rest) if total is None else writer.extend(mine, *rest)
            self._lanes.wrote(which[positions], ends[:, positions])
            return found

        cut = self._lanes.is_cut(which)
        items, lost = self._over_shards("append" if total is None else "extend", which, deadline, write)
        for position, first in self._lanes.drop(which, cut | self._lanes.is_cut(which), ends):
            behind = {
                "next": given["next"] if single else rows_behind(given["next"], first, position),
                "final": None,
                "priority": priority_behind(given["priority"], first, position),
            }
            rows = step[first:] if single and self._parts.settings.opaque else rows_behind(step, first, position)
            more = self._write(rows, behind, int(which[position]), deadline, len(ends) - first)
            items = ShardItems([*items.parts, *more.parts])
        if lost is not None:
            raise lost
        return items

    def _over_shards(
        self,
        method: str,
        which: Array,
        deadline: Deadline,
        call: Callable[[WriterBackend, Array, Deadline], Any],
    ) -> tuple[ShardItems, Exception | None]:
        """The items that each shard's writer made, and the error of lost shards."""
        found: list[tuple[int, Items]] = []
        written: list[Array] = []
        lost: StoreError | None = None
        for (number, positions), step in deadline.steps(self._in_order(self._lanes.groups(which))):
            try:
                writer = self._opened(number, step)
                self._parts.shards[number].check_time(step)
                found.append((number, call(writer, positions, step)))
                written.append(which[positions])
            except (StoreError, ValueError, TypeError) as error:
                if isinstance(error, StoreError) and self._lose_if_gone(number, error, step):
                    lost = lost or error
                    continue
                raise _partly(method, error, written) from None
        return ShardItems(found), None if lost is None else _partly(method, lost, written)

    def _in_order(self, groups: list[Part]) -> list[Part]:
        """Silent shards come last, because they may take all of the call's time."""
        if len(groups) == 1:
            return groups
        answers, shards = self._parts.answers, self._parts.shards
        return sorted(groups, key=lambda group: answers.is_silent(shards[group[0]]))

    def _lose_if_gone(self, number: int, error: StoreError, deadline: Deadline) -> bool:
        """Whether a call failed because the shard is lost; then its lanes get other shards."""
        shard = self._parts.shards[number]
        if getattr(error, "may_be_done", False) or not self._parts.is_lost(shard, error, deadline):
            return False
        self._writers.pop(number, None)
        self._lanes.lose(number)
        return True


def _partly(method: str, error: Exception, written: list[Array]) -> Exception:
    """The error of a call in which some lanes have written their rows."""
    if written:
        lanes = np.sort(np.concatenate(written)).tolist()
        error.written = lanes  # type: ignore[attr-defined]
        if isinstance(error, StoreError):
            error.args = (f"{error}; {method} has already written lanes {lanes}, which are in other shards",)
    return error
