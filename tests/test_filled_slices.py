"""Chores add pages without the heap's lock. What others punch meanwhile and comes back is counted, or given back."""

from __future__ import annotations

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
arena = di_store.attach(sys.argv[1], timeout=60)._session.arena
for point in sys.argv[2:]:
    _core.arm_fault(point)
sys.stdin.readline()
while arena.chore():
    pass
print("done", flush=True)
"""
COMMITS, COLLAPSES = ("chores.charged:1:stop", "+chores.committed:1"), ("chores.chosen:1:stop", "+chores.collapsed:1")


def sweep(store: di_store.Store) -> None:
    """What every process does now and then: settle what the dead left."""
    arena = store._session.arena
    arena.reap()
    assert store.check() == []


@pytest.mark.memory_only
@pytest.mark.parametrize("points", [COMMITS, COLLAPSES])
@pytest.mark.parametrize("killed", [False, True])
def test_pages_punched_while_a_slice_is_filled(
    store_name: Callable[[], str], points: tuple[str, str], killed: bool
) -> None:
    """The kernel fills up what was punched since the slice was chosen: that does not stay there uncounted.

    While the filler is stopped others sweep, too: what it adds afterwards is still noticed, even if it dies first.
    """
    armed = points if killed else points[:1]
    with di_store.open(store_name(), memory="64MiB") as store, Program(FILLER, store.name, *armed) as program:
        refs = [store.put(np.full(65_000, number % 251, np.uint8)) for number in range(320)]
        program.say()
        until(lambda: status(program.pid)["State"].startswith("T"), "a slice to be chosen")
        sweep(store)
        # Some stay in each slice, and so many that the store fits only if all free pages are punched.
        store.delete([ref for number, ref in enumerate(refs) if number % 8 >= 3])
        store.resize(33 * MIB // 4)
        with pytest.raises(di_store.StoreFull):  # looks for what the dead left
            store.put(np.zeros(MIB, np.uint8), timeout=0)
        sweep(store)
        program.signal(signal.SIGCONT)
        if killed:
            assert program.process.wait(120) == -signal.SIGKILL
            sweep(store)
        else:
            assert program.line() == "done"
        stats = store.stats()
        assert stats["present"] <= stats["committed"] + MIB // 4
        assert stats["committed"] <= stats["budget"]
        assert store.check() == []
