"""Reduces the arguments of a call to some of its lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base.dtypes import Array, is_tensor
from di_store.base.errors import SchemaMismatch


class LaneValues:
    """The arguments of a call for k lanes.

    Args:
        lanes: k.
        rows: whether an axis of time precedes the axis of lanes.
    """

    def __init__(self, lanes: int, *, rows: bool) -> None:
        self._lanes = lanes
        self._axis = int(rows)

    def steps(self, value: Any, positions: Array) -> Any:
        """Rows or observations of the lanes at these positions.

        Raises:
            SchemaMismatch: a leaf does not have one value for each lane.
        """
        return self._taken(value, positions, "")

    def _taken(self, value: Any, positions: Array, path: str) -> Any:
        if value is None:
            return None
        if hasattr(value, "items"):
            return {
                name: self._taken(each, positions, f"{path}/{name}" if path else str(name))
                for name, each in value.items()
            }
        if isinstance(value, (list, tuple)) and self._axis == 0 and len(value) == self._lanes:
            return [value[at] for at in positions.tolist()]
        if isinstance(value, (list, tuple)) and value and all(_length(row) == self._lanes for row in value):
            return [[row[at] for at in positions.tolist()] for row in value]
        given = value if is_tensor(value) else np.asarray(value)
        if given.ndim <= self._axis or given.shape[self._axis] != self._lanes:
            axes = "[rows, lanes, …]" if self._axis else "[lanes, …]"
            raise SchemaMismatch(
                f"column {path!r} has shape {tuple(given.shape)}: with {self._lanes} lanes it is {axes}",
                remedy="nothing was written",
            )
        return given[:, positions] if self._axis else given[positions]

    def final(self, final: Any, positions: Array, ends: Array) -> Any:
        """The part of ``final=`` for some lanes. It has values for all lanes, or only for those whose episodes end.

        Args:
            final: the argument as given.
            positions: positions of the lanes.
            ends: bool[k]: the lanes whose episodes end in this call.
        """
        if final is None:
            return None
        if hasattr(final, "items"):
            found = {name: self.final(value, positions, ends) for name, value in final.items()}
            return None if all(value is None for value in found.values()) else found
        count = _length(final) if not self._axis or isinstance(final, (list, tuple)) else np.asarray(final).shape[1]
        if count == int(ends.sum()) and count != self._lanes:
            positions = np.searchsorted(np.flatnonzero(ends), positions[ends[positions]])
            if not len(positions):
                return None
            return LaneValues(count, rows=bool(self._axis)).steps(final, positions)
        return self.steps(final, positions)

    def priority(self, priority: Any, positions: Array) -> Any:
        """The part of ``priority=``: one number, one for each lane, each row, or both, or a dict of these by table."""
        if isinstance(priority, dict):
            return {name: self.priority(each, positions) for name, each in priority.items()}
        if priority is None or np.ndim(priority) <= self._axis:
            return priority
        given: Array = np.asarray(priority)
        if given.shape[self._axis] != self._lanes:
            return priority  # one for each row, or a mistake that the shard's writer names
        return given[:, positions] if self._axis else given[positions]


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else -1


def rows_behind(value: Any, first: int, position: int) -> Any:
    """One lane's rows of an `extend` from `first` on, without the axis of lanes."""
    if value is None:
        return None
    if hasattr(value, "items"):
        return {name: rows_behind(each, first, position) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [row[position] for row in value[first:]]
    return (value if is_tensor(value) else np.asarray(value))[first:, position]
