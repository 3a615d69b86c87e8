"""A program that forks processes which end in every way while others put and delete, and reports how they ended.

`python leaving.py STORE COUNT SEED`: each child is forked from this warm process and runs its interpreter's real end
(`Py_FinalizeEx`, `atexit`, destructors). From outside a watchdog takes one that does not end for hung. Prints a line
for every end that is not allowed, then the number of ends.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import di_store

HUNG_SECONDS = 60.0
AT_ONCE = 4
ROWS = di_store.Spec((64,), "f4")

kept: list[Any] = []
"""What a child leaves for its interpreter to end."""


def churn(name: str) -> None:
    """Put and delete for ever: the heap's lock is held most of the time."""
    store = di_store.attach(name, timeout=60)
    value = np.ones(4_096, np.uint8)
    while True:
        store.delete([store.put(value, timeout=60) for _ in range(8)])


def nothing_left(store: Any) -> None:
    """Arrays were let go a moment ago, so that the end has something to sweep."""
    refs = [store.put(np.ones(512), ttl=60) for _ in range(4)]
    views = [store.get(ref) for ref in refs]
    views.clear()


def arrays(store: Any) -> None:
    """Arrays, and a cycle that holds some, live until the end."""
    kept.extend(store.get(store.put(np.ones(512), ttl=60)) for _ in range(4))
    ring: list[Any] = [store, store.get(store.put({"a": np.ones(64)}, ttl=60))]
    ring.append(ring)


def handles(store: Any) -> None:
    """A batch, an open writer with rows, an inserter, a mixture, undelivered draws of a loader."""
    table = store.table("t")
    writer = table.writer()
    writer.append({"x": np.zeros(64, "f4")}, timeout=60)
    table.insert({"x": np.zeros(64, "f4")}, timeout=60)
    loader = table.loader(8, timeout=60)
    kept.extend([table, writer, table.sample(4, timeout=60), loader, next(loader), store.mix({"t": 1})])


def actor(store: Any) -> None:
    """What an actor does with weights and rows."""
    with store.table("t").writer() as writer:
        for _ in range(3):
            found = store.latest("policy", timeout=60)
            kept[:] = [found]
            writer.append({"x": np.zeros(64, "f4")}, timeout=60)


def daemons(store: Any) -> None:
    """Daemon threads are inside calls when the end comes."""
    table = store.table("t")

    def puts() -> None:
        while True:
            store.delete([store.put(np.ones(40_000))])

    def reads() -> None:
        for _ in table.loader(8):
            pass

    def writes() -> None:
        with table.writer() as writer:
            while True:
                writer.append({"x": np.zeros(64, "f4")})

    for work in (puts, reads, writes):
        threading.Thread(target=work, daemon=True).start()
    table.sample(8, timeout=60)


class Pickled:
    """Takes its time in Python whenever it is written or read."""

    def __reduce__(self) -> Any:
        for _ in range(2_000):
            pass
        return Pickled, ()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        for _ in range(2_000):
            pass
        return np.zeros(64, "f4")


def values(store: Any) -> None:
    """Daemon threads are in Python that the core called: pickles, state dicts, values with `__array__`."""
    table = store.table("t")
    state = {f"layer{i}.weight": np.ones((8, 8), "f4") for i in range(20)}

    def puts() -> None:
        while True:
            store.delete(store.put_many([[Pickled()], state]))

    def publishes() -> None:
        while True:
            store.publish("policy", state)
            store.latest("policy")

    def writes() -> None:
        with table.writer() as writer:
            while True:
                writer.append({"x": Pickled()})

    for work in (puts, publishes, writes):
        threading.Thread(target=work, daemon=True).start()
    table.sample(8, timeout=60)


class Late:
    """Uses the store when the interpreter is half gone."""

    def __init__(self, store: Any) -> None:
        self.put, self.delete, self.value = store.put, store.delete, np.ones(512)

    def __del__(self) -> None:
        for _ in range(20):
            self.delete([self.put(self.value, ttl=60)])


def late(store: Any) -> None:
    """A destructor of the program's own puts and deletes at the very end."""
    ring: list[Any] = [Late(store)]
    ring.append(ring)
    kept.append(ring)


STYLES = [nothing_left, arrays, handles, actor, daemons, values, late]


def live(name: str, inherited: Any, style: Any, interrupted: bool, way: int, said: int) -> None:
    """A child's life; its interpreter ends behind it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # tracebacks of Ctrl-C
    if not interrupted:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = inherited if inherited is not None else di_store.attach(name, timeout=60)
    kept.append(store)
    style(store)
    os.write(said, b"x")
    os.close(said)
    if way == 1:
        sys.exit(3)
    if way == 2:
        kept.clear()


class Watched:
    """One child, seen from outside."""

    def __init__(self, pid: int, what: str, said: int, interrupt: float | None) -> None:
        self.pid = pid
        self.what = what
        self.said = said
        self.began = time.monotonic()
        self.descriptor = os.pidfd_open(pid)
        self.interrupt = interrupt  # seconds after it said that it is about to end; negative: after its beginning

    def look(self) -> float:
        """Interrupt it when that is due; seconds until it is worth looking again."""
        if self.interrupt is None:
            return 1.0
        if self.interrupt >= 0 and self.said >= 0:
            if not select.select([self.said], [], [], 0)[0]:
                return 0.001
            os.close(self.said)
            self.said, self.began = -1, time.monotonic()
        left = abs(self.interrupt) - (time.monotonic() - self.began)
        if left <= 0:
            os.kill(self.pid, signal.SIGINT)
            self.interrupt = None
        return max(left, 0.0)

    def end(self) -> int:
        """Exit code, once it has one."""
        os.close(self.descriptor)
        if self.said >= 0:
            os.close(self.said)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def allowed(code: int, way: int, interrupted: bool) -> bool:
    """Whether a process that ends so did what its program says."""
    return code == (3 if way == 1 else 0) or (interrupted and code in (0, 1, 3, 120, 130, -signal.SIGINT))


def watch(running: dict[int, tuple[Watched, int, bool]], least: int) -> None:
    """Wait until no more than so many run; tell of those that ended wrongly."""
    poll = select.poll()
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    while len(running) > least:
        soon = min(one.look() for one, _, _ in running.values())
        for descriptor, _ in poll.poll(1000 * soon + 1):
            one, way, interrupted = running.pop(descriptor)
            poll.unregister(descriptor)
            code = one.end()
            if not allowed(code, way, interrupted):
                print(f"{one.what}: ended with {code}", flush=True)
        for descriptor, (one, _, _) in list(running.items()):
            if time.monotonic() - one.began > HUNG_SECONDS:
                os.kill(one.pid, signal.SIGKILL)
                one.end()
                del running[descriptor]
                poll.unregister(descriptor)
                print(f"{one.what}: hung", flush=True)


def main(name: str, count: int, seed: int) -> None:
    """Fork them; returns in children too, whose script then ends."""
    chance = random.Random(seed)
    churners = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            churn(name)
        churners.append(pid)
    inherited = di_store.attach(name, timeout=60)
    running: dict[int, tuple[Watched, int, bool]] = {}
    for number in range(count):
        style, way = STYLES[number % len(STYLES)], chance.randrange(3)
        interrupt = chance.choice([None, chance.uniform(0, 0.03), -chance.uniform(0.001, 0.05)])
        given = inherited if chance.random() < 0.5 else None
        hears, said = os.pipe()
        if (pid := os.fork()) == 0:
            live(name, given, style, interrupt is not None, way, said)
            return
        os.close(said)
        what = f"{number} ({style.__name__}, way {way}, inherited {given is not None}, interrupt {interrupt})"
        one = Watched(pid, what, hears, interrupt)
        running[one.descriptor] = one, way, interrupt is not None
        watch(running, AT_ONCE - 1)
    watch(running, 0)
    for pid in churners:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(f"{count} ended", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
