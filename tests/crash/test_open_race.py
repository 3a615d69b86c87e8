"""Two processes open one name at the same moment: one creates, the other attaches, both have the same store.

Also while the last holder leaves, and while who creates is killed in the middle.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import di_store
from crash.zygote import KILLED, Crew
from di_store import _core

ATTACHED = 7
"""Exit code of who was to die creating a store, and found it there."""


class Gate:
    """A pipe that children wait on; all of them start in the moment it is closed."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkfifo(path)
        self._number = os.open(path, os.O_RDWR)

    def open(self, crew: Crew, waiting: int) -> None:
        """Let everybody pass, as soon as so many wait."""
        crew.until(lambda: all(os.path.exists(f"{self.path}.{n}") for n in range(waiting)), "children at the gate")
        os.close(self._number)

    @staticmethod
    def wait(path: str, number: int) -> None:
        """In a child: wait for the others."""
        gate = os.open(path, os.O_RDONLY)
        with open(f"{path}.{number}", "w"):
            pass
        assert os.read(gate, 1) == b""
        os.close(gate)


def race(gate: str, name: str, report: str, number: int) -> None:
    """In a child: wait at the gate, open, write the store's identity and if this call created it, meet the rest."""
    Gate.wait(gate, number)
    with di_store.open(name, memory="16MiB") as store:
        ref = di_store.Ref.parse(f"{number:040x}")
        store.put(number, id=ref.id)
        arena = _core.Arena.open(name, 2, 0, 0, 60.0)
        with open(f"{report}.{number}", "w") as file:
            file.write(f"{arena.stats()['uuid']} {int(arena.created)}")
        # Everybody sees everybody's object: nobody is in a store of its own.
        others = [store.get(di_store.Ref.parse(f"{other:040x}"), timeout=60) for other in (0, 1)]
        assert others == [0, 1]
        # Nobody leaves before the other has seen it.
        store.put("seen", id=f"{number + 2:040x}")
        for other in (2, 3):
            store.get(di_store.Ref.parse(f"{other:040x}"), timeout=60)


def reports(path: str) -> list[tuple[str, int]]:
    """What the two wrote."""
    found = []
    for number in (0, 1):
        with open(f"{path}.{number}") as file:
            uuid, created = file.read().split()
        found.append((uuid, int(created)))
    return found


def test_two_concurrent_opens_share_one_store(
    crew: Crew, count: Callable[[int, int], int], tmp_path: Any, store_name: Callable[[], str]
) -> None:
    for turn in range(count(40, 1_000)):
        gate, path, name = Gate(str(tmp_path / f"gate-{turn}")), str(tmp_path / f"report-{turn}"), store_name()
        hands = [crew.start("crash.test_open_race:race", gate.path, name, path, number) for number in (0, 1)]
        gate.open(crew, len(hands))
        for hand in hands:
            hand.finish()
        (first, one), (second, other) = reports(path)
        assert first == second
        assert one + other == 1


def come_and_go(name: str, number: int, turns: int) -> None:
    """In a child: open, put, read, leave; the store ends and begins anew all the time."""
    for turn in range(turns):
        with di_store.open(name, memory="16MiB") as store:
            value = [number, turn]
            assert store.get(store.put(value)) == value
            assert store.check() == []
            if turn == 0:
                print("here", flush=True)


def test_attaching_while_the_last_holder_leaves_is_safe(
    crew: Crew, count: Callable[[int, int], int], store_name: Callable[[], str]
) -> None:
    name = store_name()
    hands = [crew.start("crash.test_open_race:come_and_go", name, number, count(60, 1_000)) for number in range(3)]
    for hand in hands:
        hand.finish(600)
    assert name not in [found.name for found in di_store.list_stores()]


def create_and_die(name: str, fault: str) -> int:
    """In a child: comes to its end only if somebody else created the store; it passed no point of a creator then."""
    _core.arm_fault(fault)
    with di_store.open(name, memory="16MiB"):
        return 1 if _core.Arena.open(name, 2, 0, 0, 60.0).created else ATTACHED


def test_a_killed_creator_blocks_no_successor(
    crew: Crew, count: Callable[[int, int], int], store_name: Callable[[], str]
) -> None:
    """Who comes next, or with them, makes the store; nothing of the dead one is in the way."""
    points = ["arena.before_magic", "arena.before_claim", "arena.after_claim", "arena.before_commit"]
    for turn in range(count(2, 50)):
        alone = turn % 2 == 0
        for point in points:
            name = store_name()
            hands = [crew.start("crash.test_open_race:create_and_die", name, f"{point}:1") for _ in range(2 - alone)]
            if alone:
                assert hands[0].join() == KILLED, hands[0].printed()
            with_them = crew.start("crash.test_open_race:come_and_go", name, 0, 3)
            for hand in hands:
                assert hand.join() in (KILLED, ATTACHED), hand.printed()
            with_them.finish()
            with di_store.open(name, memory="16MiB", mode="x") as store:
                assert store.get(store.put(turn)) == turn


def test_a_creator_killed_at_any_instruction_blocks_nobody(
    crew: Crew, count: Callable[[int, int], int], store_name: Callable[[], str]
) -> None:
    rng = random.Random(7)
    for _ in range(count(10, 300)):
        name = store_name()
        hands = [crew.start("crash.test_open_race:come_and_go", name, number, 10**6) for number in range(2)]
        crew.until(lambda hands=hands: any(hand.printed() for hand in hands), "the store to be there")
        for hand in hands:
            crew.pump(rng.random() * 0.02)
            hand.signal(signal.SIGKILL)
        for hand in hands:
            assert hand.join() == KILLED, hand.printed()
        with di_store.open(name, memory="16MiB", mode="x") as store:
            assert store.keys() == []
