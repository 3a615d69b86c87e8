"""Draws over all shards of a table: how many from each is chance, in proportion to the masses they last told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.random import Generator, Philox  # here, since numpy's lazy import fails in a process out of descriptors

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import DrawsLost, EndOfData, RowsLost, StoreError, Timeout
from di_store.cluster.links import LOOK_SECONDS
from di_store.cluster.shards.chances import Chances, by_mass, weigh
from di_store.cluster.shards.joined import join
from di_store.cluster.shards.parts import LOSSES, Parts, shard_source
from di_store.cluster.shards.shard import FRESH_SECONDS, Shard
from di_store.policy.samplers import Prioritized
from di_store.remote.waiting import LOST_SECONDS
from di_store.replay.ahead import Source
from di_store.replay.batch import Batch
from di_store.replay.handle import TableHandle
from di_store.replay.keys import shards_of
from di_store.replay.mixture_source import Given
from di_store.replay.sampling import Copying, Draws, Stopped, Terms, copied
from di_store.replay.stats import TableStats
from di_store.runtime.waits import ABANDONED_SECONDS, Wait, countdown

SHARD_SECONDS = 1.0
"""How long a shard may take to give its part: it has said that it has these items."""
_LOOK_SECONDS = 0.02
"""How often a draw that waits for items asks the shards."""


class MassSource:
    """What `sample` and loaders draw from."""

    def __init__(self, parts: Parts, columns: str | Iterable[str] | None) -> None:
        self.parts = parts
        self.name = f"table {parts.name!r}"
        self._columns = columns
        self._sources: dict[int, Source] = {}  # by number of the shard; made when first drawn from
        self._loading = 0
        self._random, self._pid = Generator(Philox()), os.getpid()

    @property
    def arena(self) -> _core.Arena | None:
        """As `Source.arena`."""
        return self.parts.near_arena()

    def begin_loading(self, n: int) -> None:
        """As `Source.begin_loading`."""
        self._loading = n

    def end_loading(self) -> None:
        """As `Source.end_loading`."""
        for each in self._sources.values():
            each.end_loading()

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """As `Source.note_loaded`."""
        for each in self._sources.values():
            each.note_loaded(ahead, waited_seconds)

    def drop_lost(self) -> None:
        """As `Source.drop_lost`."""
        for each in self._sources.values():
            each.drop_lost()

    def check_replace(self, n: int, replace: bool) -> None:
        """As `Source.check_replace`: chance may give a shard more draws than it has items."""
        if not replace:
            raise ValueError(
                'replace=False with draw="mass": how many draws a shard gets is chance, and may be more than it has '
                'items; leave it out, or use draw="local"'
            )

    def beta(self) -> float | None:
        """As `Source.beta`: as the shards last said."""
        return next((each["beta"] for each in self.parts.answers.last() if each is not None), self.parts.settings.beta)

    def counts(self, shares: Array, n: int) -> Array:
        """How many of n draws each shard gets, int64[shards]: multinomial. A shard without a share gets none."""
        if self._pid != os.getpid():  # a forked child may inherit the lock of numpy's generator in the locked state
            self._random, self._pid = Generator(Philox()), os.getpid()
        found: Array = np.zeros(len(shares), np.int64)
        possible = np.flatnonzero(shares)
        found[possible] = self._random.multinomial(n, shares[possible])
        return found

    def begin(self, n: int) -> MassDraws:
        """As `Source.begin`."""
        return MassDraws(self, n)

    def of(self, shard: Shard) -> Source:
        """What draws from one shard.

        Raises:
            NodeUnavailable: its node is gone.
        """
        found = self._sources.get(shard.number)
        if found is None:
            found = shard_source(shard.table(SHARD_SECONDS), self._columns)
            if self._loading:
                found.begin_loading(self._loading)
            self._sources[shard.number] = found
        return found


class MassDraws:
    """The draws of one batch."""

    def __init__(self, source: MassSource, n: int) -> None:
        self._source = source
        self._n = n
        self._parts: list[tuple[Shard, Draws]] = []
        self._due: list[tuple[Shard, Draws]] = []  # of these, what is not delivered yet
        self._chances: Chances | None = None  # which they were made with

    @property
    def held(self) -> int:
        """As `Draws.held`."""
        return sum(draws.held for _, draws in self._parts)

    def draw(self, terms: Terms) -> bool:
        """As `Draws.draw`. The shares of a batch are those of one moment, at most a second ago."""
        self.give_back()  # of a call that was interrupted
        answers, age = self._source.parts.answers, FRESH_SECONDS
        wait = Wait(None, terms.timeout, f"sample of {terms.n} from {self._source.name}")
        while True:
            if terms.stop is not None and terms.stop():
                raise Stopped
            said = answers.newest(age, 0.0 if terms.now else LOOK_SECONDS)
            found = by_mass(said)
            if isinstance(found, Chances):
                if self._attempt(found, terms, wait):
                    return True
                found = "a shard did not give its part"
            there = [each for each in said if each is not None]
            if there and all(each["finished"] and not each["size"] for each in there):
                raise EndOfData(f"{self._source.name} is finished and has no items left")
            if terms.now:
                return False
            self._check_time(terms, wait, there, found)
            wait.sleep(_LOOK_SECONDS, found)
            age = 0.0

    def _check_time(self, terms: Terms, wait: Wait, there: list[TableStats], reason: str) -> None:
        """Raise if the time is over, or waiting is of no use."""
        waited = time.monotonic() - wait.began
        if not there:
            why = self._source.parts.answers.why()
            if not isinstance(why, LOSSES) or wait.left <= 0 or waited > LOST_SECONDS:
                raise why
        if wait.left <= 0:
            raise wait.failure(reason)
        if terms.timeout is not None or waited < ABANDONED_SECONDS or any(each["writers"] for each in there):
            return
        if all(each["seconds_since_insert"] > ABANDONED_SECONDS for each in there):
            text = f"{reason}; for {ABANDONED_SECONDS:.0f} s no writer of the table was open and no insert came"
            raise Timeout(f"sample of {terms.n} from {self._source.name} would wait forever", text)

    def _attempt(self, chances: Chances, terms: Terms, wait: Wait) -> bool:
        """Draw from each shard as many as chance says; False: one of them did not give its part."""
        counts = self._source.counts(chances.shares, terms.n)
        seconds = min(max(wait.left, 0.0), SHARD_SECONDS)
        try:
            for shard in self._source.parts.shards:
                if not (count := int(counts[shard.number])):
                    continue
                if not self._draw_from(shard, Terms(count, seconds, stop=terms.stop, ours=terms.ours, now=terms.now)):
                    self.give_back()
                    return False
        except BaseException:
            self.give_back()
            raise
        self._chances, self._due = chances, list(self._parts)
        return True

    def _draw_from(self, shard: Shard, terms: Terms) -> bool:
        try:
            draws = self._source.of(shard).begin(terms.n)
            self._parts.append((shard, draws))
            return draws.draw(terms) and draws.held == terms.n
        except EndOfData:
            return False  # it was emptied meanwhile
        except LOSSES as error:
            self._lose(shard, error)
            return False

    def _lose(self, shard: Shard, error: StoreError) -> None:
        """A call of a shard has failed: its share is 0 until it answers again. Raises `error` if it lies here."""
        if shard.is_near and not isinstance(error, Timeout):
            raise error
        # mutant: a-lost-shard-keeps-its-share
        if not shard.is_near:
            self._source.parts.answers.note_silent(shard, error)

    def counts(self) -> dict[TableHandle, int]:
        """As `Draws.counts`."""
        return {handle: count for _, draws in self._parts for handle, count in draws.counts().items()}

    def least_bytes(self) -> int:
        """As `Draws.least_bytes`."""
        return sum(draws.least_bytes() for _, draws in self._parts)

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> _MassCopying:
        """As `Draws.copy`.

        Raises:
            DrawsLost: a shard was lost after the draw: draw again.
        """
        assert self._chances is not None
        copying: list[tuple[int, Copying]] = []
        for shard, draws in self._parts:
            try:
                copying.append((shard.number, draws.copy(None, None)))
            except LOSSES as error:
                self._lose(shard, error)
                raise DrawsLost(f"{self._source.name}: {error.message}", remedy="") from None
        prioritized = self._source.parts.settings.sampler
        by_table = isinstance(prioritized, Prioritized) and prioritized.normalize == "table"
        return _MassCopying(copying, self._chances, beta, by_table, allocate)

    def deliver(self) -> None:
        """As `Draws.deliver`. A shard that does not hear of it any more has counted what it gave already."""
        while self._due:
            shard, draws = self._due[0]
            try:
                draws.deliver()
            except DrawsLost:
                pass  # items stay when they are drawn, so nobody else has got less
            except LOSSES as error:
                self._lose(shard, error)
            del self._due[0]

    def give_back(self) -> None:
        """As `Draws.give_back`."""
        for _, draws in self._parts:
            draws.give_back()
        self._parts, self._due = [], []


class _MassCopying:
    """The parts of a batch that are being copied."""

    def __init__(
        self,
        copying: list[tuple[int, Copying]],
        chances: Chances,
        beta: float | None,
        by_table: bool,
        allocate: Callable[[str, Any, Any], Any] | None,
    ) -> None:
        self._copying = copying
        self._chances = chances
        self._beta = beta
        self._by_table = by_table
        self._allocate = allocate

    @property
    def is_whole(self) -> bool:
        return all(each.is_whole for _, each in self._copying)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for _, each in self._copying)

    def read_ahead(self) -> bool:
        ahead = [each.read_ahead() for _, each in self._copying]  # of all of them
        return all(ahead)

    def copy_portion(self) -> object:
        return next(each for _, each in self._copying if not each.is_whole).copy_portion()

    def batch(self) -> Batch:
        found = join([(number, each.batch()) for number, each in self._copying], self._allocate)
        # mutant: shares-newer-than-the-draw
        shares = self._chances.shares[shards_of(found.keys)]
        least = 0.0
        if self._by_table:
            own = found.probabilities * shares
            least = min(self._chances.least, float(own.min())) if self._chances.least else 0.0
        weigh(found, shares, self._beta, least)
        found.table_size = max(self._chances.size, found.table_size)
        return found


def sample_by_mass(source: MassSource, terms: Terms, beta: float | None, out: Batch | None) -> Batch:
    """`Table.sample` over all shards."""
    draws, left = source.begin(terms.n), countdown(terms.timeout)
    while True:
        try:
            draws.draw(Terms(terms.n, left()))
            batch = copied(draws, beta, None if out is None else Given(out))
        except (DrawsLost, RowsLost) as error:
            draws.give_back()
            if isinstance(error, RowsLost):
                source.drop_lost()
            continue
        except BaseException:
            draws.give_back()
            raise
        draws.deliver()
        return batch if out is None else out.become(batch)
