"""Steps that were drawn, and the rows that are read for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from di_store.adapters.rllib.parts import Name
from di_store.adapters.rllib.rows import EpisodeTable
from di_store.adapters.rllib.stored import StoredEpisode
from di_store.adapters.stored_array import Array

Columns: TypeAlias = dict[Name, list[Array]]
"""By sequence: the columns of its leaves, ``[n, …]``."""


class Window:
    """The steps `step` to `stop` - 1 of an episode: `count` steps, or fewer at the end of the episode."""

    __slots__ = ("count", "step", "stop", "stored")

    def __init__(self, stored: StoredEpisode, step: int, count: int) -> None:
        self.stored, self.step, self.count = stored, step, count
        self.stop = min(step + count, len(stored))


def read_rows(
    chosen: Sequence[Window], back: Sequence[int] | None, names: Iterable[Name] | None
) -> Iterator[tuple[EpisodeTable, list[int], list[int], Columns]]:
    """Rows of windows, by table: the table, which of the windows lie in it, where the rows of each end, and the rows.

    The last row of a window is that of the observation after its last step.

    Args:
        chosen: the windows.
        back: for each window, how many steps before it are read too; None: of each window only the first row and the
            last one.
        names: names of sequences; None: all.
    """
    places: dict[Any, list[int]] = {}
    for number, window in enumerate(chosen):
        places.setdefault(window.stored.place, []).append(number)
    for place, numbers in places.items():
        keys: list[int] = []
        ends, tails = [], []
        for number in numbers:
            window = chosen[number]
            stored = window.stored
            first, last = stored.back + window.step, stored.back + window.stop
            if back is None:
                keys.append(stored.keys[first])
            else:
                keys += stored.keys[first - back[number] : last]
            if last == len(stored.keys):  # the last observation has no row yet
                tails.append((len(keys), stored.tail or []))
                last -= 1
            keys.append(stored.keys[last])
            ends.append(len(keys))
        rows = place.read(keys, place.parts if names is None else names)
        for at, tail in tails:
            for column, row in zip(rows["obs"], tail, strict=True):
                column[at] = row[0]
        yield place, numbers, ends, rows


def read(chosen: Sequence[Window], back: Sequence[int], names: Iterable[Name] | None) -> list[Columns]:
    """Columns of windows, by window; the arguments are as those of `read_rows`."""
    found: list[Columns] = [{} for _ in chosen]
    for _, numbers, ends, rows in read_rows(chosen, back, names):
        for number, begin, end in zip(numbers, [0, *ends], ends, strict=False):
            found[number] = {name: [column[begin:end] for column in columns] for name, columns in rows.items()}
    return found
