"""Maps transitions, as cpprb describes them, to rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import di_store
from di_store.adapters.casts import cast
from di_store.adapters.stored_array import Array

Rows = dict[str, Array]

ROW_NODE = "row"
"""Node of the table's schema that columns lie below if their own names would mean something to the table."""
_FLAGS = ("terminated", "truncated")


class TransitionColumns:
    """The values of a transition as `env_dict` and `next_of` describe them, and how they lie in a table.

    Without `next_of` and `stack_compress` a transition is one row. With them, the table keeps each observation once,
    and each frame of a stack once. A transition is then a window: as many rows as the largest stack has frames, and one
    more for the next observation. Rows that only hold the older frames of an episode's first stack precede that
    episode.
    """

    def __init__(self, env: Mapping[str, Any], default: Any, next_of: list[str], stacked: list[str]) -> None:
        if not env:
            raise ValueError("env_dict names no value to store: give one, such as {'obs': {'shape': 4}, 'done': {}}")
        self.types = {name: np.dtype(each.get("dtype", default)) for name, each in env.items()}
        self.shapes = {name: _shape(each.get("shape", 1)) for name, each in env.items()}
        for option, names in (("next_of", next_of), ("stack_compress", stacked)):
            if unknown := [name for name in names if name not in env]:
                raise ValueError(f"{option}={unknown}: not in env_dict, which has {list(env)}")
        self.next_of, self.stacked = next_of, stacked
        for name in next_of:
            self.types["next_" + name], self.shapes["next_" + name] = self.types[name], self.shapes[name]
        self.frames = max((self.shapes[name][-1] for name in stacked), default=1)
        self.windowed = bool(next_of or stacked)
        self.nested = self.windowed or any(name in _FLAGS for name in env)
        self.names = list(env)
        self.empty = frozenset(name for name, shape in self.shapes.items() if 0 in shape)
        self._targets = {name: (-1, *shape) for name, shape in self.shapes.items() if name not in self.empty}

    def schema(self) -> dict[str, Any]:
        """The columns of the table."""
        own = {
            name: di_store.Spec(self.shapes[name][:-1] if name in self.stacked else self.shapes[name], self.types[name])
            for name in self.names
        }
        return {ROW_NODE: own, "truncated": di_store.Spec((), np.bool_)} if self.windowed else self.placed(own)

    def view(self) -> Any:
        """How rows become a transition."""
        if not self.windowed:
            return di_store.Step()
        after = tuple(f"{ROW_NODE}/{name}" for name in self.next_of)
        return di_store.Sequence(1, 1, burn_in=self.frames - 1, tail="drop", bootstrap=after)

    def rows(self, values: Mapping[str, Any]) -> Rows:
        """The transitions of one call of `add`, each value as ``[n, …]`` of its column's type.

        Raises:
            KeyError: a value is missing. ValueError: a value's shape does not fit, or the values differ in n.
            di_store.SchemaMismatch: a value lies outside the range of its type.
        """
        targets = self._targets
        if self.empty:
            targets = targets | {name: _target(name, values[name], self.shapes[name]) for name in self.empty}
        rows = {name: cast(values[name], kind, name).reshape(targets[name]) for name, kind in self.types.items()}
        if len({len(each) for each in rows.values()}) != 1:
            counts = ", ".join(f"{name} {len(each)}" for name, each in rows.items())
            raise ValueError(f"the columns have different numbers of steps: {counts}")
        return rows

    def placed(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The same values at their places in the table's schema."""
        return {ROW_NODE: dict(rows)} if self.nested else dict(rows)

    def newest(self, name: str, rows: Array) -> Array:
        """The newest frames of stacks; rows of all other values."""
        return rows[..., -1] if name in self.stacked else rows

    def values(self, data: dict[str, Any]) -> Rows:
        """A batch's data as cpprb returns it: stacks on the last axis, other values without the axis of rows."""
        if not self.windowed:
            return data[ROW_NODE] if self.nested else data
        found, data = {}, data[ROW_NODE]
        for name in self.names:
            window, last = data[name], self.frames
            if name in self.stacked:
                first = last - self.shapes[name][-1]
                found[name] = np.moveaxis(window[:, first:last], 1, -1)
                after = window[:, first + 1 : last + 1]
                if name in self.next_of:  # a copy: who changes `obs` in place must not change `next_obs`
                    found["next_" + name] = np.moveaxis(after.copy(), 1, -1)
                continue
            found[name] = window[:, last - 1]
            if name in self.next_of:
                found["next_" + name] = window[:, last]
        return found


def _target(name: str, value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a value without elements: the leading axes give the number of steps."""
    given = np.shape(value)
    count = len(given) - len(shape)
    if count < 0 or given[count:] != shape:
        raise ValueError(f"{name} has the shape {list(given)}, but a step needs {list(shape)}")
    return math.prod(given[:count]), *shape


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in np.atleast_1d(np.asarray(shape, np.int64)).tolist())
