"""`store.close()` while other threads are inside any call: `StoreClosed` comes out, or the call succeeds."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import di_store

SOURCES = str(Path(di_store.__file__).parent)
ID = "ab" * 20
STEP = {"obs": 1, "reward": 0.5, "terminated": False}


class Scene:
    """A store with something of everything in it."""

    def __init__(self, name: str) -> None:
        self.store = di_store.open(name, memory="32MiB")
        schema = {"n": di_store.Spec((), "i8")}
        self.table = self.store.create_table("t", capacity=8, schema=schema, sampler=di_store.Prioritized(0.6, 0.4))
        self.fresh = self.store.create_table("fresh", capacity=8)
        self.whole = self.store.create_table("whole", capacity=8, view=di_store.Sequence(2), schema=schema)
        self.pairs = self.store.create_table("pairs", capacity=8, view=di_store.Transition(), weights="w")
        self.full = self.store.create_table("full", capacity=2, schema=schema, limiter=di_store.Queue(1))
        self.values = self.store.create_table("values", capacity=8, view=di_store.Opaque())
        self.full.insert({"n": 0})
        self.keys = self.table.extend({"n": np.arange(4)})
        self.mixture = self.store.mix({"t": 1})
        self.ref = self.store.put(np.arange(4), id=ID)
        self.store.publish("w", np.arange(4))
        self.writer = self.pairs.writer()
        self.lanes = self.table.writer(lanes=2)
        self.blocked = self.full.writer()
        self.ahead = self.table.loader(2)
        self.now = self.table.loader(2, prefetch=0)
        self.mixed = self.mixture.loader(2, prefetch=1)

    def touch(self) -> None:
        """Used before it is closed: the first call finds things that later ones know."""
        self.table.sample(2)
        self.table.insert({"n": 1})
        next(self.ahead)
        self.mixture.sample(2)


BATCH = {"n": np.arange(2)}
CALLS: dict[str, Callable[[Scene], Any]] = {
    "put": lambda s: s.store.put(np.arange(3)),
    "put-id": lambda s: s.store.put(np.arange(3), ttl=60.0),
    "get": lambda s: s.store.get(s.ref),
    "get-wait": lambda s: s.store.get("cd" * 20, timeout=60),
    "put_many": lambda s: s.store.put_many([1, 2]),
    "get_many": lambda s: s.store.get_many([s.ref, s.ref]),
    "wait": lambda s: s.store.wait([s.ref, "cd" * 20], num_returns=2),
    "contains": lambda s: s.store.contains(s.ref),
    "delete": lambda s: s.store.delete([s.ref]),
    "keys": lambda s: s.store.keys(),
    "publish": lambda s: s.store.publish("w", np.arange(3)),
    "latest": lambda s: s.store.latest("w"),
    "latest-wait": lambda s: s.store.latest("w", newer_than=9, timeout=60),
    "stats": lambda s: s.store.stats(),
    "check": lambda s: s.store.check(),
    "store.resize": lambda s: s.store.resize("40MiB"),
    "create_table": lambda s: s.store.create_table("new", capacity=4),
    "exist_ok": lambda s: s.store.create_table("fresh", capacity=8, exist_ok=True),
    "table": lambda s: s.store.table("t"),
    "table-wait": lambda s: s.store.table("never", timeout=60),
    "drop_table": lambda s: s.store.drop_table("fresh"),
    "store.writer": lambda s: s.store.writer(["t", s.fresh]),
    "mix": lambda s: s.store.mix({"t": 1, "fresh": 1}),
    "writer": lambda s: s.table.writer(),
    "insert": lambda s: s.table.insert({"n": 1}),
    "insert-first": lambda s: s.fresh.insert({"n": 1}),
    "insert-whole": lambda s: s.whole.insert(BATCH),
    "insert-value": lambda s: s.values.insert({"any": [1]}),
    "insert-wait": lambda s: s.full.insert({"n": 1}),
    "extend": lambda s: s.table.extend(BATCH),
    "sample": lambda s: s.table.sample(2),
    "sample-wait": lambda s: s.whole.sample(2, timeout=60),
    "sample-columns": lambda s: s.table.sample(2, columns="n", min_n=1),
    "peek": lambda s: s.table.peek(s.keys),
    "table.keys": lambda s: s.table.keys(),
    "update_priorities": lambda s: s.table.update_priorities(s.keys, np.ones(4)),
    "table.delete": lambda s: s.table.delete(s.keys[:1]),
    "reset": lambda s: s.table.reset(),
    "resize": lambda s: s.table.resize(6),
    "configure": lambda s: s.table.configure(limiter=di_store.MinSize(1), beta=0.5),
    "finish": lambda s: s.table.finish(),
    "len": lambda s: len(s.table),
    "table.stats": lambda s: s.table.stats(),
    "loader": lambda s: s.table.loader(2),
    "next": lambda s: next(s.ahead),
    "next-now": lambda s: next(s.now),
    "next-mixed": lambda s: next(s.mixed),
    "mixture.sample": lambda s: s.mixture.sample(2, columns="n"),
    "mixture.update": lambda s: s.mixture.update_priorities(s.keys, np.ones(4)),
    "mixture.loader": lambda s: s.mixture.loader(2),
    "append": lambda s: s.writer.append(STEP, next={"obs": 1}),
    "append-lanes": lambda s: s.lanes.append({"n": np.arange(2)}, priority={"t": 1.0}),
    "append-wait": lambda s: s.blocked.append({"n": 1}),
    "writer.extend": lambda s: s.writer.extend({name: np.array([value] * 2) for name, value in STEP.items()}),
    "extend-wait": lambda s: s.blocked.extend(BATCH),
    "end_episode": lambda s: s.lanes.end_episode(),
    "writer.close": lambda s: s.writer.close(),
}
WAITS = {"get-wait", "wait", "latest-wait", "table-wait", "insert-wait", "sample-wait", "append-wait", "extend-wait"}


@pytest.fixture
def make(store_name: Callable[[], str]) -> Iterator[Callable[[], Scene]]:
    made: list[Scene] = []

    def scene() -> Scene:
        made.append(Scene(store_name()))
        return made[-1]

    yield scene
    for each in made:
        each.store.close()


class Closer:
    """Closes a scene's store in another thread when the traced one comes to its k-th line of Di-store."""

    def __init__(self, scene: Scene, at: int) -> None:
        self.scene = scene
        self.left = at
        self._thread = threading.Thread(target=scene.store.close, daemon=True)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self._thread.start()
                self._thread.join(0.02)  # it may have to wait for a lock that the traced thread holds
        return self

    def end(self) -> None:
        """Closed, if it has come to that."""
        if self.left <= 0:
            self._thread.join(60)
            assert not self._thread.is_alive()


def outcome(call: Callable[[], Any]) -> BaseException | None:
    """What a call raises."""
    try:
        call()
    except BaseException as error:
        return error
    return None


def traced(closer: Closer, call: Callable[[], Any]) -> BaseException | None:
    """What a call raises, with `closer` at work."""
    sys.settrace(closer)
    try:
        return outcome(call)
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("name", CALLS)
def test_closing_at_any_line_of_a_call_is_safe(make: Any, name: str, count: Any) -> None:
    """At some of its lines, or at all of them; a call that waits for what never comes is closed early on."""
    lines = 60
    if name not in WAITS:
        counting = Closer(make(), 10**9)
        assert traced(counting, lambda: CALLS[name](counting.scene)) is None
        lines = 10**9 - counting.left
    parts = count(4, lines)
    for at in sorted({1 + lines * part // parts for part in range(parts)}):
        scene = make()
        closer = Closer(scene, at)
        error = traced(closer, lambda scene=scene: CALLS[name](scene))
        closer.end()
        assert error is None or isinstance(error, di_store.StoreClosed), f"closed at line {at}: {error!r}"
        if closer.left <= 0:
            after = outcome(lambda scene=scene: CALLS[name](scene))
            assert isinstance(after, di_store.StoreClosed) or name == "writer.close", f"at line {at}, then {after!r}"


@pytest.mark.parametrize("name", [name for name in CALLS if name != "writer.close"])  # which no end refuses
def test_closing_beside_busy_threads_is_safe(make: Any, name: str, count: Any) -> None:
    """Two threads for what may be called by several, at a fine switch interval."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(count(1, 100)):
            scene = make()
            errors: list[BaseException | None] = []
            begun = threading.Barrier(3)

            def call(scene: Scene = scene, errors: Any = errors, begun: Any = begun) -> None:
                begun.wait(60)
                while (error := outcome(lambda: CALLS[name](scene))) is None or not _ends(error):
                    pass
                errors.append(error)

            threads = [threading.Thread(target=call) for _ in range(2)]
            for thread in threads:
                thread.start()
            begun.wait(60)
            scene.store.close()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert [type(error) for error in errors] == 2 * [di_store.StoreClosed]
    finally:
        sys.setswitchinterval(interval)


def _ends(error: BaseException) -> bool:
    """Whether it is not what two threads may do to each other: drop, close, or use one writer."""
    return not isinstance(
        error,
        (
            di_store.WriterClosed,
            di_store.TableExists,
            di_store.TableNotFound,
            di_store.EndOfData,
            di_store.ObjectNotFound,
        ),
    )


def test_closing_from_two_threads_is_safe(make: Any) -> None:
    """As a thread does that makes a handle while another one closes the store."""
    scene = make()
    scene.touch()
    errors: list[BaseException | None] = []
    native = scene.table._backend.inserter._native

    class Native:
        def close(self) -> None:
            other = threading.Thread(target=lambda: errors.append(outcome(scene.store._backend.session.close)))
            other.start()
            other.join(60)
            native.close()

    scene.table._backend.inserter._native = Native()
    scene.store.close()
    assert errors == [None]


def test_a_closed_store_is_unmapped(make: Any) -> None:
    """Also of what a thread was inside of, when that thread is through."""
    scene = make()
    name = scene.store.name
    scene.touch()
    thread = threading.Thread(target=lambda: outcome(lambda: scene.blocked.append({"n": 1})))
    thread.start()
    while not scene.store.stats()["waiters"]:
        pass
    scene.store.close()
    thread.join(60)
    gc.collect()
    assert name not in [each.name for each in di_store.list_stores()]
    assert isinstance(outcome(lambda: scene.blocked.append({"n": 1})), di_store.StoreClosed)
