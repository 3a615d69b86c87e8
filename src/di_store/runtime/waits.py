"""How every blocked call waits: in short slices, with a deadline, a reason and a line in the log."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from di_store import _core
from di_store.base import config
from di_store.base.errors import StoreError, StoreFull, Timeout

if TYPE_CHECKING:
    from di_store._core import Arena, Blocked
    from di_store._core import Table as NativeTable

Block = Callable[[_core.Wait, int, float], None]
"""The core's wait on a sequence number: for a wait, the number seen, seconds at most."""

SLICE_SECONDS = 0.1
LOG_SECONDS = 30.0
_KEPT_SECONDS = 0.0005
"""Between two looks at a turn that is kept for a thread which has waited longer."""
CALL_SECONDS = 60.0
"""How long a call without a timeout of its own waits for what a stopped process may hold."""
ABANDONED_SECONDS = 60.0
"""How long a call without a timeout waits for the other side: `sample` for a table that nobody writes to, `append` and
`insert` for one whose learners have gone."""

_FOLLOWS = "the writer's next call, or close(), ends with the rest first: do not repeat this one"

logger = logging.getLogger("di_store")


def check_timeout(timeout: Any, option: str = "timeout") -> float | None:
    """Seconds, or None for no limit.

    Raises:
        ValueError: negative or NaN. TypeError: no number.
    """
    if timeout is None:
        return None
    seconds = config.as_float(option, timeout, "seconds, or None for no limit")
    if not seconds >= 0:
        raise ValueError(f"{option}={timeout!r}: give seconds >= 0, or None for no limit")
    return None if math.isinf(seconds) else seconds


def core_seconds(seconds: float | None) -> float:
    """What the core takes as the patience of a call: -1 for no limit."""
    return -1.0 if seconds is None else seconds


def lock_seconds(timeout: Any) -> float:
    """The same of a timeout as a caller gave it: of calls that wait for nothing but locks."""
    return core_seconds(check_timeout(timeout))


_Wait = TypeVar("_Wait", bound="Wait")


class Wait:
    """One blocked call. Make it when the first look was in vain, and call `pause` between the looks.

    A context manager: from the first pause to the end of the block other processes see that this call waits.
    """

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        self.began = time.monotonic()
        self._arena = arena
        self._timeout = timeout
        self._what = what
        self._deadline = math.inf if timeout is None else self.began + timeout
        self._log_at = self.began + LOG_SECONDS
        self._passed = False
        self._shown: _core.Wait | None = None
        self._about: NativeTable | None = None

    def __enter__(self: _Wait) -> _Wait:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """The call waits no more. An error on its way may keep this object; nobody must see it as a wait for that."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end()

    @property
    def left(self) -> float:
        """Seconds until the deadline; not above zero when it is over."""
        return self._deadline - time.monotonic()

    def passed(self) -> None:
        """The call has had a part of its effect: a failure says that it must not be repeated."""
        self._passed = True

    def pause(
        self,
        block: Block,
        seen: int,
        reason: str,
        *,
        full: bool = False,
        at_most: float = SLICE_SECONDS,
        table: NativeTable | None = None,
    ) -> None:
        """Sleep until something changed, for one slice at most.

        Args:
            block: the core's wait on a sequence number.
            seen: the number as it was before the last look.
            reason: what the call waits for, with counts.
            full: at the deadline raise `StoreFull` in place of `Timeout`.
            at_most: seconds.
            table: whose items, limiter or room it waits for: nobody else can be the culprit. None: anybody may be.

        Raises:
            Timeout, StoreFull: the deadline is over.
        """
        self._about = table
        left = self.left
        if left <= 0:
            raise self.failure(reason, full=full)
        if self._shown is None:
            self._shown = _core.Wait(self._arena)
        _block(block, self._shown, seen, min(SLICE_SECONDS, left, max(at_most, 0.0)))
        self._arena.reap()
        self._log_if_due(reason)

    def pause_turn(self, turn: _core.Turn, reason: str) -> None:
        """Sleep until the turn may be free, for one slice at most.

        The deadline is that of the call and one slice more: nearly all turns are over at once.

        Raises:
            Timeout: another thread has had it for longer.
        """
        left = self.left + SLICE_SECONDS
        if left <= 0:
            raise self.failure(reason)
        bell = threading.Lock()
        bell.acquire()
        if turn.hang(bell):
            bell.acquire(timeout=min(SLICE_SECONDS, left))
        else:  # free, perhaps kept for who has waited longer
            time.sleep(_KEPT_SECONDS)
        self._log_if_due(reason)

    def failure(self, reason: str, *, full: bool = False) -> StoreFull | Timeout:
        """The error for a call that waited long enough."""
        if full:
            return StoreFull(f"{self._what}: {reason}")
        waited = "" if self._timeout is None else f" within {round(self._timeout, 2):g} s"
        if not self._passed:
            # mutant: waits-give-no-reason
            return Timeout(f"{self._what} did not come through{waited}", reason, self._suspect(reason))
        what = f"{self._what} has written its rows and some of its items, and could not end{waited}"
        late = Timeout(what, reason, self._suspect(reason), remedy=_FOLLOWS)
        late.passed = True
        return late

    def _suspect(self, reason: str) -> str | None:
        return suspect(self._arena, reason, self._about)

    def _log_if_due(self, reason: str) -> None:
        # mutant: long-waits-are-silent
        if time.monotonic() < self._log_at:
            return
        self._log_at += LOG_SECONDS
        waited = time.monotonic() - self.began
        culprit = self._suspect(reason)
        held = f"; held up by {culprit}" if culprit else ""
        logger.warning("%s has waited %.0f s: %s%s", self._what, waited, reason, held)
        _flush()


def log_wait(before: float, now: float, reason: str) -> None:
    """The core's word of a wait that goes on inside it, about once a second: one line every `LOG_SECONDS`.

    Args:
        before: seconds waited when it said so last.
        now: seconds waited.
        reason: which lock the call waits for, and who holds it.
    """
    if now // LOG_SECONDS > before // LOG_SECONDS:
        logger.warning("a call has waited %.0f s: %s", now, reason)
        _flush()


def _flush() -> None:
    for handler in (*logger.handlers, *logging.getLogger().handlers):
        handler.flush()


_inside: set[int] = set()
_ending = False


def _block(block: Block, shown: _core.Wait, seen: int, seconds: float) -> None:
    """One slice inside the core, which other threads than the main one leave before the interpreter ends.

    From then on they sleep outside of it: their calls go on and keep their deadlines, for the program may wait for them
    in an exit handler of its own, and whom the interpreter's end finds in Python's own sleep it ends without harm.
    """
    me = threading.get_ident()
    # mutant: the-end-parks-threads-that-wait
    if _ending and me != threading.main_thread().ident:
        time.sleep(seconds)
        return
    _inside.add(me)
    try:
        block(shown, seen, seconds)
    finally:
        _inside.discard(me)


def _leave() -> None:
    """Before the interpreter ends: it would unwind threads that sleep in the core, which they do not survive."""
    global _ending
    _ending = True
    me = {threading.get_ident()}  # a signal handler's exception may have left it behind
    until = time.monotonic() + 20 * SLICE_SECONDS
    while _inside - me and time.monotonic() < until:
        time.sleep(SLICE_SECONDS / 20)


def _forget() -> None:
    """In a forked child the other threads are not there."""
    _inside.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)


class SampleWait(Wait):
    """The wait of a `sample`: without a timeout it still ends when nobody writes to the table any more."""

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        super().__init__(arena, timeout, what)
        self._attended = self.began

    def check_attended(self, table: NativeTable, reason: str) -> None:
        """Raise `Timeout` if for a minute no writer of the table was open and no insert came."""
        if self._timeout is not None:
            return
        now = time.monotonic()
        stats = table.stats()
        if stats["writers"]:
            self._attended = now
        if min(now - self._attended, stats["seconds_since_insert"]) < ABANDONED_SECONDS:
            return
        why = f"{reason}; for {ABANDONED_SECONDS:.0f} s no writer of the table was open and no insert came"
        raise Timeout(f"{self._what} would wait forever", why, suspect(self._arena, why, table))


class InsertWait(Wait):
    """The wait of an `append` or `insert`: without a timeout it still ends when the table's learners have gone."""

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        super().__init__(arena, timeout, what)
        self._attended = self.began
        self._look_at = self.began + ABANDONED_SECONDS / 60
        self._table: NativeTable | None = None

    def pause_for(self, made: Blocked, table: NativeTable, arena: Arena) -> None:
        """Sleep until what blocks the call may have changed, for one slice at most.

        Raises:
            Timeout: the deadline is over, or for a minute no learner was there.
        """
        if not made.passed:
            self._check_attended(table, made.text)
        block: Block = arena.wait_room if made.why == STORE_ROOM else table.wait_room
        if made.why == LOCK:
            block = partial(_wait_lock, table, made.holder)
        elif made.why == LIMITER:
            block = table.wait_limiter
        about = None if made.why == STORE_ROOM else table
        self.pause(block, made.seq, made.text, full=made.why not in (LIMITER, LOCK), table=about)

    def _check_attended(self, table: NativeTable, reason: str) -> None:
        """Raise `Timeout` if there had been learners and for a minute of this wait there was none."""
        now = time.monotonic()
        if self._timeout is not None or now < self._look_at:
            return
        self._look_at = now + ABANDONED_SECONDS / 60
        if table.learners() != 0 or self._table not in (None, table):  # None: they are still to come
            self._attended = now
        self._table = table
        if now - self._attended < ABANDONED_SECONDS:
            return
        why = f"{reason}; for {ABANDONED_SECONDS:.0f} s no process that has drawn from the table was there"
        raise Timeout(f"{self._what} would wait forever", why, suspect(self._arena, why, table))


LIMITER, STORE_ROOM, LOCK = 1, 3, 4
"""What blocks a call of the core's writer; 2: room of the table. A call that has begun waits for locks only."""


def _wait_lock(table: NativeTable, holder: int, shown: _core.Wait, seen: int, seconds: float) -> None:
    table.wait_lock(shown, seen, seconds, holder)


def suspect(arena: Arena, reason: str, table: NativeTable | None = None) -> str | None:
    """Another process of the store that is stopped, as text: the one that the reason names, or who else it may be.

    Args:
        arena: the store.
        reason: what the call waits for.
        table: only who has drawn from it, has a writer of it open, or holds a lock that it needs; None: anybody.
    """
    try:
        clients = arena.stats()["clients"]
        # mutant: any-stopped-process-is-the-culprit
        concerned = None if table is None else set(table.concerned())
    except (StoreError, OSError, MemoryError):  # what is told about a failure must not replace it
        return None
    others = [client for client in clients if client["state"] in ("T", "t") and not client["self"]]
    named = next((name for name in map(_stopped, others) if name in reason), None)
    if named is not None:
        return named
    return next((_stopped(client) for client in others if concerned is None or client["slot"] in concerned), None)


def _stopped(client: dict[str, Any]) -> str:
    return f"pid {client['pid']}, stopped"
