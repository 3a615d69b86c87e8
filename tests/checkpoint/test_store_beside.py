"""Nobody finds a store before all is in it, whoever waits for it, and whatever ends the process that makes it."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from warm import WARM

import di_store
from checkpoint.test_store_kills import children
from checkpoint.test_store_links import ROWS, TIER, fill, read, saved
from di_store import StoreError, StoreNotFound, Timeout, _core
from di_store.checkpoint.store.loading import StoreLoad

NAME = f"restored-beside-{os.getpid()}"
DISKS = pytest.mark.parametrize("disk", [True, False], ids=["disk", "memory"])


def options(tmp_path: Path, disk: bool) -> dict[str, Any]:
    return {"disk": tmp_path / "disk", **TIER} if disk else {"memory": "192MiB"}


def is_listed() -> bool:
    return any(store.name == NAME for store in di_store.list_stores())


def rows_of(store: di_store.Store) -> list[int]:
    return sorted(read(store.table("t")).values())


def attach_whole(name: str, waits: Any) -> None:
    waits.set()
    with di_store.attach(name, timeout=200) as store:
        assert len(store.table("t")) == ROWS
        assert store.check() == []


def open_whole(name: str, waits: Any) -> None:
    waits.set()
    with di_store.open(name) as store:
        assert len(store.table("t")) == ROWS
        assert rows_of(store) == list(range(ROWS))


def refused() -> str:
    """Why `attach` fails. On a busy machine also that one of those who wait beside it has the store's lock file."""
    with pytest.raises(Timeout) as error:
        di_store.attach(NAME, timeout=1)
    return str(error.value)


@DISKS
def test_processes_that_attach_wait_for_a_restore(tmp_path: Path, disk: bool) -> None:
    folder = saved(tmp_path, None, 1)
    children = []

    def beside(done: int, of: int) -> None:
        if done % 50 == 1 or done == of:
            assert not is_listed()
        if done in (1, of):
            assert any(f"still being made by pid {_core.proc_pid()}" in refused() for _ in range(20))
            with pytest.raises(StoreError, match="being made already"):
                di_store.restore(folder, NAME, **options(tmp_path, False))
        if done == 1:
            for wait in (attach_whole, open_whole):
                waits = WARM.Event()
                children.append(WARM.Process(target=wait, args=(NAME, waits)))
                children[-1].start()
                assert waits.wait(60)

    with di_store.restore(folder, NAME, progress=beside, **options(tmp_path, disk)) as store:
        assert is_listed()
        for child in children:
            child.join(200)
        assert [child.exitcode for child in children] == [0, 0]
        assert rows_of(store) == list(range(ROWS))
        assert store.check() == []


def bring(folder: str, name: str, options: dict[str, Any], ready: Any, fork: bool) -> None:
    def wait(done: int, of: int) -> None:
        if done == of // 2:
            if fork and os.fork() == 0:
                threading.Event().wait()
            ready.set()
            threading.Event().wait()

    di_store.restore(folder, name, progress=wait, **options)


def open_new(name: str, waits: Any) -> None:
    waits.set()
    with di_store.open(name, memory="64MiB") as store:
        assert store.stats()["tables"] == {}


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "forked"])
@DISKS
def test_a_killed_restore_leaves_nothing(tmp_path: Path, disk: bool, fork: bool) -> None:
    """Nothing is left of it, also while a child that it has forked lives on; who waits makes a new store."""
    folder = saved(tmp_path, None, 1)
    ready, waits = WARM.Event(), WARM.Event()
    child = WARM.Process(target=bring, args=(str(folder), NAME, options(tmp_path, disk), ready, fork))
    child.start()
    assert ready.wait(60)
    waiting = WARM.Process(target=open_new, args=(NAME, waits))
    waiting.start()
    assert waits.wait(60)
    forked = children(child.pid)
    assert len(forked) == fork
    child.kill()
    child.join()
    waiting.join(60)
    assert waiting.exitcode == 0
    try:
        assert not is_listed()
        with pytest.raises(StoreNotFound):
            di_store.attach(NAME)
        with di_store.restore(folder, NAME, **options(tmp_path, disk)) as store:
            assert rows_of(store) == list(range(ROWS))
    finally:
        for pid in forked:
            os.kill(pid, signal.SIGKILL)


@DISKS
def test_a_restore_that_failed_keeps_nothing(tmp_path: Path, disk: bool) -> None:
    """Also while its error, and so all that it used, is kept; and its frames keep what they had."""
    folder = saved(tmp_path, None, 1)
    before = shared_bytes()

    def fail(done: int, of: int) -> None:
        mine = "seen"
        if done == of // 2:
            raise ValueError("no " + mine)

    with pytest.raises(ValueError, match="no seen") as kept:
        di_store.restore(folder, NAME, progress=fail, **options(tmp_path, disk))
    assert not is_listed()
    assert shared_bytes() - before < 4 << 20  # headers, and what was committed ahead
    with di_store.restore(folder, NAME, **options(tmp_path, disk)) as store:
        assert rows_of(store) == list(range(ROWS))
    del store
    assert kept.traceback[-1].frame.f_locals["mine"] == "seen"
    with di_store.open(NAME, **options(tmp_path, disk)) as store:
        assert store.stats()["tables"] == {}


def shared_bytes() -> int:
    """Bytes of stores that this process keeps in memory."""
    stores = {}
    for each in Path("/proc/self/fd").iterdir():
        try:
            if "di-store:" in os.readlink(each):
                stores[each.stat().st_ino] = each.stat().st_blocks * 512
        except FileNotFoundError:
            pass
    return sum(stores.values())


@pytest.mark.memory_only
def test_a_refused_open_leaves_no_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="staging") as kept:
        di_store.open(NAME, memory="64MiB", staging="1GiB")
    with pytest.raises(StoreNotFound):
        di_store.attach(NAME)
    assert kept.value is not None


def test_a_child_forked_during_a_restore_can_open_the_store(tmp_path: Path) -> None:
    folder = saved(tmp_path, None, 1)
    ends = []

    def fork(done: int, of: int) -> None:
        if done == of // 2:
            child = mp.get_context("fork").Process(target=open_whole, args=(NAME, WARM.Event()))
            child.start()
            ends.append(child)

    with di_store.restore(folder, NAME, progress=fork, **options(tmp_path, True)) as store:
        ends[0].join(60)
        assert ends[0].exitcode == 0
        assert rows_of(store) == list(range(ROWS))
        with di_store.open(NAME) as again:
            assert again.name == NAME


def fork_and_go_on(folder: str, options: dict[str, Any]) -> None:
    children: list[int] = []
    forked = threading.Event()
    add_chunk = StoreLoad._chunk

    def fork(*_: int) -> None:
        if not children and threading.current_thread() is threading.main_thread():
            children.append(os.fork())
            if children[0] != 0:
                forked.set()

    def once_forked(*args: Any) -> int:
        """Leaves the main thread something to do: the others could be done before it begins."""
        if threading.current_thread() is not threading.main_thread():
            assert forked.wait(60)
        return add_chunk(*args)

    StoreLoad._chunk = once_forked  # type: ignore[method-assign]
    try:
        di_store.restore(folder, NAME, progress=fork, **options).close()
    except StoreError:
        os._exit(7)
    assert children[0] != 0
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 7


@DISKS
def test_a_child_that_uses_the_parents_restore_gets_an_error(tmp_path: Path, disk: bool) -> None:
    """It finds no lock taken by threads that it has not."""
    child = WARM.Process(target=fork_and_go_on, args=(str(saved(tmp_path, None, 1)), options(tmp_path, disk)))
    child.start()
    child.join(200)
    assert child.exitcode == 0


def use(name: str, disk: str, begins: Any) -> None:
    """What every process of a job does."""
    begins.set()
    with di_store.open(name, disk=disk, **TIER) as store:
        table = store.create_table("t", capacity=ROWS, lanes=1, durability="disk", exist_ok=True)
        assert sorted(read(table).values()) == list(range(ROWS))
        store.sync()


def use_slowly(name: str, disk: str, makes: Any, go: Any) -> None:
    made = StoreLoad._chunk

    def chunk(*arguments: Any) -> int:
        makes.set()
        assert go.wait(60)
        return made(*arguments)

    StoreLoad._chunk = chunk  # type: ignore[method-assign]
    use(name, disk, WARM.Event())


def reopened_by(target: Any, *more: Any) -> Any:
    """A process that is just making durable tables again."""
    makes = WARM.Event()
    child = WARM.Process(target=target, args=(*more[:2], makes, *more[2:]))
    child.start()
    assert makes.wait(60)
    return child


def with_durable_rows(disk: Path) -> None:
    with di_store.open(disk=disk, **TIER) as store:
        fill(store.create_table("t", capacity=ROWS, lanes=1, durability="disk"), 0, ROWS)


def test_processes_that_start_at_once_all_find_durable_tables(tmp_path: Path) -> None:
    """None comes before the tables are there, makes an empty one, and writes it over what there was."""
    disk, go = tmp_path / "disk", WARM.Event()
    with_durable_rows(disk)
    children = [reopened_by(use_slowly, NAME, str(disk), go)]
    children += [reopened_by(use, NAME, str(disk)) for _ in range(2)]
    go.set()
    for child in children:
        child.join(200)
    assert [child.exitcode for child in children] == [0, 0, 0]
    with di_store.open(disk=disk, **TIER) as store:
        assert rows_of(store) == list(range(ROWS))


def test_durable_tables_stay_when_their_reopening_is_killed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with_durable_rows(disk)
    child = reopened_by(use_slowly, NAME, str(disk), WARM.Event())
    child.kill()
    child.join()
    with di_store.open(NAME, disk=disk, **TIER) as store:
        assert rows_of(store) == list(range(ROWS))
