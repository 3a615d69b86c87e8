"""A store with tables, processes at work on it, and what must hold when some of them were killed."""

from __future__ import annotations

import gc
import random
import signal
from collections import Counter

import numpy as np

import di_store
from crash import board as words
from crash import faults
from crash.board import Board, Log, check_object, check_transitions, check_windows, object_id, rows
from crash.zygote import KILLED, Crew, Hand
from di_store import _core

CREW = ("writer", "learner", "producer", "consumer", "objects", "publisher")
"""Who is at work all the time."""
IN_FLIGHT_ITEMS = 120
"""More than one call of a writer can add."""
BATCH = 8
"""What a consumer receives at once."""


class Field:
    """One store and its processes.

    Args:
        crew: where children come from.
        name: of the store.
        path: of a file for the board; not there yet.
    """

    def __init__(self, crew: Crew, name: str, path: str, seed: int) -> None:
        self.crew = crew
        self.rng = random.Random(seed)
        self.store = di_store.open(name, memory="192MiB", mode="x")
        self.baseline = self.store.stats()
        self.board = Board(path, create=True)
        self._make_tables()
        self.store.put(0, id=object_id(0, 0))
        self.row = 0
        self.peers: dict[str, list[int]] = {}
        self.hands: dict[int, Hand] = {}
        self.roles: dict[int, str] = {}
        self.killed_at: dict[int, str] = {}

    def _make_tables(self) -> None:
        schema = rows(1)
        view = di_store.Transition(n_step=3, gamma=1.0)
        prioritized = di_store.Prioritized(alpha=0.6, beta=0.4)
        make = self.store.create_table
        make("replay", capacity=1_500, view=view, schema=schema, sampler=prioritized, lanes=8)
        make("windows", capacity=400, view=di_store.Sequence(4, period=2), schema=schema, lanes=8)
        make("queue", capacity=1_000, schema=schema, limiter=di_store.Queue(64), lanes=8)
        make("once", capacity=4_000, schema=schema, sampler=di_store.Once(), lanes=8)

    # -- processes ------------------------------------------------------------------------------------------------

    def start(self, role: str, fault: str = "") -> int:
        """Start a process; its row."""
        self.row += 1
        self.peers.setdefault(role, []).append(self.row)
        self.peers.setdefault("objects", [])
        seed = self.rng.randrange(1 << 30)
        args = (role, self.store.name, self.board.path, self.row, self.peers, fault, seed)
        self.hands[self.row] = self.crew.start("crash.roles:run", *args)
        self.hands[self.row].what = f"{role} {fault}".strip()
        self.roles[self.row] = role
        return self.row

    def living(self) -> list[int]:
        """Rows of processes that run."""
        return [row for row, hand in self.hands.items() if hand.status is None]

    def ended(self, row: int) -> bool:
        """Whether a process is gone; one that ended with an error fails the test."""
        hand = self.hands[row]
        assert hand.status in (None, 0, KILLED), f"{hand.what} ended with {hand.status}:\n{hand.printed()}"
        return hand.status is not None

    def progress(self, row: int) -> int:
        """Loops done."""
        return self.board.get(row, words.PROGRESS)

    def await_progress(self, loops: int = 2) -> None:
        """Every living process gets on: nothing is stuck."""
        before = {row: self.progress(row) for row in self.living()}

        def moved(row: int) -> bool:
            return self.ended(row) or self.progress(row) >= before[row] + loops

        names = ", ".join(f"{self.roles[row]}" for row in before)
        self.crew.until(lambda: all(moved(row) for row in before), f"progress of {names}")

    def await_kill(self, row: int, loops: int, fault: str) -> bool:
        """Wait until the armed process died, or has done so many loops without; whether it died."""
        self.crew.until(lambda: self.ended(row) or self.progress(row) >= loops, f"{self.roles[row]} to reach {fault}")
        if self.hands[row].status is None:
            self.board.put(row, words.STOP, 1)
            self.crew.until(lambda: self.ended(row), f"{self.roles[row]} to stop")
        if self.hands[row].status == KILLED:
            self.killed_at[row] = fault
            return True
        return False

    def kill(self, row: int) -> None:
        """SIGKILL wherever it is."""
        self.hands[row].signal(signal.SIGKILL)
        self.crew.until(lambda: self.ended(row), "a killed process to be gone")
        if self.hands[row].status == KILLED:
            self.killed_at[row] = "anywhere"

    def stop(self) -> None:
        """Let everybody end, consumers last, so that the queues run dry."""
        for row in self.living():
            if self.roles[row] != "consumer":
                self.board.put(row, words.STOP, 1)
        last = [row for row in self.living() if self.roles[row] == "consumer"]
        self.crew.until(lambda: all(self.ended(row) for row in self.living() if row not in last), "everybody to stop")
        if not last:
            last = [self.start("consumer")]
        self.crew.until(self._drained, "the queues to be empty")
        self.board.put(0, words.STOP, 1)
        self.crew.until(lambda: all(self.ended(row) for row in list(self.living())), "the consumers to stop")

    def _drained(self) -> bool:
        """As many samples as inserts: every item of the queues was delivered, or given back and delivered again."""
        for row in self.living():
            self.ended(row)
        limiters = [self.store.table(name).stats()["limiter"] for name in ("queue", "once")]
        return all(limiter["samples"] == limiter["inserts"] for limiter in limiters)

    # -- what must hold -------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """After `stop`: nothing torn, nothing lost, nothing given twice, counters that agree, nothing leaked."""
        findings = self.store.check()
        assert findings == [], f"{findings} after kills at {sorted(self.killed_at.values())}"
        self._verify_experience()
        self._verify_queues()
        self._verify_objects()
        self._verify_nothing_left()

    def _verify_experience(self) -> None:
        for name, word, check in (
            ("replay", words.ITEMS, check_transitions),
            ("windows", words.WINDOWS, check_windows),
        ):
            table = self.store.table(name)
            stats = table.stats()
            acknowledged = sum(self.board.get(row, word) for row in range(1, self.row + 1))
            writers = [row for row, role in self.roles.items() if role in ("writer", "prey")]
            closed = sum(1 + self.board.get(row, words.CLOSED) for row in writers)
            slack = IN_FLIGHT_ITEMS * closed
            assert acknowledged <= stats["inserts"] <= acknowledged + slack, name
            assert stats["size"] == len(table) <= stats["capacity"], name
            assert stats["held"] == 0, name
            assert stats["writers"] == 0, name
            assert stats["limiter"]["inserts"] == stats["inserts"], name
            assert stats["limiter"]["samples"] == stats["samples"], name
            assert stats["inserts"] - stats["removed"] == stats["size"], name
            keys = table.keys()
            assert len(keys) == stats["size"], name
            if len(keys):
                batch = table.peek(keys)
                assert np.asarray(batch.live).all(), name
                check(batch.data)

    def _verify_queues(self) -> None:
        consumers = [row for row, role in self.roles.items() if role == "consumer"]
        producers = [row for row, role in self.roles.items() if role == "producer"]
        for name in ("queue", "once"):
            logs = [Log(f"{self.board.path}.{row}.{name}").all() for row in consumers if self.progress(row)]
            counts = Counter(np.concatenate(logs).tolist()) if logs else Counter()
            twice = [number for number, count in counts.items() if count > 1]
            assert not twice, f"{name}: delivered twice: {twice}"
            lost = []
            for row in producers:
                acked = self.board.get(row, words.ACKED)
                lost += [number for number in range(row << 32, (row << 32) + acked) if number not in counts]
                strange = [n for n in counts if n >> 32 == row and n & 0xFFFFFFFF > acked]
                assert not strange, f"{name}: delivered but never written: {strange}"
            unsure = [
                row for row in consumers if row in self.killed_at and self.killed_at[row] not in faults.BEFORE_DELIVERY
            ]
            assert len(lost) <= BATCH * len(unsure), f"{name}: lost {lost}; kills at {sorted(self.killed_at.values())}"

    def _verify_objects(self) -> None:
        for row in (row for row, role in self.roles.items() if role == "objects"):
            acked, deleted = self.board.get(row, words.ACKED), self.board.get(row, words.DELETED)
            for number in range(max(0, deleted - 20), acked):
                ref = di_store.Ref.parse(object_id(row, number))
                if number >= deleted:
                    check_object(self.store.get(ref), row, number)
                elif row not in self.killed_at:
                    assert not self.store.contains(ref), f"object {row}/{number} is back"
        published = max((self.board.get(row, words.PUBLISHED) for row in self.roles), default=0)
        newest = self.store.latest("policy")
        if published:
            assert newest is not None
            assert newest.version >= published
            number = newest.value["number"]
            assert (newest.value["layer"] == words.stamp(number, 50_000)).all()

    def _verify_nothing_left(self) -> None:
        """With tables and objects gone, the store holds what it held at the start, and its own growth."""
        for name in list(self.store.stats()["tables"]):
            self.store.drop_table(name)
        while refs := self.store.keys():
            self.store.delete(refs)
        # The weights stay: only a newer version frees one.
        self.store.publish("policy", None, keep=1)
        gc.collect()
        # What has outlived its time goes with the next chore that looks.
        arena = _core.Arena.open(self.store.name, 2, 0, 0, 60.0)
        self.crew.until(lambda: arena.chore() or not self.store.stats()["objects"], "expired objects to go", 10)
        findings = self.store.check()
        assert findings == [], findings
        stats = self.store.stats()
        names = ("objects", "live_objects_bytes", "pinned", "pending", "chunk_pages", "reserved")
        left = {name: stats[name] for name in names}
        assert left == dict.fromkeys(left, 0), left
        assert stats["committed"] <= stats["budget"]
        assert len(stats["clients"]) == 1, stats["clients"]

    def close(self) -> None:
        """Close the store; it goes with this handle."""
        self.store.close()
