"""The steps of a buffer in a table, and whether they may have a NaN."""

from __future__ import annotations

from typing import Any

from di_store.adapters.ring import Held, Ring, parts
from di_store.adapters.trees import any_nan, named_leaves


class TianshouSteps(Ring):
    """A ring of each environment's steps.

    Attributes:
        has_nan: whether a row written since the last `clear` has a NaN, even if the row was evicted.
    """

    has_nan = False

    def _completed(self, slots: Any, rows: dict[str, Any], one: bool) -> dict[str, Any]:
        self.has_nan = self.has_nan or any_nan(rows)  # rows do not change later
        return rows

    def clear(self) -> None:
        """Remove all rows."""
        super().clear()
        self.has_nan = False

    def take_over(self, columns: tuple[str, ...] = ()) -> Held:
        """As `Ring.take_over`."""
        held = super().take_over(columns)
        kinds = [(name.partition(".")[0], spec.dtype.kind) for name, spec in named_leaves(self.specs)]
        floats = tuple({name for name, kind in kinds if kind == "f"})
        found = (self.read(held.slots[part], floats) for part in parts(len(held.slots)))
        self.has_nan = bool(floats) and any(map(any_nan, found))
        return held
