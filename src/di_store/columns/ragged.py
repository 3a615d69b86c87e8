"""Rows of varying length in one array."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from di_store.base.dtypes import import_torch, is_tensor
from di_store.base.errors import shown


class Ragged:
    """Rows of varying length, packed. It holds numpy arrays or torch tensors, like the batch that it belongs to.

    Attributes:
        values: ``[total, …]``, all rows concatenated.
        offsets: int64[rows + 1]; row i is ``values[offsets[i]:offsets[i + 1]]``.
        lead: shape of the rows: ``(n,)``, or ``(n, time)`` if each example has several.
    """

    __slots__ = ("lead", "offsets", "values")

    def __init__(self, values: Any, offsets: Any, lead: tuple[int, ...] | None = None) -> None:
        self.values = values
        self.offsets = offsets
        self.lead = (len(offsets) - 1,) if lead is None else lead

    def __len__(self) -> int:
        return self.lead[0]

    def __getitem__(self, row: int) -> Any:
        """Row `row` of all rows, as if `lead` had one axis."""
        row = _whole("row", row)
        if not -len(self.offsets) < row < len(self.offsets) - 1:
            raise IndexError(f"row {row} of {len(self.offsets) - 1}")
        row %= len(self.offsets) - 1
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self.offsets) - 1))

    @property
    def lengths(self) -> Any:
        """Number of elements of each row: int64 of shape `lead`, on the device of `offsets`."""
        offsets = self.offsets if is_tensor(self.offsets) else np.asarray(self.offsets)
        return (offsets[1:] - offsets[:-1]).reshape(self.lead)

    def padded(self, fill: Any = 0, to: int | None = None) -> Any:
        """``[*lead, to, …]``: each row followed by `fill`, on the device and in the dtype of `values`.

        Args:
            fill: value after the end of each row.
            to: elements of every row; None: those of the longest row.

        Raises:
            ValueError: a row is longer than `to`, or `fill` does not fit the elements.
        """
        to = None if to is None else _whole("to", to)
        lengths = self.lengths.reshape(-1)
        if to is None or not (is_tensor(lengths) and lengths.is_meta):
            longest = int(lengths.max()) if len(lengths) else 0
            if to is None:
                to = longest
            elif longest > to:
                raise ValueError(f"padded(to={to}): the longest row has {longest} elements")
        make = _padded_tensor if is_tensor(self.values) else _padded_array
        try:
            found = make(self, fill, lengths, to)
        except (OverflowError, TypeError, ValueError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise ValueError(f"padded(fill={shown(fill)}, to={shown(to)}): {why}") from None
        return found.reshape(*self.lead, to, *self.values.shape[1:])

    def nested(self) -> Any:
        """A torch nested tensor with jagged layout, ``[rows, (varying), …]``. It shares memory with tensors.

        If each example has several rows (``lead == (n, time)``), it has n * time rows.
        """
        torch = import_torch("Ragged.nested()")
        values, offsets = self.values, self.offsets
        if not is_tensor(values):
            values, offsets = torch.from_numpy(np.ascontiguousarray(values)), torch.from_numpy(np.asarray(offsets))
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    def __repr__(self) -> str:
        return f"Ragged({len(self.offsets) - 1} rows, {len(self.values)} elements of {self.values.dtype})"


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises the others for values that it cannot convert
        raise TypeError(f"{name}={shown(value)} is a {type(value).__name__}: give a whole number") from None


def _padded_array(ragged: Ragged, fill: Any, lengths: Any, to: int) -> Any:
    values, lengths = np.asarray(ragged.values), np.asarray(lengths)
    out = np.full((len(lengths), to, *values.shape[1:]), fill, dtype=values.dtype)
    out[np.arange(to)[None, :] < lengths[:, None]] = values[int(ragged.offsets[0]) : int(ragged.offsets[-1])]
    return out


def _padded_tensor(ragged: Ragged, fill: Any, lengths: Any, to: int) -> Any:
    """Gathers instead of assigning through a mask: a mask makes the host wait for the GPU, even if `to` is given."""
    torch, values, offsets = import_torch("padded()"), ragged.values, ragged.offsets
    if to == 0 or not len(values):
        return values.new_full((len(lengths), to, *values.shape[1:]), fill)
    place = torch.arange(to, device=values.device)[None, :]
    there = place < lengths[:, None]
    rows = values[(offsets[:-1, None] + place).clamp(max=len(values) - 1)]
    return rows.masked_fill(~there.reshape(*there.shape, *[1] * (values.ndim - 1)), fill)
