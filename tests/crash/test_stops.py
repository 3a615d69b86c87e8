"""SIGSTOP at fault points: a stopped process is never robbed of its lock; others get a `Timeout` that names it.

After SIGCONT everything goes on as if nothing had been.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import di_store
from crash import board as words
from crash.field import Field
from crash.zygote import Crew, Hand

VIEWED = di_store.Ref.parse("ee" * 20)


@pytest.fixture
def field(crew: Crew, tmp_path: Path, store_name: Callable[[], str]) -> Iterator[Field]:
    """A field nobody works on yet, with something in its tables."""
    made = Field(crew, store_name(), str(tmp_path / "board"), 3)
    with made.store.writer([made.store.table("replay"), made.store.table("windows")]) as writer:
        for number in range(256):
            writer.append(words.rows(number), next={"obs": words.stamp(number + 1)})
    made.store.table("queue").extend(words.rows(np.arange(20)))
    yield made
    made.close()


def stopped(field: Field, role: str, point: str) -> Hand:
    """A process of that role that has stopped itself at that point."""
    hand = field.hands[field.start(role, f"{point}:1:stop")]
    field.crew.until(lambda: hand.stopped or hand.status is not None, f"{role} to stop at {point}")
    assert hand.stopped, hand.printed()
    return hand


def resume(field: Field, hand: Hand, loops: int = 3) -> None:
    """Let it go on, do some more, and end well."""
    hand.signal(signal.SIGCONT)
    field.await_progress(loops)
    field.board.put(0, words.STOP, 1)
    hand.finish()
    assert field.store.check() == []


def assert_names(error: di_store.Timeout, hand: Hand) -> None:
    """The error tells who holds it up, and that it is stopped."""
    assert str(hand.pid) in str(error.culprit), error
    assert "stopped" in str(error.culprit), error
    assert str(hand.pid) in str(error)


@pytest.mark.parametrize("point", ["undo.before_commit", "table.draw_item", "undo.after_commit"])
def test_a_stopped_learner_blocks_only_its_table(field: Field, point: str) -> None:
    replay, queue = field.store.table("replay"), field.store.table("queue")
    writer = replay.writer()
    hand = stopped(field, "learner", point)
    with pytest.raises(di_store.Timeout) as caught:
        replay.sample(4, timeout=0.5)
    assert_names(caught.value, hand)
    assert "replay" in str(caught.value)
    with pytest.raises(di_store.Timeout) as caught:
        for number in range(3):  # only an item needs the table
            writer.append(words.rows(number), next={"obs": words.stamp(number + 1)}, timeout=0.5)
    assert number == 2
    assert_names(caught.value, hand)
    # The other tables, the objects and what reads without locks go on.
    assert len(queue.sample(4, timeout=60).keys) == 4
    assert field.store.get(field.store.put("x", timeout=60)) == "x"
    assert [c["state"] for c in field.store.stats()["clients"] if c["pid"] == hand.pid] == ["T"]
    assert replay.stats()["size"] == 256
    resume(field, hand)
    assert len(writer.append(words.rows(2), next={"obs": words.stamp(3)}, timeout=60).keys) == 1
    writer.close()
    words.check_transitions(replay.sample(32, timeout=60).data)


def test_a_process_stopped_in_the_heap_is_named(field: Field) -> None:
    """It holds the lock that all objects share."""
    hand = stopped(field, "objects", "heap.make_before_state")
    with pytest.raises(di_store.Timeout) as caught:
        field.store.put(np.zeros(100), timeout=0.5)
    assert_names(caught.value, hand)
    field.store.stats()
    resume(field, hand)


def test_a_process_stopped_before_sealing_blocks_nobody(field: Field) -> None:
    """It holds no lock: others don't notice, but for who waits for its object."""
    hand = stopped(field, "objects", "put.before_seal")
    row = field.row
    ref = di_store.Ref.parse(words.object_id(row, 0))
    assert field.store.get(field.store.put("x", timeout=60)) == "x"
    with pytest.raises(di_store.ObjectNotFound):
        field.store.get(ref, timeout=0.2)
    with pytest.raises(di_store.ObjectExists):
        field.store.put(1, id=ref.id, timeout=1)
    hand.signal(signal.SIGCONT)
    words.check_object(field.store.get(ref, timeout=60), row, 0)
    resume(field, hand)


@pytest.mark.parametrize("point", ["table.create_state", "table.drop_generation"])
def test_a_process_stopped_in_create_table_is_named(field: Field, point: str) -> None:
    hand = stopped(field, "tabler", point)
    with pytest.raises(di_store.Timeout) as caught:
        field.store.create_table("other", capacity=10, timeout=0.5)
    assert_names(caught.value, hand)
    assert len(field.store.table("queue").sample(4, timeout=60).keys) == 4
    resume(field, hand)
    field.store.create_table("other", capacity=10)


def test_a_process_stopped_while_attaching_blocks_only_its_name(field: Field) -> None:
    """Who attaches or creates a store of that name waits; those who are in go on; other names are free."""
    hand = stopped(field, "attacher", "arena.before_claim")
    late = field.crew.start("crash.test_stops:attach_late", field.store.name, hand.pid)
    late.finish()
    with di_store.open(f"{field.store.name}-other", memory="16MiB") as other:
        assert other.get(other.put(1)) == 1
    assert field.store.get(field.store.put("x", timeout=60)) == "x"
    resume(field, hand)


def attach_late(name: str, pid: int) -> None:
    """In a child: attaching is refused in time, naming who is in the way."""
    with pytest.raises(di_store.Timeout) as caught:
        di_store.attach(name, timeout=0.5)
    assert re.search(rf"\b{pid}\b", str(caught.value)), caught.value


def test_a_stopped_consumer_keeps_its_draws(field: Field) -> None:
    """What it has drawn and not received is neither lost nor given to another; the rest is delivered."""
    hand = stopped(field, "consumer", "sample.before_copy")
    queue = field.store.table("queue")
    received = queue.sample(20, min_n=1, linger=0.0, timeout=60)
    with pytest.raises(di_store.Timeout) as caught:
        queue.sample(1, timeout=0.5)
    assert str(hand.pid) in str(caught.value), caught.value
    hand.signal(signal.SIGCONT)
    log = words.Log(f"{field.board.path}.{field.row}.queue")
    field.crew.until(lambda: len(log.all()) == 20 - len(received.keys), "the consumer to receive the rest")
    numbers = received.data["n"].tolist() + log.all().tolist()
    assert sorted(numbers) == list(range(20))
    resume(field, hand, 0)


def test_killing_a_stopped_process_ends_the_waits(field: Field) -> None:
    """Who waits for a stopped process gets on as soon as it is killed."""
    hand = stopped(field, "learner", "table.draw_item")
    late = field.crew.start("crash.test_stops:sample_patiently", field.store.name)
    field.crew.until(lambda: waits_for(field.store, hand.pid), "somebody to wait for the stopped process")
    hand.kill()
    late.finish()
    assert field.store.check() == []


def waits_for(store: di_store.Store, pid: int) -> bool:
    """Whether stats show a client that waits for that process."""
    waiting = [client["waiting"] for client in store.stats()["clients"] if client["waiting"]]
    return any(wait["culprit_pid"] == pid for wait in waiting)


def sample_patiently(name: str) -> None:
    """In a child: sample without a limit."""
    with di_store.attach(name, timeout=60) as store:
        words.check_transitions(store.table("replay").sample(16).data)


def test_a_blocked_fork_lets_other_threads_run(field: Field) -> None:
    """The child repeats the parent's pins, for which it needs the heap; meanwhile the parent's threads go on."""
    forker = field.crew.start("crash.test_stops:fork_beside", field.store.name)
    field.crew.until(lambda: field.store.contains(VIEWED), "the forker to have its view")
    hand = stopped(field, "objects", "heap.make_before_state")
    forker.finish()
    hand.stopped = False
    resume(field, hand)


def fork_beside(name: str) -> None:
    """In a child: one thread forks with a live view, another sees who the forked child waits for and lets it go on."""
    store = di_store.attach(name, timeout=60)
    view = store.get(store.put(np.arange(3), id=VIEWED.id))
    while not (stopped_ones := [client["pid"] for client in store.stats()["clients"] if client["state"] == "T"]):
        pass
    forked: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(int(view.tolist() != [0, 1, 2]))
        forked.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=fork)
    thread.start()
    while not waits_for(store, stopped_ones[0]):
        assert not forked, "the fork came back before anybody else could look"
    os.kill(stopped_ones[0], signal.SIGCONT)
    thread.join()
    assert forked == [0]
