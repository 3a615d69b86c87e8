"""Lets TorchRL's writers continue after the rows that a storage already holds.

A writer of TorchRL's counts from 0 in each new buffer. After a restart, or beside another buffer of the same storage,
it overwrites the newest rows. The writers here ask the storage instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import torch
from torchrl.data.replay_buffers.utils import _reduce
from torchrl.data.replay_buffers.writers import (
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    Writer,
)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _written(writer: Any, write: Callable[[Any], Any], data: Any) -> Any:
    """Write rows at the ring's next position, which the storage need not look up a second time."""
    storage = writer._storage
    cursor = storage.named.cursor()
    if cursor is None:
        return write(data)
    writer._cursor = cursor
    rows = storage.named.rows
    rows.expect()
    try:
        return write(data)
    finally:
        rows.expected = None


class _Continuing(Writer):  # type: ignore[misc]
    """What both rings do in another way than TorchRL's."""

    def add(self, data: Any) -> Any:
        """As TorchRL's."""
        return _written(self, super().add, data)

    def extend(self, data: Any) -> Any:
        """As TorchRL's."""
        return _written(self, super().extend, data)


class _Ring(_Continuing, RoundRobinWriter):  # type: ignore[misc]
    """TorchRL's `RoundRobinWriter`."""


class _TensorDictRing(_Continuing, TensorDictRoundRobinWriter):  # type: ignore[misc]
    """TorchRL's `TensorDictRoundRobinWriter`."""


class _MaxValue(TensorDictMaxValueWriter):  # type: ignore[misc]
    """TorchRL's `TensorDictMaxValueWriter`, which also knows the values of the existing rows."""

    _current_top_values: list[tuple[float, int]]

    def register_storage(self, storage: Any) -> None:
        """As TorchRL's."""
        super().register_storage(storage)
        count = len(storage)
        if not count or self._current_top_values:
            return
        values = storage[:].get(self._rank_key).reshape(count, -1)
        ranks = values[:, 0] if values.shape[1] == 1 else _reduce(values, self._reduction, dim=1)
        self._current_top_values = list(zip(ranks.tolist(), range(count), strict=True))
        heapq.heapify(self._current_top_values)
        self._cursor = count % storage.max_size


_KINDS = {
    RoundRobinWriter: _Ring,
    TensorDictRoundRobinWriter: _TensorDictRing,
    TensorDictMaxValueWriter: _MaxValue,
}


def continuing(storage: Any, writer: Any) -> Writer:
    """The writer that a buffer of `storage` gets for its argument `writer`; it reads its position from the storage.

    A ring writer of a user's own class learns only once where the ring continues.
    """
    made = RoundRobinWriter() if writer is None else writer if isinstance(writer, Writer) else writer()
    made.__class__ = _KINDS.get(type(made), type(made))
    if isinstance(made, RoundRobinWriter) and (cursor := storage.named.cursor()) is not None:
        made._cursor = cursor
    return made
