"""`Transition(future=)`: transitions beside plain lists of their episodes, the law of the later step, kills, export."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from view_oracle import SCHEMA, Run, leaf, same, write

import di_store
from di_store import Spec, Transition, _core

OBS = ("obs", "wide", "tokens")
VIEWS = [
    Transition(obs=OBS, future=OBS),
    Transition(3, 0.9, obs=OBS, future=("obs", "tokens")),
    Transition(2, obs=OBS, future=("wide",), horizon=5),
    Transition(6, 0.5, obs=OBS, future=("obs",), horizon=3),
    Transition(2, obs=OBS, future=OBS, frame_stack={"obs": 3, "wide": 2}),
]


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="128MiB") as opened:
        yield opened
        assert opened.check() == []


def transitions(view: Transition, runs: list[Run]) -> list[tuple[Run, int, int]]:
    """Of every item its episode, its step, and how many steps later the latest observation is that it may show."""
    found = []
    for run in runs:
        steps = len(run.rows) if run.behind() is not None else len(run.rows) - 1
        for t in range(len(run.rows) if steps == len(run.rows) else max(0, steps - view.n_step + 1)):
            found.append((run, t, min(view.horizon, steps - t)))
    return found


def at(run: Run, number: int, name: str) -> Any:
    """A column of a row, or of what lies behind the last one."""
    behind = run.behind()
    return run.rows[number][name] if number < len(run.rows) else (behind or {})[name]


def frames(view: Transition, run: Run, number: int, name: str) -> Any:
    """The newest of these is row `number`; behind a termination without final observation the last row again."""
    count = (view.frame_stack or {}).get(name, 1)
    if count == 1:
        return at(run, number, name)
    if number == len(run.rows) and run.final is None:
        number -= 1
    return np.stack([at(run, max(each, 0), name) for each in range(number - count + 1, number + 1)])


def example(view: Transition, run: Run, t: int, later: int) -> dict[str, Any]:
    k = min(view.n_step, len(run.rows) - t)
    rows = run.rows[t : t + k]
    reward = sum(view.gamma**i * float(row["reward"]) for i, row in enumerate(rows))
    found = {"reward": np.float32(reward), "steps": k, "future_steps": later, "wide": run.rows[t]["wide"]}
    found["discount"] = np.float32(0 if rows[-1]["terminated"] else view.gamma**k)
    found |= {name: rows[-1][name] for name in ("terminated", "truncated")}
    found |= {name: frames(view, run, t, name) for name in OBS}
    found |= {f"next_{name}": frames(view, run, t + k, name) for name in OBS}
    return found | {f"future_{name}": at(run, t + later, name) for name in view.future}


def check(batch: Any, number: int, view: Transition, run: Run, t: int) -> None:
    wanted = example(view, run, t, int(batch.data["future_steps"][number]))
    assert set(batch.data) == set(wanted)
    for name, value in wanted.items():
        found = leaf(batch.data, name, number)
        if name == "reward":
            assert found == pytest.approx(value, rel=1e-6)
        else:
            assert same(found, value.tolist() if "tokens" in name else value), (name, found, value)
    assert batch.starts[number] == t


def uniform(counts: list[np.ndarray[Any, Any]]) -> bool:
    """Whether the counts of each item are those of uniform draws: the sum of chi-squared, within 6 deviations."""
    chi = sum(float(((each - each.mean()) ** 2 / each.mean()).sum()) for each in counts if each.sum())
    freedom = sum(len(each) - 1 for each in counts if each.sum())
    return abs(chi - freedom) <= 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("remover", [di_store.Fifo(), di_store.Uniform()], ids=["in order", "any order"])
def test_future_observations_follow_their_law(
    store: di_store.Store, view: Transition, remover: Any, tmp_path: Path
) -> None:
    table = store.create_table("t", capacity=1000, view=view, schema=SCHEMA, remover=remover, seed=4, lanes=1)
    expected = transitions(view, write(table, np.random.default_rng(view.n_step), 30, 20, cross=False))
    keys = table.keys()
    assert len(keys) == len(expected)
    shown = table.peek(keys)
    assert set(shown.data["future_steps"].tolist()) == {1}  # peek shows the next step
    number = {key: item for item, key in enumerate(keys.tolist())}
    for batch in (shown, table.sample(40), table.sample(700)):
        for place, key in enumerate(batch.keys.tolist()):
            run, t, most = expected[number[key]]
            assert 1 <= batch.data["future_steps"][place] <= most
            check(batch, place, view, run, t)
    counts = [np.zeros(most) for _, _, most in expected]
    many = table.sample(30_000, columns=("future_steps",))
    for key, later in zip(many.keys.tolist(), many.data["future_steps"].tolist(), strict=True):
        counts[number[key]][later - 1] += 1
    assert uniform(counts)
    assert uniform([np.array([each.sum() for each in counts])])
    table.export(tmp_path / "t.npz")
    again = store.import_table(tmp_path / "t.npz", "again")
    assert again.view == view
    mine, theirs = table.sample(300), again.sample(300)
    for name in mine.data:
        for place in range(300):
            assert same(leaf(mine.data, name, place), leaf(theirs.data, name, place))


PLAIN = {"obs": Spec((), "i8"), "reward": Spec((), "f4"), "terminated": Spec((), "?"), "truncated": Spec((), "?")}


def step(x: int, end: bool = False) -> dict[str, Any]:
    return {"obs": x, "reward": 1.0, "terminated": False, "truncated": end}


def test_items_appear_when_their_future_is_known(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=100, view=Transition(future="obs", horizon=4), schema=PLAIN, lanes=2)
    with table.writer() as writer:
        made = [len(writer.append(step(x), next={"obs": x + 1}).keys) for x in range(8)]
        assert made == [0, 0, 0, 1, 1, 1, 1, 1]  # once 4 steps follow
        assert len(writer.append(step(8, True), next={"obs": 9}).keys) == 4  # and at the end of the episode
        assert len(writer.append(step(20, True), next={"obs": 21}).keys) == 1
    batch = table.sample(2_000)
    later = batch.data["future_obs"] - batch.data["obs"]
    assert (later == batch.data["future_steps"]).all()
    assert (batch.data["next_obs"] == batch.data["obs"] + 1).all()
    for obs in range(9):
        assert set(later[batch.data["obs"] == obs].tolist()) == set(range(1, min(4, 9 - obs) + 1))


def test_a_discount_that_stops_the_sum_does_not_end_the_future(store: di_store.Store) -> None:
    view = Transition(3, 0.5, future=("obs",), horizon=6)
    table = store.create_table("t", capacity=100, view=view, schema={**PLAIN, "discount": Spec((), "f4")})
    with table.writer() as writer:
        for x in range(6):
            writer.append({**step(x, x == 5), "discount": float(x != 2)}, next={"obs": x + 1})
    batch = table.peek(table.keys())
    assert batch.data["steps"].tolist() == [3, 2, 1, 3, 2, 1]
    assert batch.data["discount"].tolist() == [0, 0, 0, 0.125, 0.25, 0.5]
    drawn = table.sample(1_000)
    assert set((drawn.data["future_obs"][drawn.data["obs"] == 1]).tolist()) == {2, 3, 4, 5, 6}


def test_future_works_with_lanes_late_values_and_versions(store: di_store.Store) -> None:
    schema = {**PLAIN, "note": Spec((), "f4", late=True), "version": Spec((), "i8")}
    table = store.create_table("t", capacity=100, view=Transition(future=("obs",), horizon=3), schema=schema, lanes=2)
    with table.writer(lanes=2) as writer:
        for x in range(5):
            end = np.array([x == 2, x == 4])
            rows = {"obs": np.array([x, 100 + x]), "reward": np.ones(2), "terminated": np.zeros(2, bool)}
            rows |= {"truncated": end, "version": np.array([10 - x, 20 + x])}
            items = writer.append(rows, next={"obs": np.array([x + 1, 101 + x])})
            if len(items.keys):
                table.update(items.keys, {"note": np.arange(len(items.keys), dtype="f4")})
                with pytest.raises(ValueError, match="an item has 1 rows"):
                    table.update(items.keys, {"note": np.ones(len(items.keys), "f4")}, row=1)
    batch = table.peek(table.keys())
    assert sorted(batch.data["obs"].tolist()) == [0, 1, 2, 100, 101, 102, 103, 104]
    assert (batch.versions == batch.data["version"]).all()  # of the own step alone
    drawn = table.sample(500)
    assert (drawn.data["future_obs"] - drawn.data["obs"] == drawn.data["future_steps"]).all()


def _write_and_die(name: str, point: str) -> None:
    with di_store.open(name) as mine, mine.table("t").writer() as writer:
        _core.arm_fault(point)
        for x in range(1000, 1400):
            writer.append(step(x, x == 1399), next={"obs": x + 1})
    os._exit(0)


def _draw_and_die(name: str, point: str) -> None:
    with di_store.open(name) as mine:
        table = mine.table("t")
        _core.arm_fault(point)
        for n in (32, 32, 600):  # the first one learns how rows lie
            table.sample(n)
    os._exit(0)


@pytest.mark.parametrize(
    ("work", "point"),
    [
        (_write_and_die, "writer.between_slices:2"),
        (_write_and_die, "table.insert_item:150"),
        pytest.param(_draw_and_die, "table.take_copied:1", marks=pytest.mark.memory_only),
        (_draw_and_die, "table.draw_item:60"),
        (_draw_and_die, "sample.before_deliver:1"),
    ],
)
def test_a_kill_leaves_future_items_whole(store: di_store.Store, work: Any, point: str) -> None:
    """A process that attaches by name dies in the middle of the items of an episode, or of a draw."""
    view = Transition(2, future=("obs",), horizon=500)
    table = store.create_table("t", capacity=600, view=view, schema=PLAIN, lanes=2)
    with table.writer() as writer:
        for x in range(300):
            writer.append(step(x, x == 299), next={"obs": x + 1})
    party = mp.get_context("spawn").Process(target=work, args=(store.name, point))
    party.start()
    party.join(60)
    assert party.exitcode == -signal.SIGKILL
    batch = table.sample(2_000, timeout=60)
    later = batch.data["future_obs"] - batch.data["obs"]
    assert (later == batch.data["future_steps"]).all()
    assert (batch.data["next_obs"] - batch.data["obs"] == batch.data["steps"]).all()
    assert len(table) >= 300
    with table.writer() as writer:
        for x in range(5_000, 5_600):
            writer.append(step(x, x == 5_599), next={"obs": x + 1})
    assert (table.sample(600, timeout=60).data["obs"] >= 5_000).all()


def test_memory_is_reckoned_and_bad_options_are_refused(store: di_store.Store) -> None:
    view = Transition(future=("obs",), horizon=200)
    schema = {**PLAIN, "obs": Spec((64,), "f4")}
    with di_store.open(memory=di_store.needed_memory(capacity=40_000, view=view, schema=schema, lanes=1)) as other:
        table = other.create_table("t", capacity=40_000, view=view, schema=schema, lanes=1)
        with table.writer() as writer:
            end = np.arange(10_000) % 200 == 199
            rows = {"obs": np.zeros((10_000, 64), "f4"), "reward": np.zeros(10_000), "terminated": ~end & end}
            for _ in range(5):
                writer.extend({**rows, "truncated": end}, next={"obs": np.ones((10_000, 64), "f4") * 0})
        assert len(table) == 40_000
        assert table.stats()["evicted_for_room"] == 0
    table = store.create_table("t", capacity=9, view=view, schema=PLAIN)
    whole = {**step(1), "next_obs": 2, "discount": 0.9}
    with pytest.raises(ValueError, match="no later steps"):
        table.insert(whole)
    with pytest.raises(ValueError, match="not in obs="):
        store.create_table("no", capacity=9, view=Transition(future=("reward",)), schema=PLAIN)
    with pytest.raises(ValueError, match="future"):
        store.create_table("no", capacity=9, view=Transition(future=("goal",)), schema=PLAIN)
    with pytest.raises(ValueError, match="future_obs"):
        store.create_table("no", capacity=9, view=view, schema={**PLAIN, "future_obs": Spec((), "f4")})
    with pytest.raises(ValueError, match="horizon"):
        store.create_table("no", capacity=9, view=Transition(future=("obs",), horizon=2**21), schema=PLAIN)
