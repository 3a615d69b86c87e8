"""Leases of a table: draws that are leased, and the ways in which a lease ends without an acknowledgement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pains import until
from warm import WARM

import di_store

LONG, SHORT = 600.0, 0.02
"""Seconds of a lease that doesn't end during a test, and of one that soon does."""
PATIENCE = 60.0
"""Seconds that a call may wait for what must come."""


def leased(table: di_store.Table) -> int:
    """Items that are leased now."""
    found: int = table.stats()["leased"]["items"]
    return found


def take(table: di_store.Table, n: int, seconds: Any = LONG, timeout: float = PATIENCE) -> di_store.Batch:
    """A leased draw of n items."""
    return table.sample(n, lease=seconds, timeout=timeout)


def keys_of(batch: di_store.Batch) -> list[int]:
    """Sorted."""
    return sorted(batch.keys.tolist())


def _hold(table: di_store.Table, n: int, pipe: Any) -> None:
    pipe.send(take(table, n).keys.tolist())
    pipe.recv()


class Holder:
    """A process that has leased n items, and waits."""

    def __init__(self, table: di_store.Table, n: int) -> None:
        self.pipe, theirs = WARM.Pipe()
        self.process: Any = WARM.Process(target=_hold, args=(table, n, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.keys: list[int] = sorted(self.pipe.recv())

    def kill(self) -> None:
        """By SIGKILL."""
        self.process.kill()
        self.process.join()


def expired(table: di_store.Table, n: int) -> di_store.Batch:
    """A batch whose lease has run out, which the chores of this process have noticed."""
    before = table.stats()["samples"]
    batch = take(table, n, SHORT)
    until(lambda: table.stats()["samples"] == before, "the lease to run out")
    return batch


def _give_back(table: di_store.Table, n: int) -> list[int]:
    batch = take(table, n)
    assert table.give_back(batch) == n
    return keys_of(batch)


def _kill(table: di_store.Table, n: int) -> list[int]:
    before, holder = leased(table), Holder(table, n)
    assert leased(table) == before + n
    holder.kill()
    until(lambda: leased(table) == before, "the leases of the dead to end")
    return holder.keys


ENDS: dict[str, Callable[[di_store.Table, int], list[int]]] = {
    "given back": _give_back,
    "run out": lambda table, n: keys_of(expired(table, n)),
    "killed": _kill,
}
"""By what ends a lease: leases n items and ends that; their sorted keys. This process must have drawn before."""
