"""The end of a table's data: what `finish` leaves to draw, for whom `sample` waits before it says so."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from undelivered import holder

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened


@pytest.mark.parametrize("settings", [{"limiter": di_store.Queue(10)}, {"sampler": di_store.Once(1)}], ids=str)
def test_end_of_data_waits_for_undelivered_draws(store: Any, settings: dict[str, Any]) -> None:
    table = store.create_table("t", capacity=10, **settings)
    table.extend({"n": np.arange(4)})
    process = holder(table, 4)
    table.finish()
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(1, timeout=0.2)
    assert f"4 draws are not delivered yet and may come back, held by pid {process.pid}, stopped" in caught.value.reason
    assert str(process.pid) in (caught.value.culprit or "")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert sorted(table.sample(8, timeout=60).data["n"].tolist()) == [0, 1, 2, 3]
    with pytest.raises(di_store.EndOfData):
        table.sample(1, timeout=60)


def test_end_of_data_comes_when_draws_are_delivered(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.Queue(10))
    table.extend({"n": np.arange(4)})
    table.finish()
    loader = table.loader(2, prefetch=1)
    ended: list[str] = []

    def learner() -> None:
        try:
            table.sample(1)
        except di_store.EndOfData:
            ended.append("end")

    assert next(loader).data["n"].tolist() == [0, 1]
    assert table.stats()["samples"] == 4, "the next batch is drawn, and nobody takes it"
    thread = threading.Thread(target=learner)
    thread.start()
    while not any(waiter["table"] == "t" for waiter in store.stats()["waiters"]):
        pass
    assert not ended
    assert next(loader).data["n"].tolist() == [2, 3]
    thread.join(60)
    assert ended == ["end"]
    assert list(loader) == []
    loader.close()


def test_a_slow_consumer_does_not_time_out_its_loader(store: Any) -> None:
    """Its consumer is slower than `timeout`, which counts for a draw, not for what is ready."""
    table = store.create_table("t", capacity=20, sampler=di_store.Once(1))
    table.extend({"n": np.arange(20)})
    table.finish()
    with table.loader(4, prefetch=8, timeout=0.05) as loader:
        found = next(loader).data["n"].tolist()  # the others are drawn, and the end of the data is seen
        assert table.stats()["samples"] == 20
        found += [n for batch in loader for n in batch.data["n"].tolist()]
    assert sorted(found) == list(range(20))


LEFT = [
    {"limiter": di_store.MinSize(4), "max_times_sampled": 1, "sampler": di_store.Fifo()},
    {"limiter": di_store.SamplesPerInsert(1, 4, 0.0), "max_times_sampled": 1, "sampler": di_store.Fifo()},
    {"limiter": di_store.SamplesPerInsert(1, 4, 0.0), "max_times_sampled": 1},
    {"limiter": di_store.MinSize(9), "sampler": di_store.Once(1)},
]


@pytest.mark.parametrize("settings", LEFT, ids=str)
def test_a_finished_table_gives_all_remaining_items(store: Any, settings: dict[str, Any]) -> None:
    """No insert will come that a limiter could wait for; where draws use items up, the last ones come too."""
    table = store.create_table("t", capacity=10, **settings)
    table.extend({"n": np.arange(5)})
    table.finish()
    found: list[int] = []
    with pytest.raises(di_store.EndOfData):
        while True:
            found += table.sample(2, timeout=60).data["n"].tolist()
    assert sorted(found) == list(range(5))


def test_with_replacement_the_limiter_still_applies_after_finish(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.MinSize(9))
    table.extend({"n": np.arange(5)})
    table.finish()
    with pytest.raises(di_store.EndOfData, match="5 of min_size=9"):
        table.sample(1, timeout=60)


LATE = {"n": di_store.Spec((), "i8"), "reward": di_store.Spec((), "f4", late=True)}


@pytest.mark.parametrize("view", [di_store.Step(), di_store.Group(2, by="n")], ids=str)
def test_end_of_data_waits_for_late_columns(store: Any, view: di_store.View) -> None:
    """The last rows are judged after the last one was written: none of them is lost."""
    table = store.create_table("t", capacity=10, view=view, schema=LATE, limiter=di_store.Queue(10))
    keys = table.extend({"n": np.array([7, 7])})
    table.finish()
    with pytest.raises(di_store.Timeout, match=r"finished; .*wait for late columns"):
        table.sample(1, timeout=0)
    with table.loader(1) as loader:
        judge = threading.Timer(0.2, table.update, (keys, {"reward": np.float32([1, 2])}))
        judge.start()
        found = [float(each) for batch in loader for each in np.ravel(batch.data["reward"])]
        judge.join()
    assert found == [1, 2]
    with pytest.raises(di_store.EndOfData):
        table.sample(1, timeout=60)


def test_end_of_data_does_not_wait_for_incomplete_groups(store: Any) -> None:
    """None can come any more."""
    table = store.create_table(
        "t", capacity=10, view=di_store.Group(2, by="n"), schema=LATE, limiter=di_store.Queue(10)
    )
    table.insert({"n": 7})
    table.finish()
    with pytest.raises(di_store.EndOfData, match="1 of 2 answers"):
        table.sample(1, timeout=60)


def test_a_mixture_gives_back_while_it_waits(store: Any) -> None:
    """Two mixtures would else hold what the other one waits for."""
    a = store.create_table("a", capacity=10, limiter=di_store.Queue(10))
    b = store.create_table("b", capacity=10, limiter=di_store.Queue(10))
    for table in (a, b):
        table.extend({"n": np.arange(4)})
    process = holder(b, 4)
    a.finish()
    b.finish()
    mixture = store.mix({"a": 1, "b": 1}, seed=4)  # 2 of each, then 1 and 3
    with pytest.raises(di_store.Timeout, match="may come back"):
        mixture.sample(4, timeout=0.2)
    assert len(a) == 4
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert mixture.sample(4, timeout=60).source.tolist() == [0, 1, 1, 1]


def test_three_loaders_all_reach_the_end_of_data(store: Any) -> None:
    table = store.create_table("t", capacity=400, sampler=di_store.Once(3))
    table.extend({"n": np.arange(400)})
    table.finish()
    counts: Counter[int] = Counter()
    lock = threading.Lock()

    def learner() -> None:
        for batch in table.loader(7):
            with lock:
                counts.update(batch.data["n"].tolist())

    everybody(learner, 3)
    assert counts == Counter(dict.fromkeys(range(400), 3))


def everybody(work: Callable[[], None], threads: int) -> None:
    """Do the work in several threads at once."""
    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
