"""What the processes of the kill tests do, each in a loop that checks all it reads.

A role is a generator function over its `Context`; each `yield True` is one loop done, `yield False` one that had to
wait. An error ends the child with its
traceback, and the test with it. `Timeout` and `StoreFull` are part of the job: others die, tables are full.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

import di_store
from crash import board as words
from crash.board import Board, Log, check_object, check_transitions, check_windows, object_id, object_value, rows
from di_store import _core

WAIT = 1.0
"""Seconds a call may wait; short, so that a child soon sees that it shall stop."""
BUSY = (di_store.Timeout, di_store.StoreFull)


class Context:
    """What a role has: the store, its row of the board, chance."""

    def __init__(self, store: Any, board: Board, row: int, peers: dict[str, list[int]], seed: int) -> None:
        self.store = store
        self.name = store.name
        self.board = board
        self.row = row
        self.peers = peers
        self.rng = random.Random(seed)
        self.log_path = f"{board.path}.{row}"

    def get(self, word: int) -> int:
        """One of this child's counters."""
        return self.board.get(self.row, word)

    def add(self, word: int, more: int) -> None:
        """Raise one of this child's counters, after what it counts was acknowledged."""
        self.board.put(self.row, word, self.board.get(self.row, word) + more)


def run(role: str, store: str, path: str, row: int, peers: dict[str, list[int]], fault: str, seed: int) -> int:
    """A child's main function; `fault` is armed once it is at work."""
    board = Board(path)
    early = role == "settler" or fault.startswith("arena.")  # met while attaching
    if early and fault:
        _core.arm_fault(fault)
    with di_store.attach(store, timeout=60) as attached:
        context = Context(attached, board, row, peers, seed)
        loop = ROLES[role](context)
        if fault and not early:
            _core.arm_fault(fault)
        for worked in loop:
            context.add(words.PROGRESS, int(worked))
            if board.get(row, words.STOP) or board.get(0, words.STOP):
                break
        loop.close()
    return 0


# -- experience -----------------------------------------------------------------------------------------------------


class Lane:
    """Numbers of one lane: consecutive within an episode, a gap between two."""

    def __init__(self, row: int, lane: int) -> None:
        self.next = (row << 36) | (lane << 32)

    def end(self) -> None:
        """Skip the number of the final observation."""
        self.next += 2


def writer(context: Context) -> Iterator[bool]:
    """Write two lanes into two tables over one stream: appends, extends, ends of episodes, closed and opened anew."""
    tables = [context.store.table("replay"), context.store.table("windows")]
    lanes = [Lane(context.row, 0), Lane(context.row, 1)]
    while True:
        with context.store.writer(tables, lanes=2) as opened:
            for _ in range(context.rng.randrange(5, 200)):
                try:
                    made = write_some(context, opened, lanes)
                except BUSY:
                    yield False
                    continue
                count_items(context, made)
                yield True
            context.add(words.CLOSED, 1)
        for lane in lanes:
            lane.end()


def count_items(context: Context, made: Any) -> None:
    """Acknowledge what a writer call returned."""
    context.add(words.ITEMS, len(made["replay"].keys))
    context.add(words.WINDOWS, len(made["windows"].keys))


def write_some(context: Context, opened: Any, lanes: list[Lane]) -> Any:
    """One call of the writer; lanes move on only when it came through."""
    rng = context.rng
    kind = rng.random()
    if kind < 0.1:
        count = rng.choice([*range(2, 9), 40])  # 80 items: more than one hold of the lock
        numbers = np.array([[lane.next + t for lane in lanes] for t in range(count)])
        made = opened.extend(rows(numbers), timeout=WAIT)
        for lane in lanes:
            lane.next += count
        return made
    if kind < 0.15:
        final = {"obs": rows(np.array([lane.next for lane in lanes]))["obs"]}
        made = opened.end_episode(final=final)
        for lane in lanes:
            lane.end()
        return made
    numbers = np.array([lane.next for lane in lanes])
    terminated = np.array([rng.random() < 0.03, False])
    truncated = np.array([False, rng.random() < 0.03])
    step, following = rows(numbers, terminated, truncated), {"obs": rows(numbers + 1)["obs"]}
    made = opened.append(step, next=following, priority=rng.random() + 0.01, timeout=WAIT)
    for lane, ended in zip(lanes, terminated | truncated, strict=True):
        lane.next += 1
        if ended:
            lane.end()
    return made


def learner(context: Context) -> Iterator[bool]:
    """Sample, check, update, peek, delete; now and then a large batch, whose draws need more ledger."""
    replay, windows = context.store.table("replay"), context.store.table("windows")
    while True:
        try:
            batch = replay.sample(600 if context.rng.random() < 0.02 else 32, timeout=WAIT)
            check_transitions(batch.data)
            replay.update_priorities(
                batch.keys, np.random.default_rng(context.rng.random().__hash__()).random(len(batch.keys))
            )
            yield True
            check_windows(windows.sample(8, timeout=WAIT).data)
            yield True
            if context.rng.random() < 0.2:
                again = replay.peek(batch.keys[:8])
                live = np.asarray(again.live)
                check_transitions({name: column[live] for name, column in again.data.items()})
                assert (np.asarray(again.data["n"])[live] == np.asarray(batch.data["n"])[:8][live]).all()
            if context.rng.random() < 0.05:
                replay.delete(batch.keys[:4])
                keys = replay.keys().tolist()
                assert len(set(keys)) == len(keys)
        except BUSY:
            yield False


def loader(context: Context) -> Iterator[bool]:
    """Take some batches from a loader that draws ahead, and close it in the middle."""
    replay = context.store.table("replay")
    while True:
        batches = replay.loader(16, prefetch=3, timeout=WAIT)
        try:
            for _ in range(context.rng.randrange(1, 6)):
                check_transitions(next(batches).data)
                yield True
        except BUSY:
            yield False
        finally:
            batches.close()


# -- queues ---------------------------------------------------------------------------------------------------------


def producer(context: Context) -> Iterator[bool]:
    """Put numbers into the queue and into the table that is read once, each acknowledged on the board."""
    queue, once = context.store.table("queue"), context.store.table("once")
    with queue.writer() as to_queue, once.writer() as to_once:
        while True:
            if len(once) > 2_000:  # nothing but capacity holds writers back there, and eviction is not what is tested
                yield False
                continue
            number = (context.row << 32) | context.get(words.ACKED)
            for opened in (to_queue, to_once):
                while True:
                    try:
                        opened.append(rows(number), timeout=WAIT)
                        break
                    except BUSY:
                        yield False
            context.add(words.ACKED, 1)
            yield True


def consumer(context: Context) -> Iterator[bool]:
    """Receive numbers and log them; two logs, since the tables are apart."""
    logs = {name: Log(f"{context.log_path}.{name}", create=True) for name in ("queue", "once")}
    tables = {name: context.store.table(name) for name in logs}
    while True:
        for name, log in logs.items():
            try:
                batch = tables[name].sample(8, min_n=1, linger=0, timeout=WAIT / 4)
            except BUSY:
                yield False
                continue
            numbers = np.asarray(batch.data["n"])
            assert (batch.data["obs"] == words.stamp(numbers)).all(), "torn obs"
            log.add(numbers)
            if name == "once":
                tables[name].delete(batch.keys)
            yield True


# -- objects and weights ----------------------------------------------------------------------------------------------


def read_somebodys(context: Context) -> None:
    """Get an object of any putter, as the board tells what there is; it may be deleted meanwhile."""
    row = context.rng.choice(context.peers["objects"] + [context.row])
    acked, deleted = context.board.get(row, words.ACKED), context.board.get(row, words.DELETED)
    if acked <= deleted:
        return
    number = context.rng.randrange(deleted, acked)
    try:
        check_object(context.store.get(di_store.Ref.parse(object_id(row, number))), row, number)
    except di_store.ObjectNotFound:
        assert context.board.get(row, words.DELETED) > number, f"object {row}/{number} is lost"


def objects(context: Context) -> Iterator[bool]:
    """Put and delete objects with known ids, get those of others, keep views beyond their objects' end."""
    held: list[tuple[Any, int]] = []
    while True:
        number = context.get(words.ACKED)
        try:
            context.store.put(object_value(context.row, number), id=object_id(context.row, number), timeout=WAIT)
        except BUSY:
            held.clear()
            yield False
            continue
        context.add(words.ACKED, 1)
        ref = di_store.Ref.parse(object_id(context.row, number))
        if context.rng.random() < 0.2:
            held.append((context.store.get(ref), number))
            if len(held) > 20:
                view, old = held.pop(context.rng.randrange(len(held)))
                check_object(view, context.row, old)
        if number % 16 == 5:
            context.store.put(object_value(0, number % 5), ttl=0.01, timeout=WAIT)
        if number - context.get(words.DELETED) > 30:
            first = context.get(words.DELETED)
            many = [di_store.Ref.parse(object_id(context.row, first + i)) for i in range(context.rng.randrange(1, 8))]
            context.add(words.DELETED, len(many))
            context.store.delete(many)
        read_somebodys(context)
        yield True


def publisher(context: Context) -> Iterator[bool]:
    """Publish weights and read the newest; versions only rise."""
    seen = 0
    while True:
        number = context.rng.randrange(1 << 30)
        tree = {"number": number, "layer": words.stamp(number, 50_000), "bias": words.vector(number)}
        try:
            version = context.store.publish("policy", tree, keep=context.rng.randrange(1, 4))
        except BUSY:
            yield False
            continue
        assert version > context.get(words.PUBLISHED)
        context.board.put(context.row, words.PUBLISHED, version)
        newest = context.store.latest("policy", newer_than=seen, timeout=WAIT)
        assert newest is not None
        assert newest.version >= version
        assert newest.version > seen
        seen = newest.version
        assert (newest.value["layer"] == words.stamp(newest.value["number"], 50_000)).all(), "torn weights"
        yield True


def hoarder(context: Context) -> Iterator[bool]:
    """Many small objects and many views at once: descriptors, index and ledgers have to grow."""
    round_number = 0
    while True:
        round_number += 1
        count = 1_500 * round_number
        refs, held = [], []
        for number in range(count):
            try:
                refs.append(context.store.put(np.full(4, number), timeout=WAIT))
            except BUSY:
                break
            if number % 4 == 0:
                held.append((number, context.store.get(refs[-1])))
            if number % 256 == 0:
                yield True
        for number, view in held:
            assert (view == number).all()
        context.store.delete(refs)
        yield True


def forker(context: Context) -> Iterator[bool]:
    """Fork with live views while the parent deletes and puts on; views stay true in both."""
    while True:
        held = []
        for number in range(5):
            ref = context.store.put(object_value(context.row, number), timeout=60)
            held.append((context.store.get(ref), number))
            context.store.delete(ref)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for view, number in held:
                    check_object(view, context.row, number)
                assert context.store.get(context.store.put(pid, timeout=60)) == pid
                code = 0
            finally:
                os._exit(code)
        for number in range(5, 9):
            context.store.delete(context.store.put(object_value(context.row, number), timeout=60))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for view, number in held:
            check_object(view, context.row, number)
        if status == -9:  # the fault point lies in the child; tell the test as if it were ours
            os.kill(os.getpid(), 9)
        assert status == 0
        del held
        yield True


# -- those who come, go and change things ------------------------------------------------------------------------------


def attacher(context: Context) -> Iterator[bool]:
    """Attach, read and leave, again and again, each time as a new client."""
    context.store.close()
    while True:
        with di_store.attach(context.name, timeout=60) as store:
            try:
                store.get(di_store.Ref.parse(object_id(0, 0)))
            except di_store.ObjectNotFound:
                yield True
            assert context.name in [found.name for found in di_store.list_stores()]
        yield True


def reaper(context: Context) -> Iterator[bool]:
    """Settle the dead, run chores, recount everything."""
    arena = _core.Arena.open(context.store.name, 2, 0, 0, 60.0)
    while True:
        arena.reap()
        arena.chore()
        yield True
        if context.rng.random() < 0.1:
            context.store.check()
        context.store.stats()
        yield True


def prey(context: Context) -> Iterator[bool]:
    """Hold pins, an open chunk, undelivered draws and items being read; whoever settles its death meets all of them."""
    store, queue, replay = context.store, context.store.table("queue"), context.store.table("replay")
    refs = [store.put(object_value(context.row, number), timeout=60) for number in range(4)]
    views = [store.get(ref) for ref in refs]
    store.delete(refs[:2])
    first = context.row << 36
    writer = replay.writer()
    for number in range(first, first + 8):
        made = writer.append(rows(number), next={"obs": words.stamp(number + 1)}, timeout=60)
        context.add(words.ITEMS, len(made.keys))
    held = []
    for table in (queue, replay):
        reader = table._backend.handle.reader()
        draws = reader.begin()
        reader.draw(draws, 5)
        held.append(draws)
    for number in range(1_000_000):
        ref = store.put(object_value(context.row, number % 7), timeout=60)
        check_object(store.get(ref), context.row, number % 7)
        store.delete([ref])
        context.add(words.ITEMS, len(writer.end_episode().keys))
        start = first + 100 + 2 * number
        made = writer.append(rows(start), next={"obs": words.stamp(start + 1)}, timeout=60)
        context.add(words.ITEMS, len(made.keys))
        batch = replay.sample(4, min_n=4 if number % 2 else None, timeout=60)  # in one hold and the long way
        replay.update_priorities(batch.keys, np.ones(4))
        yield True
    assert views
    assert held


def settler(context: Context) -> Iterator[bool]:
    """Attaching settles the dead; a look at everything meets what is left."""
    context.store.check()
    yield True


def tabler(context: Context) -> Iterator[bool]:
    """Make, fill, read, resize and drop tables; declare ever new columns."""
    serial = 0
    while True:
        serial += 1
        name = f"scratch-{context.row}-{serial}"
        try:
            table = context.store.create_table(name, capacity=200, sampler=di_store.Prioritized(alpha=0.5))
        except (di_store.CapacityError, *BUSY):
            yield True
            continue
        numbers = np.arange(64)
        try:
            # Another shape at every turn: a layout of its own, up to a limit.
            wide = np.zeros((64, 1 + (context.row * 29 + serial) % 900), np.float32)
            table.extend(rows(numbers) | {"wide": wide}, timeout=WAIT)
            yield True
            batch = table.sample(16, timeout=WAIT)
            assert (batch.data["obs"] == words.stamp(batch.data["n"])).all()
            table.update_priorities(batch.keys, np.ones(16))
            table.resize(3_000)
            table.resize(20)
            assert len(table) == 20
        except (di_store.CapacityError, *BUSY):
            pass
        context.store.drop_table(name)
        yield True


def resizer(context: Context) -> Iterator[bool]:
    """Grow and shrink the store and the replay table, change limiters, while everybody runs."""
    replay = context.store.table("replay")
    budget = context.store.stats()["budget"]
    while True:
        try:
            context.store.resize(memory=budget + (context.rng.randrange(0, 32) << 20))
            block = context.store.put(np.zeros(48 << 20, np.uint8), timeout=WAIT)
            context.store.delete(block)
            # Less than is committed now: free pages have to go.
            context.store.resize(memory=context.store.stats()["committed"] - (24 << 20))
            replay.resize(context.rng.choice([800, 1_500]))
        except (di_store.CapacityError, *BUSY):
            pass
        context.store.resize(memory=budget)
        replay.configure(beta=context.rng.random())
        yield True


ROLES = {
    "writer": writer,
    "learner": learner,
    "loader": loader,
    "producer": producer,
    "consumer": consumer,
    "objects": objects,
    "publisher": publisher,
    "hoarder": hoarder,
    "forker": forker,
    "attacher": attacher,
    "reaper": reaper,
    "prey": prey,
    "settler": settler,
    "tabler": tabler,
    "resizer": resizer,
}
