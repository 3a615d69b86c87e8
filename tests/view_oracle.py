"""Episodes with random ends, written to a table, and beside it as plain lists: what the tests of views compare with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import di_store
from di_store import Spec

SCHEMA = {
    "obs": Spec((2,), "f4"),
    "wide": Spec((600,), "u1"),  # stored column by column
    "reward": Spec((), "f4"),
    "tokens": Spec((None,), "i4", max=4),
    "terminated": Spec((), "?"),
    "truncated": Spec((), "?"),
}


@dataclass
class Run:
    """One episode, or with windows across episodes a whole lane.

    Attributes:
        rows: of all columns, oldest first.
        places: number of the episode in its lane, and of the row in the episode.
        final: `obs` and `wide` behind the last row; None: nobody told.
        terminated: whether the last row is a termination.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    final: dict[str, Any] | None = None
    terminated: bool = False

    def behind(self) -> dict[str, Any] | None:
        """What a view reads behind the last row; None: unknown."""
        return self.final if self.final is not None else self.rows[-1] if self.terminated else None


def row(number: int) -> dict[str, Any]:
    """A row that no other resembles."""
    values = {"obs": np.array([number, -number], "f4"), "wide": np.full(600, number % 251, "u1")}
    return {**values, "reward": np.float32(number % 7), "tokens": np.arange(number % 5, dtype="i4") + number}


def write(table: di_store.Table, rng: np.random.Generator, episodes: int, longest: int, *, cross: bool) -> list[Run]:
    """Write episodes of 1 to `longest` rows to one lane. Returns their runs."""
    runs: list[Run] = [Run()]
    number = 0
    with table.writer() as writer:
        for episode in range(episodes):
            run = runs[-1]
            if not cross and run.rows:
                runs.append(run := Run())
            steps = int(rng.integers(1, longest + 1))
            end = str(rng.choice(["terminated", "truncated", "abandoned"]))
            final = row(10_000 + episode) if rng.random() < 0.5 else None
            final = None if final is None else {name: final[name] for name in ("obs", "wide")}
            for step in range(steps):
                number += 1
                last = step == steps - 1
                flags = {"terminated": last and end == "terminated", "truncated": last and end == "truncated"}
                run.rows.append({**row(number), **flags})
                run.places.append((episode, step))
                writer.append(run.rows[-1])
            writer.end_episode(final=final)
            run.final, run.terminated = final, end == "terminated"
    return runs


def shown(values: list[Any], length: int) -> Any:
    """Rows padded with zeros to `length`; of a ragged column a list."""
    if values[0].dtype == np.int32:
        return [value.tolist() for value in values] + [[]] * (length - len(values))
    return np.stack([*values, *[np.zeros_like(values[0])] * (length - len(values))])


def leaf(data: Any, name: str, at: int) -> Any:
    """Example `at` of a column of a batch; of a ragged one a list of rows."""
    value = data[name]
    if not hasattr(value, "offsets"):
        return value[at]
    times = (len(value.offsets) - 1) // value.lead[0]
    bounds = value.offsets[at * times : (at + 1) * times + 1].tolist()
    rows = [value.values[begin:end].tolist() for begin, end in itertools.pairwise(bounds)]
    return rows if len(value.lead) > 1 else rows[0]


def same(found: Any, wanted: Any) -> bool:
    """Whether both hold the same values."""
    return bool(found == wanted) if isinstance(wanted, list) else bool(np.array_equal(found, wanted))


def fits(counts: np.ndarray[Any, Any]) -> bool:
    """Whether counts [k] are those of draws that are uniform over k: chi-squared within 6 standard deviations."""
    expected = counts.sum() / len(counts)
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return chi <= freedom + 6 * np.sqrt(2 * max(freedom, 1))
