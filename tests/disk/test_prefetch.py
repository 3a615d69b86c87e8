"""Loaders over a store with a disk tier: batches ahead hold no memory of it, and are read beside the learner."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core
from di_store.cli.stores import disk_text
from di_store.replay.prefetch import Ready
from disk.test_disk import fill, numbers, row

SPAWN = mp.get_context("spawn")
ROWS = 30_000  # of 1 KiB, in a store of 16 MiB


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(
        memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1, staging="64MiB"
    ) as opened:
        yield opened


@pytest.fixture
def table(store: di_store.Store) -> di_store.Table:
    made = store.create_table("replay", capacity=ROWS, lanes=1, compress=None)
    fill(made, 0, ROWS)
    return made


def check(batch: di_store.Batch) -> None:
    found = numbers(batch.data["obs"])
    assert ((found[:, -1] if found.ndim == 2 else found) % 7 == batch.data["action"]).all()


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("columns", [None, "action"])
def test_batches_are_whole_and_read_while_the_learner_works(
    store: di_store.Store, table: di_store.Table, prefetch: int, columns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    advance = Ready.advance
    monkeypatch.setattr(Ready, "advance", lambda each: (threads.add(threading.get_ident()), advance(each)))
    with table.loader(128, prefetch=prefetch, columns=columns) as loader:
        for batch in itertools.islice(loader, 31):
            if columns is None:
                check(batch)
    assert (threading.get_ident() in threads) == (prefetch == 0)
    disk = store.stats()["disk"]
    assert disk is not None
    assert columns or disk["read"] > 0
    assert (disk["loaded"], disk["loaded_ahead"]) == (31, 31 * prefetch)
    assert prefetch or disk["stalled_seconds"] > 0
    assert f"loaders: {prefetch}.0 batches ahead" in disk_text(disk)
    assert not store.check()


def test_a_small_staging_budget_prefetches_less_and_warns_once(tmp_path: Path) -> None:
    """Of 1 MiB, five batches of 32 rows of 6 KiB; of the default, the eighth part of the memory, ten."""
    for staging, ahead in (("1MiB", 5), (None, 10), (1, 1)):
        with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="128MiB", staging=staging) as store:
            table = store.create_table("t", capacity=2_000, lanes=1, schema={"x": di_store.Spec((6 << 10,), "u1")})
            table.extend({"x": np.zeros((2_000, 6 << 10), np.uint8)})
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with table.loader(32, prefetch=16) as one, table.loader(32, prefetch=16) as other:
                    for _ in range(3):
                        next(one)
                    assert table.stats()["samples"] == 32 * (3 + ahead)
                    next(other)
                    assert table.stats()["samples"] == 32 * (3 + ahead + 1 + 1)
            assert table.stats()["samples"] == 32 * 4
            texts = [str(each.message) for each in told if "staging=" in str(each.message)]
            assert len(texts) == 1
            assert f"{ahead} batches" in texts[0]


@pytest.mark.memory_only
def test_staging_without_a_disk_is_refused(tmp_path: Path, store: di_store.Store) -> None:
    with pytest.raises(ValueError, match="no disk tier"):
        di_store.open(memory="16MiB", staging="1MiB")
    with pytest.raises(ValueError, match="leave it out"):
        di_store.open(store.name, mode="r", staging="1MiB")
    with di_store.open(memory="16MiB") as plain, pytest.raises(ValueError, match="no disk tier"):
        di_store.attach(plain.name, staging="1MiB")
    for wrong in ("10%", 0, 1.5, "many"):
        with pytest.raises(ValueError, match="staging="):
            di_store.attach(store.name, staging=wrong)  # type: ignore[arg-type]
    with di_store.attach(store.name, staging=1 << 20) as other:
        assert other.name == store.name


def hold_ahead(name: str, fault: str) -> None:
    with di_store.attach(name, staging="256MiB") as store:
        _core.arm_fault(fault)
        with store.table("replay").loader(256, prefetch=16) as loader:
            next(loader)
            threading.Event().wait()


def test_batches_ahead_leave_memory_to_the_writer(tmp_path: Path) -> None:
    """A learner that is stopped while it reads the batches ahead: the chunks in memory are free again."""
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="512MiB") as store:
        view = di_store.Transition(n_step=1, frame_stack={"obs": 4})
        table = store.create_table("replay", capacity=120_000, lanes=1, view=view, compress=None)
        fill(table, 0, 120_000)
        evicted = table.stats()["evicted_for_room"]
        child = SPAWN.Process(target=hold_ahead, args=(store.name, "sample.portion_read:13:stop"))
        child.start()
        assert child.pid is not None
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        assert found is not None
        assert found.si_code == os.CLD_STOPPED
        assert table.stats()["samples"] == 17 * 256
        fill(table, 200_000, 70_000)
        assert table.stats()["evicted_for_room"] == evicted
        child.kill()
        child.join(60)
        check(table.sample(64))
        assert table.stats()["samples"] in (64, 64 + 256), "those of the dead are given back, but for a batch it had"
        assert not store.check()


def sample(name: str, draws: int, fault: str) -> None:
    with di_store.attach(name) as store:
        _core.arm_fault(fault)
        store.table("replay").sample(draws)


def stopped_reader(store: di_store.Store, draws: int, point: str) -> Any:
    """A process that samples, and has stopped at that point."""
    child = SPAWN.Process(target=sample, args=(store.name, draws, f"{point}:1:stop"))
    child.start()
    assert child.pid is not None
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    return child


@pytest.mark.memory_only
def test_items_are_not_evicted_for_room_held_by_readers(store: di_store.Store, table: di_store.Table) -> None:
    """A stopped process reads from all chunks in memory. Evicting items would free nothing: writers wait."""
    child = stopped_reader(store, 4_000, "sample.before_copy")
    with pytest.raises(di_store.StoreFull, match="being copied"), table.writer() as writer:
        for number in range(20_000):
            writer.append(row(number), timeout=1)
    assert len(table) > ROWS - 4_000
    child.kill()
    child.join(60)
    fill(table, 50_000, 20_000)
    assert len(table) > ROWS - 200


@pytest.mark.memory_only
def test_a_batch_that_reads_from_disk_holds_no_memory(store: di_store.Store, table: di_store.Table) -> None:
    """What is in memory was copied first. So writers go on, and lose nothing, while others sample all the time."""
    child = stopped_reader(store, 2_000, "sample.portion_read")
    fill(table, 50_000, 2_000)
    assert len(table) > ROWS - 200
    child.kill()
    child.join(60)
    assert not store.check(repair=True)


def learn(name: str, pipe: Any) -> None:
    with di_store.attach(name, staging="64MiB") as store, store.table("replay").loader(64, prefetch=8) as loader:
        for batch in loader:
            check(batch)
            pipe.send(1)


def test_batches_ahead_of_killed_learners_take_no_room(store: di_store.Store, table: di_store.Table) -> None:
    for turn in range(3):
        near, far = SPAWN.Pipe()
        child = SPAWN.Process(target=learn, args=(store.name, far))
        child.start()
        for _ in range(2 + turn):
            assert near.poll(120)
            near.recv()
        child.kill()
        child.join(60)
        fill(table, ROWS * (turn + 1), 3_000)
        assert len(table) > ROWS - 100, "items do not go for room that the dead one's draws keep"
    check(table.sample(64))
    with table.loader(64, prefetch=8) as loader:
        check(next(loader))
    assert not store.check(repair=True)
    assert store.stats()["pinned"] == 0


def read_after_fork(name: str) -> None:
    with di_store.attach(name) as store:
        check(store.table("replay").sample(200))
        with store.table("replay").loader(64, prefetch=2) as loader:
            check(next(loader))


def test_forks_during_reads_are_safe(store: di_store.Store, table: di_store.Table) -> None:
    fork = mp.get_context("fork")
    with table.loader(256, prefetch=8) as loader:
        for _ in range(5):
            next(loader)
            children = [fork.Process(target=read_after_fork, args=(store.name,)) for _ in range(2)]
            for child in children:
                child.start()
            check(next(loader))
            for child in children:
                child.join(60)
                assert child.exitcode == 0
            check(next(loader))
    assert not store.check()


ENDS = """
import sys, di_store
store = di_store.attach(sys.argv[1], staging="64MiB")
loader = store.table("replay").loader(256, prefetch=16)
for _ in range(int(sys.argv[2])):
    next(loader)
print("ending", flush=True)
"""


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_the_interpreter_can_exit_during_reads(store: di_store.Store, table: di_store.Table, taken: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, store.name, str(taken)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ending\n", "", 0)
    check(table.sample(8))
    assert table.stats()["samples"] == 256 * taken + 8


def test_mixtures_and_ragged_values_are_read_ahead(tmp_path: Path) -> None:
    with di_store.open(memory="24MiB", disk=tmp_path / "disk", disk_capacity="256MiB", staging="64MiB") as store:
        _mixed(store)


def _mixed(store: di_store.Store) -> None:
    schema = {"x": di_store.Spec((), "i8"), "tokens": di_store.Spec((None,), "i4", max=2_000)}
    for table in [store.create_table(name, capacity=4_000, lanes=1, schema=schema) for name in ("one", "other")]:
        for number in range(4_000):
            table.insert({"x": number, "tokens": np.full(number % 2_000, number, "i4")})
    assert store.stats()["disk"]["dropped_chunks"] > 0  # type: ignore[index]
    mixture = store.mix({"one": 3, "other": 1}, seed=2)
    for source in (mixture, store.table("one")):
        with source.loader(64, prefetch=3) as loader:
            for _, batch in zip(range(10), loader, strict=False):
                tokens = batch.data["tokens"]
                assert (tokens.lengths == batch.data["x"] % 2_000).all()
                for i in range(64):
                    values = tokens.values[tokens.offsets[i] : tokens.offsets[i + 1]]
                    assert (values == batch.data["x"][i]).all()


def test_python_values_are_read_ahead(store: di_store.Store) -> None:
    table = store.create_table("values", capacity=20_000, view=di_store.Opaque())
    for number in range(20_000):
        table.insert({"number": number, "text": "x" * (number % 1_500)})
    with table.loader(32, prefetch=2) as loader:
        for _, batch in zip(range(10), loader, strict=False):
            assert all(len(value["text"]) == value["number"] % 1_500 for value in batch.data)


def test_a_dropped_table_ends_its_loader(store: di_store.Store, table: di_store.Table) -> None:
    with table.loader(256, prefetch=4) as loader:
        check(next(loader))
        store.drop_table("replay")
        with pytest.raises(di_store.TableNotFound):
            for _ in range(6):
                next(loader)


def test_another_thread_can_close_a_reading_loader(store: di_store.Store, table: di_store.Table) -> None:
    for _ in range(5):
        loader = table.loader(256, prefetch=8)
        check(next(loader))
        thread = threading.Thread(target=loader.close)
        thread.start()
        with pytest.raises(di_store.StoreClosed):
            while True:
                next(loader)
        thread.join(60)
    taken = table.stats()["samples"]
    check(table.sample(8))
    assert table.stats()["samples"] == taken + 8
