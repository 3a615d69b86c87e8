"""Kills and stops by chance, from a seed: what is hit, and when, but not in which state that finds it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from pains import until

from cluster.chaos.ledger import Ledger
from cluster.chaos.world import CAST, FIXED, PLACES, World, kill

NODES = ("node", "raylet")
WORKERS = ("worker",)
STOPPED = 1 / 3
"""Share of hits of processes that stop them for a while."""
STOP_SECONDS = 1.0, 3.0
PAUSE_SECONDS = 0.1, 2.0
AWAY_SECONDS = 1.0, 8.0
BACK_SECONDS = 120.0


class Killer:
    """Hits one process or node after the other."""

    def __init__(self, world: World, ledger: Ledger, seed: int, loses: Callable[[int], None]) -> None:
        """`loses` is called with the place of a node before it is lost."""
        self._world, self._ledger, self._choice, self._loses = world, ledger, random.Random(seed), loses
        self._goes_on: list[threading.Timer] = []
        self._due: dict[int, float] = {}  # when a node comes back
        self.hits: Counter[str] = Counter()
        self.agents_of_the_queue = 0  # each may have had a batch on its way

    def run(self, seconds: float) -> None:
        """Hit until the time is over; then all that was stopped goes on, and what was lost comes back."""
        end, pause = time.monotonic() + seconds, threading.Event()
        while time.monotonic() < end:
            pause.wait(self._choice.uniform(*PAUSE_SECONDS))
            self._return(time.monotonic())
            self._world.tend()
            kinds = self._world.kinds
            self._hit(self._choice.choices(list(kinds), list(kinds.values()))[0])
        for timer in self._goes_on:
            timer.join()
        self._return(float("inf"))
        until(self._whole, "all nodes to be there again", BACK_SECONDS)

    def _whole(self) -> bool:
        self._world.tend()
        return all(self._world.is_whole(place) for place in range(PLACES))

    def _return(self, now: float) -> None:
        for place in [place for place, due in self._due.items() if due <= now]:
            del self._due[place]
            self._world.back(place)

    def _hit(self, kind: str) -> None:
        place, stops = self._choice.randrange(PLACES), self._choice.random() < STOPPED
        role = self._choice.choice([role for role, at in CAST if at == place])
        seconds, away = self._choice.uniform(*STOP_SECONDS), self._choice.uniform(*AWAY_SECONDS)
        if kind in self._world.others:
            self._world.others[kind]()
        elif kind == "raylet" and stops:
            self._stop(kind, self._world.find(kind, place, role), seconds)
        elif kind in NODES:
            if place != FIXED and not self._world.down and self._world.is_whole(place):
                self._ledger.note(kill=kind, place=place)
                self._world.down.add(place)
                self._loses(place)
                self._world.lose(kind, place)
                self._due[place] = time.monotonic() + away
                self.hits[kind] += 1
        elif place not in self._world.down and (kind in WORKERS or self._world.is_whole(place)):
            pid = self._world.find(kind, place, role)
            if pid and stops:
                self._stop(kind, pid, seconds)
            elif pid:
                self._ledger.note(kill=kind, place=place, pid=pid, role=role)
                kill(pid)
                self.hits[kind] += 1
                self.agents_of_the_queue += place == FIXED and kind in ("agent", "supervisor")

    def _stop(self, kind: str, pid: int, seconds: float) -> None:
        if not pid:
            return
        self._ledger.note(stop=kind, pid=pid, seconds=seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self._goes_on.append(threading.Timer(seconds, _go_on, (pid,)))
            self._goes_on[-1].start()
            self.hits[f"{kind} stopped"] += 1


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
