"""Ctrl-C at any step of a loader: it goes on or closes, gives everything back, and the process ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import interrupted
from pains import BOUND_SECONDS

import di_store
from di_store.runtime import chores

ITEMS, BATCH = 40, 4
NEVER = 10**9


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[di_store.Store]:
    with di_store.open(store_name(), memory="64MiB") as opened:
        yield opened


class Scene:
    """A queue and a loader over it, in the state that an action finds."""

    def __init__(self, store: di_store.Store, prefetch: int, lease: float | None = None) -> None:
        if "t" in store.stats()["tables"]:
            store.drop_table("t")
        schema = {"n": di_store.Spec((), "i8")}
        self.table = store.create_table("t", capacity=ITEMS, limiter=di_store.Queue(ITEMS), schema=schema)
        self.table.extend({"n": np.arange(ITEMS)})
        self.prefetch = prefetch
        self.lease = lease
        self.loader: Any = None

    def open(self) -> Any:
        """Also the first of its store: the thread for chores starts with it."""
        chores._stop()
        options = {"prefetch": self.prefetch, "lease": self.lease, "timeout": BOUND_SECONDS}
        self.loader = self.table.loader(BATCH, **options)
        return self.loader

    def next(self) -> list[int]:
        """The numbers of a batch."""
        found: list[int] = next(self.loader).data["n"].tolist()
        return found

    def rest(self) -> list[int]:
        """What nobody was given."""
        found: list[int] = self.table.sample(ITEMS, min_n=1, linger=0, timeout=BOUND_SECONDS).data["n"].tolist()
        return found


def drained(scene: Scene) -> None:
    """All are drawn, and the thread has ended with that."""
    scene.table.finish()
    for _ in scene.loader:
        pass


ACTIONS: dict[str, tuple[list[Callable[[Scene], Any]], Callable[[Scene], Any]]] = {
    "open": ([], Scene.open),
    "start": ([Scene.open], Scene.next),
    "next": ([Scene.open, Scene.next], Scene.next),
    "close": ([Scene.open, Scene.next], lambda scene: scene.loader.close()),
    "close-unused": ([Scene.open], lambda scene: scene.loader.close()),
    "close-at-the-end": ([Scene.open, drained], lambda scene: scene.loader.close()),
}


def points(make: Callable[[], Scene], name: str, most: int, count: Callable[[int, int], int]) -> Iterator[int]:
    """Steps of an action to interrupt it at: some of them, or all."""
    before, action = ACTIONS[name]
    scene = make()
    for step in before:
        step(scene)
    _, left = interrupted(lambda: action(scene), NEVER)
    scene.loader.close()
    steps = NEVER - left
    assert steps >= 10, "the files that are traced are not those of the loader"
    parts = count(min(most, steps), steps)
    yield from sorted({1 + steps * part // parts for part in range(parts)})


def close_in_another_thread(loader: Any) -> None:
    thread = threading.Thread(target=loader.close, daemon=True)
    thread.start()
    thread.join(BOUND_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("name", "prefetch", "lease"),
    [
        *((name, prefetch, None) for name in ACTIONS for prefetch in (0, 1, 2)),
        *((name, 2, 600.0) for name in ACTIONS if name != "close-at-the-end"),  # leased batches keep it from its end
    ],
)
@pytest.mark.timeout(3600)
def test_an_interrupted_loader_can_be_closed(
    store: di_store.Store, name: str, prefetch: int, lease: float | None, count: Callable[[int, int], int]
) -> None:
    """By another thread; whatever the interrupted call has not given is there again, in its order."""
    before, action = ACTIONS[name]
    for at in points(lambda: Scene(store, prefetch, lease), name, 40, count):
        scene = Scene(store, prefetch, lease)
        for step in before:
            step(scene)
        interrupted(lambda scene=scene: action(scene), at)
        if scene.loader is not None:
            close_in_another_thread(scene.loader)
            scene.loader.close()
            with pytest.raises(di_store.StoreClosed):
                next(scene.loader)
        if name == "close-at-the-end":
            continue
        rest = scene.rest()
        given = ITEMS - len(rest)
        assert rest == list(range(given, ITEMS)), f"{name} interrupted at step {at}"
        most = BATCH * (sum(step is Scene.next for step in before) + (action is Scene.next))
        assert given in (most, max(0, most - BATCH)), f"{name} interrupted at step {at}"


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("name", ["start", "next"])
@pytest.mark.timeout(3600)
def test_an_interrupted_loader_can_continue(
    store: di_store.Store, name: str, prefetch: int, count: Callable[[int, int], int]
) -> None:
    """What was drawn for the interrupted call comes later, unless it was handed out already."""
    before, _ = ACTIONS[name]
    for at in points(lambda: Scene(store, prefetch), name, 40, count):
        scene = Scene(store, prefetch)
        for step in before:
            step(scene)
        first, _ = interrupted(scene.next, at)
        scene.table.finish()
        found: list[int] = []
        thread = threading.Thread(target=_take_all, args=(scene.loader, found), daemon=True)
        thread.start()
        thread.join(BOUND_SECONDS)
        assert not thread.is_alive(), f"interrupted at step {at}"
        scene.loader.close()
        lost = ITEMS - len(found) - BATCH * (len(before) - 1)
        assert lost in (0, BATCH), f"interrupted at step {at}, {first}"
        assert len(set(found)) == len(found)


def _take_all(loader: Any, found: list[int]) -> None:
    for batch in loader:
        found.extend(batch.data["n"].tolist())


ENDS = """
import atexit, sys, numpy as np, di_store
sys.path.insert(0, sys.argv[1])
from interrupting import Interrupt, interrupted
at_exit, first = int(sys.argv[2]), int(sys.argv[3])
store = di_store.open(memory="64MiB")
table = store.create_table("t", capacity=40, schema={"n": di_store.Spec((), "i8")})
table.extend({"n": np.arange(40)})
kept = []
for at in range(first, 300, 60):
    loader = table.loader(4)
    kept.append(loader)
    interrupted(lambda: next(loader), at)
    for _ in range(at % 3):
        next(loader)
    interrupted(loader.close if at % 2 else lambda: next(loader), at // 2)
atexit.register(lambda: sys.settrace(Interrupt(at_exit)))
print("ending", flush=True)
"""


@pytest.mark.timeout(3600)
def test_a_process_with_interrupted_loaders_exits(count: Callable[[int, int], int]) -> None:
    """Also where its exit handlers are."""
    folder = str(Path(__file__).parents[1])
    for number in range(count(4, 300)):
        at_exit = 1 + number * count(40, 3)
        command = [sys.executable, "-c", ENDS, folder, str(at_exit), str(1 + number * 7 % 60)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SECONDS)
        assert (done.stdout, done.returncode) == ("ending\n", 0), f"at {at_exit}: {done.stderr}"
