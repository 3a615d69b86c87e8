"""What a process of the soak has, and its main loop: it works, pauses at a roll call, ends when asked to."""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from crash.board import Board

import di_store
from soak.stamps import Press

ALIVE, WORKED, PAUSED, UNITS = range(4)
"""Words of a process's row: turns of its loop; those that had not to wait; the roll call it stands at; rows, examples
or objects done."""
ORDER, HOLD, TARGET = range(3)
"""Words of row 0: number of the roll call, STOP, or 0; whether the administrator is to leave all as it is; the bytes
of memory that are aimed at."""
STOP = 1 << 32
SHARE = 0.80
"""Of the store's memory that is kept in use."""
BUSY = (di_store.Timeout, di_store.StoreFull)
"""Part of everybody's day: others are stopped or killed, the store is nearly full."""


def in_use(store: Any) -> int:
    """Bytes of the store, without what it keeps free."""
    stats = store._backend.session.arena.stats()  # without the tables' numbers, which take longer
    return int(stats["object_pages"] + stats["chunk_pages"] + stats["meta"] + stats["fixed"])


@dataclass
class Terms:
    """How hard the store is used.

    Attributes:
        memory: bytes of the store, around which the administrator varies it.
        largest: bytes of the largest object.
        capacity: items of the table of transitions.
        wait: seconds a call may wait; a roll call takes about as long to assemble.
    """

    memory: int
    largest: int
    capacity: int
    wait: float


@dataclass
class Context:
    """What a role has: the store, its row of the board, chance, and what it holds on to.

    Attributes:
        held: views, batches and whatever else is to be let go at a roll call.
        plant: a fault that this process shall make; "" for none.
        calls: roll calls so far.
    """

    store: Any
    board: Board
    row: int
    terms: Terms
    rng: random.Random
    plant: str
    held: list[Any] = field(default_factory=list)
    calls: int = 0
    _serial: int = 0
    _press: Press | None = None

    @property
    def name(self) -> str:
        """The store's name."""
        return str(self.store.name)

    def serial(self) -> int:
        """A number that this process has not used yet."""
        self._serial += 1
        return self._serial

    def press(self) -> Press:
        """The buffer that objects are made in."""
        self._press = self._press or Press(self.terms.largest)
        return self._press

    def count(self, units: int = 1) -> None:
        """So many rows, examples or objects were done and checked."""
        self.board.put(self.row, UNITS, self.board.get(self.row, UNITS) + units)

    def hold(self, thing: Any, most: int) -> Any:
        """Keep it; what has to go for it (by lot), or None."""
        self.held.append(thing)
        return self.held.pop(self.rng.randrange(len(self.held))) if len(self.held) > most else None

    def occupancy(self) -> float:
        """Share of the memory aimed at that is in use."""
        return in_use(self.store) / self.board.get(0, TARGET)

    def roll_call(self, order: int) -> None:
        """Let go of everything, stand still until the order changes."""
        self.calls += 1
        self.held.clear()
        gc.collect()
        with suppress(di_store.StoreClosed):  # a visitor has none
            self.store.stats()  # what is dropped comes free with the next call, and there is none for a while
        self.board.put(self.row, PAUSED, order)
        pause = Event()
        while self.board.get(0, ORDER) == order:
            pause.wait(0.01)


Turns = Generator[bool, None, None]
"""A role: each `yield True` is one turn done, `yield False` one that had to wait. Raising `BUSY` ends it; it is begun
anew. Any other error ends the process, and the soak with it."""


def run(
    role: Callable[[Context], Turns],
    store: str,
    path: str,
    row: int,
    terms: Terms,
    seed: int,
    plant: str,
) -> int:
    """A process's main function."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # tells where it is stuck
    board = Board(path)
    with di_store.attach(store, timeout=60) as attached:
        context = Context(attached, board, row, terms, random.Random(seed), plant)
        turns = role(context)
        while True:
            try:
                worked = next(turns)
            except BUSY:
                worked, turns = False, role(context)
            board.put(row, ALIVE, board.get(row, ALIVE) + 1)
            board.put(row, WORKED, board.get(row, WORKED) + int(worked))
            order = board.get(0, ORDER)
            if order == STOP:
                break
            if order:
                context.roll_call(order)
        turns.close()
        context.held.clear()
    return 0
