"""`Sequence(start="random")`: the windows of every draw, their law, and what export, restarts and kills keep of it."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from view_oracle import SCHEMA, Run, check, example, fits, leaf, same, windows, write

import di_store
from di_store import Sequence, Spec, _core

VIEWS = [
    Sequence(3, start="random"),
    Sequence(3, period=7, start="random"),
    Sequence(2, period=4, burn_in=2, start="random", tail="drop"),
    Sequence(2, period=3, burn_in=1, start="random", tail="shift"),
    Sequence(3, period=5, start="random", bootstrap=("obs", "wide")),
    Sequence(4, period=1, start="random", bootstrap=("obs",)),
    Sequence(3, period=4, start="random", frame_stack={"obs": 4, "wide": 2}, bootstrap=("obs",)),
    Sequence(3, period=5, start="random", first=("reward",)),
    Sequence(4, period=6, start="random", cross_episodes=True),
    Sequence(4, start="random", stride=3),
    Sequence(2, period=3, burn_in=1, start="random", stride=2, tail="drop", first=("reward",)),
    Sequence(4, period=5, start="random", bootstrap=("obs", "tokens"), last={"obs": 2, "tokens": 1, "reward": 1}),
    Sequence(3, period=9, start="random", cross_episodes=True, frame_stack={"obs": 3}, tail="drop"),
]


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="128MiB") as opened:
        yield opened
        assert opened.check() == []


def parts(view: Sequence, runs: list[Run]) -> list[list[tuple[Run, int]]]:
    """The windows of every item."""
    found = []
    for run in runs:
        starts = windows(view, run)
        for first in range(0, len(run.rows), view.rows_added):
            part = [(run, start) for start in starts if first <= start < first + view.rows_added]
            if part:
                found.append(part)
    return found


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("remover", [di_store.Fifo(), di_store.Uniform()], ids=["in order", "any order"])
def test_every_draw_is_a_window_and_all_are_equally_likely(store: di_store.Store, view: Sequence, remover: Any) -> None:
    rng = np.random.default_rng(len(str(view)))
    table = store.create_table("t", capacity=1000, view=view, schema=SCHEMA, remover=remover, seed=3, lanes=2)
    items = parts(view, write(table, rng, 25, 24, cross=view.cross_episodes))
    keys = table.keys().tolist()
    assert len(keys) == len(items)
    first = table.peek(np.array(keys, np.uint64))
    for at, part in enumerate(items):
        check(first, at, view, *part[0])  # peek shows the first window
    counts = [np.zeros(len(part)) for part in items]
    starts = [{run.places[start]: at for at, (run, start) in enumerate(part)} for part in items]
    number = {key: at for at, key in enumerate(keys)}
    episodes = {int(first.episodes[at]): part[0][0].places[part[0][1]][0] for at, part in enumerate(items)}
    for n in (7, 300, 700):  # in one hold of the lock, and in several
        batch = table.sample(n)
        for at in range(n):
            item = number[int(batch.keys[at])]
            inside = {step: which for (_, step), which in starts[item].items()}
            if view.cross_episodes:  # a step number may be there twice: of two episodes
                found = [which for (_, step), which in starts[item].items() if step == batch.starts[at]]
                which = next(
                    w for w in found if same(leaf(batch.data, "obs", at), example(view, *items[item][w])["obs"])
                )
            else:
                which = inside[int(batch.starts[at])]
                assert episodes[int(batch.episodes[at])] == items[item][which][0].places[0][0]
            check(batch, at, view, *items[item][which])
    many = table.sample(20_000, columns=("obs",))
    if not view.cross_episodes:
        for key, start in zip(many.keys.tolist(), many.starts.tolist(), strict=True):
            item = number[key]
            counts[item][next(which for (_, step), which in starts[item].items() if step == start)] += 1
        assert all(fits(count) for count in counts if len(count) > 1)
        assert fits(np.array([count.sum() for count in counts]))


def test_windows_across_episodes_are_uniform_over_all_rows(store: di_store.Store) -> None:
    view = Sequence(4, period=10, start="random", cross_episodes=True, tail="drop")
    table = store.create_table("t", capacity=100, view=view, schema={"x": Spec((), "i4"), "terminated": Spec((), "?")})
    with table.writer() as writer:
        for x in range(203):
            writer.append({"x": x, "terminated": x % 7 == 6})
    counts = np.zeros(200)
    for _ in range(20):
        x = table.sample(2_000).data["x"]
        assert (x == x[:, :1] + np.arange(4)).all()
        np.add.at(counts, x[:, 0], 1)
    assert fits(counts)


def fill(table: di_store.Table, rows: int = 200) -> None:
    with table.writer() as writer:
        for x in range(rows):
            writer.append({"x": x, "terminated": False})
        writer.end_episode()


PLAIN = {"x": Spec((), "i4"), "terminated": Spec((), "?")}


def test_the_seed_determines_the_draws(store: di_store.Store) -> None:
    found = []
    for name in ("a", "b"):
        table = store.create_table(
            name, capacity=100, view=Sequence(4, start="random", period=20), schema=PLAIN, seed=5
        )
        fill(table)
        found.append(np.concatenate([table.sample(n).data["x"] for n in (3, 40, 600)]))
    assert (found[0] == found[1]).all()
    assert len(np.unique(found[0][:, 0])) > 100


def test_random_starts_work_with_other_samplers_and_readers(store: di_store.Store) -> None:
    view = Sequence(4, start="random", period=20)
    table = store.create_table("t", capacity=100, view=view, schema=PLAIN, sampler=di_store.Prioritized(1.0))
    fill(table)
    keys = table.keys()
    assert table.update_priorities(keys[1:], np.zeros(len(keys) - 1)) == len(keys) - 1
    batch = table.sample(2_000)
    assert set(batch.keys.tolist()) == {int(keys[0])}  # a priority is one of all windows of its item
    assert fits(np.bincount(batch.starts, minlength=20))
    limited = store.create_table("once", capacity=100, view=view, schema=PLAIN, sampler=di_store.Once(2))
    fill(limited)
    limited.finish()
    with limited.loader(7, drop_last=False) as loader:
        starts = np.concatenate([each.starts for each in loader])
    assert sorted((starts // 20).tolist()) == sorted(2 * list(range(10)))
    mixture = store.mix({"t": 1, "once": 0})
    x = mixture.sample(100).data["x"]
    assert (x == x[:, :1] + np.arange(4)).all()
    assert len(np.unique(x[:, 0])) > 5


def test_an_imported_table_continues_the_draws(store: di_store.Store, tmp_path: Path) -> None:
    view = Sequence(3, period=6, start="random", bootstrap=("obs",), frame_stack={"obs": 2})
    table = store.create_table("t", capacity=100, view=view, schema=SCHEMA, seed=7)
    write(table, np.random.default_rng(1), 12, 20, cross=False)
    table.sample(5)
    table.export(tmp_path / "t.npz")
    again = store.import_table(tmp_path / "t.npz", "again")
    assert again.view == view
    for n in (4, 90):
        mine, theirs = table.sample(n), again.sample(n)
        assert (mine.data["obs"] == theirs.data["obs"]).all()
        assert (mine.starts == theirs.starts).all()


def test_sequences_inserted_whole_are_drawn(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=10, view=Sequence(4, period=7, start="random"), schema=PLAIN)
    table.insert({"x": np.arange(10, dtype="i4"), "terminated": np.zeros(10, bool)})
    assert fits(np.bincount(table.sample(3_000).data["x"][:, 0], minlength=7))
    with pytest.raises(di_store.SchemaMismatch, match="1 to 10 rows"):
        table.insert({"x": np.arange(11, dtype="i4"), "terminated": np.zeros(11, bool)})


def _draw_and_die(name: str, point: str) -> None:
    with di_store.open(name) as mine:
        table = mine.table("t")
        _core.arm_fault(point)
        for n in (50, 600):
            table.sample(n)
    os._exit(0)


@pytest.mark.parametrize("point", ["table.take_drawn:1", "table.draw_item:60", "sample.before_deliver:1"])
@pytest.mark.parametrize("uses", [0, 10_000])
def test_a_killed_attached_learner_leaves_nothing(store: di_store.Store, point: str, uses: int) -> None:
    view = Sequence(4, period=20, start="random")
    table = store.create_table("t", capacity=100, view=view, schema=PLAIN, max_times_sampled=uses)
    fill(table)
    before = table.sample(5)
    party = mp.get_context("spawn").Process(target=_draw_and_die, args=(store.name, point))
    party.start()
    party.join(60)
    assert party.exitcode == (0 if uses and point.startswith("table.take") else -signal.SIGKILL)
    batch = table.sample(2_000, timeout=60)
    assert (batch.data["x"] == batch.data["x"][:, :1] + np.arange(4)).all()
    assert set(before.keys.tolist()) <= set(table.keys().tolist())
    assert fits(np.bincount(batch.starts, minlength=197))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Sequence(4, start="random", cross_episodes=True, bootstrap=("obs",)), "leave one of them out"),
        (lambda: di_store.needed_memory(
            capacity=9, view=Sequence(4, start="random"),
            schema={"x": Spec((), "f4", late=True), "terminated": Spec((), "?")}), "'x' is late"),
    ],
)  # fmt: skip
def test_impossible_combinations_are_refused(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("period", [1, 64, 1000])
def test_the_reserved_memory_is_enough(period: int) -> None:
    view = Sequence(16, period=period, start="random")
    schema = {"obs": Spec((64,), "f4"), "terminated": Spec((), "?")}
    capacity = 40_000 // period
    with di_store.open(memory=di_store.needed_memory(capacity=capacity, view=view, schema=schema, lanes=1)) as store:
        table = store.create_table("t", capacity=capacity, view=view, schema=schema, lanes=1)
        with table.writer() as writer:
            for _ in range(5):
                writer.extend({"obs": np.zeros((16384, 64), "f4"), "terminated": np.zeros(16384, bool)})
        assert len(table) == capacity
        assert table.stats()["evicted_for_room"] == 0
