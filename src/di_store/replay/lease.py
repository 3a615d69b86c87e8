"""Leases: items that a table holds for one batch, until it is acknowledged, given back, or the lease ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.lacks import Lack
from di_store.replay.batch import Batch, key_array
from di_store.runtime.deadline import Deadline

if TYPE_CHECKING:
    from di_store.replay.table_backend import TableBackend

ANY_LEASE = 0
"""In place of a number: the lease that an item has now."""
_LACK = Lack(
    "is of tables in this process's memory", "use it in a process on the table's machine: di_store.attach(NAME).table()"
)
NO_LEASES = dict.fromkeys(("lease", "ack", "give_back"), _LACK)
"""The calls and options that tables elsewhere lack."""


class Lease:
    """The lease of one batch, as `Batch.lease`. It pickles, so that another process can acknowledge the batch.

    Attributes:
        number: number of the batch's draw, which no other draw of the table has.
        keys: uint64[n], keys of the batch's items.
    """

    __slots__ = ("_table", "keys", "number")

    def __init__(self, table: TableBackend, number: int, keys: Array) -> None:
        self._table = table
        self.number = number
        self.keys = keys

    def extend(self, seconds: float, *, timeout: float | None = 60) -> int:
        """Let the lease end `seconds` from now, earlier or later than before. Returns how many items it still holds.

        Args:
            seconds: at least 0.
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.

        Raises:
            ValueError, TypeError: `seconds` is negative, not finite, or no number; nothing was changed.
        """
        wanted = lease_seconds(seconds, "seconds")
        return self._table.extend_leases(self.keys, self.number, wanted, Deadline.given(timeout))

    def __repr__(self) -> str:
        return f"<Lease {self.number} of {len(self.keys)} items of {self._table.shown()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (*self._table.pickled(), self.number, self.keys)


def _loaded(load: Any, arguments: tuple[Any, ...], number: int, keys: Array) -> Lease:
    from di_store.replay.table import backend_of

    return Lease(backend_of(load(*arguments)), number, keys)


def lease_seconds(seconds: Any, option: str = "lease") -> float:
    """Seconds of a lease.

    Raises:
        ValueError: negative or not finite. TypeError: not a number.
    """
    found = config.as_float(option, seconds, "seconds")
    if not 0 <= found < math.inf:
        raise ValueError(f"{option}={seconds!r}: give finite seconds >= 0")
    return found


def leased_keys(leased: Any) -> tuple[Array, int]:
    """The keys that a call on leases means, and the number of their draw.

    Args:
        leased: a batch, its lease, or keys. Keys mean the lease that each item has now.

    Raises:
        ValueError: the batch was drawn without a lease. TypeError: keys are not integers.
    """
    if isinstance(leased, Batch):
        if leased.lease is None:
            raise ValueError("this batch was drawn without lease=, so its items are done: sample(n, lease=seconds)")
        leased = leased.lease
    if isinstance(leased, Lease):
        return leased.keys, leased.number
    return key_array(leased), ANY_LEASE
