"""Agents of a remote writer that are killed anywhere: the marks and the items agree, exactly.

An agent is a process that makes a session's calls. Its successor reads from the marks which calls have inserted their
items. What a call inserts is known from the same calls in another store, where nobody dies.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sessions import SCHEMA, Mark, SessionWriter, marks_of

import di_store
from crash.zygote import KILLED, Crew, Hand
from di_store import _core

SESSION = bytes(range(16))
VIEWS: dict[str, Any] = {
    "rows": di_store.Step(),
    "pairs": di_store.Sequence(2, period=1),
    "tails": di_store.Sequence(5, period=4),
}
SIZES = (1, 3, 64, 65, 130, 0, 7, 200, 0, 2)
"""Rows of one call after the other; 0: it ends the episode."""
CALLS = 40
"""Of an agent that nobody kills."""
CAPACITY = 2_000
"""Items. A table holds the newest ones."""
LONG_CALLS = 1_000
"""Of an agent that is killed while it makes them, however late that comes."""

IN_A_HOLD = (
    "marks.set",
    "table.insert_before_state",
    "table.insert_item",
    "undo.between",
    "undo.before_commit",
)
POINTS = (
    *IN_A_HOLD,
    "marks.claim",
    "undo.after_commit",
    "writer.between_slices",
    "writer.published",
    "writer.chunk_opened",
    "heap.chunk_closed",
    "heap.need_ended",
    "heap.make_after_state",
)
"""What an append passes."""
IN_THE_RECOVERY = ("table.rolled_back", "table.rebuild_middle")

Item = tuple[int, ...]
"""Numbers of calls and rows, of all rows of an item."""


def make_tables(store: di_store.Store, prefix: str = "") -> list[di_store.Table]:
    return [
        store.create_table(prefix + name, capacity=CAPACITY, view=view, schema=SCHEMA) for name, view in VIEWS.items()
    ]


def call(writer: SessionWriter, seq: int) -> Any:
    """Make the session's call of that number."""
    rows = SIZES[seq % len(SIZES)]
    made = writer.extend(seq, rows) if rows else writer.end_episode(seq)
    assert type(made) is list, made.text
    return made


def content(table: di_store.Table, keys: np.ndarray) -> list[Item]:
    """What the items are, in this order."""
    if not len(keys):
        return []
    data = table.peek(keys).data
    joined = np.concatenate([np.asarray(data[name]).reshape(len(keys), -1) for name in SCHEMA], axis=1)
    return [tuple(row) for row in joined.tolist()]


def agent(name: str, spec: str, calls: int) -> None:
    """In a child: go on where the marks end."""
    if spec:
        _core.arm_fault(spec)
    with di_store.attach(name, timeout=60) as store:
        tables = [store.table(name) for name in VIEWS]
        writer = SessionWriter(*tables, session=SESSION)
        first = 1 + max(seq for seq, _, _ in marks_of(store, SESSION).values())
        for seq in range(first, first + calls):
            call(writer, seq)


class Judge:
    """Compares the tables of a store with its marks after each death."""

    def __init__(self, store: di_store.Store, reference: di_store.Store) -> None:
        self.store = store
        self.tables = dict(zip(VIEWS, make_tables(store), strict=True))
        self.marks: dict[str, Mark] = dict.fromkeys(VIEWS, (0, 0, False))
        self._reference = reference

    @property
    def next(self) -> int:
        """The number of the next call."""
        return 1 + max(seq for seq, _, _ in self.marks.values())

    def has_news(self) -> bool:
        """Whether the agent has written since the last time."""
        return any(mark != self.marks[name] for name, mark in marks_of(self.store, SESSION).items())

    def judge(self) -> None:
        """The one agent that has written since the last time is dead: each table holds what its mark says."""
        found = marks_of(self.store, SESSION)
        first, before = self.next, self.marks
        self.marks = before | found
        wanted = self._made(first, self.next)
        for name, table in self.tables.items():
            seq, done, complete = self.marks[name]
            items = [item for number in range(first, seq) for item in wanted[number][name]]
            if seq >= first:
                last = wanted[seq][name]
                assert 0 < done <= len(last)
                assert complete == (done == len(last))
                items += last[:done]
            else:
                assert self.marks[name] == before[name]
            assert Counter(content(table, table.keys())) == Counter(items[-CAPACITY:]), (name, self.marks)
            table.reset()
        assert self.store.check() == []

    def _made(self, first: int, end: int) -> dict[int, dict[str, list[Item]]]:
        """By call and table: the items that the calls make, in order, of a writer that begins with the first."""
        tables = make_tables(self._reference, f"{first}-")
        writer = SessionWriter(*tables, session=SESSION)
        made: dict[int, dict[str, list[Item]]] = {}
        for seq in range(first, end):
            keys = [each[0] for each in call(writer, seq)]
            made[seq] = {name: content(table, key) for name, table, key in zip(VIEWS, tables, keys, strict=True)}
        writer.native.close()
        for table in tables:
            self._reference.drop_table(table.name)
        return made


@pytest.fixture
def judge(store_name: Callable[[], str]) -> Iterator[Judge]:
    with di_store.open(store_name(), memory="64MiB", mode="x") as store, di_store.open(memory="64MiB") as reference:
        yield Judge(store, reference)


def start(crew: Crew, judge: Judge, spec: str, calls: int = CALLS) -> Hand:
    return crew.start("crash.test_session_marks:agent", judge.store.name, spec, calls)


def test_rows_are_written_once_without_kills(crew: Crew, judge: Judge) -> None:
    for turn in range(3):
        start(crew, judge, "").finish()
        judge.judge()
        assert judge.next == 1 + CALLS * (turn + 1)


@pytest.mark.parametrize("point", POINTS)
def test_rows_are_written_once_despite_kills_at_each_point(
    crew: Crew, judge: Judge, count: Callable[[int, int], int], point: str
) -> None:
    """One agent after the other dies there, each a little later than the one before."""
    kills = 0
    passed = 1
    for turn in range(count(5, 40)):
        ended = start(crew, judge, f"{point}:{passed}").join()
        assert ended in (0, KILLED)
        kills += ended == KILLED
        judge.judge()
        passed = passed + 1 + turn * turn if ended == KILLED else 1
    assert kills >= 2


@pytest.mark.parametrize("point", IN_A_HOLD)
def test_rows_are_written_once_despite_kills_during_recovery(
    crew: Crew, judge: Judge, count: Callable[[int, int], int], point: str
) -> None:
    """An agent dies in the middle of a change, and its successor while it undoes that; the third one goes on."""
    rng, recovered = random.Random(7), 0
    for turn in range(count(4, 40)):
        assert start(crew, judge, f"{point}:{rng.randrange(1, 120)}").join() in (0, KILLED)
        middle = IN_THE_RECOVERY[turn % 2]
        recovered += start(crew, judge, f"{middle}:1", 0).join() == KILLED
        judge.judge()
    assert recovered >= 2


def test_rows_are_written_once_despite_kills_at_any_instruction(
    crew: Crew, judge: Judge, count: Callable[[int, int], int]
) -> None:
    """At any instruction, while it writes."""
    rng, kills = random.Random(3), 0
    for _ in range(count(30, 2_000)):
        hand = start(crew, judge, "", LONG_CALLS)
        crew.until(lambda hand=hand: judge.has_news() or hand.status is not None, "the agent to write")
        for _ in range(rng.randrange(100)):
            judge.has_news()  # as good as any other way to let it go on for a while
        hand.kill()
        assert hand.status in (0, KILLED), hand.printed()
        kills += hand.status == KILLED
        judge.judge()
    assert kills >= 2


def test_a_call_blocked_in_the_middle_is_written_once(crew: Crew, judge: Judge) -> None:
    """Another process stops with the table's lock: the first 64 items are in, and the mark says so. Then the rest."""
    table = judge.tables["rows"]
    table.insert({"call": 0, "at": 0})
    hand = crew.start("crash.test_session_marks:write_and_wait", judge.store.name)
    crew.until(lambda: hand.stopped or hand.status is not None, "the writer to stop between two holds")
    other = crew.start("crash.test_session_marks:stop_with_the_lock", judge.store.name)
    crew.until(lambda: other.stopped or other.status is not None, "another process to stop with the lock")
    hand.signal(signal.SIGCONT)
    crew.until(lambda: "passed" in hand.printed() or hand.status is not None, "the call to be blocked")
    assert hand.status is None, hand.printed()
    with pytest.raises(di_store.Timeout, match="stopped"):
        judge.store._backend.session.arena.session_marks(SESSION, 0.1)
    other.signal(signal.SIGCONT)
    other.finish()
    crew.until(lambda: hand.stopped, "the writer to stop before it goes on")
    assert marks_of(judge.store, SESSION) == {"rows": (1, 64, False)}
    hand.signal(signal.SIGCONT)
    hand.finish()
    assert marks_of(judge.store, SESSION) == {"rows": (1, 200, True)}
    assert len(table) == 201


def test_a_resumed_agent_writes_nothing_after_its_replacement(crew: Crew, judge: Judge) -> None:
    """Its successor has claimed the session while it stood still in the middle of a call: the rest is left out."""
    table = judge.tables["rows"]
    hand = crew.start("crash.test_session_marks:write_too_late", judge.store.name)
    crew.until(lambda: hand.stopped or hand.status is not None, "the writer to stop between two holds")
    successor = SessionWriter(table, session=SESSION)
    assert marks_of(judge.store, SESSION) == {"rows": (1, 64, False)}
    hand.signal(signal.SIGCONT)
    hand.finish()
    successor.extend(2, 10)
    assert marks_of(judge.store, SESSION) == {"rows": (2, 10, True)}
    assert len(table) == 74


def write_too_late(name: str) -> None:
    """In a child: a call that stops after its first hold, and goes on when the session has another writer."""
    with di_store.attach(name, timeout=60) as store:
        writer = SessionWriter(store.table("rows"), session=SESSION)
        _core.arm_fault("writer.between_slices:1:stop")
        for again in (lambda: writer.extend(1, 200), writer.native.resume, lambda: writer.extend(2, 1)):
            with pytest.raises(di_store.WriterClosed, match="taken over"):
                again()


def write_and_wait(name: str) -> None:
    """In a child: a call that stops after its first hold, is blocked then, and stops again before it goes on."""
    with di_store.attach(name, timeout=60) as store:
        writer = SessionWriter(store.table("rows"), session=SESSION)
        _core.arm_fault("writer.between_slices:1:stop")
        blocked = writer.extend(1, 200)
        assert type(blocked) is _core.Blocked
        assert blocked.passed
        print("passed", flush=True)
        _core.arm_fault("writer.between_slices:1:stop")
        while type(blocked) is _core.Blocked:
            blocked = writer.native.resume()
        assert len(blocked[0][0]) == 200


def stop_with_the_lock(name: str) -> None:
    """In a child."""
    with di_store.attach(name, timeout=60) as store:
        table = store.table("rows")
        _core.arm_fault("table.update_middle:1:stop")
        table.update_priorities(table.keys()[:1], np.ones(1))
