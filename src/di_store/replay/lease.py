"""Leases: items that a table holds for one batch, until it is acknowledged, given back, or the lease ends."""

from __future__ import annotations

import math
from typing import Any, Protocol

from di_store._core import LeaseEnd
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.runtime.deadline import Deadline

ANY_LEASE = 0
"""In place of a number: the lease that an item has now."""


class Leasing(Protocol):
    """A table or mixture with leases. `number`: of the draw; with a mixture of the draws of its tables, by place."""

    def shown(self) -> str:
        """As `TableBackend.shown`."""

    def end_leases(self, keys: Array, number: Any, how: LeaseEnd, deadline: Deadline) -> int:
        """As `TableBackend.end_leases`."""

    def extend_leases(self, keys: Array, number: Any, seconds: float, deadline: Deadline) -> int:
        """As `Lease.extend`."""

    def pickled_lease(self, number: Any, keys: Array) -> tuple[Any, ...]:
        """What ``Lease.__reduce__`` returns."""


class Lease:
    """The lease of one batch, as `Batch.lease`. It pickles, so that another process can acknowledge the batch.

    Attributes:
        number: number of the batch's draw, which no other draw of the table has. In a mixture a tuple with one for
            each table, 0: nothing was drawn from it.
        keys: uint64[n], keys of the batch's items.
    """

    __slots__ = ("_table", "keys", "number")

    def __init__(self, table: Leasing, number: Any, keys: Array) -> None:
        self._table = table
        self.number = number
        self.keys = keys

    def extend(self, seconds: float, *, timeout: float | None = 60) -> int:
        """Let the lease end `seconds` from now, earlier or later than before. Returns how many items it still holds.

        Args:
            seconds: at least 0.
            timeout: seconds to wait if a stopped process holds a table's lock; None: no limit.

        Raises:
            ValueError, TypeError: `seconds` is negative, not finite, or no number; nothing was changed.
        """
        wanted = _seconds("seconds", seconds)
        return self._table.extend_leases(self.keys, self.number, wanted, Deadline.given(timeout))

    def __repr__(self) -> str:
        return f"<Lease {self.number} of {len(self.keys)} items of {self._table.shown()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._table.pickled_lease(self.number, self.keys)


def holds_all(lease: Lease, seconds: float, deadline: Deadline) -> bool:
    """Whether a lease still holds all its items, and now does for `seconds`. If not, those that it holds come back."""
    if lease._table.extend_leases(lease.keys, lease.number, seconds, deadline) == len(lease.keys):
        return True
    give_back(lease, deadline)
    return False


def give_back(lease: Lease, deadline: Deadline) -> int:
    """Give back the items that a lease holds. Returns how many."""
    return lease._table.end_leases(lease.keys, lease.number, LeaseEnd.RETURNED, deadline)


def ack_how(counts: Any) -> LeaseEnd:
    """How `Table.ack` ends leases. `counts`: as given; TypeError unless it is a bool."""
    return LeaseEnd.ACKNOWLEDGED if config.flag("counts", counts) else LeaseEnd.DROPPED


def lease_seconds(lease: Any) -> float | None:
    """Seconds of a draw's lease; None: it has none.

    Raises:
        ValueError: negative or not finite. TypeError: not a number.
    """
    return None if lease is None else _seconds("lease", lease)


def _seconds(option: str, seconds: Any) -> float:
    found = config.as_float(option, seconds, "seconds")
    if not 0 <= found < math.inf:
        raise ValueError(f"{option}={seconds!r}: give finite seconds >= 0")
    return found
