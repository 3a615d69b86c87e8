"""Draws over all shards of a table: each shard's number of draws is random, in proportion to its last reported mass.

A batch begins with the choice of these numbers, which needs no call as long as the masses are fresh. Then each shard
draws its part, in one call. Only tables that keep drawn items have such draws, so no draw needs to be given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator, Philox  # here, since numpy's lazy import fails in a process out of descriptors

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import DrawsLost, EndOfData, StoreError, Timeout
from di_store.client.drawing import WholeBatch
from di_store.cluster.shards.merge import Allocate, merge
from di_store.cluster.shards.parts import LOSSES, Parts
from di_store.cluster.shards.probabilities import Probabilities, by_mass, weigh
from di_store.cluster.shards.shard import FRESH_SECONDS, Shard
from di_store.policy.samplers import Prioritized
from di_store.replay.batch import Batch
from di_store.replay.handle import TableHandle
from di_store.replay.keys import shards_of
from di_store.replay.mixture_source import OutAllocator
from di_store.replay.sampling import Stopped, Terms, check_fits
from di_store.replay.stats import TableStats
from di_store.replay.table_backend import TableBackend
from di_store.replay.table_source import begin_learning
from di_store.runtime import waits
from di_store.runtime.deadline import LOST_SECONDS, Deadline
from di_store.runtime.forks import in_child
from di_store.runtime.waits import Wait

SHARD_SECONDS = 1.0
"""How long a shard may take to give its part: it has said that it has these items."""
_LOOK_SECONDS = 0.02
"""How often a draw that waits for items asks the shards."""


def _refused(given: str, remedy: str) -> ValueError:
    return ValueError(f'{given} with draw="mass": chance may give a shard more draws than it has items; {remedy}')


class MassSource:
    """The source of `sample` and of loaders."""

    def __init__(self, parts: Parts, columns: str | Iterable[str] | None) -> None:
        self.parts = parts
        self.name = f"table {parts.name!r}"
        self.columns = columns
        sampler = parts.settings.sampler
        self.by_table = isinstance(sampler, Prioritized) and sampler.normalize == "table"
        self._begin()
        in_child(self, MassSource._begin)

    def _begin(self) -> None:
        """In a forked child too, which may inherit the lock of numpy's generator in the locked state."""
        self._random = Generator(Philox())

    @property
    def arena(self) -> _core.Arena | None:
        """As `Source.arena`, for the shard on this machine."""
        near = self.parts.near_handle()
        return None if near is None else near.arena

    def begin_loading(self, n: int) -> None:
        """As `Source.begin_loading`."""
        if (arena := self.arena) is not None:
            check_fits(arena, n)
            begin_learning(arena)

    def end_loading(self) -> None:
        """As `Source.end_loading`, but no draw is held."""

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """As `Source.note_loaded`."""
        if (arena := self.arena) is not None:
            arena.note_loaded(ahead, waited_seconds)

    def drop_lost(self) -> None:
        """As `Source.drop_lost`. The shard has already done it."""

    def check(self, terms: Terms) -> None:
        """As `DrawSource.check`. Shares are random, so a shard may get more draws than it has items.

        A batch with a lease holds no item twice.
        """
        if not terms.replace:
            raise _refused("replace=False", 'leave it out, or use draw="local"')
        if terms.lease is not None:
            raise _refused(f"lease={terms.lease:g}", 'use draw="local"')

    def beta(self) -> float | None:
        """As `Source.beta`: the value that the shards last reported."""
        return next((each["beta"] for each in self.parts.answers.last() if each is not None), self.parts.settings.beta)

    def begin(self, n: int) -> MassDraws:
        """As `Source.begin`."""
        return MassDraws(self, n)

    def counts(self, shares: Array, n: int) -> Array:
        """How many of n draws each shard gets, int64[shards]: multinomial. A shard without a share gets no draws."""
        found: Array = np.zeros(len(shares), np.int64)
        possible = np.flatnonzero(shares)
        found[possible] = self._random.multinomial(n, shares[possible])
        return found

    def lose(self, shard: Shard, error: StoreError) -> None:
        """Set the share of a shard that failed to 0 until it answers.

        Raises `error` if the shard is on this machine.
        """
        self.parts.check_open()
        if not shard.is_near:
            self.parts.answers.note_silent(shard, error)
        elif not isinstance(error, Timeout):
            raise error


class MassDraws:
    """One batch: `draw` chooses the number of draws from each shard, and `take` makes them.

    Attributes:
        held: number of draws.
    """

    def __init__(self, source: MassSource, n: int) -> None:
        self._source = source
        self._n = n
        self._deadline = Deadline(None)  # of the call that draws
        self._probabilities: Probabilities | None = None  # which the numbers were chosen with
        self._counts: list[tuple[Shard, int]] = []
        self.held = 0

    def draw(self, terms: Terms) -> bool:
        """As `Draws.draw`: wait until there are items to draw."""
        return self.choose(terms, Deadline(None if terms.now else terms.timeout))

    def choose(self, terms: Terms, deadline: Deadline) -> bool:
        """`draw`, and later `take`, as steps of a call with this deadline."""
        self._deadline = deadline
        probabilities = _probabilities(self._source, terms, deadline)
        if probabilities is None:
            return False
        counts = self._source.counts(probabilities.shares, self._n)
        self._counts = [(each, int(counts[each.number])) for each in self._source.parts.shards if counts[each.number]]
        self._probabilities, self.held = probabilities, self._n
        return True

    @property
    def beta(self) -> float | None:
        """The sampler's exponent of the importance weights at the time of the draw."""
        assert self._probabilities is not None
        return self._probabilities.beta

    def take(self, beta: float | None, allocate: Allocate | None) -> Batch:
        """Have each shard draw its part, and make one batch of the parts.

        Args:
            beta: exponent of the weights; None: weights are 1.
            allocate: makes the arrays.

        Raises:
            DrawsLost: a shard has not sent its part: draw again.
        """
        source, found = self._source, []
        assert self._probabilities is not None
        for (shard, count), step in self._deadline.steps(self._counts):
            try:
                batch = shard.call(step.sooner(SHARD_SECONDS), partial(_sample, n=count, columns=source.columns))
                found.append((shard.number, batch))
            except EndOfData as error:  # it was emptied meanwhile
                source.parts.answers.forget()
                raise DrawsLost(error.message, remedy="") from None
            except LOSSES as error:
                source.lose(shard, error)
                source.parts.answers.forget()
                why = error.reason if isinstance(error, Timeout) else error.message
                raise DrawsLost(why, remedy="") from error
        batch = merge(found, allocate)
        shares = self._probabilities.shares[shards_of(batch.keys)]
        least = self._probabilities.least if source.by_table else 0.0
        if least:
            least = min(least, float((batch.probabilities * shares).min()))
        weigh(batch, shares, beta, least)
        batch.table_size = max(self._probabilities.size, batch.table_size)
        return batch

    def counts(self) -> dict[TableHandle, int]:
        """As `Draws.counts`: no draw is held."""
        return {}

    def least_bytes(self) -> int:
        """As `Draws.least_bytes`: not known yet."""
        return 0

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> WholeBatch:
        """As `Draws.copy`, in the loader's thread."""
        batch = self.take(beta, allocate)
        return WholeBatch(batch, _bytes_of(batch.data))

    def deliver(self) -> None:
        """As `Draws.deliver`: the shards have delivered their parts."""

    def deliver_some(self, places: Sequence[int]) -> None:
        """As `Draws.deliver_some`: the shards have delivered their parts."""

    def give_back(self) -> None:
        """As `Draws.give_back`, but no draw is held."""
        self.held = 0


def _bytes_of(data: Any) -> int:
    if isinstance(data, dict):
        return sum(_bytes_of(value) for value in data.values())
    return int(getattr(getattr(data, "values", data), "nbytes", 0))


def _sample(table: TableBackend, within: Deadline, n: int, columns: Any) -> Batch:
    return table.draw(Terms(n, within), columns)


def _probabilities(source: MassSource, terms: Terms, deadline: Deadline) -> Probabilities | None:
    """Wait until the table may be drawn from; None: not now (`terms.now`).

    Raises:
        As `Draws.draw`; NodeUnavailable: no shard answers.
    """
    found, there = _look(source, terms, deadline, FRESH_SECONDS)
    if terms.now or isinstance(found, Probabilities):
        return found if isinstance(found, Probabilities) else None
    near = source.parts.near_handle()
    arena = None if near is None else near.arena
    with Wait(arena, deadline.left, f"sample of {terms.n} from {source.name}") as wait:
        while True:
            _check_time(source, terms, wait, there, found)
            if near is None:
                wait.sleep(_LOOK_SECONDS, found)
            else:
                wait.sleep(_LOOK_SECONDS, found, near.native.wait_items, near.native.items_seq(), near.native)
            found, there = _look(source, terms, deadline, 0.0)
            if isinstance(found, Probabilities):
                return found


def _look(
    source: MassSource, terms: Terms, deadline: Deadline, age: float
) -> tuple[Probabilities | str, list[TableStats]]:
    """The probabilities of draws, or why nothing can be drawn now; and what the shards say that answer."""
    answers = source.parts.answers
    source.parts.check_open()
    if terms.stop is not None and terms.stop():
        raise Stopped
    if terms.now and not answers.are_fresh(age):
        return "", []
    said = answers.newest(age, deadline.step(2))
    there = [each for each in said if each is not None]
    found = by_mass(said, source.parts.min_size)
    if isinstance(found, str) and there and all(each["finished"] and each["mass"] is not None for each in there):
        raise EndOfData(f"{source.name} is finished and gives no more: {found}")
    return found, there


def _check_time(source: MassSource, terms: Terms, wait: Wait, there: list[TableStats], reason: str) -> None:
    """Raise if the time is over, or waiting is of no use."""
    waited = time.monotonic() - wait.began
    if not there:
        why = source.parts.answers.why()
        if not isinstance(why, LOSSES) or wait.left <= 0 or waited > LOST_SECONDS:
            raise why
    if wait.left <= 0:
        raise wait.failure(reason)
    if terms.timeout is not None or waited < waits.ABANDONED_SECONDS or any(each["writers"] for each in there):
        return
    if all(each["seconds_since_insert"] > waits.ABANDONED_SECONDS for each in there):
        text = f"{reason}; for {waits.ABANDONED_SECONDS:.0f} s no writer of the table was open and no insert came"
        raise Timeout(f"sample of {terms.n} from {source.name} would wait forever", text)


def sample_by_mass(source: MassSource, terms: Terms, beta: float | None, out: Batch | None) -> Batch:
    """`Table.sample` over all shards. `beta`: exponent of the weights; None: the sampler's."""
    draws, deadline = source.begin(terms.n), terms.deadline or Deadline(terms.timeout)
    while True:
        draws.choose(terms, deadline)
        try:
            batch = draws.take(draws.beta if beta is None else beta, None if out is None else OutAllocator(out))
        except DrawsLost as error:
            if deadline.left == 0:
                culprit = getattr(error.__cause__, "culprit", None)
                raise Timeout(f"sample of {terms.n} from {source.name} timed out", error.message, culprit) from None
            continue
        return batch if out is None else out.become(batch)
