"""Views whose items hold more than one example, over a stream that several tables share, and while tables get full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Sequence, Spec, Transition

SCHEMA = {
    "obs": Spec((), "i8"),
    "state": Spec((40,), "f4"),
    "tokens": Spec((None,), "i4", max=9),
    "reward": Spec((), "f4"),
    "terminated": Spec((), "?"),
    "truncated": Spec((), "?"),
}
VIEWS = {
    "future": Transition(2, obs=("obs", "tokens"), future=("obs", "tokens"), horizon=30),
    "random": Sequence(5, period=8, start="random", first=("state",)),
    "strided": Sequence(4, stride=3, first=("state",), last={"tokens": 2}),
    "plain": Sequence(6, first=("state",)),
}
LONGEST = 45


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="256MiB") as opened:
        yield opened
        assert opened.check() == []


def rows(numbers: np.ndarray[Any, Any], end: bool) -> dict[str, Any]:
    """A row of each lane; `numbers` tell lane, episode and step."""
    tokens = [np.full(number % 9, number, "i4") for number in numbers.tolist()]
    ends = np.full(len(numbers), end)
    state = np.broadcast_to(numbers[:, None], (len(numbers), 40)).astype("f4")
    return {"obs": numbers, "state": state, "tokens": tokens, "reward": np.ones(len(numbers)), "terminated": ends,
            "truncated": np.zeros(len(numbers), bool)}  # fmt: skip


def write(writer: Any, rng: np.random.Generator, episodes: range) -> None:
    for episode in episodes:
        steps = int(rng.integers(1, LONGEST))
        for step in range(steps):
            numbers = (np.arange(2) * 1000 + episode) * 100 + step
            behind = rows(numbers + 1, False)
            writer.append(rows(numbers, step == steps - 1), next={"obs": behind["obs"], "tokens": behind["tokens"]})


def check_future(batch: Any) -> None:
    data = batch.data
    assert (data["future_obs"] == data["obs"] + data["future_steps"]).all()
    assert (data["next_obs"] == data["obs"] + data["steps"]).all()
    assert (data["reward"] == np.where(data["steps"] == 2, np.float32(1.99), 1)).all()
    found = [values.tolist() for values in np.split(data["future_tokens"].values, data["future_tokens"].offsets[1:-1])]
    assert found == [[number] * (number % 9) for number in data["future_obs"].tolist()]


def check_windows(batch: Any, stride: int) -> None:
    data = batch.data
    time = data["mask"].shape[1]
    wanted = data["obs"][:, :1] + stride * np.arange(time)
    assert (np.where(data["mask"], data["obs"], wanted) == wanted).all()
    assert (data["state"] == data["obs"][:, :1]).all()
    assert (batch.starts == data["obs"][:, 0] % 100).all()


def check(tables: dict[str, di_store.Table], n: int) -> None:
    check_future(tables["future"].sample(n, timeout=60))
    for name, stride in (("random", 1), ("strided", 3), ("plain", 1)):
        check_windows(tables[name].sample(n, timeout=60), stride)


@pytest.mark.parametrize("remover", [di_store.Fifo(), di_store.Uniform()], ids=["in order", "any order"])
def test_full_tables_of_one_stream_keep_their_own_items(store: di_store.Store, remover: Any) -> None:
    tables = {
        name: store.create_table(name, capacity=60, view=view, schema=SCHEMA, remover=remover, lanes=2)
        for name, view in VIEWS.items()
    }
    rng = np.random.default_rng(1)
    with store.writer(list(tables.values()), lanes=2) as writer:
        write(writer, rng, range(30))
        for turn in range(30):
            write(writer, rng, range(30 + turn, 31 + turn))
            check(tables, 50)
    check(tables, 600)
    assert all(len(table) == 60 for table in tables.values())


def test_a_learner_draws_while_episodes_are_written(store: di_store.Store) -> None:
    """Items of other rows take their place meanwhile; what a batch shows is of one episode all the same."""
    tables = {
        name: store.create_table(name, capacity=40, view=view, schema=SCHEMA, lanes=2) for name, view in VIEWS.items()
    }
    writer = store.writer(list(tables.values()), lanes=2)
    write(writer, np.random.default_rng(0), range(30))
    stop, failed = threading.Event(), list[BaseException]()

    def learn() -> None:
        try:
            while not stop.is_set():
                check(tables, 40)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=learn)
    thread.start()

    write(writer, np.random.default_rng(2), range(30, 90))
    stop.set()
    thread.join(60)
    writer.close()
    assert not failed, failed
    assert not thread.is_alive()


def test_unbounded_ragged_rows_work_with_next(store: di_store.Store) -> None:
    """Without `max=` an observation given ahead is kept until its row is complete."""
    schema = {**SCHEMA, "tokens": Spec((None,), "i4")}
    tables = {
        name: store.create_table(name, capacity=500, view=view, schema=schema, max_bytes="16MiB", lanes=2)
        for name, view in VIEWS.items()
    }
    with store.writer(list(tables.values()), lanes=2) as writer:
        for episode in range(20):
            for step in range(20):
                numbers = (np.arange(2) * 1000 + episode) * 100 + step
                writer.append(rows(numbers, step == 19), next={"obs": numbers + 1})
    for name, stride in (("random", 1), ("strided", 3), ("plain", 1)):
        check_windows(tables[name].sample(300), stride)
    data = tables["future"].sample(300).data
    assert (data["future_obs"] <= data["obs"] + data["future_steps"]).all()
    assert (data["future_obs"] >= data["obs"] + data["future_steps"] - 1).all()  # of a termination: the last one again
