"""Rows, episodes and the reading of one observation: what a lane of a writer knows.

A row is a flat dict from column name (path joined by `/`) to the value of one lane at one step; the value of a ragged
column is a tuple.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Row = dict[str, Any]


def under(column: str, names: tuple[str, ...]) -> bool:
    """Whether `column` is one of `names` or lies below one of them in the tree."""
    return any(column == name or column.startswith(name + "/") for name in names)


def flatten(tree: dict[str, Any], prefix: str = "") -> Row:
    """A nested dict as a flat one; names are joined by `/`."""
    flat: Row = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}/"))
        else:
            flat[prefix + name] = value
    return flat


def same(left: Any, right: Any) -> bool:
    """Bit-exact equality of two column values."""
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


@dataclass
class Episode:
    """One episode of one lane, or (for `cross_episodes`) the whole run of a lane.

    Attributes:
        rows: complete rows, oldest first.
        following: what is known of the row after the last one: `next=`, `final=`, or None.
        ended: no further row will come.
        settled: ended, and no final observation may come any more.
        origins: for every row the episode it came from and its number there.
        made: by table, the windows that became items: where each stops, by its start.
        endings: of a run, the episodes that ended in it, by the number of the row behind their last one.
        late: what is known of the row behind an open episode completes no items before that row is whole.
    """

    number: int
    lane: int
    rows: list[Row] = field(default_factory=list)
    following: Row | None = None
    ended: bool = False
    settled: bool = False
    origins: list[tuple[int, int]] = field(default_factory=list)
    made: dict[str, dict[int, int]] = field(default_factory=dict)
    endings: dict[int, Episode] = field(default_factory=dict)
    late: bool = False

    def copy(self) -> Episode:
        """An episode that can be appended to without changing this one; rows are shared, they never change."""
        made = {table: dict(windows) for table, windows in self.made.items()}
        return Episode(
            self.number,
            self.lane,
            list(self.rows),
            self.following,
            self.ended,
            self.settled,
            list(self.origins),
            made,
            dict(self.endings),
            self.late,
        )

    def without(self, columns: frozenset[str]) -> Episode:
        """The episode as a table sees it that has not got these columns."""
        if not self.rows or columns.isdisjoint(self.rows[0]):
            return self
        rows = [{name: value for name, value in row.items() if name not in columns} for row in self.rows]
        return replace(self, rows=rows)

    @property
    def terminated(self) -> bool:
        """Whether the last row is a termination."""
        return bool(self.rows) and bool(self.rows[-1].get("terminated", False))

    def knows(self, at: int, names: tuple[str, ...]) -> bool:
        """Whether the columns below `names` can be read at row `at`, which may be one behind the last row.

        Of a run, behind the last row of one of its episodes, that is the row behind the episode.
        """
        if (ending := self.endings.get(at)) is not None:
            return ending.knows(len(ending.rows), names)
        if at < len(self.rows):
            return True
        if at > len(self.rows) or not self.rows:
            return False
        wanted = [column for column in self.rows[0] if under(column, names)]
        usable = self.following is not None and (self.settled or not self.late)
        if usable and all(column in (self.following or {}) for column in wanted):
            return True
        return self.settled and self.terminated

    def value(self, at: int, column: str) -> Any:
        """The column at row `at`; behind the last row the final observation, after a termination the last row."""
        if at < len(self.rows):
            return self.rows[at][column]
        if self.following is not None and column in self.following:
            return self.following[column]
        return self.rows[-1][column]

    def behind(self, at: int, column: str) -> Any:
        """The column at row `at`, which follows a window: the row behind its episode where that ended there."""
        ending = self.endings.get(at)
        return self.value(at, column) if ending is None else ending.value(len(ending.rows), column)

    def repeats(self, at: int, column: str) -> bool:
        """Whether row `at` lies behind the end and only repeats the last row."""
        return at >= len(self.rows) and not (self.following is not None and column in self.following)
