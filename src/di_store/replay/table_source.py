"""The source of a loader over one table: draws its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from di_store import _core
from di_store.base.errors import DrawsLost
from di_store.replay.batch import Batch
from di_store.replay.handle import TableHandle
from di_store.replay.lease import Leasing
from di_store.replay.lost import drop_lost
from di_store.replay.sampling import (
    Copying,
    Draws,
    Terms,
    await_columns,
    check_fits,
    check_replace,
    collect,
)
from di_store.runtime.chores import run_ahead

LEARNER_ROLE = 2


def begin_learning(arena: _core.Arena) -> None:
    """Let other processes see that this process samples, and let it do chores of the store."""
    arena.set_role(LEARNER_ROLE)
    run_ahead(arena)


class AttachedSource:
    """The common part of loaders' sources in a process that has the store open."""

    arena: _core.Arena

    def begin_loading(self, n: int) -> None:
        """Note that a loader over batches of n begins."""
        check_fits(self.arena, n)
        begin_learning(self.arena)

    def end_loading(self) -> None:
        """As `Source.end_loading`. The draws themselves are given back."""

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """Note that a batch was handed out after a wait, and how many more are ahead."""
        self.arena.note_loaded(ahead, waited_seconds)

    def drop_lost(self) -> None:
        """Remove the items of rows that could not be read."""
        drop_lost(self.arena)


class TableSource(AttachedSource):
    """Draws the batches of a loader over one table; `leasing`: whose leases they are."""

    def __init__(self, handle: TableHandle, columns: str | Iterable[str] | None, leasing: Leasing) -> None:
        self.handle = handle
        self.columns = columns
        self.leasing = leasing
        self.name = f"table {handle.name!r}"
        self.arena = handle.arena
        if handle.schema is not None:
            handle.which(columns)  # raises for unknown names

    def check(self, terms: Terms) -> None:
        """As `DrawSource.check`."""
        check_replace(self.handle, terms.n, terms.replace)

    def beta(self) -> float | None:
        """The sampler's present exponent of the importance weights; None: weights are 1."""
        return self.handle.native.beta

    def begin(self, n: int) -> Draws:
        """The draws of a batch of n, not made yet."""
        return TableDraws(self)


class TableDraws:
    """The draws of one batch of one table."""

    def __init__(self, source: TableSource) -> None:
        self._handle = source.handle
        self._columns = source.columns
        self._leasing = source.leasing
        self._draws: _core.Draws | None = None
        self.held = 0

    def draw(self, terms: Terms) -> bool:
        """As `Draws.draw`."""
        handle = self._handle
        self.give_back()  # of a call that was interrupted
        if terms.now and not may_draw(handle, terms.n, terms):
            return False
        with terms:
            await_columns(handle, terms)
        reader = handle.reader()
        check_fits(handle.arena, terms.n, handle.bytes_of(handle.which(self._columns)))
        finished = handle.native.finished  # before the draws: then they have chosen from everything
        draws = terms.begin(handle)
        try:
            with terms:
                held = collect(handle, reader, draws, terms)
        except BaseException:  # also Ctrl-C: nobody else knows of these draws
            reader.give_back(draws)
            raise
        if held < terms.n and terms.now and (draws.paced_out or not (finished and held)):
            reader.give_back(draws)
            return False
        self._draws, self.held = draws, held
        return True

    def counts(self) -> dict[TableHandle, int]:
        """As `Draws.counts`."""
        return {self._handle: self.held}

    def least_bytes(self) -> int:
        """As `Draws.least_bytes`."""
        return self.held * self._handle.bytes_of(self._handle.which(self._columns))

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Copying:
        """As `Draws.copy`."""
        handle, draws = self._handle, held_draws(self._draws)
        which = handle.which(self._columns)
        out = None if allocate is None else handle.allocate(self.held, which, allocate)
        return _TableCopying(handle, handle.reader().gather(draws, beta, which, out), draws, self._leasing)

    def deliver(self) -> None:
        """As `Draws.deliver`.

        Raises:
            DrawsLost: another agent has taken over the session of their lease.
        """
        deliver(self._handle, held_draws(self._draws))

    def deliver_some(self, places: Sequence[int]) -> None:
        """As `Draws.deliver_some`."""
        self._handle.reader().deliver_some(held_draws(self._draws), places)

    def give_back(self) -> None:
        """As `Draws.give_back`."""
        if self._draws is not None:
            self._handle.reader().give_back(self._draws)
            self._draws = None
            self.held = 0


def held_draws(draws: _core.Draws | None) -> _core.Draws:
    """The draws of a batch.

    Raises:
        DrawsLost: the draws were given back, perhaps by another thread, as an agent does for a silent client.
    """
    if draws is None:
        raise DrawsLost("these draws were given back", remedy="")
    return draws


def deliver(handle: TableHandle, draws: _core.Draws) -> None:
    """Note that the caller has the batch of these draws.

    Raises:
        DrawsLost: another agent has taken over the session of their lease.
    """
    handle.reader().deliver(draws)
    if draws.lost:
        raise DrawsLost("another agent has taken over the client", remedy="")


def may_draw(handle: TableHandle, n: int, terms: Terms) -> bool:
    """Whether n draws seem possible without waiting. Other processes may draw meanwhile."""
    distinct = not terms.replace or terms.lease is not None
    return handle.schema is not None and handle.native.may_draw(n, distinct)


class _TableCopying:
    """`Copying` of a batch of one table."""

    def __init__(self, handle: TableHandle, native: _core.Gathering, draws: _core.Draws, leasing: Leasing) -> None:
        self._handle = handle
        self._draws = draws
        self._native = native
        self._leasing = leasing
        self.read_ahead = native.read_ahead
        self.copy_portion = native.copy_portion

    @property
    def is_whole(self) -> bool:
        return self._native.is_whole

    @property
    def bytes(self) -> int:
        return self._native.bytes

    def batch(self) -> Batch:
        batch = self._handle.batch(self._native.parts(), self._draws)
        if number := self._draws.lease:
            batch._lease = self._leasing, number
        return batch
