"""Episodes with random ends, written to a table, and beside it as plain lists: what the tests of views compare with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import di_store
from di_store import Sequence, Spec

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
        final: `obs`, `wide` and `tokens` behind the last row; None: nobody told.
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
            behind = row(10_000 + episode)
            final = {name: behind[name] for name in ("obs", "wide", "tokens")} if rng.random() < 0.5 else None
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


def windows(view: Sequence, run: Run) -> list[int]:
    """Starts of the windows of a run; with random starts those that any draw may give."""
    n, span = len(run.rows), (view.burn_in + view.length - 1) * view.stride + 1
    period = 1 if view.start == "random" else view.rows_added
    starts, start = [], 0
    while start + view.burn_in * view.stride < n:
        if start + span <= n:
            starts.append(start)
        elif view.tail == "shift" and n >= span:
            starts.append(n - span)
        elif view.tail != "drop":
            starts.append(start)
        if start + span >= n:
            break
        start += period
    unknown = view.bootstrap and run.behind() is None
    return [start for start in starts if not (unknown and start + span >= n)]


def example(view: Sequence, run: Run, start: int) -> dict[str, Any]:
    """The window that begins at row `start` of the run."""
    time = view.burn_in + view.length
    taken = [run.rows[at] for at in range(start, len(run.rows), view.stride)][:time]
    found: dict[str, Any] = {"mask": np.arange(time) < len(taken), "lengths": len(taken)}
    if view.cross_episodes:
        first = [place[1] == 0 for place in run.places[start : start + len(taken)]]
        found["is_first"] = np.array(first + [False] * (time - len(first)))
    for name in SCHEMA:
        if name in view.first:
            found[name] = taken[0][name]
            continue
        stack = (view.frame_stack or {}).get(name, 1)
        begin = start - run.places[start][1]
        values = [run.rows[max(at, begin)][name] for at in range(start - stack + 1, start)]
        values += [each[name] for each in taken]
        extra = name in view.bootstrap
        if extra:
            stop = start + len(taken)
            behind = run.rows[stop] if stop < len(run.rows) else run.behind()
            assert behind is not None
            values.append(behind[name])
        whole = shown([np.asarray(value) for value in values], stack - 1 + time + extra)
        found[name] = whole[time - (view.last or {}).get(name, time) :]
    return found


def check(batch: Any, at: int, view: Sequence, run: Run, start: int) -> None:
    """Example `at` of a batch is the window that begins at row `start` of the run."""
    wanted = example(view, run, start)
    assert set(batch.data) == set(wanted)
    for name, value in wanted.items():
        assert same(leaf(batch.data, name, at), value), name
    assert batch.starts[at] == run.places[start][1]


def fits(counts: np.ndarray[Any, Any]) -> bool:
    """Whether counts [k] are those of draws that are uniform over k: chi-squared within 6 standard deviations."""
    expected = counts.sum() / len(counts)
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return chi <= freedom + 6 * np.sqrt(2 * max(freedom, 1))
