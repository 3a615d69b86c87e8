"""Processes killed at every step of a save.

The checkpoint before stays whole until the new one is, and no rank's part of an interrupted save becomes part of a
later one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import di_store
from checkpoint import dying
from di_store import _core
from di_store.checkpoint.helpers import with_helpers

POINTS = ("python", "pieces.write", "pieces.head", "pieces.sync")
KILLED = -signal.SIGKILL


def child(run: Callable[[], None]) -> int:
    """Run it in a forked child; the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        except SystemExit as error:
            code = int(str(error.code))
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def saved(folder: Path, value: int, rank: int = 0, ranks: int = 1, fault: str = "", step: int = 0) -> int:
    return child(lambda: dying.main(str(folder), value, rank, ranks, fault, step))


def value_of(tree: dict[str, int]) -> int:
    assert (tree["a"] == tree["step"]).all()  # type: ignore[attr-defined]
    return tree["step"]


@pytest.mark.parametrize("fault", POINTS)
def test_a_save_killed_at_any_step_leaves_an_old_or_new_checkpoint(fault: str, tmp_path: Path) -> None:
    """A new folder, and one with an older checkpoint."""
    assert ended(saved(tmp_path, 0)) == 0
    there, steps, code = 0, 0, KILLED
    while code == KILLED:
        steps += 1
        code = ended(saved(tmp_path, steps, fault=fault, step=steps))
        found = value_of(di_store.load(tmp_path))
        assert found in (there, steps), "neither the old one nor the new one"
        assert found == steps or code == KILLED
        there = found
    assert code == 0
    assert steps > {"python": 12, "pieces.write": 3}.get(fault, 1)
    assert len(os.listdir(tmp_path)) == 2, "something is left of the interrupted ones"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_leaves_an_old_or_new_checkpoint(victim: int, tmp_path: Path) -> None:
    """The other rank waits in vain, or both were saved; the next attempt of both has its own parts only."""
    for rank, code in enumerate([saved(tmp_path, 0, rank, 2) for rank in range(2)]):
        assert ended(code) == 0, rank
    there, value, step, code = 0, 0, 1, KILLED
    while code != 0:
        value += 1
        other = saved(tmp_path, value, 1 - victim, 2, "none", 1)
        code = ended(saved(tmp_path, value, victim, 2, "python", step))
        told = ended(other)
        found = [value_of(tree) for tree in di_store.load(tmp_path)]
        assert found in ([there] * 2, [value] * 2)
        assert found == [value] * 2 or (code, told) != (0, 0)
        step += code == KILLED  # not if it came too late for the other one
        if code == KILLED and step % 3 == 0:  # at times the next attempt is a whole one, begun by either rank
            value += 1
            both = [saved(tmp_path, value, rank, 2) for rank in ((0, 1) if step % 2 else (1, 0))]
            assert [ended(pid) for pid in both] == [0, 0]
            found = [value_of(tree) for tree in di_store.load(tmp_path)]
            assert found == [value] * 2
        there = found[0]
    assert step > 9
    # One that gave up after it had answered leaves its file before to its next save.
    value += 1
    assert [ended(pid) for pid in [saved(tmp_path, value, rank, 2) for rank in range(2)]] == [0, 0]
    assert sum(name.endswith(".tree") for name in os.listdir(tmp_path)) == 2


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    di_store.save(tmp_path, 1)
    for fault in ("file.preallocate:1:ENOSPC", "file.write:2:ENOSPC"):
        _core.arm_fault(fault)
        try:
            with pytest.raises(di_store.StoreFull, match="free space"):
                di_store.save(tmp_path, dying.tree(2))
        finally:
            _core.arm_fault("")
        assert di_store.load(tmp_path) == 1
        assert len(os.listdir(tmp_path)) == 2


def test_a_fork_during_a_save_ends_normally(tmp_path: Path) -> None:
    """The child has none of the threads: it ends as usual, and saves on its own."""
    memory = np.zeros(64 << 20, np.uint8)
    extents = np.array([[memory.ctypes.data, 0, memory.nbytes]], np.uint64)
    (tmp_path / "file").touch()
    file = _core.PieceFile(str(tmp_path / "file"), 4_096, memory.nbytes, 1 << 20, extents, memory, writes=True)
    written: list[int] = []
    begun, forked = threading.Event(), threading.Event()

    def write(numbers: Iterator[int]) -> None:
        for number in numbers:
            if number == 0:  # the other thread writes on, also during the fork
                assert forked.wait(60)
            if number == 1:
                begun.set()
            file.write(number)
            written.append(number)

    saving = threading.Thread(target=with_helpers, args=(range(64), write, 2))
    saving.start()
    assert begun.wait(60)
    saver = child(lambda: di_store.save(tmp_path / "child", 1))
    forked.set()
    assert ended(saver) == 0
    assert di_store.load(tmp_path / "child") == 1
    saving.join(60)
    assert sorted(written) == list(range(64))


@pytest.mark.parametrize("main", [True, False], ids=["own", "helper"])
def test_a_failed_piece_ends_all_threads(tmp_path: Path, main: bool) -> None:
    """Whichever thread fails: each ends after its piece, and the memory may go."""
    memory = np.zeros(100 << 16, np.uint8)
    extents = np.array([[memory.ctypes.data, 0, memory.nbytes]], np.uint64)
    (tmp_path / "file").touch()
    file = _core.PieceFile(str(tmp_path / "file"), 4_096, memory.nbytes, 1 << 16, extents, memory, writes=True)
    before = threading.active_count()
    all_run = threading.Barrier(3)

    def write(numbers: Iterator[int]) -> None:
        for at, number in enumerate(numbers):
            file.write(number)
            if at == 0:
                all_run.wait(60)
            if (threading.current_thread() is threading.main_thread()) is main:
                raise KeyError(number)

    with pytest.raises(KeyError):
        with_helpers(range(100), write, 3)
    assert threading.active_count() == before


def test_ctrl_c_during_a_save_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    """Raised in the middle of a save, which leaves the one before."""
    di_store.save(tmp_path, 1)

    def run() -> None:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            while True:
                di_store.save(tmp_path, dying.tree(2))
        except KeyboardInterrupt:
            os._exit(0)

    assert ended(child(run)) == 0
    assert di_store.load(tmp_path) == 1 or value_of(di_store.load(tmp_path)) == 2
