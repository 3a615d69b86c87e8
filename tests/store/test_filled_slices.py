"""Chores add pages without the heap's lock. What others punch meanwhile and comes back is counted, or given back."""

from __future__ import annotations

import mmap
import os
import resource
import signal
from collections.abc import Callable

import numpy as np
import pytest
from pains import Program, status, until

import di_store

MIB = 1 << 20
FILLER = """
import sys, di_store
from di_store import _core
arena = di_store.attach(sys.argv[1], timeout=60)._backend.session.arena
for point in sys.argv[2:]:
    _core.arm_fault(point)
sys.stdin.readline()
while arena.chore():
    pass
print("done", flush=True)
"""
PASSING_FILLER = """
import sys, threading, di_store
from di_store import _core
arena = di_store.attach(sys.argv[1], timeout=60)._backend.session.arena
_core.arm_fault(sys.argv[2])

def fill():
    try:
        while arena.chore():
            pass
    except di_store.Timeout:
        print("held up", flush=True)

sys.stdin.readline()
thread = threading.Thread(target=fill)
thread.start()
thread.join()
sys.stdin.readline()
while arena.chore():
    pass
print("done", flush=True)
"""
HOLDER = """
import sys, di_store
from di_store import _core
store = di_store.attach(sys.argv[1], timeout=60)
_core.arm_fault("heap.make_before_state:1:stop")
store.put(1, timeout=60)
"""
COMMITS, COLLAPSES = ("chores.charged:1:stop", "+chores.committed:1"), ("chores.chosen:1:stop", "+chores.collapsed:1")


def sweep(store: di_store.Store) -> None:
    """What every process does now and then: settle what the dead left."""
    arena = store._backend.session.arena
    arena.reap()
    assert store.check() == []


def fill_store(store: di_store.Store) -> list[di_store.Ref]:
    """Objects, so many that slices can be filled."""
    return [store.put(np.full(65_000, number % 251, np.uint8)) for number in range(320)]


def punch_most(store: di_store.Store, refs: list[di_store.Ref]) -> None:
    """Some objects stay in each slice, and so many that the store fits only if all free pages are punched."""
    store.delete([ref for number, ref in enumerate(refs) if number % 8 >= 3])
    store.resize(33 * MIB // 4)
    with pytest.raises(di_store.StoreFull):  # looks for what the dead left
        store.put(np.zeros(MIB, np.uint8), timeout=0)


def assert_counted(store: di_store.Store) -> None:
    stats = store.stats()
    assert stats["present"] <= stats["committed"] + MIB // 4
    assert stats["committed"] <= stats["budget"]
    assert store.check() == []


@pytest.mark.memory_only
@pytest.mark.parametrize("points", [COMMITS, COLLAPSES])
@pytest.mark.parametrize("killed", [False, True])
def test_pages_punched_during_a_fill_are_counted(
    store_name: Callable[[], str], points: tuple[str, str], killed: bool
) -> None:
    """The kernel fills up what was punched since the slice was chosen: that does not stay there uncounted.

    While the filler is stopped others sweep, too: what it adds afterwards is still noticed, even if it dies first.
    """
    armed = points if killed else points[:1]
    with di_store.open(store_name(), memory="64MiB") as store, Program(FILLER, store.name, *armed) as program:
        refs = fill_store(store)
        program.say()
        until(lambda: status(program.pid)["State"].startswith("T"), "a slice to be chosen")
        sweep(store)
        punch_most(store, refs)
        sweep(store)
        program.signal(signal.SIGCONT)
        if killed:
            assert program.process.wait(120) == -signal.SIGKILL
            sweep(store)
        else:
            assert program.line() == "done"
        assert_counted(store)


@pytest.mark.memory_only
@pytest.mark.parametrize("point", [COMMITS[0], COLLAPSES[0]])
def test_a_slice_of_an_ended_thread_is_accounted_by_another(store_name: Callable[[], str], point: str) -> None:
    """It filled the slice and could not have the heap's lock. Another thread of its process settles the slice."""
    with (
        di_store.open(store_name(), memory="64MiB") as store,
        Program(PASSING_FILLER, store.name, point) as filler,
    ):
        refs = fill_store(store)
        filler.say()
        until(lambda: status(filler.pid)["State"].startswith("T"), "a slice to be chosen")
        punch_most(store, refs)
        with Program(HOLDER, store.name) as holder:
            until(lambda: status(holder.pid)["State"].startswith("T"), "a process to stop with the heap's lock")
            filler.signal(signal.SIGCONT)
            assert filler.line() == "held up"
            holder.signal(signal.SIGCONT)
            assert holder.process.wait(120) == 0
        filler.say()
        assert filler.line() == "done"
        assert_counted(store)


def makes_huge_pages() -> bool:
    """Whether this kernel makes a huge page of a part of a memory file of which one small page is there."""
    collapse, slice_bytes, offset = 25, 2 * MIB, 0
    fd = os.memfd_create("probe")
    try:
        os.ftruncate(fd, 4 * slice_bytes)
        # Where a mapping comes to lie shows only afterwards, and the next one mostly lies there too.
        for _ in range(20):
            with mmap.mmap(fd, 2 * slice_bytes, offset=offset) as mapped:
                address = np.frombuffer(mapped, np.uint8).ctypes.data
                if (address - offset) % slice_bytes == 0:
                    begin = -address % slice_bytes
                    mapped[begin] = 1
                    mapped.madvise(collapse, begin, slice_bytes)
                    return True
            offset = address % slice_bytes
    except OSError:
        pass
    finally:
        os.close(fd)
    return False


@pytest.mark.memory_only
def test_prepared_memory_causes_no_fault_per_page(store_name: Callable[[], str]) -> None:
    """A free slice is committed as one huge page, where the kernel has them: who fills it then waits for it once."""
    huge = makes_huge_pages()
    with di_store.open(store_name(), memory="128MiB") as store:
        refs, arena = fill_store(store), store._backend.session.arena
        while arena.chore():
            pass
        value, before = np.ones(65_000, np.uint8), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        refs += [store.put(value) for _ in range(100)]  # of 6 MiB, which have 1,600 pages
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        assert faults < 800 or not huge
        assert all((store.get(ref) == 1).all() for ref in refs[-100:])
        assert_counted(store)
