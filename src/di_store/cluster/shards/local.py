"""Draws from the shard of one node, with the probabilities and weights of the whole table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from di_store import _core
from di_store.client.channel import Seconds
from di_store.cluster.shards.parts import Parts
from di_store.cluster.shards.probabilities import Probabilities, has_probabilities, weigh
from di_store.cluster.shards.shard import Shard
from di_store.replay.batch import Batch
from di_store.replay.handle import TableHandle
from di_store.replay.keys import with_shard
from di_store.replay.lease import Leasing
from di_store.replay.sampling import Copying, Draws, Terms


def of_whole(
    parts: Parts, shard: Shard, batch: Batch, beta: float | None, probabilities: Probabilities, leasing: Leasing
) -> Batch:
    """Turn a batch of one shard into a batch of the table.

    `beta`: exponent of its weights; `leasing`: the table, whose keys all name their shard.
    """
    if (lease := batch.lease) is not None:
        batch._lease = leasing, lease.number
    batch.keys = with_shard(batch.keys, shard.number)
    if has_probabilities(parts.settings.sampler):
        weigh(batch, probabilities.shares[shard.number], beta, probabilities.least)
    batch.table_size = max(batch.table_size, probabilities.size)
    return batch


class LocalSource:
    """The source of a loader over one node's shard."""

    def __init__(self, parts: Parts, columns: Any, timeout: Seconds, leasing: Leasing) -> None:
        self._parts = parts
        self._leasing = leasing
        self._shard = parts.own()
        self._inner = self._shard.table(timeout).source(columns)
        self.name = self._inner.name

    @property
    def arena(self) -> _core.Arena | None:
        """As `Source.arena`."""
        return self._inner.arena

    def begin_loading(self, n: int) -> None:
        """As `Source.begin_loading`."""
        self._inner.begin_loading(n)

    def end_loading(self) -> None:
        """As `Source.end_loading`."""
        self._inner.end_loading()

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """As `Source.note_loaded`."""
        self._inner.note_loaded(ahead, waited_seconds)

    def drop_lost(self) -> None:
        """As `Source.drop_lost`."""
        self._inner.drop_lost()

    def check(self, terms: Terms) -> None:
        """As `Source.check`."""
        self._inner.check(terms)

    def beta(self) -> float | None:
        """As `Source.beta`: the value that the shards last reported."""
        return self._parts.probabilities_here().beta

    def begin(self, n: int) -> _LocalDraws:
        """As `Source.begin`."""
        return _LocalDraws(self._parts, self._shard, self._inner.begin(n), self._leasing)


class _LocalDraws:
    """The draws of one batch."""

    def __init__(self, parts: Parts, shard: Shard, inner: Draws, leasing: Leasing) -> None:
        self._parts = parts
        self._leasing = leasing
        self._shard = shard
        self._inner = inner

    @property
    def held(self) -> int:
        return self._inner.held

    def draw(self, terms: Terms) -> bool:
        return self._inner.draw(terms)

    def counts(self) -> dict[TableHandle, int]:
        return self._inner.counts()

    def least_bytes(self) -> int:
        return self._inner.least_bytes()

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> _LocalCopying:
        return _LocalCopying(self._parts, self._shard, self._inner.copy(beta, allocate), beta, self._leasing)

    def deliver(self) -> None:
        self._inner.deliver()

    def deliver_some(self, places: Sequence[int]) -> None:
        self._inner.deliver_some(places)

    def give_back(self) -> None:
        self._inner.give_back()


class _LocalCopying:
    """The batch that is being copied."""

    def __init__(self, parts: Parts, shard: Shard, inner: Copying, beta: float | None, leasing: Leasing) -> None:
        self._parts = parts
        self._leasing = leasing
        self._shard = shard
        self._inner = inner
        self._beta = beta

    @property
    def is_whole(self) -> bool:
        return self._inner.is_whole

    @property
    def bytes(self) -> int:
        return self._inner.bytes

    def read_ahead(self) -> bool:
        return self._inner.read_ahead()

    def copy_portion(self) -> object:
        return self._inner.copy_portion()

    def batch(self) -> Batch:
        batch, now = self._inner.batch(), self._parts.probabilities_here()
        return of_whole(self._parts, self._shard, batch, self._beta, now, self._leasing)
