"""A seeded random run of operations: faster than hypothesis' machine, and as long as one likes."""

from __future__ import annotations

import random
from collections.abc import Callable

from .harness import Harness
from .limiters import MinSize
from .setting import Setting
from .views import Step


def drive(setting: Setting, rng: random.Random, operations: int) -> None:
    """Do at least `operations` random operations on store and model; an error names the setting."""
    harness = Harness(setting, rng)
    try:
        # Bounded, as some operations do nothing in some settings.
        for _ in range(4 * operations):
            if harness.operations >= operations:
                break
            one(harness, rng)
        harness.peek()
    except BaseException:
        print(f"after {harness.operations} operations on {setting}")
        raise
    finally:
        harness.close()


def write(setting: Setting, rng: random.Random, calls: int = 20) -> None:
    """Two writers, one after the other, that write, end and discard episodes, and close; then look at every item."""
    harness = Harness(setting, rng)
    try:
        for _ in range(2):
            pen = harness.open_writer()
            for _ in range(calls // 2):
                rng.choices((append, extend, end), (3, 1, 1))[0](harness, rng)
            harness.end_writer(pen, "close")
            harness.peek()
    except BaseException:
        print(f"after {harness.operations} operations on {setting}")
        raise
    finally:
        harness.close()


def one(harness: Harness, rng: random.Random) -> None:
    """One random operation; mostly writing and reading."""
    if not harness.pens or (len(harness.pens) < 2 and rng.random() < 0.1):
        harness.open_writer("fork" if rng.random() < 0.3 else None)
    operation: Callable[[Harness, random.Random], None] = rng.choices(
        (append, extend, end, sample, update, peek, delete, change, leave, insert), (40, 8, 6, 25, 8, 5, 2, 3, 2, 4)
    )[0]
    operation(harness, rng)


def append(harness: Harness, rng: random.Random) -> None:
    pen = rng.choice(harness.pens)
    lanes = sorted(rng.sample(range(len(pen.worlds)), rng.randint(1, len(pen.worlds))))
    harness.append(
        pen,
        lanes,
        with_next=rng.random() < 0.6,
        end_chance=rng.choice((0.0, 0.1, 0.5)),
        priority=rng.random() < 0.5,
    )


def extend(harness: Harness, rng: random.Random) -> None:
    pen = rng.choice(harness.pens)
    harness.extend(pen, rng.randint(1, 8), with_next=rng.random() < 0.6, end_chance=0.2)


def end(harness: Harness, rng: random.Random) -> None:
    pen = rng.choice(harness.pens)
    discard = rng.random() < 0.3
    lanes = sorted(rng.sample(range(len(pen.worlds)), rng.randint(1, len(pen.worlds))))
    harness.end_episode(pen, lanes, with_final=rng.random() < 0.5, discard=discard)


def sample(harness: Harness, rng: random.Random) -> None:
    harness.sample(rng.choice((1, 1, 2, 5, 32)))


def update(harness: Harness, rng: random.Random) -> None:
    harness.update_priorities(rng.randrange(6), zero=rng.random() < 0.3)


def peek(harness: Harness, rng: random.Random) -> None:
    harness.peek()


def delete(harness: Harness, rng: random.Random) -> None:
    harness.delete(rng.randint(1, 3))


def change(harness: Harness, rng: random.Random) -> None:
    """Something rare to the table as a whole."""
    chosen = rng.randrange(5)
    if chosen == 0:
        harness.attach_again()
    elif chosen == 1:
        harness.resize(rng.randint(1, 9))
    elif chosen == 2 and isinstance(harness.setting.limiter, MinSize) and harness.setting.max_staleness is None:
        harness.configure(MinSize(rng.randint(1, min(3, harness.side.model.capacity))))
    elif chosen == 3:
        harness.configure(None)
    elif chosen == 4:
        harness.publish()


def leave(harness: Harness, rng: random.Random) -> None:
    """A writer closes, or dies."""
    harness.end_writer(rng.choice(harness.pens), rng.choice(("close", "kill", "kill within", "kill within")))


def insert(harness: Harness, rng: random.Random) -> None:
    """A row without a stream."""
    if isinstance(harness.setting.view, Step):
        harness.insert(rng.choice((None, 0.0, 2.5)))
