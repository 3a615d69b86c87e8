"""Where memory and disk are full, items go of the table that takes most over what was set aside for it."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Compress, Queue, Spec, Uniform, _core

BYTES = 16_384
PROMISED = 2_000  # rows that do not shrink and fill what is set aside for a table
RANDOM = np.random.default_rng(3)

pytestmark = pytest.mark.filterwarnings("ignore:table .* items were evicted before capacity:RuntimeWarning")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="96MiB") as opened:
        yield opened


def made(store: di_store.Store, name: str, **options: object) -> di_store.Table:
    """A table whose rows are expected to become an eighth on disk."""
    schema = {"number": Spec((), "int64"), "noise": Spec((BYTES,), "uint8")}
    options = {"sampler": Uniform(), "capacity": 8 * PROMISED} | options
    return store.create_table(name, schema=schema, lanes=1, compress=Compress(expect=8), **options)  # type: ignore[arg-type]


def add(table: di_store.Table, first: int, count: int, timeout: float = 60) -> None:
    with table.writer() as writer:
        for at in range(first, first + count, 100):
            numbers = np.arange(at, min(at + 100, first + count))
            writer.extend(
                {"number": numbers, "noise": RANDOM.integers(0, 256, (len(numbers), BYTES), np.uint8)}, timeout=timeout
            )


def row() -> dict[str, object]:
    return {"number": 0, "noise": RANDOM.integers(0, 256, BYTES, np.uint8)}


def sound(store: di_store.Store, *tables: di_store.Table) -> None:
    assert store.check() == []
    for table in tables:
        numbers = table.sample(64).data["number"]
        assert len(numbers) == 64


def test_tables_above_their_share_are_evicted_first(store: di_store.Store) -> None:
    """The first fills memory and disk; the second gets what was set aside for it, and then as much as the first."""
    first, second = made(store, "first"), made(store, "second")
    add(first, 0, 8_000)
    full = len(first)
    assert full > 2 * PROMISED
    add(second, 0, PROMISED)
    assert len(second) == PROMISED
    assert second.stats()["evicted_for_room"] == 0
    add(second, PROMISED, 6_000)
    assert 0.6 < len(second) / len(first) < 1.6
    assert len(first) + len(second) > 0.8 * full
    add(first, 8_000, 500)
    assert 0.6 < len(second) / len(first) < 1.6
    sound(store, first, second)


def test_tables_within_their_share_keep_their_rows(store: di_store.Store) -> None:
    """Nobody who writes more takes what was set aside for others."""
    first, second = made(store, "first"), made(store, "second")
    add(second, 0, PROMISED // 2)
    add(first, 0, 10_000)
    assert len(second) == PROMISED // 2
    sound(store, first, second)


def test_a_queue_gets_its_share_of_the_disk(store: di_store.Store) -> None:
    """It evicts nothing of its own: it would wait for its reader."""
    first = made(store, "first")
    queue = made(store, "queue", sampler=di_store.Fifo(), limiter=Queue(8 * PROMISED), max_times_sampled=1)
    add(first, 0, 8_000)
    add(queue, 0, PROMISED)
    assert len(queue) == PROMISED
    assert queue.sample(100).data["number"].tolist() == list(range(100))


def read_and_stop(name: str, draws: int) -> None:
    _core.arm_fault("sample.before_copy:1:stop")
    with di_store.attach(name) as store:
        store.table("first").sample(draws)


def hold_its_lock(name: str) -> None:
    with di_store.attach(name) as store:
        _core.arm_fault("table.insert_item:1:stop")
        add(store.table("first"), 0, 1)


def stopped(target: Callable[..., None], *args: object) -> mp.process.BaseProcess:
    child = mp.get_context("spawn").Process(target=target, args=args)
    child.start()
    assert child.pid is not None
    found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    assert found is not None
    assert found.si_code == os.CLD_STOPPED
    return child


def test_a_stopped_process_blocks_nobody_beyond_the_deadline(store: di_store.Store) -> None:
    """Items of the other table can't go now: a call ends by its deadline, and room comes once it may."""
    first, second = made(store, "first"), made(store, "second")
    add(first, 0, 8_000)
    child = stopped(hold_its_lock, store.name)
    with suppress(di_store.StoreFull):
        add(second, 0, 1_000, timeout=2)
    child.kill()
    child.join(60)
    add(second, 1_000, PROMISED)
    assert len(second) >= PROMISED
    sound(store, first, second)


def test_chunks_being_read_do_not_drain_their_table(store: di_store.Store) -> None:
    """Chunks that a stopped process reads stay when their items go; few items go for nothing."""
    first, second = made(store, "first"), made(store, "second")
    add(first, 0, 8_000)
    child = stopped(read_and_stop, store.name, 2_000)
    with suppress(di_store.StoreFull):
        add(second, 0, PROMISED, timeout=2)
    assert len(first) > 1.5 * PROMISED
    child.kill()
    child.join(60)
    add(second, 0, PROMISED)
    assert len(second) >= PROMISED
    sound(store, first, second)


def learn(name: str, ready: Any) -> None:
    with di_store.attach(name) as store:
        table = store.table("first")
        while True:
            table.sample(256)
            ready.set()


def test_learners_do_not_drain_the_table_that_is_written(store: di_store.Store) -> None:
    """What its writer evicts stays while batches are copied from it: it waits for these, and not more goes."""
    table = made(store, "first")
    add(table, 0, 8_000)
    full, spawn = len(table), mp.get_context("spawn")
    events = [spawn.Event() for _ in range(2)]
    learners = [spawn.Process(target=learn, args=(store.name, event)) for event in events]
    for learner in learners:
        learner.start()
    for event in events:
        assert event.wait(60)
    least = full
    for first in range(8_000, 14_000, 100):
        add(table, first, 100)
        least = min(least, len(table))
    for learner in learners:
        learner.kill()
        learner.join(60)
    assert least > 0.4 * full
    sound(store, table)


def test_a_stopped_learner_does_not_block_its_tables_writer(store: di_store.Store) -> None:
    """Its writer waits for it, then other items go."""
    table = made(store, "first")
    add(table, 0, 8_000)
    child = stopped(read_and_stop, store.name, 32)
    add(table, 8_000, 500)
    assert table.sample(1).data["number"].shape == (1,)
    child.kill()
    child.join(60)
    add(table, 8_500, 500)
    sound(store, table)


def test_nothing_is_evicted_while_the_write_budget_is_used_up(tmp_path: Path) -> None:
    """The disk has room: who needs some waits until more may be written."""
    more = {"disk": tmp_path / "disk", "disk_capacity": "256MiB", "write_budget": "1GB"}
    with di_store.open(memory="32MiB", **more) as store:
        first, second = made(store, "first"), made(store, "second", capacity=PROMISED)
        with pytest.raises(di_store.StoreFull, match="write_budget"), first.writer() as writer:
            for _ in range(8_000):
                writer.append(row(), timeout=0.5)
        before = len(first)
        assert before > PROMISED
        with pytest.raises(di_store.StoreFull, match="write_budget"), second.writer() as writer:
            for _ in range(8_000):
                writer.append(row(), timeout=0.5)
        assert len(first) == before
        sound(store, first)
