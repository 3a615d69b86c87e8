"""Other processes have a store open while it is restored."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import di_store
from checkpoint.test_store_links import ROWS, TIER, fill, read, saved
from di_store import StoreError, Uniform, _core
from di_store.snapshot.filling import Filling

SPAWN = mp.get_context("spawn")
NAME = f"restored-beside-{os.getpid()}"
DISKS = pytest.mark.parametrize("disk", [True, False], ids=["disk", "memory"])


def options(tmp_path: Path, disk: bool) -> dict[str, Any]:
    return {"disk": tmp_path / "disk", **TIER} if disk else {"memory": "192MiB"}


def held(store: di_store.Store) -> int:
    """Bytes of chunks in memory and on disk."""
    stats = store.stats()
    return int(stats["chunk_pages"] + (stats["disk"] or {}).get("live", 0))


def look(name: str, folder: str) -> None:
    """All that another process may do meanwhile."""
    with di_store.attach(name) as store:
        for _ in range(2):
            assert store.check(repair=True) == []
        with pytest.raises(StoreError, match=r"table 't'.*restore"):
            store.checkpoint(folder)
        assert len(store.table("t")) == 0
        with pytest.raises(di_store.Timeout, match="restore"):
            store.table("t").sample(1, timeout=0)


@DISKS
def test_others_may_check_it(tmp_path: Path, disk: bool) -> None:
    """Chunks whose items are still to come stay, also when somebody counts all uses again."""
    folder = saved(tmp_path, None, 1)
    codes = []

    def beside(done: int, of: int) -> None:
        if done in (1, of // 2, of):
            child = SPAWN.Process(target=look, args=(NAME, str(tmp_path / "other")))
            child.start()
            child.join(60)
            codes.append(child.exitcode)

    with di_store.restore(folder, NAME, progress=beside, **options(tmp_path, disk)) as store:
        assert codes == [0, 0, 0]
        assert sorted(read(store.table("t")).values()) == list(range(ROWS))
        assert store.check() == []
        store.checkpoint(tmp_path / "other")


def bring(folder: str, name: str, options: dict[str, Any], ready: Any, go: Any, fault: str) -> None:
    seen = []

    def wait(done: int, _of: int) -> None:
        if not seen:
            seen.append(done)
            ready.set()
            assert go.wait(60)
            _core.arm_fault(fault)

    with di_store.restore(folder, name, progress=wait, **options):
        os.kill(os.getpid(), signal.SIGKILL)


FAULTS = ["restore.before_hold:1", "restore.before_hold:20", "restore.item_half:1500", "restore.before_count:1"]


@pytest.mark.parametrize("fault", FAULTS)
@DISKS
def test_a_restore_is_killed_beside_another_process(tmp_path: Path, fault: str, disk: bool) -> None:
    """What it made goes with it, but for its tables, which say what to do with them."""
    folder = saved(tmp_path, None, 1)
    ready, go = SPAWN.Event(), SPAWN.Event()
    child = SPAWN.Process(target=bring, args=(str(folder), NAME, options(tmp_path, disk), ready, go, fault))
    child.start()
    assert ready.wait(60)
    with di_store.attach(NAME) as store:
        go.set()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        assert store.check() == []
        table = store.table("t")
        if "hold" in fault:
            assert len(table) == 0
            assert not held(store)
        with pytest.raises(StoreError, match=r"table 't'.*drop_table"):
            store.checkpoint(tmp_path / "other")
        store.drop_table("t")
        assert not held(store)
        fill(store.create_table("t", capacity=100, lanes=1, remover=Uniform()), 0, 200)
        assert len(read(store.table("t"))) == 100
        assert store.check() == []
        store.checkpoint(tmp_path / "other")


def reopen(name: str, disk: str, ready: Any) -> None:
    made = Filling._chunk

    def wait(*arguments: Any) -> int:
        chunk = made(*arguments)
        ready.set()
        threading.Event().wait()
        return chunk

    Filling._chunk = wait  # type: ignore[method-assign]
    di_store.open(name, disk=disk, **TIER)


def test_durable_tables_stay_when_their_reopening_is_killed(tmp_path: Path) -> None:
    """Nobody writes what is there of them over what they were."""
    disk = tmp_path / "disk"
    with di_store.open(disk=disk, **TIER) as store:
        fill(store.create_table("t", capacity=ROWS, lanes=1, durability="disk"), 0, ROWS)
    ready = SPAWN.Event()
    child = SPAWN.Process(target=reopen, args=(NAME, str(disk), ready))
    child.start()
    assert ready.wait(60)
    with di_store.attach(NAME) as store:
        store.create_table("eval", capacity=10, lanes=1, durability="disk")
        with pytest.raises(di_store.Timeout, match="checkpoint"):
            store.sync(timeout=0)
        child.kill()
        child.join()
        with pytest.raises(StoreError, match=r"table 't'.*drop_table"):
            store.sync()
        with pytest.warns(RuntimeWarning, match="restore"):
            store.close()
    with di_store.open(disk=disk, **TIER) as store:
        assert sorted(read(store.table("t")).values()) == list(range(ROWS))


@DISKS
def test_a_restore_that_failed_keeps_nothing(tmp_path: Path, disk: bool) -> None:
    """Also while its error, and so all that it used, is kept."""
    folder = saved(tmp_path, None, 1)
    others = []

    def fail(done: int, of: int) -> None:
        if done == of // 2:
            others.append(di_store.attach(NAME))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        di_store.restore(folder, NAME, progress=fail, **options(tmp_path, disk))
    with others[0] as store:
        assert not held(store)
        store.drop_table("t")
        assert store.check() == []


@DISKS
def test_a_table_is_dropped_while_it_is_restored(tmp_path: Path, disk: bool) -> None:
    """Whoever drops it waits for the restore, which fails."""
    folder = saved(tmp_path, None, 1)

    def drop(done: int, of: int) -> None:
        if done == of:
            with di_store.attach(NAME) as store, pytest.raises(di_store.Timeout, match="read by"):
                store.drop_table("t", timeout=0.1)

    with pytest.raises(di_store.TableNotFound):
        di_store.restore(folder, NAME, progress=drop, **options(tmp_path, disk))
