"""`Once`: epochs when draws come back over their border, and together with a use limit."""

from __future__ import annotations

import multiprocessing as mp
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from undelivered import holder

import di_store
from di_store import _core


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened


def kill_holder(table: Any, n: int) -> None:
    """A process draws n items, over borders of epochs, and is killed inside `sample`."""
    process = holder(table, n)
    process.kill()
    process.join()


@pytest.mark.parametrize("uses", [0, 3, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_death_between_epochs_keeps_epochs_complete(store: Any, shuffle: bool, uses: int) -> None:
    """What a killed learner held of three epochs is drawn epoch by epoch, as if it had never drawn."""
    table = store.create_table("t", capacity=10, sampler=di_store.Once(3, shuffle), max_times_sampled=uses)
    table.extend({"n": np.arange(10)})
    first = table.sample(4, timeout=60).data["n"].tolist()
    kill_holder(table, 26)
    table.finish()
    numbers = first + [int(table.sample(1, timeout=60).data["n"][0]) for _ in range(26)]
    for epoch in range(3):
        assert sorted(numbers[10 * epoch : 10 * epoch + 10]) == list(range(10))
    with pytest.raises(di_store.EndOfData):
        table.sample(1, timeout=60)
    assert store.check() == []


def test_draws_given_back_late_still_count_in_each_epoch(store: Any) -> None:
    """Another learner is an epoch ahead when draws come back: each item still comes once for each epoch."""
    table = store.create_table("t", capacity=6, sampler=di_store.Once(3))
    table.extend({"n": np.arange(6)})
    reader = table._backend.handle.reader()
    late = reader.begin()
    assert reader.draw(late, 4) == 4
    ahead = table.sample(2 + 6 + 1, timeout=60).data["n"].tolist()
    reader.give_back(late)
    behind = set(range(6)) - set(ahead[:2]) - {ahead[8]}
    made_up = table.sample(len(behind), timeout=60).data["n"].tolist()
    assert set(made_up) == behind, "first, those that are furthest behind"
    rest = table.sample(18 - 9 - len(behind), timeout=60).data["n"].tolist()
    assert Counter(ahead + made_up + rest) == Counter(dict.fromkeys(range(6), 3))


LEARNERS = 3


def learner(store: str, fault: str, batch: int, gate: Any, pipe: Any) -> None:
    """Draw to the end, or to the fault; tell every batch that came."""
    with di_store.attach(store, timeout=60) as attached:
        table = attached.table("t")
        pipe.send([])
        gate.wait()
        _core.arm_fault(fault)
        try:
            while True:
                pipe.send(table.sample(batch, timeout=60).data["n"].tolist())
        except di_store.EndOfData:
            pass


@pytest.mark.parametrize("fault", ["table.draw_item:150", "sample.before_copy:1", "sample.before_deliver:1"])
def test_once_is_exact_though_a_learner_is_killed_in_sample(store: Any, fault: str) -> None:
    items, epochs = 97, 4
    table = store.create_table("t", capacity=items, sampler=di_store.Once(epochs))
    table.extend({"n": np.arange(items)})
    table.finish()
    spawn = mp.get_context("spawn")
    gates = [spawn.Event() for _ in range(LEARNERS)]
    pipes, processes = [], []
    for number, batch in enumerate((200, 7, 23)):
        ours, theirs = spawn.Pipe()
        arguments = (store.name, fault if number == 0 else "", batch, gates[number], theirs)
        processes.append(spawn.Process(target=learner, args=arguments))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    gates[0].set()
    while table.stats()["samples"] == 0 and processes[0].is_alive():
        pass  # it draws over two borders of epochs and dies with that
    for gate in gates[1:]:
        gate.set()
    counts: Counter[int] = Counter()
    for pipe in pipes:
        try:
            while True:
                counts.update(pipe.recv())
        except EOFError:
            pass
    for number, process in enumerate(processes):
        process.join(60)
        assert process.exitcode == (0 if number else -signal.SIGKILL)
    assert counts == Counter(dict.fromkeys(range(items), epochs))
    assert store.check() == []


@pytest.mark.parametrize(("epochs", "uses", "stay"), [(2, 2, 0), (None, 2, 0), (2, 3, 10), (None, 255, 0), (1, 1, 0)])
def test_once_respects_a_use_limit(store: Any, epochs: int | None, uses: int, stay: int) -> None:
    """Items leave after `max_times_sampled` draws, which come once in each epoch."""
    table = store.create_table("t", capacity=20, sampler=di_store.Once(epochs), max_times_sampled=uses)
    table.extend({"n": np.arange(5)})
    assert sorted(table.sample(5, timeout=60).data["n"].tolist()) == list(range(5))
    table.extend({"n": np.arange(5, 10)})  # in the first epoch still
    with pytest.raises(di_store.Timeout):
        table.sample(10**6, timeout=0.05)  # over many borders, and back
    table.finish()
    numbers = list(range(5))
    with pytest.raises(di_store.EndOfData):
        while True:
            numbers += table.sample(3, timeout=60).data["n"].tolist()
    each = uses if epochs is None else epochs
    assert Counter(numbers) == Counter(dict.fromkeys(range(10), each))
    assert sorted(numbers[5:10]) == list(range(5, 10)), "the first epoch goes on for later inserts"
    for epoch in range(each):
        assert sorted(numbers[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert len(table) == stay
    assert store.check() == []


def test_once_with_too_many_uses_is_refused(store: Any) -> None:
    with pytest.raises(ValueError, match=r"max_times_sampled=256 .* at most 255"):
        store.create_table("t", capacity=20, sampler=di_store.Once(None), max_times_sampled=256)
