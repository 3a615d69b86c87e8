"""Checkpoints while other threads of the process write and draw as fast as they can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from checkpoint.stores import Options
from di_store import Sequence, Spec, Uniform

SECONDS = 60.0
NOISE = np.random.default_rng(0).integers(0, 256, (64, 2000), np.uint8)
SCHEMA = {"number": Spec((), "int64"), "noise": Spec((2000,), "uint8"), "terminated": False, "truncated": False}


def steps(first: int, count: int) -> dict[str, Any]:
    number = np.arange(first, first + count)
    flags = {"terminated": number % 37 == 36, "truncated": np.zeros(count, bool)}
    return {"number": number, "noise": NOISE[number % 64], **flags}


def right(batch: di_store.Batch) -> None:
    number = batch.data["number"]
    rows = NOISE[number % 64] * (batch.data["mask"] != 0)[..., None]
    assert (batch.data["noise"] == rows).all()


def sequences(store: di_store.Store, name: str, **options: Any) -> di_store.Table:
    return store.create_table(name, capacity=1_000, lanes=1, view=Sequence(4), schema=SCHEMA, **options)


def writes(table: di_store.Table, calls: int = 1_000_000) -> Iterator[None]:
    """Writes 256 rows at each step."""
    with table.writer() as writer:
        for call in range(calls):
            writer.extend(steps(call * 256, 256), timeout=SECONDS)
            yield


def draws(table: di_store.Table) -> Iterator[None]:
    with table.loader(64, prefetch=4, timeout=SECONDS) as loader:
        for batch in loader:
            right(batch)
            yield


@contextmanager
def beside(*works: Iterator[None]) -> Iterator[None]:
    """Each goes on in a thread of its own, meanwhile."""
    end, failed = threading.Event(), list[BaseException]()

    def loop(work: Iterator[None]) -> None:
        try:
            until = time.monotonic() + SECONDS
            while not end.is_set() and time.monotonic() < until:
                next(work)
            del work  # here: a writer is of one thread
        except BaseException as error:  # the test's thread raises it
            failed.append(error)

    threads = [threading.Thread(target=loop, args=(work,)) for work in works]
    del works
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join(SECONDS)
    assert not failed, failed


def test_the_store_stays_sound_during_checkpoints(options: Callable[[], Options], tmp_path: Path) -> None:
    """What a checkpoint has let go belongs to other threads at once."""
    with di_store.open(**options()) as store:
        table = sequences(store, "t", remover=Uniform())
        with beside(writes(table), draws(table)):
            for _ in range(10):
                store.checkpoint(tmp_path / "checkpoint")
                assert store.check() == []
        assert store.check() == []


def test_a_checkpoint_ends_even_if_rows_outpace_the_drive(tmp_path: Path) -> None:
    with di_store.open(memory="128MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        table = sequences(store, "t", remover=Uniform(), durability="disk", sync_every=1)
        with beside(writes(table)):
            for _ in range(3):
                store.sync(timeout=SECONDS / 2)
                store.checkpoint(tmp_path / "checkpoint")


def test_rows_written_later_are_not_in_the_checkpoint(tmp_path: Path) -> None:
    with di_store.open(memory="128MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        table = sequences(store, "t")
        list(writes(table, 3))
        arena = store._backend.session.arena
        last = arena.last_uid(SECONDS)
        list(writes(table, 10))
        for most, least in ((5, 1), (16, 8)):
            while arena.write_to_disk(None, last, SECONDS):
                pass
            assert least * 256 * 2_000 < disk(store)["clean"] < most * 256 * 2_000
            last = arena.last_uid(SECONDS)


def test_tables_that_are_not_durable_are_not_written(tmp_path: Path) -> None:
    with di_store.open(memory="128MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        few = sequences(store, "few", durability="disk", sync_every=3_600)
        many = store.create_table("many", capacity=10_000, lanes=1, schema=SCHEMA)
        for table, count in ((few, 256), (many, 8_192)):
            list(writes(table, count // 256))
        store.sync()
        assert disk(store)["written"] < 4 << 20


def disk(store: di_store.Store) -> Any:
    return store.stats()["disk"]
