"""A ledger whose chain of blocks runs in a circle: every look at it ends, also those that hold the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pains import Program

(GOLDEN,) = (Path(__file__).resolve().parent / "golden").glob("shm_layout_*.txt")
SIZES = {name: int(value) for name, value in (line.rsplit(maxsplit=1) for line in GOLDEN.read_text().splitlines())}

HOLD = """
import sys, di_store
store = di_store.open(sys.argv[1], memory="16MiB")
store.put(7, id="ab" * 20)
views = [store.get(di_store.Ref.parse("ab" * 20)) for _ in range(3)]
print(store._arena.fd_number, store._arena.slot, flush=True)
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
    with open(path, "r+b", buffering=0) as file:

        def number(at: int, size: int) -> int:
            return int.from_bytes(os.pread(file.fileno(), size, at), "little")

        clients, heap = number(SIZES["ArenaHeader.clients"], 8), number(SIZES["ArenaHeader.heap"], 8)
        first = number(clients + slot * SIZES["ClientSlot"] + SIZES["ClientSlot.ledger"], 4)
        segment = number(heap + SIZES["HeapHeader.segments"], 8)
        block = number(segment + (first - 1) * SIZES["Descriptor"] + SIZES["Descriptor.offset"], 8)
        os.pwrite(file.fileno(), first.to_bytes(4, "little"), block + SIZES["LedgerBlock.next"])


@pytest.mark.parametrize("beside", [True, False], ids=["beside-its-process", "after-its-process"])
def test_looks_at_a_ledger_without_an_end(store_name: Callable[[], str], beside: bool) -> None:
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
