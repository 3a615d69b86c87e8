"""Reduces the arguments of a call to some of its lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base.dtypes import Array, is_tensor
from di_store.base.errors import SchemaMismatch
from di_store.base.tree import MAX_DEPTH
from di_store.replay.stream import leading_rows

_STEPS = {"step", "steps", "next"}


class LaneValues:
    """The arguments of a call for some lanes of a writer.

    Args:
        which: the lanes, int64[k].
        of: number of lanes of the writer.
        rows: length of the axis of time, which precedes the axis of lanes; None: there is none.
    """

    def __init__(self, which: Array, of: int, rows: int | None) -> None:
        self._which = which
        self._lanes = len(which)
        self._of = of
        self._rows = rows
        self._axis = int(rows is not None)

    def of(self, arguments: dict[str, Any], positions: Array, ends: Array) -> dict[str, Any]:
        """The arguments of a writer's call for the lanes at these positions; `ends` as in `final`."""
        parts = {name: self.steps(arguments[name], positions) for name in _STEPS & arguments.keys()}
        if "priority" in arguments:
            parts["priority"] = self.priority(arguments["priority"], positions)
        final = self.final(arguments["final"], positions, ends)
        parts["final"] = final.reshape(-1).tolist() if isinstance(final, np.ndarray) else final
        return {**arguments, **parts, "lane": self._which[positions]}

    def steps(self, value: Any, positions: Array) -> Any:
        """Rows or observations of the lanes at these positions.

        Raises:
            SchemaMismatch: a leaf does not have one value for each lane.
        """
        return self._taken(value, positions, "")

    def _taken(self, value: Any, positions: Array, path: str, depth: int = 0) -> Any:
        if value is None:
            return None
        if hasattr(value, "items"):
            if depth > MAX_DEPTH:
                raise ValueError(f"columns are nested more than {MAX_DEPTH} deep; does a dict hold itself?")
            return {
                name: self._taken(each, positions, f"{path}/{name}" if path else str(name), depth + 1)
                for name, each in value.items()
            }
        if isinstance(value, (list, tuple)) and self._axis == 0 and len(value) == self._lanes:
            return [value[at] for at in positions.tolist()]
        if isinstance(value, (list, tuple)) and value and all(leading_rows(row) == self._lanes for row in value):
            return [[row[at] for at in positions.tolist()] for row in value]
        given = _array(value)
        if given is None:
            return value
        if given.ndim <= self._axis or given.shape[self._axis] != self._lanes:
            axes = "[rows, lanes, …]" if self._axis else "[lanes, …]"
            raise SchemaMismatch(
                f"column {path!r} has shape {tuple(given.shape)}: with {self._lanes} lanes it is {axes}",
                remedy="nothing was written",
            )
        return given[:, positions] if self._axis else given[positions]

    def final(self, final: Any, positions: Array, ends: Array) -> Any:
        """The part of ``final=`` for some lanes.

        Args:
            final: the argument as given: like `next`, for all lanes or only for those whose episodes end; or
                Gymnasium's ``final_obs``, with one entry for each lane.
            positions: positions of the lanes.
            ends: bool[k]: the lanes whose episodes end in this call.

        Raises:
            As `steps`. ValueError: there are more or fewer entries than lanes.
        """
        if isinstance(final, (np.ndarray, list, tuple)):
            return self._entries(final)[..., positions]
        if not hasattr(final, "items"):
            return final  # None, or what the shard's writer refuses
        count = int(ends.sum())
        if self._axis or count in (0, self._lanes) or leading_rows(_first_leaf(final)) != count:
            return self.steps(final, positions)
        positions = np.searchsorted(np.flatnonzero(ends), positions[ends[positions]])
        return LaneValues(np.flatnonzero(ends), self._of, None).steps(final, positions) if len(positions) else None

    def _entries(self, final: Any) -> Array:
        """The entries of Gymnasium's ``final_obs``, by row and lane; one for each lane of the writer may be given."""
        every: Array = np.empty(final.size if isinstance(final, np.ndarray) else len(final), object)
        for at, entry in enumerate(final.reshape(-1) if isinstance(final, np.ndarray) else final):
            every[at] = entry
        shape = (self._lanes,) if self._rows is None else (self._rows, self._lanes)
        if len(every) == self._lanes * (self._rows or 1):
            return every.reshape(shape)
        if len(every) != self._of:
            raise ValueError(
                f"final= has {len(every)} entries: it is a dict like next=, or holds one entry for each lane "
                f"({self._lanes}), None where none ended"
            )
        return np.broadcast_to(every[self._which], shape)

    def priority(self, priority: Any, positions: Array) -> Any:
        """The part of ``priority=``: one number, one for each lane, each row, or both, or a dict of these by table."""
        if isinstance(priority, dict):
            return {name: self.priority(each, positions) for name, each in priority.items()}
        given = None if priority is None else _array(priority)
        if given is None or given.ndim <= self._axis or given.shape[self._axis] != self._lanes:
            return priority  # one number, one for each row, or a mistake that the shard's writer names
        return given[:, positions] if self._axis else given[positions]


def _array(value: Any) -> Any:
    """The value as something that can be cut; None: it is nothing of that kind, and the shard's writer refuses it."""
    if is_tensor(value):
        return value if str(value.layout) == "torch.strided" and not value.is_nested else None
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError):
        return None


def _first_leaf(tree: Any) -> Any:
    for _ in range(MAX_DEPTH + 1):  # a dict may hold itself
        if not hasattr(tree, "items") or not tree:
            break
        tree = next(iter(tree.values()))
    return tree


def rows_behind(value: Any, first: int, position: int) -> Any:
    """One lane's rows of an `extend` from `first` on, without the axis of lanes."""
    if value is None:
        return None
    if hasattr(value, "items"):
        return {name: rows_behind(each, first, position) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [row[position] for row in value[first:]]
    return (value if is_tensor(value) else np.asarray(value))[first:, position]
