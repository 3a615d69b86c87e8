"""`next=` in streams whose rows may have any size: with a ragged column without `max=`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store

SPEC = di_store.Spec
FLAGS = {"terminated": SPEC((), "?"), "truncated": SPEC((), "?")}
TOLD = {"obs": {"a": SPEC((), "i8"), "b": SPEC((2,), "f4")}, "reward": SPEC((), "f4"), **FLAGS}
VIEWS = [
    di_store.Step(),
    di_store.Transition(),
    di_store.Transition(n_step=3, frame_stack={"obs/b": 3}),
    di_store.Sequence(4, period=2, tail="shift", bootstrap=("obs",)),
    di_store.Sequence(3, bootstrap=("obs",), cross_episodes=True),
    di_store.Episode(5, bootstrap=("obs",)),
]


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def told(number: int, **more: Any) -> dict[str, Any]:
    return {"a": np.int64(number), "b": np.full(2, number, np.float32), **more}


def told_step(number: int, end: str = "", tokens: int = 3) -> dict[str, Any]:
    flags = {name: np.bool_(end == name) for name in FLAGS}
    return {"obs": told(number), "reward": np.float32(number), "tokens": np.arange(tokens, dtype=np.int32), **flags}


def unbounded(store: Any, view: Any = None, most: int | None = None, **options: Any) -> Any:
    schema = TOLD | {"tokens": SPEC((None,), "i4", max=most)}
    view = view or di_store.Transition()
    return store.create_table("t", capacity=1000, view=view, schema=schema, max_bytes="4MiB", **options)


@pytest.mark.parametrize("ended", ["end_episode", "close", "flag"])
def test_next_beside_an_unbounded_column_is_the_final_observation(store: Any, ended: str) -> None:
    table = unbounded(store, di_store.Transition(n_step=2))
    writer = table.writer()
    made = [len(writer.append(told_step(at), next={"obs": told(at + 1)}).keys) for at in range(3)]
    if ended == "flag":
        made.append(len(writer.append(told_step(3, "truncated"), next={"obs": told(4)}).keys))
    elif ended == "end_episode":
        made.append(len(writer.end_episode().keys))
    writer.close()
    assert made == [0, 0, 1] + {"flag": [3], "end_episode": [2], "close": []}[ended]
    found = table.peek(table.keys()).data
    last = 4 if ended == "flag" else 3
    assert found["next_obs"]["a"].tolist() == [min(at + 2, last) for at in range(last)]
    assert store.check() == []


def test_a_step_that_contradicts_next_is_refused_beside_an_unbounded_column(store: Any) -> None:
    table = unbounded(store)
    with table.writer() as writer:
        writer.append(told_step(0), next={"obs": told(1)})
        for _ in range(2):
            with pytest.raises(ValueError, match=r"obs/a.*end_episode\(\)"):
                writer.append(told_step(9), next={"obs": told(10)})
        with pytest.raises(ValueError, match=r"obs/b.*end_episode\(\)"):
            writer.end_episode({"obs": {"a": np.int64(1), "b": np.full(2, 9, np.float32)}})
        left_out = {name: value for name, value in told_step(1).items() if name != "obs"}
        writer.append(left_out, next={"obs": told(2)})
        assert len(table) == 1
        writer.end_episode(discard=True)
        writer.append(told_step(50))
        writer.end_episode({"obs": told(51)})
    found = table.peek(table.keys()).data
    assert (found["obs"]["a"].tolist(), found["next_obs"]["a"].tolist()) == ([0, 1, 50], [1, 2, 51])


def test_a_blocked_append_keeps_the_next_observation(store: Any) -> None:
    table = unbounded(store, limiter=di_store.Queue(1))
    with table.writer() as writer:
        writer.append(told_step(0), next={"obs": told(1)})
        writer.append(told_step(1), next={"obs": told(2)})
        for number in (2, 2, 9):
            with pytest.raises(ValueError if number == 9 else di_store.Timeout):
                writer.append(told_step(number), next={"obs": told(77)}, timeout=0)
        assert table.sample(1).data["next_obs"]["a"].tolist() == [1]
        writer.append(told_step(2), next={"obs": told(3)})
        with pytest.raises(di_store.Timeout):
            writer.end_episode(timeout=0)
        assert table.sample(1).data["next_obs"]["a"].tolist() == [2]
        writer.end_episode()
        assert table.sample(1).data["next_obs"]["a"].tolist() == [3]


@pytest.mark.parametrize("lanes", [None, 2])
def test_items_appear_at_once_if_next_gives_all_unbounded_columns(store: Any, lanes: int | None) -> None:
    """Rows of a third of a MiB, and of nothing: each needs the room that it has."""
    schema = {"obs": SPEC((None, 2), "f4"), "note": SPEC((None,), "u1", max=9), "reward": SPEC((), "f4"), **FLAGS}
    table = store.create_table("t", capacity=12, view=di_store.Transition(), schema=schema, max_bytes="12MiB", lanes=2)

    def rows(at: int) -> Any:
        values = [np.full(((at * 7919 + lane) % 5 * 10_000, 2), at, np.float32) for lane in range(lanes or 1)]
        return values if lanes else values[0]

    rest: dict[str, Any] = {"note": np.arange(5, dtype=np.uint8), "reward": np.float32(0)}
    rest |= dict.fromkeys(FLAGS, np.bool_(False))
    if lanes:
        rest = {name: np.stack([value] * 2) if name != "note" else [value] * 2 for name, value in rest.items()}
    with table.writer(lanes=lanes) as writer:
        for at in range(40):
            given = {"obs": rows(at)} if at % 3 == 0 else {}
            items = writer.append({**given, **rest}, next={"obs": rows(at + 1)}, timeout=60)
            assert items.starts.tolist() == [at] * (lanes or 1)
            batch = table.peek(items.keys)
            for lane in range(lanes or 1):
                for column, number in (("obs", at), ("next_obs", at + 1)):
                    expected = rows(number)[lane] if lanes else rows(number)
                    assert np.array_equal(batch.data[column][lane], expected)
    assert store.check() == []


def contents(table: Any) -> list[Any]:
    """Of every item, in an order of their values."""
    batch = table.peek(table.keys())
    leaves = {"start": batch.starts, **batch.data["obs"], **batch.data.get("next_obs", {})}
    leaves |= {name: batch.data[name] for name in ("reward", "discount", "lengths") if name in batch.data}
    tokens = [batch.data["tokens"][at] for at in range(len(batch.keys))]
    rows = [[np.asarray(leaf[at]).tolist() for leaf in leaves.values()] for at in range(len(batch.keys))]
    whole = [[*row, [np.asarray(value).tolist() for value in kept]] for row, kept in zip(rows, tokens, strict=True)]
    return sorted(whole, key=repr)


class Program:
    """One random program of a lane, written with and without a bound on its tokens."""

    def __init__(self, writers: list[Any], autoreset: str | None, seed: int) -> None:
        self.writers, self.autoreset, self.rng = writers, autoreset, random.Random(seed)
        self.number = 0
        self.known: dict[str, Any] = {}

    def both(self, method: str, *args: Any, **options: Any) -> bool:
        """The same call: what is refused by one is refused by the other."""
        outcomes = []
        for writer in self.writers:
            try:
                getattr(writer, method)(*args, **options)
                outcomes.append("passed")
            except (ValueError, di_store.SchemaMismatch) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        return outcomes[0] == "passed"

    def partly(self) -> dict[str, Any]:
        self.number += 1
        whole = told(self.number)
        return {name: whole[name] for name in self.rng.choice((("a", "b"), ("a", "b"), ("b",)))}

    def step(self) -> None:
        rng = self.rng
        self.number += 1
        end = rng.choice(("terminated", "truncated", "", "", ""))
        row = told_step(self.number, end, rng.choice((0, 3, 60)))
        if rng.random() < 0.9:  # else the observation contradicts what is known
            row["obs"] |= self.known
        if self.known and rng.random() < 0.3:
            row["obs"] = {name: value for name, value in row["obs"].items() if name not in self.known}
            row = {name: value for name, value in row.items() if name != "obs" or value}
        options: dict[str, Any] = {}
        if rng.random() < 0.6:
            options["next"] = {"obs": self.partly()}
        if end and self.autoreset == "same_step" and rng.random() < 0.7:
            options["final"] = {"obs": self.partly()}
        if self.both("append", row, **options):
            self.known = options.get("next", {}).get("obs", {}) if self.autoreset or not end else {}

    def run(self, calls: int) -> None:
        for _ in range(calls):
            if self.rng.random() < 0.8:
                self.step()
            else:
                final = {"obs": {**self.partly(), **self.known}} if self.rng.random() < 0.4 else None
                if self.both("end_episode", final, discard=self.rng.random() < 0.3):
                    self.known = {}
        self.both("close")


@pytest.mark.parametrize("autoreset", [None, "next_step", "same_step"])
@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_a_bound_changes_when_items_appear_and_nothing_else(
    view: Any, autoreset: str | None, count: Callable[[int, int], int]
) -> None:
    for seed in range(count(4, 200)):
        with di_store.open(memory="32MiB") as free, di_store.open(memory="32MiB") as bound:
            tables = [unbounded(free, view), unbounded(bound, view, 60)]
            writers = [table.writer(autoreset=autoreset) for table in tables]
            Program(writers, autoreset, seed).run(60)
            assert contents(tables[0]) == contents(tables[1])
            assert len(tables[0]) > 5
            assert free.check() == []
