"""What calls are made on.

Tables of every kind, writers, loaders, mixtures, objects, weights; handles that are closed, that only read, that belong
to another store.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import di_store
from soak.fuzz.odd import PLAIN, SPECIAL, entering
from soak.stamps import KEPT

KINDS = ("steps", "transitions", "windows", "episodes", "values", "ragged", "queue", "once", "bare", "ratio", "groups")
STREAMS = ("steps", "transitions", "windows")
"""Tables that share a stream of `store.writer`."""
LANES = 3
CAPACITY = 120
MEMORY = 48 << 20
MOST_HELD = 12
"""Results of earlier calls that stay in hand."""
ENTRIES = tuple(f"enters-in-{method}" for method in SPECIAL)
"""Odd arguments that call the store from inside."""
HANDLES = ("a-store", "a-table", "a-writer", "a-batch", "a-loader", "a-mixture", "closed-store", "closed-table")
ODD = (*PLAIN, *ENTRIES, *HANDLES)


def settings(kind: str) -> dict[str, Any]:
    """Arguments of `create_table`."""
    given: dict[str, Any] = {"capacity": CAPACITY, "lanes": 4}
    if kind not in ("values", "bare"):
        given["schema"] = spec(kind == "ragged")
    own: dict[str, dict[str, Any]] = {
        "steps": {"sampler": di_store.Prioritized(0.6, 0.4)},
        "transitions": {"view": di_store.Transition(3, obs=("obs", "image")), "weights": "policy", "max_staleness": 50},
        "windows": {"view": di_store.Sequence(4, 2, bootstrap=("obs",))},
        "episodes": {"view": di_store.Episode(8), "sampler": di_store.Prioritized(0.5, stratified=True)},
        "values": {"view": di_store.Opaque()},
        "ragged": {"max_bytes": 1 << 20},
        "queue": {"limiter": di_store.Queue(30)},
        "once": {"sampler": di_store.Once(None)},
        "groups": {"view": di_store.Group(3, by="n"), "sampler": di_store.Prioritized(0.6)},
        "ratio": {"limiter": di_store.SamplesPerInsert(4.0, 10, 1.0), "remover": di_store.MinHeap()},
    }
    return given | own.get(kind, {})


def spec(ragged: bool) -> dict[str, Any]:
    """Columns of the tables."""
    columns: dict[str, Any] = {
        "n": di_store.Spec((), "i8"),
        "obs": di_store.Spec((3,), "f4"),
        "image": {"small": di_store.Spec((2, 2), "u1")},
        "reward": di_store.Spec((), "f4"),
        "terminated": di_store.Spec((), "?"),
        "truncated": di_store.Spec((), "?"),
    }
    return columns | ({"text": di_store.Spec((None,), "i4")} if ragged else {})


def observation(lead: tuple[int, ...]) -> dict[str, Any]:
    """What `next` and `final` give."""
    return {"obs": np.ones((*lead, 3), np.float32), "image": {"small": np.ones((*lead, 2, 2), np.uint8)}}


def step(rng: random.Random, kind: str, lead: tuple[int, ...], finished: bool = False) -> Any:
    """Rows that fit a table; `finished`: as `insert` takes them."""
    if kind == "values":
        return (
            {"x": np.arange(rng.randrange(40)), "who": "me"}
            if not lead
            else [step(rng, kind, lead[1:]) for _ in range(lead[0])]
        )
    ends = np.array([rng.random() < 0.2 for _ in range(int(np.prod(lead)))], bool).reshape(lead)
    found = {
        "n": np.full(lead, rng.randrange(20 if kind == "groups" else 1 << 40), np.int64),
        **observation(lead),
        "reward": np.ones(lead, np.float32),
    }
    found |= {"terminated": ends, "truncated": np.zeros(lead, bool)}
    if kind == "ragged":
        found["text"] = _texts(rng, lead)
    if kind == "transitions" and finished:
        found |= {f"next_{name}": value for name, value in observation(lead).items()}
        found["discount"] = np.ones(lead, np.float32)
    return found


def _texts(rng: random.Random, lead: tuple[int, ...]) -> Any:
    if not lead:
        return np.arange(rng.randrange(9), dtype=np.int32)
    return [_texts(rng, lead[1:]) for _ in range(lead[0])]


class World:
    """All that calls are made on. Tables that a call drops or finishes are made anew.

    Args:
        store: shared with the test, whose guard rows and objects no call here may touch.
        name: of this world, part of the names of its tables.
    """

    def __init__(self, store: Any, name: str, rng: random.Random) -> None:
        self.store, self.name, self.rng = store, name, rng
        self.other: Any = di_store.open(memory=8 << 20)
        self.other.create_table("other", capacity=9, schema=spec(False)).insert(step(rng, "steps", ()))
        self.reader: Any = di_store.open(store.name, mode="r")
        self.closed: Any = di_store.attach(store.name, timeout=60)
        self.closed_table: Any = self._made("steps", self.closed)
        self.closed.close()
        self.tables: dict[str, Any] = {}
        self.writers: dict[str, Any] = {}
        self.keys: dict[str, Any] = {}
        self.refs: list[Any] = [store.put(np.arange(30)), store.put({"a": 1}), di_store.Ref(b"\xef" * 20)]
        self.held: list[Any] = []
        self.loaders: list[Any] = []
        self.texts: set[str] = set()  # odd arguments
        self.entering = False
        self.put = 0
        self.lock = threading.RLock()  # of this world, not of the calls
        store.publish("policy", {"w": np.ones(9)}, timeout=5)

    def _made(self, kind: str, store: Any) -> Any:
        return store.create_table(f"{self.name}-{kind}", exist_ok=True, timeout=60, **settings(kind))

    def table(self, kind: str) -> Any:
        """The table of that kind, with something in it."""
        if kind not in self.tables:
            with suppress(di_store.TableExists, di_store.StoreError):
                self.store.drop_table(f"{self.name}-{kind}")
            self.tables[kind] = table = self._made(kind, self.store)
            self.keys[kind] = np.empty(0, np.uint64)
            with suppress(di_store.StoreError):
                self.keys[kind] = table.extend(self.rows(kind), timeout=0.5)
        return self.tables[kind]

    def rows(self, kind: str) -> Any:
        """What `extend` takes."""
        lead = (6, 4) if kind in ("windows", "episodes") else (6,)
        return step(self.rng, kind, lead, finished=True)

    def forget(self, kind: str | None = None) -> None:
        """A table was dropped, finished or given other columns: the next use makes it anew."""
        for each in (kind,) if kind else KINDS:
            self.tables.pop(each, None)
            for name in [name for name in self.writers if each in name]:
                self.drop_writer(name)

    def writer(self, name: str) -> Any:
        """A writer by kind of its table (or "many") and lanes, such as "steps/3"."""
        if name not in self.writers:
            kind, _, lanes = name.partition("/")
            number = int(lanes) if lanes else None
            if kind == "many":
                self.writers[name] = self.store.writer([self.table(each) for each in STREAMS], lanes=number)
            else:
                self.writers[name] = self.table(kind).writer(lanes=number)
        return self.writers[name]

    def drop_writer(self, name: str) -> None:
        """Another one takes its place at the next use."""
        if (found := self.writers.pop(name, None)) is not None:
            with suppress(di_store.StoreError):
                found.close(timeout=0)

    def batch(self, kind: str = "steps") -> Any:
        """Some batch."""
        table = self.table(kind)
        return table.peek(table.keys(0, 4))

    def leased(self, kind: str) -> Any:
        """A batch with a lease; an ended one, if nothing can be drawn now."""
        table = self.table(kind)
        with suppress(di_store.StoreError, ValueError):
            return table.sample(1, lease=1.0, timeout=0)
        batch = self.batch(kind)
        batch._lease = table._backend, 7
        return batch

    def loader(self, rng: random.Random) -> Any:
        """A loader of some table, up to three at a time."""
        if len(self.loaders) < 3:
            kind = rng.choice(("steps", "transitions", "ratio", "ragged"))
            made = self.table(kind).loader(2, prefetch=rng.randrange(3), timeout=0.02)
            self.loaders.append(made)
        return rng.choice(self.loaders)

    def _closed_loader(self) -> Any:
        """An open one is a list without an end to whoever goes through it."""
        made = self.table("steps").loader(2, timeout=0)
        made.close()
        return made

    def mixture(self) -> Any:
        """Of two tables with the same columns."""
        self.table("steps"), self.table("once")
        return self.store.mix({f"{self.name}-steps": 3, f"{self.name}-once": 1}, seed=self.rng.randrange(9))

    def enter(self) -> None:
        """Call the store from inside another call."""
        if self.entering:
            return  # no deeper
        self.entering = True
        try:
            self.rng.choice(self.entries())()
        finally:
            self.entering = False

    def entries(self) -> list[Callable[[], Any]]:
        """Calls made from inside other calls and from signal handlers; each succeeds or waits for nothing."""
        kinds = [kind for kind in list(self.tables) if kind != "bare"]
        kind = self.rng.choice(kinds or ["steps"])
        table = self.table(kind)
        lead = (4,) if kind in ("windows", "episodes") else ()
        calls = [
            lambda: self.store.put(np.arange(50), timeout=0),
            lambda: self.store.get(self.refs[0], timeout=0),
            lambda: self.store.stats(),
            lambda: table.insert(step(self.rng, kind, lead, finished=True), timeout=0),
            lambda: table.sample(2, timeout=0),
            lambda: table.delete(table.keys(0, 1)),
            lambda: table.update_priorities(table.keys(0, 2), [1.0, 2.0]) if kind == "steps" else len(table),
        ]
        for name, writer in list(self.writers.items()):
            own, _, lanes = name.partition("/")
            lead = (int(lanes),) if lanes else ()
            rows = step(self.rng, "steps" if own == "many" else own, lead)
            calls.append(lambda writer=writer, rows=rows: writer.append(rows, timeout=0))  # type: ignore[misc]
        return calls

    def odd(self, name: str) -> Any:
        """An odd argument by its name."""
        if name.startswith("enters-in-"):
            return entering(name.removeprefix("enters-in-"), self.enter)
        if name in HANDLES:
            return self._handle(name)
        made = PLAIN[name]()
        if isinstance(made, str):
            self.texts.add(made)
        return made

    def _handle(self, name: str) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "a-store": lambda: self.other,
            "a-table": lambda: self.table("steps"),
            "a-writer": lambda: self.writer("steps"),
            "a-batch": self.batch,
            "a-loader": self._closed_loader,
            "a-mixture": self.mixture,
            "closed-store": lambda: self.closed,
            "closed-table": lambda: self.closed_table,
        }
        return makers[name]()

    def hold(self, result: Any) -> None:
        """Keep some results, so that what is pinned and drawn overlaps with later calls."""
        if self.rng.random() < 0.2:
            self.held.append(result)
        if len(self.held) > MOST_HELD:
            self.held.pop(self.rng.randrange(len(self.held)))

    def let_go(self) -> None:
        """Close loaders and writers, drop results; what is left must be nothing."""
        self.held.clear()
        for loader in self.loaders:
            loader.close()
        self.loaders.clear()
        for name in list(self.writers):
            self.drop_writer(name)

    def end(self) -> None:
        """Drop all tables and objects; a call may have made a table of any text that it was given."""
        names = [name for name in self.store.stats()["tables"] if name.startswith(self.name) or name in self.texts]
        for name in names:
            self.store.drop_table(name)
        self.store.delete([ref for ref in self.store.keys(n=1_000_000) if int(ref.id[:2], 16) < KEPT])
        for store in (self.other, self.reader, self.closed):
            store.close()
