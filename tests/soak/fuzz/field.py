"""The test's side: guarded rows and objects, a watch over the process that plays, what must hold when it has ended."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from crash.board import rows, stamp
from crash.zygote import Crew, Hand

import di_store
from soak.fuzz.journal import Journal
from soak.fuzz.player import Round
from soak.fuzz.verdict import Finding
from soak.fuzz.world import MEMORY
from soak.stamps import KEPT, VAULT, Press, all_refs, check_object, object_id

GUARDED = 100
"""Items that no call of the player may touch."""
VAULTED = [f"{VAULT:02x}" + "0" * 38, *(object_id(VAULT, 0, number, 100 << number) for number in range(1, 10))]
"""Ids of objects that it may not touch either. Fresh ids of a process may begin in the same way."""


_NO_THREAD_LOCALS = "cannot allocate memory for thread-local data: ABORT"
"""The C library's own end of a process whose memory is used up when a library first runs in a thread."""


class Field:
    """One store and one process that plays in it.

    Args:
        bound: seconds that a call may take, at most, if ten times its own timeout is less.
    """

    def __init__(self, crew: Crew, bound: float) -> None:
        self._crew, self._bound = crew, bound
        self._store: Any = None
        self.calls = 0

    def play(self, game: Round) -> list[Finding]:
        """A whole round; what is not right."""
        os.makedirs(game.folder, exist_ok=True)
        with suppress(FileNotFoundError):
            os.remove(game.findings)
        journal = Journal(game.journal, create=True)
        with di_store.open(game.store, memory=MEMORY, mode="x") as self._store:
            self._guard()
            hand = self._crew.start("soak.fuzz.player:run", game)
            found = self._watch(hand, journal, game)
            found += self._written(game)
            hand.kill()
            found += self._damage(game, ended=hand.status == 0)
        self.calls += sum(entry.done for entry in journal.entries())
        return found

    # -- while it plays -----------------------------------------------------------------------------------------------

    def _guard(self) -> None:
        table = self._store.create_table(
            "guard", capacity=2 * GUARDED, schema=rows(1), sampler=di_store.Prioritized(1.0)
        )
        table.extend(rows(np.arange(GUARDED)), priority=2.0)
        press = Press(1 << 16)
        for name in VAULTED:
            self._store.put(press.value(name), id=name)

    def _watch(self, hand: Hand, journal: Journal, game: Round) -> list[Finding]:
        """Until it ends; a crash, or a call that does not."""
        began, turn = time.monotonic(), 0
        while hand.status is None:
            self._crew.pump(0.02)
            for entry in journal.entries():
                if entry.running > max(10 * entry.deadline, self._bound):
                    return [self._hang(hand, entry.text, f"{entry.running:.0f} s")]
            if not any(entry.running for entry in journal.entries()):
                idle = time.monotonic() - max([entry.began for entry in journal.entries()] + [began])
                if idle > game.seconds + 2 * self._bound:
                    return [self._hang(hand, "between calls or at its end", f"{idle:.0f} s")]
            turn += 1
            try:
                self._beside(turn)
            except (AssertionError, di_store.StoreError) as error:
                hand.kill()
                return [Finding("damage", "beside it", type(error).__name__, str(error))]
        if hand.status == 0 or (game.hazard == "memory" and _NO_THREAD_LOCALS in hand.printed()):
            return []
        last = [entry.text for entry in journal.entries() if entry.number > entry.done]
        text = f"the process ended with {hand.status}: {hand.printed()[-3000:]}"
        return [Finding("crash", last[-1] if last else "between calls or at its end", "", text)]

    def _hang(self, hand: Hand, call: str, how_long: str) -> Finding:
        hand.signal(signal.SIGUSR2)
        self._crew.pump(0.5)
        self._crew.pump(0.5)
        printed = hand.printed()[-4000:]
        hand.kill()
        return Finding("hang", call, "", f"under way for {how_long}: {printed}")

    def _beside(self, turn: int) -> None:
        """Use the store meanwhile: nothing holds it up."""
        table = self._store.table("guard")
        batch = table.sample(4, timeout=60)
        assert (batch.data["obs"] == stamp(batch.data["n"])).all(), "torn guarded rows"
        with suppress(di_store.StoreFull, di_store.CapacityError):  # the player may fill the store
            ref = self._store.put(np.full(1_000, turn), id=f"{KEPT:02x}{turn:038x}", timeout=0)
            assert (self._store.get(ref) == turn).all()
            assert self._store.delete(ref) == 1

    # -- when it has ended --------------------------------------------------------------------------------------------

    def _written(self, game: Round) -> list[Finding]:
        try:
            with open(game.findings) as file:
                return [Finding(**json.loads(line)) for line in file]
        except FileNotFoundError:
            return []

    def _damage(self, game: Round, ended: bool) -> list[Finding]:
        """What the round has harmed, or left behind; who did not end by itself leaves its tables and objects."""
        try:
            self._settle({"guard"} if ended else None)
            self._check_guarded()
            findings = self._store.check()
            assert findings == [], f"check: {findings}"
            self._check_counts()
        except (AssertionError, di_store.StoreError) as error:
            return [Finding("damage", f"round {game.hazard}", type(error).__name__, str(error))]
        return []

    def _settle(self, tables: set[str] | None) -> None:
        """What the dead have left is taken back."""
        until = time.monotonic() + self._bound
        while wanting := self._unsettled(tables):
            assert time.monotonic() < until, wanting
            self._crew.pump(0.01)

    def _unsettled(self, tables: set[str] | None) -> str:
        arena = self._store._backend.session.arena
        arena.reap()
        while arena.chore():
            pass
        stats = self._store.stats()
        if len(stats["clients"]) != 1:
            return f"clients are left: {stats['clients']}"
        if stats["pinned"] or stats["pending"]:
            return f"{stats['pinned']} bytes pinned, {stats['pending']} pending"
        if tables is not None and set(stats["tables"]) != tables:
            return f"tables are left: {list(stats['tables'])}"
        held = stats["tables"]["guard"]["held"]
        return f"{held} held draws" if held else ""

    def _check_guarded(self) -> None:
        gone = set(VAULTED) - {ref.id for ref in all_refs(self._store)}
        assert not gone, f"a guarded object is gone: {gone}"
        for name in VAULTED[1:]:
            check_object(self._store.get(name), name)
        table = self._store.table("guard")
        batch = table.peek(table.keys())
        numbers = np.asarray(batch.data["n"])
        assert numbers.tolist() == list(range(GUARDED)), f"guarded items: {numbers}"
        assert (batch.data["obs"] == stamp(numbers)).all(), "torn guarded items"
        assert (batch.priorities == 2.0).all(), f"priorities of guarded items: {batch.priorities}"

    def _check_counts(self) -> None:
        stats = self._store.stats()
        assert stats["live"] + stats["pinned"] + stats["pending"] + stats["free"] == stats["memory"], stats
        assert stats["committed"] <= stats["budget"], stats
        guard = stats["tables"]["guard"]
        assert guard["size"] == guard["inserts"] == guard["limiter"]["inserts"] == GUARDED, guard
        assert guard["samples"] == guard["limiter"]["samples"], guard


class Report:
    """Findings of many rounds, one of each kind.

    Attributes:
        kinds: the first finding of each kind with its round, and how many there were.
    """

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, ...], tuple[Round, Finding, int]] = {}

    def add(self, game: Round, found: list[Finding]) -> None:
        """What a round has found."""
        for each in found:
            name = each.call.partition('"call": "')[2].partition('"')[0] or each.call
            kind = (each.kind, each.error, name, each.text[:40])
            first, finding, number = self.kinds.get(kind, (game, each, 0))
            self.kinds[kind] = (first, finding, number + 1)

    def summary(self) -> str:
        """How many of each."""
        return f"{len(self.kinds)} kinds of findings" if self.kinds else "nothing is wrong"

    def text(self, field: Field, name: Callable[[], str]) -> str:
        """All of them, each with how to make it again."""
        lines = [f"{len(self.kinds)} kinds of findings"]
        for game, each, number in self.kinds.values():
            alone = replayed(field, name(), game, each)
            how = (
                f"alone: -m soak.fuzz '{each.call}'"
                if alone
                else f"in its round: -m soak.fuzz --round {game.hazard} {game.seed}"
            )
            lines += [
                "",
                f"{each.kind}, {number} times: {each.error}: {each.text}",
                f"  {each.call}",
                f"  {how}",
                each.trace,
            ]
        return "\n".join(lines)


def replayed(field: Field, name: str, game: Round, found: Finding) -> bool:
    """Whether the call alone, in a store of its own, goes wrong in the same way."""
    if not found.call.startswith("{"):
        return False
    again = Round(name, game.folder, game.seed, "odd", 1, 60.0, (found.call,), game.plant)
    return any((each.kind, each.error) == (found.kind, found.error) for each in field.play(again))
