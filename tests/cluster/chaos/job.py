"""The job: its tables are made, also on nodes that come; it runs beside kills; then what it noted is judged."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pains import until

import di_store
from cluster.chaos.ledger import Board, Ledger, short
from cluster.chaos.roles import CALL_SECONDS, Consumer
from cluster.chaos.stamps import ROWS, STACK, WINDOWS
from cluster.chaos.world import CAST, FIXED, PLACES, World
from di_store.base.errors import CorruptData, StoreError, TableNotFound
from di_store.client.address import Address
from di_store.cluster.node import Node

QUEUE = "queue"
MAKE_SECONDS = 10.0
LOOK_SECONDS = 0.3
END_SECONDS = 90.0
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"capacity": 200_000, "schema": ROWS, "view": di_store.Step()},
    "parts": {
        "capacity": 300_000,
        "lanes": 256,
        "schema": WINDOWS,
        "view": di_store.Transition(n_step=2, frame_stack={"obs": STACK}),
        "sampler": di_store.Prioritized(0.6, 0.4),
        "shards": "learners",
        "draw": "mass",
    },
    QUEUE: {"capacity": 2_000, "schema": ROWS, "view": di_store.Step(), "limiter": di_store.Queue(200)},
}


@dataclass
class Made:
    """A table: what it is, and the nodes that have it or its parts."""

    kind: str
    uuids: list[str] = field(default_factory=list)


class Administrator(threading.Thread):
    """Makes a table on each node that comes, and one in parts whenever all are there; drops those of lost nodes."""

    def __init__(self, world: World, board: Board) -> None:
        super().__init__(daemon=True)
        self._world, self._board, self._ledger = world, board, Ledger(board, "administrator", FIXED)
        self.made: dict[str, Made] = {}
        self.lost: set[str] = set()  # uuids
        self.at: dict[int, Node] = {}
        self.faults: list[str] = []
        self._pause, self._done = threading.Event(), False
        self._dropped: set[str] = set()
        self.start()

    def run(self) -> None:
        while not self._done:
            try:
                self._look()
            except CorruptData as error:
                self.faults.append(repr(error))
            except StoreError as error:
                self._ledger.note(failed=short(error))
            except Exception as error:
                self.faults.append(repr(error))
            self._pause.wait(LOOK_SECONDS)
        self._ledger.end()

    def end(self) -> None:
        self._done = True
        self.join(END_SECONDS)
        assert not self.is_alive(), "the administrator does not end"

    def lose(self, place: int) -> None:
        """The node there is about to be lost."""
        if place in self.at:
            self.lost.add(self.at.pop(place).uuid)

    def is_done(self) -> bool:
        """Whether there is a table on each node, and one in parts on all."""
        here = {each.uuid for each in self.at.values()}
        known = [set(each.uuids) for each in self.made.values() if each.kind == "parts"]
        whole = {each.uuids[0] for each in self.made.values() if each.kind == "rows"}
        return len(here) == PLACES and here in known and here <= whole

    def _look(self) -> None:
        store = self._world.store()
        for node in self._ledger.call("nodes", CALL_SECONDS, store.nodes):
            place = next(
                (at for at in range(PLACES) if self._world.name(at) == Address.parse(node.address).store), None
            )
            if place is not None and place not in self._world.down and node.uuid not in self.lost:
                self.at[place] = node
        for node in list(self.at.values()):
            if not any(each.kind == "rows" and each.uuids == [node.uuid] for each in self.made.values()):
                self._make("rows", [node.uuid])
        if QUEUE not in self.made:
            self._make(QUEUE, [self.at[FIXED].uuid])
        here = sorted(each.uuid for each in self.at.values())
        if len(here) == PLACES and not any(sorted(each.uuids) == here for each in self.made.values()):
            self._make("parts", here)
        for name, made in self.made.items():
            if made.kind == "rows" and made.uuids[0] in self.lost and name not in self._dropped:
                self._drop(name)
        self._tell()

    def _make(self, kind: str, uuids: list[str]) -> None:
        """A call that failed may have made it: the next one takes that."""
        name = QUEUE if kind == QUEUE else f"{kind}-{''.join(each[:6] for each in uuids)}"
        node: Any = uuids if kind == "parts" else uuids[0]
        store = self._world.store()
        self._ledger.call(
            "create_table",
            MAKE_SECONDS,
            lambda: store.create_table(name, node=node, exist_ok=True, timeout=MAKE_SECONDS, **KINDS[kind]),
        )
        self.made[name] = Made(kind, uuids)

    def _drop(self, name: str) -> None:
        """A table whose node is lost. A directory that was made anew since then does not know it."""
        store = self._world.store()
        with suppress(TableNotFound):
            self._ledger.call("drop_table", CALL_SECONDS, lambda: store.drop_table(name, timeout=CALL_SECONDS))
        self._dropped.add(name)

    def _tell(self) -> None:
        rows = [name for name, made in self.made.items() if made.kind == "rows" and made.uuids[0] not in self.lost]
        parts = [name for name, made in self.made.items() if made.kind == "parts"]
        words = {"rows": rows, "parts": parts[-1] if parts else "", "queue": QUEUE}
        if any(self._board.read().get(name) != word for name, word in words.items()):
            self._board.tell(**words)


class Job:
    """Runs until `end`."""

    def __init__(self, world: World, board: Board) -> None:
        self._world, self._board = world, board
        self.administrator = Administrator(world, board)
        until(self.administrator.is_done, "the tables of the job")
        self._consumers = [
            Consumer(board, "near", lambda: world.store().table(QUEUE, timeout=CALL_SECONDS)),
            Consumer(board, "far", lambda: world.far().table(QUEUE, timeout=CALL_SECONDS)),
        ]
        world.begin()

    def end(self, pause: float) -> None:
        """Have it run for a while with all nodes there; then all of it ends by itself."""
        until(self.administrator.is_done, "tables on all nodes", END_SECONDS)
        quiet = time.monotonic() + pause
        until(lambda: self._world.tend() or time.monotonic() > quiet, "the job to run on")
        until(lambda: self._world.tend() or self._has_done_all(), "all kinds of work to be done")
        self._board.tell(ends=True)
        until(lambda: all(self._has_ended(*each) for each in CAST), "the job's processes to end", END_SECONDS)
        for consumer in self._consumers:
            consumer.finish()
        for consumer in self._consumers:
            consumer.end()
        self.administrator.end()

    def _has_done_all(self) -> bool:
        """Whether each kind of work was done once, also after a short run."""
        missing = {"acknowledged", "keys", "put", "sampled", "published", "taken"}
        for line in self._board.lines():
            missing -= line.keys()
            if not missing:
                return True
        return False

    def _has_ended(self, role: str, place: int) -> bool:
        pid, ended = (self._board.folder / f"{role}-{place}.{what}" for what in ("pid", "ended"))
        return ended.exists() and pid.exists() and pid.read_text() == ended.read_text()
