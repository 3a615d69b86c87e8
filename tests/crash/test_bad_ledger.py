"""A ledger whose chain of blocks runs in a circle: every look at it ends, also those that hold the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pains import Program
from stored import SIZES, Memory

HOLD = """
import sys, di_store
store = di_store.open(sys.argv[1], memory="16MiB")
store.put(7, id="ab" * 20)
views = [store.get(di_store.Ref.parse("ab" * 20)) for _ in range(3)]
print(store._backend.session.arena.fd_number, store._backend.session.arena.slot, flush=True)
sys.stdin.readline()
"""

LOOK = """
import sys, di_store
store = di_store.attach(sys.argv[1])
print("there", flush=True)
sys.stdin.readline()
for look in (store.stats, store.check, lambda: di_store.attach(sys.argv[1]).stats()):
    try:
        look()
    except di_store.CorruptData as error:
        print("ledger" in str(error), flush=True)
"""


def bend(path: str, slot: int) -> None:
    """Let the first block of a client's ledger follow itself."""
    with Memory(path) as memory:
        clients = memory.number(SIZES["ArenaHeader.clients"], 8)
        first = memory.number(clients + slot * SIZES["ClientSlot"] + SIZES["ClientSlot.ledger"], 4)
        memory.write(memory.block_of(first - 1) + SIZES["LedgerBlock.next"], 4, first)


@pytest.mark.parametrize("beside", [True, False], ids=["beside-its-process", "after-its-process"])
def test_a_circular_ledger_does_not_hang_readers(store_name: Callable[[], str], beside: bool) -> None:
    name = store_name()
    with Program(HOLD, name) as holder:
        fd, slot = map(int, holder.line().split())
        with Program(LOOK, name) as looker:
            assert looker.line() == "there"
            bend(f"/proc/{holder.pid}/fd/{fd}", slot)
            if not beside:
                holder.process.kill()
                holder.process.wait(60)
            looker.say()
            out, _ = looker.finish()
            assert out.splitlines() == ["True"] * 3
