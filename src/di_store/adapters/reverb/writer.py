"""Reverb's older writer: items are the newest steps of a stream."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from di_store.adapters.reverb import nest
from di_store.adapters.reverb.served import Service
from di_store.adapters.reverb.trajectory_writer import TrajectoryWriter


class Writer:
    """Appends steps, and creates items of the newest ones. Made by `Client.writer`."""

    def __init__(self, connect: Callable[[], Service], max_sequence_length: int, max_in_flight_items: int) -> None:
        self._inner = TrajectoryWriter(connect, max_sequence_length, validate_items=False)
        self._most, self._length = max_in_flight_items, max_sequence_length
        self._closed = False

    def __enter__(self) -> Writer:
        if self._closed:
            raise ValueError("Cannot reuse already closed Writer")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()
        self.close()

    def __repr__(self) -> str:
        return f"Writer(max_sequence_length={self._length}), closed: {self._closed}"

    def append(self, data: Any) -> None:
        """Add a step."""
        self._inner.append(nest.flatten(data))

    def append_sequence(self, sequence: Any) -> None:
        """Add steps: leaves ``[time, …]``."""
        leaves = [np.asarray(leaf) for leaf in nest.flatten(sequence)]
        if len({len(leaf) for leaf in leaves}) != 1:
            raise ValueError("all leaves of a sequence need the same first dimension")
        for step in zip(*leaves, strict=True):
            self._inner.append(list(step))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Insert an item of the newest `num_timesteps` steps.

        Raises:
            ValueError: there are fewer steps, or no such table.
        """
        if num_timesteps < 1:
            raise ValueError(f"num_timesteps ({num_timesteps}) must be a positive integer")
        self._inner.create_item(table, priority, [column[-num_timesteps:] for column in self._inner.history])
        self._inner.flush(self._most)

    def flush(self) -> None:
        """Wait until all items are in their tables."""
        self._inner.flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Wait as `flush` does. The writer cannot be used afterwards.

        Args:
            retry_on_unavailable: has no effect.
        """
        if self._closed:
            raise ValueError("close() has already been called on Writer.")
        self._closed = True
        self._inner.flush()
        self._inner.close()
