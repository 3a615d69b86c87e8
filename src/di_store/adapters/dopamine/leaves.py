"""Elements of any accumulator: arrays in a table, numbers beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

import di_store
from di_store.adapters.casts import cast
from di_store.adapters.dopamine.stored import InTable, Values, new_rows
from di_store.adapters.stored_array import Array


class Leaves(InTable):
    """Elements by slot, which are JAX trees of equal structure.

    Args:
        accumulator: makes the elements.
        slots: number of elements that it holds.
        store: the store of the arrays; None: a store of its own.
        table: name of the table.
    """

    def __init__(
        self, accumulator: Any, slots: int, store: di_store.Store | None = None, table: str = "replay"
    ) -> None:
        self._store, self._table = store, table
        self._accumulator, self._slots = accumulator, slots
        self.clear()

    def clear(self) -> None:
        """Remove all elements. The next element decides their structure and types."""
        self.close()
        self._tree: Any = None
        self.rows = None
        self._specs: dict[str, di_store.Spec] = {}
        self._values: dict[str, Values] = {}

    def accumulate(self, transition: Any) -> Iterable[Any]:
        """The elements that a transition completes."""
        found: Iterable[Any] = self._accumulator.accumulate(transition)
        return found

    def put(self, slot: int, element: Any) -> None:
        """Set the element of a slot.

        Raises:
            ValueError: the element differs from the first one in structure, or in shape or type of an array.
            di_store.CapacityError: at the first element: the elements do not fit in the machine's memory.
        """
        leaves, tree = jax.tree_util.tree_flatten(element)
        if self._tree is None:
            self._begin(leaves, tree)
        if tree != self._tree:
            raise ValueError(f"the accumulator made an element {tree}, and the first one was {self._tree}")
        named = dict(zip(self._names, leaves, strict=True))
        for name, spec in self._specs.items():
            array = np.asarray(named[name])
            if array.shape != spec.shape or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
                raise ValueError(
                    f"the accumulator made an element with an array {array.dtype}{list(array.shape)}, which was "
                    f"{np.dtype(spec.dtype)}{list(spec.shape)} in the first one"
                )
            cast(array, np.dtype(spec.dtype), "an array of an element")
        if self.rows is not None:
            staged, part = self.rows.place(slot, 1)
            for name in self._specs:
                staged[name][part] = named[name]
        for name, values in self._values.items():
            values.put(slot, named[name])

    def _begin(self, leaves: list[Any], tree: Any) -> None:
        self._tree, self._names = tree, [f"leaf{number}" for number in range(len(leaves))]
        for name, leaf in zip(self._names, map(np.asarray, leaves), strict=True):
            if leaf.ndim and leaf.size and leaf.dtype.kind in "biufc":
                self._specs[name] = di_store.Spec(leaf.shape, leaf.dtype)
            else:
                self._values[name] = Values(self._slots, "a value of an element")
        if self._specs:
            self.rows = new_rows(self._specs, self._slots, self._store, self._table)

    def drop(self, oldest: int | None) -> None:
        """Does nothing: slots are written again."""

    def match(self, slots: Array) -> Array:
        """Find the arrays in the table again: bool[n], True for elements of these slots that lack them."""
        lacking: Array = np.zeros(len(slots), np.bool_) if self.rows is None else self._changed()[slots]
        return lacking

    def read(self, slots: Array) -> Any:
        """The elements of these slots: a tree of arrays ``[n, …]``."""
        found: dict[str, Array] = {name: values.take(slots) for name, values in self._values.items()}
        if self.rows is not None:
            found |= self.rows.read(slots, tuple(self._specs))
        return jax.tree_util.tree_unflatten(self._tree, [found[name] for name in self._names])

    def state(self, slots: Array) -> dict[str, Any]:
        """The elements of these slots for `restore`."""
        if not len(slots):
            return {"leaves": [], "tree": None}
        pieces = [self.read(slots[begin : begin + 1_024]) for begin in range(0, len(slots), 1_024)]
        return {"leaves": [jax.tree_util.tree_leaves(piece) for piece in pieces], "tree": self._tree}

    def restore(self, slots: Array, state: dict[str, Any]) -> None:
        """Put the elements that `state` returned."""
        self.restore_elements(slots, (state["tree"].unflatten(row) for row in rows_of(state["leaves"])))

    def restore_elements(self, slots: Array, elements: Iterator[Any]) -> None:
        """Put these elements."""
        for slot, element in zip(slots.tolist(), elements, strict=True):
            self.put(slot, element)


def rows_of(pieces: list[Any]) -> Iterator[Any]:
    """The leaves of each element, from the pieces that `Leaves.state` returned."""
    return (row for piece in pieces for row in zip(*piece, strict=True))
