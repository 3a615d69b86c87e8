"""A process stopped inside each lock, and every public call: each ends by its deadline with a `Timeout` that names it.

Calls that need no such lock come through. After SIGCONT everything is whole, and the calls come through as well.
"""

from __future__ import annotations

import math
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from crash import board as words
from crash.field import Field
from crash.zygote import Crew, Hand
from di_store import _core
from di_store.runtime import waits
from di_store.session import Session

PATIENCE = 0.05
"""Seconds that each call is given."""
BOUND = 30.0
"""Seconds in which it must end: far more, also on a busy machine."""
STORED = di_store.Ref.parse("ab" * 20)

LOCKS = {
    "heap": ("objects", "heap.make_before_state"),
    "replay": ("learner", "table.draw_item"),
    "queue": ("producer", "table.insert_item"),
    "directory": ("tabler", "table.create_state"),
}
"""By lock, who stops where with it in hand."""

Call = Callable[["Scene"], Any]


class Scene:
    """Handles of one store, in this process and made before anybody stopped."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.store = field.store
        self.replay, self.queue = self.store.table("replay"), self.store.table("queue")
        self.keys = self.replay.keys()[:8]
        self.many = self.replay.keys()
        self.writer = self.replay.writer()
        self.writer.append(words.rows(7_000), next={"obs": words.stamp(7_001)})
        self.closing = self.replay.writer()
        self.closing.append(words.rows(8_000), next={"obs": words.stamp(8_001)})
        self.loader = self.replay.loader(16, prefetch=1, timeout=PATIENCE)
        self.number = 7_001  # of the writer's next row
        self.fresh: dict[str, Hand] = {}

    def close(self) -> None:
        self.loader.close()
        self.writer.close(timeout=60)


def start_fresh(scene: Scene, what: str) -> Hand:
    """A process of its own that attaches and makes one call."""
    path = f"{scene.field.board.path}.{what}"
    return scene.field.crew.start("crash.test_deadlines:in_a_fresh_process", scene.store.name, what, path)


def fresh(scene: Scene, what: str) -> None:
    """What that call has raised comes back as a `Timeout` of here."""
    scene.fresh[what].finish()
    text = Path(f"{scene.field.board.path}.{what}").read_text()
    if text:
        raise di_store.Timeout(text, text)


def in_a_fresh_process(name: str, what: str, path: str) -> None:
    """In a child: one call after attaching, and the text of its `Timeout`."""
    text = ""
    try:
        with di_store.attach(name, timeout=10) as store:
            if what == "get":
                assert store.get(STORED, timeout=PATIENCE).tolist() == [0, 1, 2]
            elif what == "put":
                store.put(1, timeout=PATIENCE)
            elif what == "sample":
                store.table("replay").sample(500, timeout=PATIENCE)
            else:
                store.table("queue").insert(words.rows(1), timeout=PATIENCE)
    except di_store.Timeout as error:
        text = str(error)
    Path(path).write_text(text)


def step(scene: Scene, many: int) -> Any:
    """One append or extend of rows that complete items."""
    for _ in range(4 if many == 1 else 1):
        at = scene.number
        if many == 1:
            scene.writer.append(words.rows(at), next={"obs": words.stamp(at + 1)}, timeout=PATIENCE)
        else:
            scene.writer.extend(words.rows(np.arange(at, at + many)), timeout=PATIENCE)
        scene.number += many


def make_table(scene: Scene) -> None:
    scene.store.create_table("made", capacity=10, schema=words.rows(1), exist_ok=True, timeout=PATIENCE)


def drop_table(scene: Scene) -> None:
    scene.store.drop_table("extra", timeout=PATIENCE)


def open_writer(scene: Scene) -> None:
    scene.replay.writer().close(timeout=PATIENCE)


CALLS: dict[str, tuple[Call, frozenset[str]]] = {
    "get of a fresh process": (lambda s: fresh(s, "get"), frozenset({"heap"})),
    "put of a fresh process": (lambda s: fresh(s, "put"), frozenset({"heap"})),
    "sample of a fresh process": (lambda s: fresh(s, "sample"), frozenset({"heap", "replay"})),
    "insert of a fresh process": (lambda s: fresh(s, "insert"), frozenset({"heap", "queue"})),
    "put": (lambda s: s.store.put(np.zeros(9), timeout=PATIENCE), frozenset({"heap"})),
    "put_many": (lambda s: s.store.put_many([1, 2], timeout=PATIENCE), frozenset({"heap"})),
    "get": (lambda s: s.store.get(STORED, timeout=PATIENCE), frozenset({"heap"})),
    "get_many": (lambda s: s.store.get_many([STORED], timeout=PATIENCE), frozenset({"heap"})),
    "wait": (lambda s: s.store.wait([STORED], timeout=PATIENCE), frozenset({"heap"})),
    "contains": (lambda s: s.store.contains(STORED), frozenset({"heap"})),
    "delete": (lambda s: s.store.delete([di_store.Ref(bytes(20))]), frozenset({"heap"})),
    "store.keys": (lambda s: s.store.keys(), frozenset({"heap"})),
    "publish": (lambda s: s.store.publish("policy", 1, timeout=PATIENCE), frozenset({"heap"})),
    "latest": (lambda s: s.store.latest("policy", timeout=PATIENCE), frozenset({"heap"})),
    "store.stats": (lambda s: s.store.stats(), frozenset()),
    "table.stats": (lambda s: s.replay.stats(), frozenset()),
    "len": (lambda s: len(s.replay), frozenset()),
    "store.resize": (lambda s: s.store.resize("190MiB"), frozenset({"heap"})),
    "store.check": (lambda s: s.store.check(), frozenset({"heap", "replay", "queue"})),
    "create_table": (make_table, frozenset({"heap", "directory"})),
    "drop_table": (drop_table, frozenset({"heap", "directory"})),
    "writer": (open_writer, frozenset({"heap", "replay"})),
    "append": (lambda s: step(s, 1), frozenset({"replay"})),
    "extend": (lambda s: step(s, 200), frozenset({"replay"})),
    "end_episode": (lambda s: s.writer.end_episode(timeout=PATIENCE), frozenset({"replay"})),
    "writer.close": (lambda s: s.closing.close(timeout=PATIENCE), frozenset({"replay"})),
    "insert": (lambda s: s.queue.insert(words.rows(1), timeout=PATIENCE), frozenset({"queue"})),
    "table.extend": (lambda s: s.queue.extend(words.rows(np.arange(3)), timeout=PATIENCE), frozenset({"queue"})),
    "sample": (lambda s: s.replay.sample(4, timeout=PATIENCE), frozenset({"replay"})),
    "sample of many": (lambda s: s.replay.sample(700, timeout=PATIENCE), frozenset({"replay", "heap"})),
    "sample of a queue": (lambda s: s.queue.sample(1, timeout=PATIENCE), frozenset({"queue", "heap"})),
    "loader": (lambda s: [next(s.loader) for _ in range(4)], frozenset({"replay"})),
    "peek": (lambda s: s.replay.peek(s.keys), frozenset({"replay"})),
    "update_priorities": (
        lambda s: s.replay.update_priorities(s.keys, np.ones(8), timeout=PATIENCE),
        frozenset({"replay"}),
    ),
    "table.delete": (lambda s: s.replay.delete(s.keys[:1], timeout=PATIENCE), frozenset({"replay"})),
    "table.keys": (lambda s: s.replay.keys(timeout=PATIENCE), frozenset({"replay"})),
    "configure": (lambda s: s.replay.configure(beta=0.5, timeout=PATIENCE), frozenset({"replay"})),
    "table.resize": (lambda s: s.replay.resize(3_000, timeout=PATIENCE), frozenset({"heap", "replay"})),
    "finish": (lambda s: s.queue.finish(timeout=PATIENCE), frozenset({"queue"})),
    "reset": (lambda s: s.queue.reset(timeout=PATIENCE), frozenset({"queue"})),
    "pickle": (lambda s: pickle.dumps(s.replay), frozenset()),
    "unpickle": (lambda s: pickle.loads(pickle.dumps(s.replay)), frozenset()),
}
"""By name, the call and the locks that it cannot do without."""


@pytest.fixture
def field(crew: Crew, tmp_path: Path, store_name: Callable[[], str]) -> Iterator[Field]:
    made = Field(crew, store_name(), str(tmp_path / "board"), 3)
    with made.store.writer([made.store.table("replay"), made.store.table("windows")]) as writer:
        for number in range(300):
            writer.append(words.rows(number), next={"obs": words.stamp(number + 1)})
    made.store.table("queue").extend(words.rows(np.arange(20)))
    made.store.put(np.arange(3), id=STORED.id)
    made.store.publish("policy", 1)
    made.store.create_table("extra", capacity=10, schema=words.rows(1))
    yield made
    made.close()


def outcome(call: Callable[[], Any]) -> tuple[BaseException | None, float]:
    """What a call raised, and how long it took."""
    began = time.monotonic()
    try:
        call()
    except Exception as error:
        return error, time.monotonic() - began
    return None, time.monotonic() - began


@pytest.mark.parametrize("lock", LOCKS)
def test_every_call_ends_by_its_deadline_and_names_the_stopped_process(
    field: Field, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "CALL_SECONDS", PATIENCE)
    scene = Scene(field)
    hand = held_up(field, lock)
    scene.fresh = {what: start_fresh(scene, what) for what in ("get", "put", "sample", "insert")}
    wrong = []
    for name, (call, needs) in CALLS.items():
        error, seconds = outcome(lambda call=call: call(scene))
        if seconds > BOUND:
            wrong.append(f"{name} took {seconds:.0f} s")
        elif lock not in needs and error is not None and not isinstance(error, di_store.Timeout):
            wrong.append(f"{name}: {error!r}")
        elif lock in needs and not (isinstance(error, di_store.Timeout) and str(hand.pid) in str(error)):
            wrong.append(f"{name}: {error!r} instead of a Timeout that names pid {hand.pid}")
    assert not wrong, "\n".join(wrong)
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    monkeypatch.setattr(waits, "CALL_SECONDS", 60.0)
    scene.close()
    assert field.store.check() == []


def held_up(field: Field, lock: str) -> Any:
    """A process that has stopped itself with that lock in hand."""
    role, point = LOCKS[lock]
    hand = field.hands[field.start(role, f"{point}:1:stop")]
    field.crew.until(lambda: hand.stopped or hand.status is not None, f"{role} to stop at {point}")
    assert hand.stopped, hand.printed()
    return hand


def test_the_longest_timeouts_are_no_limit_and_a_wait_without_limit_is_logged(
    field: Field, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seconds beyond what the clock can tell counted as none at all."""
    monkeypatch.setattr(waits, "LOG_SECONDS", 1.0)
    replay = field.store.table("replay")
    keys = replay.keys()[:4]
    hand = held_up(field, "replay")
    done: list[int] = []

    def update(timeout: Any) -> None:
        done.append(replay.update_priorities(keys, np.ones(4), timeout=timeout))

    limits = (None, 1.9e10, 1e300, math.inf, 10**400)
    threads = [threading.Thread(target=update, args=(limit,)) for limit in limits]
    named = f"table 'replay' is held by pid {hand.pid}, stopped"
    with caplog.at_level("WARNING", logger="di_store"):
        for thread in threads:
            thread.start()
        logged = lambda: sum(named in line for line in caplog.messages)  # noqa: E731
        field.crew.until(lambda: logged() >= len(limits), "every wait to be logged")
    assert not done
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    for thread in threads:
        thread.join(BOUND)
    assert done == [4] * len(limits)


def waits_here(store: Any) -> list[dict[str, Any]]:
    """Of this process, those that a person would notice."""
    mine = {client["slot"] for client in store.stats()["clients"] if client["self"]}
    return [wait for wait in store.stats()["waiters"] if wait["slot"] in mine and wait["seconds"] > 0.6]


def test_an_insert_waiting_for_a_lock_names_its_holder(field: Field) -> None:
    """In `stats` and `status`, for as long as it waits: no limiter keeps it."""
    writer = field.store.table("replay").writer()

    def write() -> None:
        writer.append(words.rows(1), next={"obs": words.stamp(2)})
        writer.close()

    thread = threading.Thread(target=write)
    hand = held_up(field, "heap")
    thread.start()
    seen: list[dict[str, Any]] = []
    field.crew.until(lambda: seen.extend(waits_here(field.store)) or len(seen) > 20, "the append to be seen waiting")
    assert {(wait["kind"], wait["culprit"]) for wait in seen} == {("lock", hand.pid)}
    assert {wait["culprit_name"] for wait in seen} == {f"pid {hand.pid}, stopped"}
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    thread.join(BOUND)
    assert not thread.is_alive()


def test_an_insert_that_waits_for_a_limiter_names_a_stopped_holder_of_the_heap(field: Field) -> None:
    """No learner can let it pass meanwhile."""
    queue = field.store.table("queue")
    queue.extend(words.rows(np.arange(44)), timeout=60)
    thread = threading.Thread(target=lambda: queue.insert(words.rows(1)))
    thread.start()
    seen: list[dict[str, Any]] = []
    until = field.crew.until
    until(lambda: seen.extend(waits_here(field.store)) or bool(seen), "the insert to be seen waiting")
    assert {(wait["kind"], wait["culprit"]) for wait in seen} == {("limiter", None)}
    hand = held_up(field, "heap")
    seen.clear()
    until(lambda: seen.extend(waits_here(field.store)) or bool(seen), "the insert to be seen waiting")
    assert {(wait["kind"], wait["culprit"]) for wait in seen} == {("limiter", hand.pid)}
    assert {wait["culprit_name"] for wait in seen} == {f"pid {hand.pid}, stopped"}
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    assert len(queue.sample(8, timeout=60).keys) == 8
    thread.join(BOUND)
    assert not thread.is_alive()


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("lock", ["heap", "replay", "directory"])
def test_a_wait_without_limit_can_be_interrupted(field: Field, lock: str) -> None:
    """Also where the call wants the lock with other ones in hand: a handler runs with none of them held."""
    calls: dict[str, Callable[[], Any]] = {
        "heap": lambda: field.store.drop_table("extra", timeout=None),  # under the directory's lock and the table's
        "replay": lambda: field.store.table("replay").reset(timeout=None),
        "directory": lambda: field.store.create_table("made", capacity=10, schema=words.rows(1), timeout=None),
    }
    extra = field.store.table("extra")
    extra.insert(words.rows(1))
    hand = held_up(field, lock)
    seen: list[int] = []

    def handler(*_: object) -> None:
        seen.append(len(extra.keys(timeout=10)))  # takes the lock that the interrupted call has let go
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interrupted):
            calls[lock]()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [1]
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    assert field.store.check() == []


def test_attaching_names_a_stopped_creator(field: Field) -> None:
    """It holds the file of that name in the folder."""
    hand = field.hands[field.start("attacher", "arena.before_claim:1:stop")]
    field.crew.until(lambda: hand.stopped or hand.status is not None, "somebody to stop while attaching")
    late = field.crew.start("crash.test_deadlines:attach_in_vain", field.store.name, hand.pid)
    late.finish()
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()


def attach_in_vain(name: str, pid: int) -> None:
    """In a child: each way to open the store ends in time and tells who is in the way."""
    waits.CALL_SECONDS = PATIENCE
    loaded = Session.attach
    for call in (lambda: di_store.attach(name, timeout=PATIENCE), lambda: di_store.open(name), lambda: loaded(name)):
        with pytest.raises(di_store.Timeout) as caught:
            call()
        assert caught.value.culprit == f"pid {pid}, stopped"


def figures(table: Any) -> dict[str, Any]:
    """All that `stats()` tells of a table, but for what a clock says, and for who uses it."""
    return {name: value for name, value in table.stats().items() if "seconds" not in name and name != "users"}


def test_a_resize_blocked_in_the_middle_changes_nothing(field: Field) -> None:
    """Its new blocks are there, and somebody stops with the heap in hand: neither reserve nor capacity is another."""
    replay = field.store.table("replay")
    before, reserved = figures(replay), field.store.stats()["reserved"]
    late = field.crew.start("crash.test_deadlines:resize_in_vain", field.store.name)
    field.crew.until(lambda: late.stopped or late.status is not None, "the resize to have its blocks")
    assert late.stopped, late.printed()
    hand = held_up(field, "heap")
    late.signal(signal.SIGCONT)
    late.finish()
    assert figures(replay) == before
    assert field.store.stats()["reserved"] == reserved
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    assert figures(replay) == before
    assert field.store.check() == []
    replay.resize(9_000)
    assert replay.stats()["reserve_bytes"] > before["reserve_bytes"]


def resize_in_vain(name: str) -> None:
    """In a child: a resize that stops once, and then cannot go on."""
    with di_store.attach(name, timeout=60) as store:
        _core.arm_fault("table.grow_made:1:stop")
        with pytest.raises(di_store.Timeout, match=r"stopped"):
            store.table("replay").resize(9_000, timeout=0.5)


ROWS = 200
"""More items than one hold of a table's lock takes."""


def test_a_call_blocked_halfway_is_finished_by_the_next_call(field: Field, tmp_path: Path) -> None:
    """All of its items are there in the end, each once, behind its rows."""
    path = str(tmp_path / "said")
    extending = field.crew.start("crash.test_deadlines:extend_and_go_on", field.store.name, path)
    field.crew.until(lambda: extending.stopped or extending.status is not None, "the writer to stop after a hold")
    assert extending.stopped, extending.printed()
    before = len(field.store.table("replay"))
    hand = held_up(field, "replay")
    extending.signal(signal.SIGCONT)
    said = Path(path)
    field.crew.until(
        lambda: (said.exists() and said.stat().st_size > 0) or extending.status is not None, "the writer's Timeout"
    )
    assert said.read_text() == f"pid {hand.pid}, stopped"
    hand.signal(signal.SIGCONT)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    extending.finish()
    assert (
        len(field.store.table("replay")) == before + ROWS + 1 - 3 - 64
    )  # n_step=3: the last three rows end no item yet
    assert field.store.check() == []


def extend_and_go_on(name: str, path: str) -> None:
    """In a child: an extend that stops after its first hold, and what follows."""
    store = di_store.attach(name, timeout=60)
    table = store.table("replay")
    writer = table.writer()
    first = 900_000
    with pytest.raises(di_store.Timeout) as caught:
        _core.arm_fault("writer.between_slices:1:stop")
        writer.extend(words.rows(np.arange(first, first + ROWS)), next=None, timeout=PATIENCE)
    assert caught.value.passed
    assert "do not repeat" in str(caught.value)
    Path(path).write_text(str(caught.value.culprit))
    made = writer.append(words.rows(first + ROWS), timeout=60)
    writer.close()
    assert len(made.keys) == 1
    numbers = table.peek(table.keys()).data["n"].tolist()
    assert [number for number in numbers if number >= first] == list(range(first, first + ROWS + 1 - 3))
