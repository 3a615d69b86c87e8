"""The administrator: resizes store and tables, changes limiters, makes and drops tables, while everybody runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from crash.board import rows, stamp

import di_store
from soak.context import BUSY, HOLD, SHARE, TARGET, Context, Turns

SIZES = (0.5, 1.0, 1.5)
"""Of the items that a table began with."""
SHARES = (0.75, 1.0, 1.25)
"""Of the memory it began with."""
SHAPES = 8
"""Shapes of the tables that come and go: a store knows a limited number of layouts."""


def admin(context: Context) -> Turns:
    """One change after another, by lot."""
    for name in context.store.stats()["tables"]:
        if name.startswith("scratch"):  # of one who was killed
            context.store.drop_table(name)
    changes = [resize_store, resize_table, change_limiters, come_and_go, come_and_go, reset, look_over]
    while True:
        if context.board.get(0, HOLD):
            yield False
            continue
        for worked in context.rng.choice(changes)(context):
            if worked:
                context.count()
            yield worked


def resize_store(context: Context) -> Iterator[bool]:
    """Another memory; going down, the others first have to free what no longer fits."""
    target = int(context.rng.choice(SHARES) * context.terms.memory)
    if target < context.store.stats()["memory"]:
        context.board.put(0, TARGET, target)
    for _ in range(100):
        if context.board.get(0, HOLD):
            return
        try:
            if context.occupancy() < (1 + SHARE) / 2:
                context.store.resize(memory=target)
                context.board.put(0, TARGET, target)
                yield True
                return
        except di_store.CapacityError:
            pass
        yield False
    context.board.put(0, TARGET, context.store.stats()["memory"])


def resize_table(context: Context) -> Iterator[bool]:
    """Fewer or more items of each table."""
    for name, base in (("replay", context.terms.capacity), ("windows", 1_000), ("notes", 1_000)):
        try:
            context.store.table(name).resize(int(context.rng.choice(SIZES) * base))
            yield True
        except di_store.CapacityError:
            yield False


def change_limiters(context: Context) -> Iterator[bool]:
    """Other ratios, tolerances and queue sizes; now and then no ratio at all."""
    replay, queue = context.store.table("replay"), context.store.table("queue")
    least = context.rng.choice((100, 200))
    limiter: Any = di_store.SamplesPerInsert(context.rng.choice((2.0, 4.0, 8.0)), least, context.rng.choice((0.2, 1.0)))
    if context.rng.random() < 0.15:
        limiter = di_store.MinSize(least)
    replay.configure(limiter=limiter, beta=context.rng.random(), alpha=context.rng.choice((0.4, 0.6)))
    queue.configure(limiter=di_store.Queue(context.rng.choice((16, 64, 200))))
    yield True


def reset(context: Context) -> Iterator[bool]:
    """An empty table from one moment to the next; everybody who used it goes on."""
    if context.rng.random() < 0.3:
        context.store.table(context.rng.choice(("replay", "windows", "notes"))).reset()
    yield True


def come_and_go(context: Context) -> Iterator[bool]:
    """A table that is made, filled, read, resized and dropped."""
    serial = context.rng.randrange(SHAPES)
    name = f"scratch-{context.row}-{serial}"
    try:
        table = context.store.create_table(name, capacity=400, sampler=di_store.Prioritized(alpha=0.5))
    except di_store.CapacityError:
        yield False
        return
    # Without a pause in between: no such table is there at a roll call.
    try:
        wide = np.zeros((64, 1 + serial * 100), np.float32)
        numbers = np.arange(64)
        keys = table.extend(rows(numbers) | {"wide": wide}, timeout=context.terms.wait)
        table.update_priorities(keys, np.ones(len(keys)))
        batch = table.sample(16, timeout=context.terms.wait)
        assert (batch.data["obs"] == stamp(batch.data["n"])).all(), "torn obs"
        table.resize(3_000)
        table.resize(20)
        assert len(table) == 20
    except (di_store.CapacityError, *BUSY):
        pass
    context.store.drop_table(name)
    yield True


def look_over(context: Context) -> Iterator[bool]:
    """`check` while everybody runs finds nothing."""
    findings = context.store.check(repair=False)
    assert findings == [], findings
    yield True
