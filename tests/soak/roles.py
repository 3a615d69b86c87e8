"""What the processes of the soak do; everything they read is checked, byte by byte."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np
from crash.board import check_transitions, check_windows, rows, stamp, vector
from crash.roles import Lane

import di_store
from soak import storms
from soak.admin import admin
from soak.context import BUSY, SHARE, Context, Terms, Turns
from soak.context import run as run_role
from soak.stamps import FLEETING, KEPT, PLACES, check_notes, check_object, object_id, some_size, steps

LANES = 4


def run(role: str, store: str, path: str, row: int, terms: Terms, seed: int, plant: str = "") -> int:
    """A child of the zygote."""
    return run_role(ROLES[role], store, path, row, terms, seed, plant)


# -- experience -------------------------------------------------------------------------------------------------------


def streamer(context: Context) -> Turns:
    """Write four lanes into three tables over one stream: appends, extends, ends of episodes, writers opened anew."""
    tables = [context.store.table(name) for name in ("replay", "windows", "notes")]
    # A role begun anew must not repeat numbers.
    lanes = [Lane((context.row << 7) + context.rng.randrange(128), lane) for lane in range(LANES)]
    while True:
        with context.store.writer(tables, lanes=LANES) as opened:
            for _ in range(context.rng.randrange(50, 500)):
                try:
                    context.count(write(context, opened, lanes))
                except BUSY:
                    yield False
                    continue
                yield True
        for lane in lanes:
            lane.end()


def write(context: Context, opened: Any, lanes: list[Lane]) -> int:
    """One call of the writer; lanes move on only when it came through. Rows written."""
    rng, wait, kind = context.rng, context.terms.wait, context.rng.random()
    if kind < 0.08:
        length = rng.choice((2, 5, 9, 40))
        numbers = np.array([[lane.next + t for lane in lanes] for t in range(length)])
        opened.extend(steps(numbers), timeout=wait)
        for lane in lanes:
            lane.next += length
        return length * LANES
    if kind < 0.11:
        which = rng.randrange(LANES)
        final = {"obs": stamp(np.array([lanes[which].next]))}
        opened.end_episode(final=final, lane=[which], timeout=wait)
        lanes[which].end()
        return 0
    some = sorted(rng.sample(range(LANES), 2)) if kind < 0.2 else list(range(LANES))
    numbers = np.array([lanes[lane].next for lane in some])
    terminated = np.array([rng.random() < 0.02 for _ in some])
    truncated = np.array([rng.random() < 0.02 for _ in some]) & ~terminated
    step, following = steps(numbers, terminated, truncated), {"obs": stamp(numbers + 1)}
    if context.plant == "wrong-row":
        step["vec"][0, 0] += 1
    lane = some if len(some) < LANES else None
    opened.append(step, next=following, lane=lane, priority=rng.random() + 0.01, timeout=wait)
    for at, ended in zip(some, terminated | truncated, strict=True):
        lanes[at].next += 1
        if ended:
            lanes[at].end()
    return len(some)


def learner(context: Context) -> Turns:
    """Sample all three tables, update, peek, delete; batches are held and looked at again."""
    replay, windows, notes = (context.store.table(name) for name in ("replay", "windows", "notes"))
    chance = np.random.default_rng(context.row)
    while True:
        batch = replay.sample(400 if context.rng.random() < 0.02 else 64, timeout=context.terms.wait)
        check_transitions(batch.data)
        replay.update_priorities(batch.keys, chance.random(len(batch.keys)) + 0.01)
        if (old := context.hold(batch, 3)) is not None:
            check_transitions(old.data)
        context.count(len(batch.keys))
        yield True
        check_windows(windows.sample(16, timeout=context.terms.wait).data)
        check_notes(notes.sample(16, timeout=context.terms.wait).data)
        context.count(32)
        yield True
        if context.rng.random() < 0.1:
            again = replay.peek(batch.keys[:8])
            live = np.asarray(again.live)
            assert (np.asarray(again.data["n"])[live] == np.asarray(batch.data["n"])[:8][live]).all(), "another's item"
        if context.rng.random() < 0.02:
            replay.delete(batch.keys[:4])


def loader(context: Context) -> Turns:
    """Batches drawn ahead, from loaders that are closed in the middle and opened anew."""
    replay = context.store.table("replay")
    while True:
        batches = replay.loader(64, prefetch=3, timeout=context.terms.wait)
        try:
            for _ in range(context.rng.randrange(20, 400)):
                batch = next(batches)
                check_transitions(batch.data)
                replay.update_priorities(batch.keys, np.full(len(batch.keys), context.rng.random() + 0.01))
                context.count(len(batch.keys))
                yield True
        finally:
            batches.close()


def feeder(context: Context) -> Turns:
    """Put rows into the queue, one and many at a time."""
    queue, number = context.store.table("queue"), context.row << 36
    with queue.writer() as opened:
        while True:
            many = context.rng.choice((1, 1, 1, 7))
            numbers = np.arange(number, number + many)
            try:
                if many == 1:
                    opened.append(rows(number), timeout=context.terms.wait)
                else:
                    opened.extend(rows(numbers), timeout=context.terms.wait)
            except BUSY:
                yield False
                continue
            number += many
            context.count(many)
            yield True


def taker(context: Context) -> Turns:
    """Take rows from the queue; each once, those of one writer in order."""
    queue, newest = context.store.table("queue"), dict[int, int]()
    while True:
        batch = queue.sample(16, min_n=1, linger=0, timeout=context.terms.wait)
        numbers = np.asarray(batch.data["n"])
        assert (batch.data["obs"] == stamp(numbers)).all(), "torn obs"
        assert (batch.data["vec"] == vector(numbers)).all(), "torn vec"
        for number in numbers.tolist():
            # What was given back by somebody who died keeps its place, so it may come late, but never twice.
            assert number != newest.get(number >> 36), f"row {number} was delivered twice"
            newest[number >> 36] = number
        context.count(len(numbers))
        yield True


# -- objects and weights ----------------------------------------------------------------------------------------------


def some_refs(context: Context, n: int) -> list[Any]:
    """Up to n objects that may be deleted, from a place taken by lot."""
    place = context.rng.randrange(PLACES)
    found = context.store.keys(start=f"{place:02x}" + "0" * 38, n=n)
    return [ref for ref in found if int(ref.id[:2], 16) < PLACES]


def look(context: Context) -> None:
    """Get somebody's object and check it; it may be deleted meanwhile. Some stay in hand beyond their deletion."""
    for ref in some_refs(context, 1):
        with suppress(di_store.ObjectNotFound):
            value = context.store.get(ref)
            check_object(value, ref.id)
            context.count()
            if (old := context.hold((value, ref.id), 8)) is not None:
                check_object(*old)


def churner(context: Context) -> Turns:
    """Put, get and delete objects, such that the store stays four fifths full."""
    press, store, rng = context.press(), context.store, context.rng
    while True:
        for _ in range(4):
            number = context.serial()
            place = FLEETING if rng.random() < 0.05 else rng.randrange(PLACES)
            size = some_size(rng, context.terms.largest)
            if size > 1 << 20 and context.occupancy() > SHARE:
                break
            name = object_id(place, context.row, number, size)
            value = press.value(name)
            if context.plant == "wrong-byte":
                (value["body"] if isinstance(value, dict) else value)[-1] ^= 1
            try:
                store.put(
                    value,
                    id=name,
                    ttl=0.5 if place == FLEETING else None,
                    timeout=0 if number % 2 else context.terms.wait,
                )
                context.count()
            except BUSY:
                yield False
                break
        plant(context)
        look(context)
        yield True
        while context.occupancy() > SHARE and (refs := some_refs(context, context.rng.randrange(1, 6))):
            store.delete(refs)
            yield True


def plant(context: Context) -> None:
    """Make the fault that the soak shall notice: leaks only after the first roll call, so that they are a rise."""
    if context.plant == "no-more-turns":
        Event().wait()
    if not context.plant or not context.calls:
        return
    name = object_id(KEPT, context.row, context.serial(), 1_000)
    if context.plant in ("object-leak", "pin-leak"):
        context.store.put(context.press().value(name), id=name)
    if context.plant == "pin-leak":
        LEAKED.append(context.store.get(name))
        context.store.delete(name)
    elif context.plant == "descriptor-leak" and len(LEAKED) < 64:  # a process that has few turns leaks enough by one
        LEAKED.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(16))
    elif context.plant == "memory-leak" and len(LEAKED) < 4:  # one is noticed; many would fill the machine's memory
        LEAKED.append(b"x" * 40_000_000)


LEAKED: list[Any] = []


def publisher(context: Context) -> Turns:
    """Publish weights, some larger ones, with a few versions kept."""
    newest = 0
    while True:
        number = context.rng.randrange(1 << 30)
        tree = {"number": number, "layer": stamp(number, context.rng.choice((5_000, 200_000))), "bias": vector(number)}
        version = context.store.publish("policy", tree, keep=context.rng.randrange(1, 4), timeout=context.terms.wait)
        assert version > newest, f"version {version} after {newest}"
        newest = version
        context.count()
        yield True


def puller(context: Context) -> Turns:
    """Take the newest weights; versions only rise, values are whole, old ones stay what they are while held."""
    seen = 0
    while True:
        newest = pull(context, seen)
        yield newest > seen
        seen = newest


def pull(context: Context, seen: int) -> int:
    """The newest version, checked; it stays in hand beyond its end."""
    found = context.store.latest("policy", newer_than=seen, timeout=context.terms.wait)
    if found is None:
        return seen
    assert found.version > seen
    check_weights(found.value)
    if (old := context.hold(found.value, 4)) is not None:
        check_weights(old)
    context.count()
    return int(found.version)


def check_weights(value: Any) -> None:
    """One version, whole."""
    assert (value["layer"] == stamp(value["number"], len(value["layer"]))).all(), "torn weights"
    assert (value["bias"] == vector(value["number"])).all(), "torn weights"


ROLES = {
    "streamer": streamer,
    "learner": learner,
    "loader": loader,
    "feeder": feeder,
    "taker": taker,
    "churner": churner,
    "publisher": publisher,
    "puller": puller,
    "admin": admin,
    "forker": storms.forker,
    "visitor": storms.visitor,
}
