"""What the processes of the job do, over and over, until the job ends or they are killed."""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import di_store
from cluster.chaos.ledger import Board, Ledger, short
from cluster.chaos.stamps import EPISODE, broken, row, rows, thing, torn, whole
from di_store.base.errors import CorruptData, NodeUnavailable, StoreClosed, StoreError, TableNotFound, WriterClosed
from di_store.cluster.store import ClusterStore

CALL_SECONDS = 3.0
OPEN_SECONDS = 30.0
BURST, QUEUE_BURST, LANES = 20, 5, 4
FAILURES = 3
"""A writer that failed so often in a row is opened anew."""
PAUSE_SECONDS = 0.02
WEIGHTS, GROUP = "policy", "everybody"
GONE = (StoreClosed, TableNotFound, WriterClosed)


class Stream:
    """One writer of one table, which numbers its rows, and notes those that were acknowledged."""

    lanes = 1

    def __init__(self, ledger: Ledger, table: str, burst: int = BURST) -> None:
        self.table, self._ledger, self._burst = table, ledger, burst
        self._writer: di_store.Writer | None = None
        self._failures = 0

    def step(self, store: ClusterStore) -> None:
        """Write some rows and have them acknowledged."""
        if self._writer is None:
            self._open(store)
        assert self._writer is not None
        try:
            if len(self._pending) < 2 * self._burst:
                self._append(self._writer)
            self._ledger.call("flush", CALL_SECONDS, lambda: self._writer.flush(timeout=CALL_SECONDS))
        except StoreError as error:
            self._failures += 1
            if isinstance(error, GONE) or self._failures >= FAILURES:
                self.close()
            raise
        self._failures = 0
        self._settle()

    def close(self) -> None:
        """Give the writer up: nobody knows what has become of rows that were not acknowledged."""
        writer, self._writer, self._failures = self._writer, None, 0
        if writer is not None:
            with suppress(StoreError):
                self._ledger.call("close", CALL_SECONDS, lambda: writer.close(timeout=CALL_SECONDS))

    def _open(self, store: ClusterStore) -> None:
        table = self._ledger.call("table", CALL_SECONDS, lambda: store.table(self.table, timeout=CALL_SECONDS))
        self._writer = self._ledger.call("writer", OPEN_SECONDS, lambda: self._made(table))
        self.w, self.n = secrets.randbits(40) * 16, 0
        self._pending: list[tuple[int, Any]] = []
        self._asks = bool(self.w & 16)  # every other one waits for each row

    def _made(self, table: di_store.Table) -> di_store.Writer:
        return table.writer()

    def _append(self, writer: di_store.Writer) -> None:
        for _ in range(self._burst):
            n, self.n = self.n, self.n + 1
            if self._asks:
                given = row(self.w, n)
                done = self._ledger.call("append", CALL_SECONDS, lambda: writer.append(given, timeout=CALL_SECONDS))  # noqa: B023
            else:
                done = writer.append(row(self.w, n))
            self._pending.append((n, done))

    def _settle(self) -> None:
        acknowledged = []
        for n, items in self._pending:
            try:
                items.keys  # noqa: B018 - known after `flush`; it raises what the call did
                acknowledged.append(n)
            except StoreError as error:
                self._ledger.note(refused=short(error), table=self.table)
        self._pending = []
        self._ledger.note(acknowledged=acknowledged, w=self.w, table=self.table)


class Windows(Stream):
    """The same, of a table in parts whose items are windows: what is acknowledged are keys."""

    lanes = LANES

    def _made(self, table: di_store.Table) -> di_store.Writer:
        self._broke = False
        return table.writer(lanes=LANES)

    def _append(self, writer: di_store.Writer) -> None:
        if self._broke:  # no window may span rows that were not written
            self._ledger.call(
                "end_episode", CALL_SECONDS, lambda: writer.end_episode(discard=True, timeout=CALL_SECONDS)
            )
            self.n, self._broke = (self.n // EPISODE + 1) * EPISODE, False
        self._broke = True
        for _ in range(self._burst):
            n, self.n = self.n, self.n + 1
            given, following = rows(self.w + np.arange(LANES), n), {"obs": np.full(LANES, n + 1)}
            items = self._ledger.call(
                "append to parts",
                CALL_SECONDS,
                lambda: writer.append(given, next=following, timeout=CALL_SECONDS),  # noqa: B023
            )
            self._pending.append((n, items))
        self._broke = False

    def _settle(self) -> None:
        keys: list[int] = []
        for _, items in self._pending:
            with suppress(StoreError):
                keys += np.asarray(items.keys).tolist()
        self._pending = []
        self._ledger.note(keys=keys, table=self.table)


class Reader:
    """Weights: whole, and each version newer than the one before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._version = ledger, 0

    def step(self, store: ClusterStore) -> None:
        found = self._ledger.call(
            "latest", 0.0, lambda: store.latest(WEIGHTS, newer_than=self._version, timeout=0, group=GROUP)
        )
        if found is None:
            return
        wrong = not whole(found.value)
        self._ledger.note(version=found.version, torn=int(wrong), back=int(found.version <= self._version))
        self._version = found.version


class Actor:
    """Writes rows, windows, items of the queue and objects."""

    def __init__(self, board: Board, ledger: Ledger) -> None:
        self._board, self._ledger = board, ledger
        self._streams: dict[str, Stream] = {}
        self._reader = Reader(ledger)
        self._put = 0

    def step(self, store: ClusterStore) -> None:
        told = self._board.read()
        wanted = dict.fromkeys(told["rows"], Stream) | {told["parts"]: Windows}
        for name in self._streams.keys() - wanted.keys() - {told["queue"]}:
            self._streams.pop(name).close()
        name = random.choice([*wanted, told["queue"]])
        if name not in self._streams:
            made = wanted.get(name)
            self._streams[name] = made(self._ledger, name) if made else Stream(self._ledger, name, QUEUE_BURST)
        self._reader.step(store)
        if random.random() < 0.2:
            self._put_one(store)
        self._streams[name].step(store)

    def _put_one(self, store: ClusterStore) -> None:
        w, size = secrets.randbits(40), random.choice([8, 2_000, 40_000])
        self._put += 1
        value = thing(w, self._put, size)
        ref = self._ledger.call("put", CALL_SECONDS, lambda: store.put(value, timeout=CALL_SECONDS))
        self._ledger.note(put=ref.id, w=w, n=self._put)
        with open(self._board.folder / "refs", "a") as file:
            file.write(f"{ref.id}\n")

    def close(self) -> None:
        for each in self._streams.values():
            each.close()


class Learner:
    """Draws from all tables, reads objects and weights, and checks all of it."""

    def __init__(self, board: Board, ledger: Ledger) -> None:
        self._board, self._ledger = board, ledger
        self._reader = Reader(ledger)
        self._tables: dict[str, di_store.Table] = {}

    def step(self, store: ClusterStore) -> None:
        told = self._board.read()
        self._reader.step(store)
        self._get(store)
        name = random.choice([*told["rows"], told["parts"]])
        try:
            self._draw(store, name, name == told["parts"])
        except GONE:
            self._tables.pop(name, None)
            raise

    def _draw(self, store: ClusterStore, name: str, parts: bool) -> None:
        if name not in self._tables:
            self._tables[name] = self._ledger.call(
                "table", CALL_SECONDS, lambda: store.table(name, timeout=CALL_SECONDS)
            )
        table = self._tables[name]
        what = "sample of parts" if parts else "sample"
        batch = self._ledger.call(what, CALL_SECONDS, lambda: table.sample(16, timeout=CALL_SECONDS))
        self._ledger.note(sampled=len(batch.keys), torn=broken(batch.data) if parts else torn(batch.data))
        if parts:
            priorities = np.random.default_rng().uniform(0.5, 2.0, len(batch.keys))
            self._ledger.call(
                "update_priorities",
                CALL_SECONDS,
                lambda: table.update_priorities(batch.keys, priorities, timeout=CALL_SECONDS),
            )

    def _get(self, store: ClusterStore) -> None:
        try:
            refs = (self._board.folder / "refs").read_text().split()[-200:]
        except FileNotFoundError:
            return
        ref = random.choice(refs)
        if len(ref) == 40:
            value = self._ledger.call("get", CALL_SECONDS, lambda: store.get(ref, timeout=CALL_SECONDS))
            self._ledger.note(got=ref, torn=int(not whole(value)))

    def close(self) -> None:
        self._tables.clear()


class Publisher:
    """Publishes weights."""

    def __init__(self, board: Board, ledger: Ledger) -> None:
        self._ledger, self._n, self._w = ledger, 0, secrets.randbits(40)
        self._pause = threading.Event()

    def step(self, store: ClusterStore) -> None:
        self._n += 1
        value = thing(self._w, self._n, 50_000)
        version = self._ledger.call(
            "publish", CALL_SECONDS, lambda: store.publish(WEIGHTS, value, group=GROUP, timeout=CALL_SECONDS)
        )
        self._ledger.note(published=version)
        self._pause.wait(0.2)

    def close(self) -> None:
        """It holds nothing."""


ROLES: dict[str, Any] = {"actor": Actor, "learner": Learner, "publisher": Publisher}


def play(role: str, folder: str, place: int, opened: Callable[[], ClusterStore]) -> None:
    """Play a role until the job ends."""
    board = Board(folder)
    ledger = Ledger(board, role, place)
    playing = ROLES[role](board, ledger)
    (board.folder / f"{role}-{place}.pid").write_text(str(os.getpid()))
    pause, store = threading.Event(), None
    while not board.read().get("ends"):
        try:
            if store is None or store.is_closed():
                store = ledger.call("open", OPEN_SECONDS, opened)
            playing.step(store)
        except CorruptData:
            ledger.note(fault=traceback.format_exc())
        except StoreError as error:
            ledger.note(failed=short(error))
        except Exception:
            ledger.note(fault=traceback.format_exc())
        pause.wait(PAUSE_SECONDS)
    playing.close()
    ledger.end()
    (board.folder / f"{role}-{place}.ended").write_text(str(os.getpid()))


class Consumer(threading.Thread):
    """Takes items from the queue until it is told to stop and there are none; never killed."""

    def __init__(self, board: Board, name: str, table: Callable[[], di_store.Table]) -> None:
        super().__init__(daemon=True)
        self._ledger, self._table, self._done = Ledger(board, name, 0), table, threading.Event()
        self.start()

    def run(self) -> None:
        table = None
        while True:
            try:
                if table is None:
                    table = self._table()
                batch = self._ledger.call("take", CALL_SECONDS, lambda: table.sample(8, min_n=1, timeout=CALL_SECONDS))  # noqa: B023
                taken = np.stack([batch.data["w"], batch.data["n"]], 1).tolist()
                self._ledger.note(taken=taken, torn=torn(batch.data))
            except di_store.Timeout:
                if self._done.is_set():
                    break
            except (NodeUnavailable, StoreClosed, TableNotFound) as error:
                self._ledger.note(failed=short(error))
                if self._done.is_set():
                    break
        self._ledger.end()

    def finish(self) -> None:
        """Take what is left, and stop."""
        self._done.set()

    def end(self) -> None:
        """Wait until that is done."""
        self.join(20 * CALL_SECONDS)
        assert not self.is_alive(), "the queue's consumer does not end"


if __name__ == "__main__":
    from di_store import cluster

    play(sys.argv[1], sys.argv[2], int(sys.argv[3]), lambda: cluster.attach(timeout=OPEN_SECONDS))
