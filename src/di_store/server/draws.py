"""Draws of a client: the agent holds them until the client has the batch, or no longer lists the draws.

The client chooses the numbers of draws, and each call of a loader lists the draws that it has. If a call was
interrupted before the client heard of its draws, the agent gives these draws back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from di_store.base.errors import DrawsLost
from di_store.replay.sampling import Draws

_LOST = "the agent no longer holds these draws"


@dataclass
class HeldBatch:
    """Draws of a batch that the client has not received yet.

    Attributes:
        draws: draws that were made, and are neither delivered nor given back.
        owner: the conversation whose end gives the draws back; None: the end of the client does.
        beta: the sampler's exponent of the importance weights at the draw.
        source: number of the loader that the draws are for; 0: no loader.
    """

    draws: Draws
    owner: object | None = None
    beta: float | None = None
    source: int = 0


class HeldDraws:
    """The draws held for one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, HeldBatch] = {}
        self._known: dict[int, tuple[int, frozenset[int]]] = {}  # by loader: number of its last word, and what it has

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, number: int, held: HeldBatch) -> None:
        """Keep draws until they are delivered or given back.

        Raises:
            DrawsLost: the loader has meanwhile given up this call, or has ended. The draws were given back.
        """
        with self._lock:
            wanted = not held.source or number in self._known.get(held.source, (0, frozenset()))[1]
            old = self._held.pop(number, None)  # of the same call, which was made before
            if wanted:
                self._held[number] = held
        if old is not None:
            old.draws.give_back()
        if not wanted:
            held.draws.give_back()
            raise DrawsLost("the loader has given up these draws", remedy="")

    def of(self, number: int) -> HeldBatch:
        """The draws of that number.

        Raises:
            DrawsLost: the draws were given back because the client was silent for too long, or the agent was replaced.
        """
        found = self._held.get(number)
        if found is None:
            raise DrawsLost(_LOST, remedy="")
        return found

    def known(self, source: int, turn: int, ours: Iterable[int]) -> list[HeldBatch]:
        """Note the draws that a loader lists or asks for. Draws that it has given up are given back.

        Args:
            source: number of the loader.
            turn: number of the list: an older list that arrives late changes nothing.
            ours: numbers of its draws.

        Returns:
            The numbers in `ours` whose draws are held.
        """
        own = frozenset(ours)
        with self._lock:
            if turn >= self._known.get(source, (0, own))[0]:
                self._known[source] = turn, own
            own = self._known[source][1]
            lost = [number for number, held in self._held.items() if held.source == source and number not in own]
            found = [held for number, held in self._held.items() if number in own]
        self._give_back(lost)
        return found

    def deliver(self, number: int, places: list[int] | None = None) -> None:
        """Note that the client has the batch. With `places`, only these draws count, and the others are given back.

        Raises:
            DrawsLost: as in `of`. The table's error, if it cannot note the delivery now: the draws are held as before.
        """
        held = self._held.pop(number, None)  # whoever has taken them out ends them: this, or what gives them back
        if held is None:
            raise DrawsLost(_LOST, remedy="")
        try:
            held.draws.deliver() if places is None else held.draws.deliver_some(places)
        except BaseException:  # not delivered: held as before, so that it can be tried again
            with self._lock:
                self._held[number] = held
            raise

    def let_go(self, number: int) -> None:
        """Give back draws that the client no longer knows, or all of a loader."""
        with self._lock:
            self._known.pop(number, None)
            gone = [each for each, held in self._held.items() if number in (each, held.source)]
        self._give_back(gone)

    def give_back_of(self, owner: object) -> None:
        """Give back the draws of a conversation that has ended."""
        self._give_back([number for number, held in list(self._held.items()) if held.owner is owner])

    def give_back_all(self) -> int:
        """Give all draws back; returns the number of batches."""
        return self._give_back(list(self._held))

    def _give_back(self, numbers: list[int]) -> int:
        count = 0
        for number in numbers:
            if (found := self._held.pop(number, None)) is not None:
                found.draws.give_back()
                count += 1
        return count
