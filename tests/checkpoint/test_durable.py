"""Tables with `durability="disk"`: they outlive their store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import WARM

import di_store
from checkpoint.stores import same_draws, sound, write
from di_store import CapacityError, CorruptData, Prioritized, StoreError, Transition, _core
from di_store.checkpoint.store import capture
from di_store.checkpoint.tree.folder import Folder

SECONDS = 60.0


def opened(folder: Path, name: str | None = None, **options: Any) -> di_store.Store:
    return di_store.open(name, **{"memory": "32MiB", "disk": folder, "disk_capacity": "128MiB", **options})


def durable(store: di_store.Store, name: str = "t", capacity: int = 500, **options: Any) -> di_store.Table:
    return store.create_table(name, capacity=capacity, durability="disk", exist_ok=True, lanes=4, **options)


def rewards(table: di_store.Table) -> list[float]:
    found: list[float] = table.peek(table.keys(0, len(table))).data["reward"].tolist()
    return found


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "durable" / "manifest.json").read_text())
    return found


def until(what: Any) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        os.sched_yield()


def test_a_waiting_sync_writes_tables_that_were_made_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint replaces the one that another process has made of them, and must not lack them."""
    waits, free = threading.Event(), threading.Event()

    @contextmanager
    def locked(folder: Folder, timeout: float | None) -> Iterator[None]:
        waits.set()
        assert free.wait(SECONDS)
        with capture_locked(folder, timeout):
            yield

    capture_locked = capture.locked
    with opened(tmp_path) as store:
        durable(store, "early").insert({"x": 1})
        with monkeypatch.context() as late:
            late.setattr(capture, "locked", locked)
            syncing = threading.Thread(target=store.sync)
            syncing.start()
            assert waits.wait(SECONDS)
            durable(store, "made meanwhile").insert({"x": 1})
            free.set()
            syncing.join(SECONDS)
        assert sorted(each["name"] for each in manifest(tmp_path)["tables"]) == ["early", "made meanwhile"]


def test_a_reopened_store_gives_the_same_draws(tmp_path: Path) -> None:
    """The next draws are the same; a table that is not durable is gone; and so again, after more rows."""
    options = {"sampler": Prioritized(alpha=0.6, beta=0.4), "view": Transition(n_step=2)}
    with di_store.open(memory="32MiB", seed=5) as twin_store, opened(tmp_path, seed=5) as store:
        twin = twin_store.create_table("t", capacity=500, **options)  # type: ignore[arg-type]
        table = durable(store, **options)
        store.create_table("gone", capacity=10).insert({"x": 1})
        for each in (twin, table):
            write(each, 700)
            each.update_priorities(each.keys(0, 500), np.arange(500, dtype=np.float64))
        store.close()
        for turn in range(3):
            with opened(tmp_path) as again:
                assert list(again.stats()["tables"]) == ["t"]
                table = durable(again, **options)
                same_draws(twin, table)
                for each in (twin, table):
                    write(each, 100, 1_000 * (turn + 1))
                same_draws(twin, table)
                sound(again)


def test_opening_it_twice_in_one_process_attaches(tmp_path: Path) -> None:
    """The second time it is only attached to."""
    with opened(tmp_path) as store:
        write(durable(store), 10)
    name = f"twice-{os.getpid()}"
    with opened(tmp_path, name) as store, opened(tmp_path, name) as again:
        assert rewards(again.table("t")) == rewards(store.table("t"))
        assert len(again.table("t")) == 10


def test_rows_on_disk_come_back(tmp_path: Path) -> None:
    """Ten times the rows that memory holds."""
    rng = np.random.default_rng(0)
    with opened(tmp_path, memory="16MiB", disk_capacity="256MiB") as store:
        table = durable(store, capacity=10_000)
        with table.writer() as writer:
            for i in range(12_000):
                writer.append({"reward": float(i), "obs": rng.integers(0, 255, 8_192, np.uint8)})
        expected = table.peek(table.keys(0, 10_000)[::97]).data["obs"].copy()
    with opened(tmp_path, memory="16MiB", disk_capacity="256MiB") as store:
        table = store.table("t")
        assert len(table) > 9_000
        assert (table.peek(table.keys(0, 10_000)[::97]).data["obs"][-5:] == expected[-5:]).all()
        sound(store)


def work(name: str, fault: str) -> None:
    if fault:
        _core.arm_fault(fault)
    with di_store.attach(name) as store:
        write(store.table("t"), 1_000_000)


def test_killed_stores_lose_at_most_the_last_seconds(tmp_path: Path) -> None:
    """All processes at once. What was synced is there, and rows follow each other without a gap."""
    for turn in range(4):
        child = WARM.Process(target=holder, args=(str(tmp_path), turn))
        child.start()
        until((tmp_path / f"synced-{turn}").exists)
        child.kill()
        child.join(SECONDS)
        with opened(tmp_path) as store:
            table = store.table("t")
            found = rewards(table)
            assert found[-1] >= float((tmp_path / f"synced-{turn}").read_text())
            assert (np.diff(found) == 1).all()
            sound(store)


def holder(folder: str, turn: int) -> None:
    with opened(Path(folder)) as store:
        table = durable(store, capacity=2_000)
        with table.writer() as writer:
            first = 0 if not len(table) else int(rewards(table)[-1]) + 1
            for i in range(first, first + 1_000):
                writer.append({"reward": float(i)})
            store.sync()
            (Path(folder) / "part").write_text(str(first + 999))
            (Path(folder) / "part").rename(Path(folder) / f"synced-{turn}")
            for i in range(first + 1_000, first + 100_000_000):
                writer.append({"reward": float(i)})


def test_durable_tables_are_written_in_the_background(tmp_path: Path) -> None:
    """By whoever lives: also when the process that made the table, or the one that is writing, is killed."""
    with opened(tmp_path) as store:
        table = durable(store, sync_every=1)
        write(table, 10)
        until(lambda: (tmp_path / "durable" / "manifest.json").exists())
        for fault in ("", "snapshot.taken:1", "segment.before_write:2"):
            number = manifest(tmp_path)["number"]
            child = WARM.Process(target=work, args=(store.name, fault))
            child.start()
            until(lambda seen=number: manifest(tmp_path)["number"] > seen + 1)  # type: ignore[misc]
            child.kill()
            child.join(SECONDS)
            sound(store)


def test_durable_tables_are_written_at_exit(tmp_path: Path) -> None:
    code = (
        "import di_store, sys\n"
        "store = di_store.open(memory='32MiB', disk=sys.argv[1], disk_capacity='64MiB')\n"
        "table = store.create_table('t', capacity=10, durability='disk')\n"
        "table.insert({'x': 7})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    with opened(tmp_path) as store:
        assert store.table("t").sample(1).data["x"][0] == 7


def test_dropped_and_memory_tables_do_not_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for name in "ab":
            write(durable(store, name), 5)
        store.drop_table("a")
    with opened(tmp_path) as store:
        assert list(store.stats()["tables"]) == ["b"]
        store.drop_table("b")
    with opened(tmp_path) as store:
        assert not store.stats()["tables"]


@pytest.mark.memory_only
def test_impossible_options_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        table = durable(store, capacity=12_000)
        rng = np.random.default_rng(0)
        with table.writer() as writer:
            for i in range(12_000):
                writer.append({"reward": float(i), "obs": rng.integers(0, 255, 8_192, np.uint8)})
        with pytest.raises(ValueError, match="sync_every"):
            durable(store, "u", sync_every=0.5)
    with pytest.raises(StoreError, match='mode="rw"'):
        opened(tmp_path, mode="x")
    with pytest.raises(CapacityError, match="memory"):
        opened(tmp_path, memory="12MiB", disk_capacity="64MiB")
    with opened(tmp_path) as store:
        assert len(store.table("t")) > 11_000
    with di_store.open(memory="32MiB") as store:
        with pytest.raises(ValueError, match="disk="):
            store.create_table("t", capacity=10, durability="disk")
        store.sync()
    states = [path for path in (tmp_path / "durable").iterdir() if path.name.startswith("items-")]
    states[0].write_bytes(b"nothing")
    with pytest.raises(CorruptData, match="items-"):
        opened(tmp_path)


def test_restored_tables_are_durable_again(tmp_path: Path) -> None:
    """In a folder of their own; that of another store's durable tables is refused."""
    tier: dict[str, Any] = {"memory": "32MiB", "disk_capacity": "128MiB"}
    with opened(tmp_path / "a") as store:
        write(durable(store), 5)
        store.checkpoint(tmp_path / "c")
    with pytest.raises(StoreError, match="durable tables"):
        di_store.restore(tmp_path / "c", disk=tmp_path / "a", **tier)
    with di_store.restore(tmp_path / "c", disk=tmp_path / "b", **tier) as again:
        write(again.table("t"), 5, 100)
    with opened(tmp_path / "b") as store:
        assert rewards(store.table("t"))[-1] == 104
    with di_store.restore(tmp_path / "c", memory="32MiB") as again:
        assert len(again.table("t")) == 5


def test_an_attached_process_writes_the_rest_at_exit(tmp_path: Path) -> None:
    """The one that made the table is killed before; nobody closes the store."""
    maker = WARM.Process(target=make_and_wait, args=(str(tmp_path), f"made-{os.getpid()}"))
    maker.start()
    assert maker.pid is not None
    until((tmp_path / "made").exists)
    written = str(tmp_path / "durable" / "manifest.json")
    code = (
        "import di_store, os, signal, sys\n"
        "table = di_store.attach(sys.argv[1]).table('t')\n"
        "os.kill(int(sys.argv[2]), signal.SIGKILL)\n"
        "writer = table.writer()\n"
        "writer.append({'reward': 0.0})\n"
        "while not os.path.exists(sys.argv[3]): os.sched_yield()\n"
        "for i in range(50): writer.append({'reward': float(i)})\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, f"made-{os.getpid()}", str(maker.pid), written], check=True, timeout=120
    )
    maker.join(SECONDS)
    with opened(tmp_path) as store:
        assert len(store.table("t")) >= 49


def make_and_wait(folder: str, name: str) -> None:
    store = opened(Path(folder), name)
    durable(store, schema={"reward": di_store.Spec((), "float64")}, sync_every=3_600)
    (Path(folder) / "made").touch()
    signal.pause()
