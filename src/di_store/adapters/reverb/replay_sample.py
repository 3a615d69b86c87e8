"""The results of samplers."""

from __future__ import annotations

from typing import Any, NamedTuple


class SampleInfo(NamedTuple):
    """How an item was drawn: Python numbers from `Client.sample`, numpy numbers or arrays from a dataset.

    Attributes:
        key: key of the item, for `Client.mutate_priorities`.
        probability: probability with which the item was drawn.
        table_size: items in the table at that time.
        priority: priority of the item at that time.
        times_sampled: number of draws of the item, including this one.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any

    @classmethod
    def zeros(cls) -> SampleInfo:
        """All fields zero."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """One item, or a batch of items.

    Attributes:
        info: how the item was drawn.
        data: its columns: nested if the reader knows the structure, else a list.
    """

    info: SampleInfo
    data: Any
