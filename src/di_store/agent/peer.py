"""One client process, as the agent sees it: its handles, and what it holds here."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from di_store.base.errors import DrawsLost, StoreError
from di_store.objects.access import Objects
from di_store.replay.batch import Blob, mark_foreign
from di_store.replay.mixture import Mixture
from di_store.replay.sampling import Draws
from di_store.replay.serving import keep_encoded
from di_store.replay.table import Table
from di_store.session import Session
from di_store.spread.chains import Chains
from di_store.store import Store

KEPT_ANSWERS = 128
"""Answers of calls that must not be done twice, kept for a client that has not got them."""


@dataclass
class HeldDraws:
    """Draws of a batch that the client has not received yet.

    Attributes:
        draws: made, and neither delivered nor given back.
        owner: the conversation whose end gives them back; None: the end of the client does.
        beta: the sampler's exponent of the importance weights when they were drawn.
    """

    draws: Draws
    owner: object | None
    beta: float | None


@dataclass
class Peer:
    """One client process: all of its connections share it.

    Attributes:
        link: 16 bytes that name the process.
        name: of the process, for people.
        trusted: whether what it pickles may be loaded here (`--allow-pickle`).
        connections: how many are open.
        heard: when something came from it last, `time.monotonic()`.
        draws: by number.
        leaving: it has said that it will not come back.
        chains: of the agent: weights that travel.
    """

    link: bytes
    name: str
    session: Session
    trusted: bool
    connections: int = 0
    heard: float = field(default_factory=time.monotonic)
    draws: dict[int, HeldDraws] = field(default_factory=dict)
    writers: dict[bytes, Any] = field(default_factory=dict)
    leaving: bool = False
    chains: Chains | None = None

    def __post_init__(self) -> None:
        self.store = Store(self.session)
        self.objects = Objects(self.session)
        self.lock = threading.Lock()
        self._tables: dict[str, Table] = {}
        self._mixtures: dict[int, Mixture] = {}
        self._gone: dict[int, Iterator[int]] = {}
        self._answers: OrderedDict[int, tuple[int, bytes, list[Any]]] = OrderedDict()
        self._number = 0

    def next_number(self) -> int:
        """A number that this client's things are called by."""
        with self.lock:
            self._number += 1
            return self._number

    def is_needed(self) -> bool:
        """Whether the client would miss something of this if it came back now: after a broken connection it does."""
        # mutant: who-comes-back-is-forgotten
        return bool(self.writers or (not self.leaving and (self._answers or self._mixtures or self._gone)))

    # -- handles ------------------------------------------------------------------------------------------------

    def table(self, name: str, timeout: float | None = 0) -> Table:
        """The table of that name; `TableNotFound` if there is none."""
        found = self._tables.get(name)
        if found is None:
            found = self.keep(self.store.table(name, timeout))
        return found

    def keep(self, table: Table) -> Table:
        """Remember a handle for later calls."""
        keep_encoded(table)
        self._tables[table.name] = table
        return table

    def forget(self, name: str) -> None:
        """The table was dropped, or is gone: a later one of that name needs a new handle."""
        self._tables.pop(name, None)

    def mixture(self, number: int) -> Mixture:
        """A mixture by its number.

        Raises:
            DrawsLost: it is not known any more, or was made by another process.
        """
        found = self._mixtures.get(number)
        if found is None:
            raise DrawsLost("the agent no longer knows this mixture", remedy="mix() again")
        return found

    def mix(self, weights: dict[str, float], seed: int | None) -> int:
        """Make a mixture; returns its number."""
        number = self.next_number()
        self._mixtures[number] = self.store.mix(weights, seed=seed)
        return number

    def follow_gone(self, table: Table, timeout: float | None) -> int:
        """Begin to note the keys that leave a table; returns the number to ask by."""
        number = self.next_number()
        self._gone[number] = table.evicted(timeout=timeout)
        return number

    def gone_since(self, number: int) -> list[int]:
        """The keys that have left since the last call."""
        found = self._gone.get(number)
        if found is None:
            raise StoreError(
                "the agent was started anew, and keys of items that left the table meanwhile were missed",
                remedy="compare with table.keys(), and call evicted() again",
            )
        return list(found)

    def blobs(self, value: Any) -> Any:
        """Values of an opaque table, which come encoded, and nested as lists of them: marked as from elsewhere.

        Raises:
            TypeError: something else came.
        """
        if isinstance(value, list):
            return [self.blobs(each) for each in value]
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 1 or len(value) < 8:
            raise TypeError("a value of an opaque table that is not encoded came")
        if self.trusted:
            return Blob(value)
        marked = value.copy()
        mark_foreign(marked)
        return Blob(marked)

    # -- answers ------------------------------------------------------------------------------------------------

    def answered(self, request: int) -> tuple[int, bytes, list[Any]] | None:
        """What was answered to this request before, as kind, meta and body."""
        with self.lock:
            return self._answers.get(request)

    def note_answer(self, request: int, kind: int, meta: bytes, body: list[Any]) -> None:
        """Keep the answer of a call that must not be done twice."""
        with self.lock:
            self._answers[request] = kind, meta, body
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)

    # -- draws --------------------------------------------------------------------------------------------------

    def hold(self, draws: Draws, owner: object | None, beta: float | None) -> int:
        """Keep draws until they are delivered or given back; returns their number."""
        number = self.next_number()
        self.draws[number] = HeldDraws(draws, owner, beta)
        return number

    def held(self, number: int) -> HeldDraws:
        """The draws of that number.

        Raises:
            DrawsLost: they were given back, as nothing was heard of the client for too long, or the agent is another.
        """
        found = self.draws.get(number)
        if found is None:
            raise DrawsLost("these draws are not held any more", remedy="")
        return found

    def give_back(self, number: int) -> None:
        """Give draws back; nothing if they are not held any more."""
        if (found := self.draws.pop(number, None)) is not None:
            found.draws.give_back()

    def give_back_of(self, owner: object) -> None:
        """Give back what was drawn for a conversation that has ended."""
        for number, held in list(self.draws.items()):
            if held.owner is owner:
                self.give_back(number)

    def give_back_all(self) -> int:
        """Give everything back; returns how many batches."""
        numbers = list(self.draws)
        for number in numbers:
            self.give_back(number)
        return len(numbers)

    def end(self) -> None:
        """The client is gone: give its draws back, and close its handles and writers."""
        try:
            self.give_back_all()
            for writer in list(self.writers.values()):
                writer.end()
        finally:
            self.store.close()
