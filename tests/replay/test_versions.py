"""An item has the version of its oldest weights: the smallest of those that the process had when it wrote its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="256MiB") as opened:
        yield opened


def published(store: Any, *names: str, versions: int = 9) -> None:
    """So many versions of each of these weights, all of which `latest` still finds."""
    for name in names:
        for _ in range(versions):
            store.publish(name, 0, keep=versions)


def row(number: int, *, terminated: bool = False, truncated: bool = False) -> dict[str, Any]:
    flags = {"terminated": terminated, "truncated": truncated}
    return {"id": np.int64(number), "obs": np.float64(0), "reward": 0.0, **flags}


VIEWS: dict[str, Any] = {
    "step": di_store.Step(),
    "transition": di_store.Transition(n_step=3, frame_stack={"obs": 4}),
    "pad": di_store.Sequence(4, period=2, burn_in=1),
    "shift": di_store.Sequence(5, period=3, tail="shift"),
    "bootstrap": di_store.Sequence(4, period=3, bootstrap=("obs",)),
    "cross": di_store.Sequence(6, period=2, cross_episodes=True, tail="shift"),
    "cross bootstrap": di_store.Sequence(5, period=5, cross_episodes=True, bootstrap=("obs",)),
    "episode": di_store.Episode(30),
    "cut": di_store.Episode(4, bootstrap=("obs",)),
}


class Actor:
    """Writes numbered rows, and notes what it had of each name of weights when it did."""

    def __init__(
        self, store: Any, tables: list[Any], lanes: int, autoreset: str | None, now: dict[str, int], seed: int
    ) -> None:
        self.store, self.tables, self.lanes, self.now = store, tables, lanes, now
        self.rng = np.random.default_rng(seed)
        self.writer = store.writer(tables, lanes=lanes, autoreset=autoreset)
        self.had: list[dict[str, int]] = []  # by row
        self.after: dict[int, int] = {}  # the row that its lane wrote next
        self.last = [-1] * lanes

    def turn(self) -> None:
        """One call, taken by lot."""
        chance = self.rng.random()
        if chance < 0.3:
            name = ("policy", "critic", "policy")[self.rng.integers(3)]
            wanted = None if self.rng.random() < 0.4 else int(self.rng.integers(1, 10))
            self.now[name] = self.store.latest(name, version=wanted).version
        elif chance < 0.4:
            some = np.flatnonzero(self.rng.random(self.lanes) < 0.6)
            final = {"obs": np.zeros(len(some))} if self.rng.random() < 0.5 else None
            self.writer.end_episode(final=final, lane=some, discard=bool(self.rng.random() < 0.3))
        elif chance < 0.5:
            steps = int(self.rng.integers(1, 7))
            self.writer.extend(self.rows(np.arange(self.lanes), steps))
        else:
            some = np.flatnonzero(self.rng.random(self.lanes) < 0.7)
            if len(some):
                behind = {"obs": np.zeros(len(some))} if self.rng.random() < 0.5 else None
                step = {name: leaf[0] for name, leaf in self.rows(some, 1).items()}
                self.writer.append(step, lane=some, next=behind)

    def rows(self, lanes: Any, steps: int) -> dict[str, Any]:
        """Rows of these lanes with what they are known by, [steps, lanes]."""
        ids = np.arange(steps * len(lanes)).reshape(steps, -1) + len(self.had)
        self.had += [dict(self.now)] * ids.size
        for at, lane in enumerate(lanes):
            for number in ids[:, at].tolist():
                self.after[self.last[lane]] = number
                self.last[lane] = number
        ends = self.rng.random(ids.shape)
        return {
            "id": ids,
            "obs": np.zeros(ids.shape),
            "reward": np.zeros(ids.shape, np.float32),
            "terminated": ends < 0.05,
            "truncated": (ends > 0.05) & (ends < 0.12),
        }

    def check(self, weights: dict[str, str | None]) -> int:
        """Hold the versions of all items against those of their rows; how many there are."""
        checked = 0
        for table in self.tables:
            batch, name = table.peek(table.keys()), weights[table.name]
            for at, ids in enumerate(batch.data["id"]):
                shown = self.shown(batch, at, ids)
                least = min(self.had[number].get(name, -1) if name else -1 for number in shown)
                assert batch.versions[at] == least, f"{table.name}: rows {shown}"
            checked += len(batch)
        return checked

    def shown(self, batch: Any, at: int, ids: Any) -> list[int]:
        """The rows of an item."""
        if "mask" in batch.data:
            return list(ids[batch.data["mask"][at].astype(bool)].tolist())
        rows = [int(ids)]
        while "steps" in batch.data and len(rows) < batch.data["steps"][at]:
            rows.append(self.after[rows[-1]])
        return rows


@pytest.mark.parametrize("autoreset", [None, "next_step"])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("view", VIEWS)
def test_an_item_has_the_smallest_version_of_its_rows(
    store: Any, view: str, lanes: int, autoreset: str | None, count: Callable[[int, int], int]
) -> None:
    """Whatever the view, beside other tables of the stream that follow other weights or none."""
    published(store, "policy", "critic")
    weights = {"mine": "policy", "other": "critic", "none": None}
    now: dict[str, int] = {}
    for turn in range(count(3, 60)):
        views = {"mine": VIEWS[view], "other": VIEWS[list(VIEWS)[turn % len(VIEWS)]], "none": di_store.Step()}
        tables = [
            store.create_table(name, capacity=3000, view=views[name], weights=weights[name], lanes=lanes)
            for name in weights
        ]
        actor = Actor(store, tables, lanes, autoreset, now, seed=turn)
        for _ in range(120):
            actor.turn()
        actor.writer.close()
        assert actor.check(weights) > 80
        for name in weights:
            store.drop_table(name)


def test_a_long_episode_is_as_old_as_its_first_row(store: Any) -> None:
    """`max_staleness` meets it, though its last rows came from the newest weights."""
    published(store, "policy", versions=50)
    options: dict[str, Any] = {"capacity": 10, "view": di_store.Episode(10_000), "weights": "policy"}
    table = store.create_table("t", max_staleness=10, **options)
    with table.writer() as writer:
        for number in range(1000):
            store.latest("policy", version=1 + number // 20)
            writer.append(row(number, terminated=number == 999))
    assert table.peek(table.keys()).versions.tolist() == [1]
    with pytest.raises(di_store.Timeout, match="older than max_staleness=10"):
        table.sample(1, timeout=0)


def test_rows_inserted_whole_have_the_version_of_their_call(store: Any) -> None:
    rows = {"obs": np.arange(3.0), "reward": np.zeros(3, np.float32)}
    cases: dict[str, tuple[Any, Any]] = {
        "step": (di_store.Step(), {"obs": 1.0, "reward": 0.0}),
        "sequence": (di_store.Sequence(3), rows),
        "episode": (di_store.Episode(5, bootstrap=("obs",)), rows),
        "finished": (di_store.Transition(), {"obs": 1.0, "reward": 0.0, "next_obs": 2.0, "discount": 0.9}),
        "opaque": (di_store.Opaque(), [1, "two"]),
    }
    for name, (view, value) in cases.items():
        published(store, name)
        table = store.create_table(name, capacity=10, view=view, weights=name)
        keys = [table.insert(value)]
        for version in (5, 5, 2, 7):
            store.latest(name, version=version)
            keys.append(table.insert(value))
        assert table.peek(np.concatenate(keys)).versions.tolist() == [-1, 5, 5, 2, 7], name


def test_finished_transitions_have_the_version_of_their_column(store: Any) -> None:
    published(store, "policy")
    table = store.create_table("t", capacity=10, view=di_store.Transition(), weights="policy")
    value = {"obs": np.zeros(2), "reward": np.zeros(2), "next_obs": np.ones(2), "discount": np.ones(2, np.float32)}
    keys = table.extend({**value, "version": np.array([4, 8])})
    assert table.peek(keys).versions.tolist() == [4, 8]


def test_a_column_version_that_counts_nothing_is_a_column_like_others(store: Any) -> None:
    published(store, "policy")
    table = store.create_table("t", capacity=10, weights="policy")
    with table.writer() as writer:
        keys = [writer.append({"version": 0.5}).keys]
        store.latest("policy", version=3)
        keys.append(writer.append({"version": 0.5}).keys)
    keys.append(table.insert({"version": 0.5}))
    assert table.peek(np.concatenate(keys)).versions.tolist() == [-1, 3, 3]


def test_a_call_that_waits_keeps_the_version_it_began_with(store: Any) -> None:
    """Its rows were made before it waited; another thread calls `latest`, and inserts, meanwhile."""
    published(store, "policy")
    for kind in ("append", "insert", "opaque"):
        view = di_store.Opaque() if kind == "opaque" else di_store.Step()
        table = store.create_table(kind, capacity=10, view=view, limiter=di_store.Queue(1), weights="policy")
        table.insert({"n": 0})

        def write(number: int, kind: str = kind, table: Any = table) -> None:
            if kind == "insert":
                table.insert({"n": number}, timeout=60)
                return
            with table.writer() as writer:
                writer.append({"n": number}, timeout=60)

        threads = []
        for number, version in ((1, 4), (2, 9)):
            store.latest("policy", version=version)
            threads.append(threading.Thread(target=write, args=(number,)))
            threads[-1].start()
            until(lambda many=number: len(store.stats()["waiters"]) == many, "both to wait")
        found = {}
        for _ in range(3):
            batch = table.sample(1, timeout=60)
            number = batch.data[0]["n"] if kind == "opaque" else batch.data["n"][0]
            found[int(number)] = int(batch.versions[0])
        for thread in threads:
            thread.join(60)
        assert {1: 4, 2: 9}.items() <= found.items(), kind


def test_a_call_that_failed_leaves_no_version_behind(store: Any) -> None:
    """Neither after `Timeout` nor after a refused row: what is written next has its own."""
    published(store, "policy")
    view = di_store.Sequence(4, period=1, cross_episodes=True, bootstrap=("obs",))
    table = store.create_table("t", capacity=6, view=view, weights="policy", limiter=di_store.Queue(2))
    with table.writer() as writer:
        store.latest("policy", version=7)
        for number in range(3):
            writer.append(row(number), next={"obs": 0.0})
        store.latest("policy", version=2)
        many = {name: np.repeat(leaf, 40) for name, leaf in row(3).items()}
        with pytest.raises(ValueError, match="capacity=6"):
            writer.extend(many)
        with pytest.raises(ValueError, match="went on elsewhere"):
            writer.append(row(3) | {"obs": 5.0})
        writer.end_episode()  # the row behind the last step is the final one now
        store.latest("policy", version=5)
        for number in range(3, 5):
            writer.append(row(number), next={"obs": 0.0})
        store.latest("policy", version=1)
        with pytest.raises(di_store.Timeout):
            writer.append(row(5), next={"obs": 0.0}, timeout=0)
        writer.end_episode()  # again
        store.latest("policy", version=6)
        first = table.sample(2, timeout=0)
        assert (first.data["id"].tolist(), first.versions.tolist()) == ([[0, 1, 2, 3], [1, 2, 3, 4]], [5, 5])
        writer.append(row(5), next={"obs": 0.0}, timeout=0)
        second = table.sample(1, timeout=0)
        assert (second.data["id"].tolist(), second.versions.tolist()) == ([[2, 3, 4, 5]], [5])


def test_versions_of_a_long_lane_are_forgotten_when_unneeded(store: Any) -> None:
    """What no item to come needs is forgotten, and nothing else."""
    published(store, "policy", versions=64)
    table = store.create_table("t", capacity=100, view=di_store.Transition(n_step=3), weights="policy")
    with table.writer() as writer:
        for number in range(5000):
            store.latest("policy", version=1 + number % 64)
            writer.append(row(number), next={"obs": 0.0})
        keys = table.keys()
        batch = table.peek(keys)
        oldest = [min(1 + (number + step) % 64 for step in range(3)) for number in batch.data["id"].tolist()]
        assert batch.versions.tolist() == oldest


def test_transitions_inserted_whole_have_the_version_that_they_were_given(store: Any) -> None:
    """One row is the whole item: there is no row behind it to leave out."""
    table = store.create_table("t", capacity=100, view=di_store.Transition(n_step=2), weights="p", max_staleness=1)
    for _ in range(5):
        store.publish("p", None)
    row = {"obs": np.float32(0), "reward": np.float32(1), "terminated": False, "version": np.int64(5)}
    row |= {"next_obs": np.float32(1), "discount": np.float32(0.9)}
    assert table.peek(table.insert(row)).versions.tolist() == [5]
    rows = {name: np.stack([np.asarray(value)] * 3) for name, value in row.items()}
    keys = table.extend(rows | {"version": np.array([3, 5, 4])})
    assert table.peek(keys).versions.tolist() == [3, 5, 4]
    assert table.sample(20, timeout=10).versions.min() >= 4
