"""A process's handle of one shard, and the shard's last report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from di_store.base.errors import NodeUnavailable, StoreError, TableNotFound, Timeout
from di_store.client.channel import Seconds
from di_store.client.table import RemoteTable
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.replay.stats import TableStats
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""How old a shard's report may be if draws are divided by it."""
RETRY_SECONDS = 1.0
"""How long a shard that did not answer is left alone."""
_LOOK_SECONDS = 0.02
"""How long a call that waits for one of several shards waits for each of them in turn."""

Opener = Callable[[str, "float | None"], TableBackend]
"""Opens the shard of the node with this uuid, within this many seconds."""


class _Opening:
    """A handle that a thread opens."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None  # set before `ended`


class Shard:
    """A handle that is opened at its first use, because its node may be unreachable. Thread-safe.

    Attributes:
        number: number among the shards of its table: the highest byte of its items' keys.
        uuid: uuid of the node.
    """

    def __init__(self, number: int, uuid: str, opener: Opener, found: TableBackend | None) -> None:
        self.number = number
        self.uuid = uuid
        self._opener = opener
        self._found = found
        self.begin()

    def begin(self) -> None:
        """Set the initial state, also in a forked child, which lacks the parent's threads."""
        self._lock = threading.Lock()
        self._opening: _Opening | None = None

    @property
    def is_near(self) -> bool:
        """Whether the shard lies in this machine's memory."""
        return self._found is not None and not isinstance(self._found, RemoteTable)

    def table(self, timeout: Seconds) -> TableBackend:
        """The handle.

        Raises:
            NodeUnavailable: its node is lost or does not answer. TableNotFound: the table was dropped.
        """
        found = self._found
        return self._opened(Deadline.of(timeout)) if found is None else found

    def open_ahead(self, deadline: Deadline) -> None:
        """Begin to open the handle if it is not open; `table` waits for the end."""
        if self._found is None:
            self._begin_opening(deadline)

    def _opened(self, deadline: Deadline) -> TableBackend:
        """Have a thread open the handle: asking the directory and the node may take longer than the call has time."""
        while True:
            opening, mine = self._begin_opening(deadline)
            if not opening.ended.wait(deadline.rest()):
                raise NodeUnavailable(f"node {self.uuid[:12]}, which has shard {self.number}, does not answer")
            if (found := self._found) is not None:
                return found
            if mine:
                assert opening.error is not None
                raise opening.error

    def _begin_opening(self, deadline: Deadline) -> tuple[_Opening, bool]:
        """The opening that is under way, and whether this call has begun it."""
        with self._lock:
            opening = self._opening
            if opening is not None and not opening.ended.is_set():
                return opening, False
            opening = self._opening = _Opening()
        threading.Thread(target=self._open, args=(opening, deadline.left), name="di-store shard", daemon=True).start()
        return opening, True

    def _open(self, opening: _Opening, timeout: float | None) -> None:
        try:
            self._found = self._opener(self.uuid, timeout)
        except BaseException as error:  # raised in the threads that wait for the opening, whatever its type
            opening.error = error
        finally:
            opening.ended.set()

    def check_time(self, deadline: Deadline) -> None:
        """Refuse a call for which no time is left.

        Raises:
            Timeout: the shard is on another node, and the call's time and grace are over.
        """
        if not self.is_near and deadline.late():
            raise Timeout(
                f"no time is left for shard {self.number}", "the other shards used all of it", f"node {self.uuid[:12]}"
            )

    def call(self, deadline: Deadline, make: Callable[[TableBackend, Deadline], T]) -> T:
        """The result of a call of its table. `make` gets the table and the deadline.

        Raises:
            The errors of `table`, `check_time` and the call.
        """
        table = self.table(deadline)
        self.check_time(deadline)
        return make(table, deadline)


def wait_for_one(shards: Sequence[Shard], deadline: Deadline) -> None:
    """Wait until one of the shards is open. All are opened at once.

    Raises: The first shard's error: no shard could be opened. NodeUnavailable: no shard answered until the deadline.
    """
    openings = [shard._begin_opening(deadline)[0] for shard in shards]
    while all(shard._found is None for shard in shards):
        error = openings[0].error
        if error is not None and all(each.ended.is_set() for each in openings):
            raise error
        if deadline.late():
            raise NodeUnavailable(f"node {shards[0].uuid[:12]}, which has shard 0, does not answer")
        for each in openings:
            each.ended.wait(_LOOK_SECONDS)


class ShardReport(NamedTuple):
    """A shard's report, or the reason for a missing one."""

    asked: float  # by time.monotonic()
    stats: TableStats | None
    error: StoreError | None


class ShardReports:
    """The last reports of the shards of a table. Thread-safe: an answer is replaced as a whole.

    Threads of their own ask shards on other nodes, so a shard that does not answer delays a call by at most
    `LOOK_SECONDS`, and only once.
    """

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards
        self._known: dict[int, ShardReport] = {}
        self.begin()
        in_child(self, ShardReports.begin)

    def begin(self) -> None:
        """Set the initial state, also in a forked child, which lacks the parent's threads."""
        self._lock = threading.Lock()
        self._looks: dict[int, threading.Event] = {}
        for shard in self._shards:
            shard.begin()

    def are_fresh(self, age: float) -> bool:
        """Whether `newest` need not wait. Asks the shards whose answers are too old."""
        now = time.monotonic()
        stale = [each for each in self._shards if not self.is_silent(each) and not self._is_fresh(each, now - age)]
        for shard in stale:
            self._ask(shard, now)
        return all(shard.is_near for shard in stale)

    def newest(self, age: float = FRESH_SECONDS, deadline: Deadline | None = None) -> list[TableStats | None]:
        """By shard, its report if it is at most `age` seconds old; None: the shard does not answer.

        If the call's deadline, with grace, leaves less than `LOOK_SECONDS`, a shard that has not answered yet is None
        too; `is_silent` tells them apart.
        """
        now = time.monotonic()
        stale = [shard for shard in self._shards if not self._is_fresh(shard, now - age)]
        for shard in stale:  # all at once
            self._ask(shard, now)
        rest = None if deadline is None else deadline.rest()
        whole = rest is None or rest >= LOOK_SECONDS
        end = time.monotonic() + (LOOK_SECONDS if rest is None else min(rest, LOOK_SECONDS))
        for shard in stale:
            self._wait_for(shard, now - age, end, whole)
        if age > 0:
            for shard in self._shards:  # asked before they are due, nobody waits for these
                if not self._is_fresh(shard, now - age / 2):
                    self._ask(shard, now)
        return [self._known[each.number].stats if self._is_fresh(each, now - age) else None for each in self._shards]

    def _wait_for(self, shard: Shard, since: float, end: float, whole: bool) -> None:
        """Wait until `end` for a shard's newer report, unless the shard did not answer the last time.

        `whole`: this wait is long enough to call the shard silent.
        """
        while not self._is_fresh(shard, since) and not self.is_silent(shard):
            look = self._ask(shard, time.monotonic())
            if look is None:
                return
            if not look.wait(max(end - time.monotonic(), 0.0)):
                if not whole:
                    return
                text = f"the shard on node {shard.uuid[:12]} did not answer for {LOOK_SECONDS:g} s"
                self.note_silent(shard, NodeUnavailable(text))

    def last(self, deadline: Deadline | None = None) -> list[TableStats | None]:
        """By shard, its last report of any age; asks again without waiting. None: the shard does not answer.

        `deadline`: as in `newest`, if some shards have never reported.
        """
        if len(self._known) < len(self._shards):
            return self.newest(FRESH_SECONDS, deadline)
        now = time.monotonic()
        for shard in self._shards:
            if not self._is_fresh(shard, now - FRESH_SECONDS / 2):
                self._ask(shard, now)
        return [self._known[each.number].stats for each in self._shards]

    def forget(self) -> None:
        """Something has changed: ask again."""
        for number, known in list(self._known.items()):
            if known.error is None:
                self._known[number] = known._replace(asked=float("-inf"))

    def forget_empty(self) -> None:
        """Rows were written: ask those shards again that had none, as no draw would be made from them."""
        for number, known in list(self._known.items()):
            if known.stats is not None and known.stats["size"] == 0:
                self._known[number] = known._replace(asked=float("-inf"))

    def is_silent(self, shard: Shard) -> bool:
        """Whether the shard did not answer the last time."""
        known = self._known.get(shard.number)
        return known is not None and known.error is not None

    def note_silent(self, shard: Shard, why: StoreError) -> None:
        """Note that a call of the shard failed."""
        self._known[shard.number] = ShardReport(time.monotonic(), None, why)

    def why(self) -> StoreError:
        """The error if no shard answers. A dropped table is the first reason."""
        errors = [known.error for known in self._known.values() if known.error is not None]
        errors.sort(key=lambda error: isinstance(error, NodeUnavailable))
        return errors[0] if errors else NodeUnavailable("no shard of the table has answered")

    def why_of(self, shard: Shard) -> StoreError | None:
        """The reason why this shard did not answer."""
        known = self._known.get(shard.number)
        return None if known is None else known.error

    def _is_fresh(self, shard: Shard, since: float) -> bool:
        known = self._known.get(shard.number)
        return known is not None and known.error is None and known.asked >= since

    def _ask(self, shard: Shard, now: float) -> threading.Event | None:
        """Ask a shard, unless another thread is asking it; None: nothing to wait for."""
        if shard.is_near:
            self._look(shard, None)
            return None
        with self._lock:
            look = self._looks.get(shard.number)
            if look is not None and not look.is_set():
                return look
            known = self._known.get(shard.number)
            if known is not None and known.error is not None and now - known.asked < RETRY_SECONDS:
                return None
            look = self._looks[shard.number] = threading.Event()
            threading.Thread(target=self._look, args=(shard, look), name="di-store shard", daemon=True).start()
            return look

    def _look(self, shard: Shard, look: threading.Event | None) -> None:
        asked, deadline = time.monotonic(), Deadline(LOOK_SECONDS)
        try:
            found = shard.table(deadline).stats(deadline)
            if not found["live"]:
                raise TableNotFound(f"table {found['name']!r} was dropped")
            self._known[shard.number] = ShardReport(asked, found, None)
        except StoreError as error:
            self._known[shard.number] = ShardReport(time.monotonic(), None, error)
        except OSError as error:
            self._known[shard.number] = ShardReport(time.monotonic(), None, NodeUnavailable(str(error)))
        finally:
            if look is not None:
                look.set()
