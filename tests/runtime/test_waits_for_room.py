"""A call that waits for room says how much it wants, and who has the rest."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from di_store import observe

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="32MiB") as opened:
        yield opened


class Waiting:
    """A call in a thread of its own, seen as one that waits."""

    def __init__(self, store: di_store.Store, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()
        self.stats = store.stats()
        until(lambda: self._seen(store), "it waits")

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            self.error = error

    def _seen(self, store: di_store.Store) -> bool:
        self.stats = store.stats()
        return any(each["kind"] == "room" for each in self.stats["waiters"])

    @property
    def reason(self) -> str:
        return next(str(each["reason"]) for each in self.stats["waiters"] if each["kind"] == "room")

    def ends(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def test_a_waiting_put_names_the_bytes_it_needs(store: di_store.Store) -> None:
    store.create_table("t", capacity=1000, schema={"x": di_store.Spec((1024,), "u1")}, lanes=1)
    refs = []
    while store.stats()["free"] - store.stats()["reserved"] > 7 * MIB:
        refs.append(store.put(np.zeros(3 * MIB, np.uint8), timeout=60))
    arrays = [store.get(ref) for ref in refs]  # pinned: no room comes by deletion
    with pytest.raises(di_store.StoreFull) as full:
        store.put(np.zeros(8 * MIB, np.uint8), timeout=0)
    said = re.search(r"(\d+) MiB set aside for tables.*; (\d+) KiB are wanted, (\d+) KiB are free", str(full.value))
    assert said is not None, full.value
    aside, wanted, free = map(int, said.groups())
    assert aside == store.stats()["reserved"] // MIB > 0
    assert 8 << 10 <= wanted < 9 << 10
    assert free < wanted
    waiting = Waiting(store, lambda: store.put(np.zeros(8 * MIB, np.uint8), timeout=60))
    assert re.fullmatch(
        r"room in the store: 8\.\d+ MiB wanted, [\d.]+ MiB free, [\d.]+ MiB reserved for tables", waiting.reason
    ), waiting.reason
    report = observe.report(waiting.stats)
    assert report["waiters"] == []  # the calling process is left out
    del arrays
    store.delete(refs)
    waiting.ends()


def test_a_waiting_writer_names_the_store_bytes_it_needs(store: di_store.Store) -> None:
    """Episodes in more lanes than were set aside for: they want room that objects have, and no item can go for them."""
    lanes, steps, row_bytes = 16, 200, 1 << 12
    schema = {"x": di_store.Spec((row_bytes,), "u1"), "terminated": di_store.Spec((), "?")}
    table = store.create_table("t", capacity=2, view=di_store.Episode(steps), schema=schema, lanes=1)
    refs = []
    while store.stats()["free"] - store.stats()["reserved"] > MIB:
        refs.append(store.put(np.zeros(MIB // 2, np.uint8), timeout=60))
    arrays = [store.get(ref) for ref in refs]  # pinned: no room comes by deletion
    said: list[str] = []
    goes_on = threading.Event()

    def write() -> None:
        row = {"x": np.zeros((lanes, row_bytes), np.uint8), "terminated": np.zeros(lanes, np.bool_)}
        with table.writer(lanes=lanes) as writer:
            for _ in range(steps):
                try:
                    writer.append(row, timeout=0)
                except di_store.StoreFull as error:
                    said.append(str(error))
                    writer.append(row, timeout=60)
                    goes_on.set()
            writer.end_episode()

    waiting = Waiting(store, write)
    assert "space is freed by deleting objects" in said[0]
    assert re.fullmatch(
        r"room in the store: [\d.]+ [KM]iB wanted, [\d.]+ [KM]iB free, [\d.]+ [KM]iB reserved for tables",
        waiting.reason,
    ), waiting.reason
    assert not goes_on.is_set()
    del arrays
    store.delete(refs)
    waiting.ends()
    assert len(table) == 2


def test_a_waiting_writer_names_the_table_bytes_it_needs(store: di_store.Store) -> None:
    """A queue whose bytes are taken by rows that wait to be drawn."""
    schema = {"x": di_store.Spec((1 << 16,), "u1")}
    table = store.create_table(
        "t", capacity=1000, max_bytes="4MiB", schema=schema, limiter=di_store.Queue(1000), lanes=1
    )
    row = {"x": np.zeros(1 << 16, np.uint8)}
    with pytest.raises(di_store.StoreFull) as full:
        for _ in range(1000):
            table.insert(row, timeout=0)
    assert re.search(r"table 't' uses \d+ KiB of its \d+ KiB, .*, and \d+ KiB more are wanted", str(full.value))
    waiting = Waiting(store, lambda: table.insert(row, timeout=60))
    assert re.fullmatch(
        r"room among the bytes of its table: [\d.]+ [KM]iB wanted, [\d.]+ [KM]iB of its [\d.]+ [KM]iB used",
        waiting.reason,
    ), waiting.reason
    table.sample(50, timeout=60)
    waiting.ends()


def test_a_wait_for_something_else_names_no_byte_count(store: di_store.Store) -> None:
    """The thread found no room before."""
    table = store.create_table("t", capacity=10, schema={"x": di_store.Spec((), "i8")})
    held = store.get(store.put(np.zeros(16 * MIB, np.uint8), timeout=60))
    seen: list[str] = []

    def work() -> None:
        with pytest.raises(di_store.StoreFull):
            store.put(np.zeros(16 * MIB, np.uint8), timeout=0)
        table.sample(1, timeout=60)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def look() -> bool:
        seen[:] = [str(each["reason"]) for each in store.stats()["waiters"] if each["kind"] == "items"]
        return bool(seen)

    until(look, "it waits for items")
    assert "wanted" not in seen[0]
    assert len(held) == 16 * MIB
    table.insert({"x": 1})
    thread.join(60)
    assert not thread.is_alive()
