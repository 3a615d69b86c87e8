"""A program that forks while it holds handles of each kind, which its children let go before Python's own hooks ran.

`python garbage.py STORE COUNT`: the collector's thresholds are 1, and a child's first hook drops the handles, each in
a cycle, and collects them: after the fork, before `threading` and Di-store know of it. A child that hangs dies of
its alarm. The parent goes on with the same handles, and nothing of its own may have been given back.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

held: list[Any] = []
"""One cycle for each handle."""
forked = False


def _let_go() -> None:
    if forked:
        signal.alarm(60)
        held.clear()
        gc.collect()


os.register_at_fork(after_in_child=_let_go)  # before anybody else's

import threading  # noqa: E402

import numpy as np  # noqa: E402

import di_store  # noqa: E402
from di_store import _core  # noqa: E402


def ring(*handles: Any) -> None:
    """Keep them in a cycle that only the collector takes apart."""
    cycle: list[Any] = list(handles)
    cycle.append(cycle)
    held.append(cycle)


def row(number: int) -> dict[str, Any]:
    """A row whose every cell is its number."""
    return {"x": np.full(64, number, "f4")}


def child(store: Any, number: int) -> None:
    """The store serves the child all the same."""
    assert not held
    ref = store.put(np.full(300, number))
    assert (store.get(ref) == number).all()
    assert store.delete(ref) == 1
    with store.table("g").writer() as writer:
        writer.append(row(1))


def turn(name: str, store: Any, number: int) -> None:
    """One fork with a handle of each kind."""
    global forked
    table = store.table("g")
    refs = [store.put(np.full(200 + 3_000 * big, number)) for big in range(4)]
    views = [store.get(ref) for ref in refs]
    store.delete(refs)
    writer, loader = table.writer(), table.loader(4, prefetch=1)
    writer.append(row(number))
    ready = next(loader)
    table.insert(row(number))
    draws = store.table("queue")
    draws.extend({"x": np.full((4, 64), number, "f4")})
    reader = draws._backend.handle.reader()
    taken = reader.begin()
    assert reader.draw(taken, 4) == 4
    ring(views, store)
    ring(table, table.sample(8))
    ring(ready, loader)
    ring(writer)
    ring(_core.Attendance(table._backend.handle.native, 60.0))
    ring(taken, reader)
    ring(di_store.attach(name), store.mix({"g": 1}))
    before = table.stats()["inserts"]
    forked = True
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(store, number)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    forked = False
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, f"fork {number}: {'hung' if code == -signal.SIGALRM else code}"
    store.delete([store.put(np.full(n, -1)) for n in (200, 3_200, 6_200, 9_200) for _ in range(4)])
    for view in views:
        assert (view == number).all(), "what the parent's arrays show has changed"
    assert draws.stats()["held"] == 4, "the child gave back what the parent has drawn"
    writer.append(row(number))
    writer.close()
    loader.close()
    reader.give_back(taken)
    draws.reset()
    assert table.stats()["inserts"] == before + 2
    held.clear()


def main(name: str, count: int) -> None:
    """All forks, among other threads."""
    store = di_store.attach(name, timeout=60)
    store.table("g").extend({"x": np.zeros((50, 64), "f4")})
    gc.collect()
    gc.freeze()  # what is there already: the collector runs all the time
    gc.set_threshold(1, 1, 1)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            store.delete([store.put(np.ones(100))])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(count):
            turn(name, store, number)
    finally:
        stop.set()
        thread.join()
    print(f"{count} forks")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
