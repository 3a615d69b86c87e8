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
from typing import Any, Generic, TypeVar

import msgspec

from di_store import _core
from di_store._core import Arena, Blocked, BlockedBy
from di_store._core import Table as NativeTable
from di_store.base import config
from di_store.base.errors import StoreError, StoreFull, Timeout

Block = Callable[[_core.Wait, int, float], None]
"""The core's wait on a sequence number. Arguments: the wait, the number last seen, seconds at most."""

SLICE_SECONDS = 0.1
LOG_SECONDS = 30.0
_KEPT_SECONDS = 0.0005
"""Sleep between two attempts to take a turn that is reserved for a thread which has waited longer."""
CALL_SECONDS = 60.0
"""How long a call that takes no timeout waits for a lock that a stopped process may hold."""
ABANDONED_SECONDS = 60.0
"""How long a call with timeout=None waits if the other side is absent: `sample` if nobody writes to the table, `append`
and `insert` if its learners have gone."""

_MOST_SECONDS = 1e9
"""About 30 years: Python's locks and threads take no more than 9e9."""

_FOLLOWS = "do not repeat this call: the writer's next call, or close(), first writes the rest"

logger = logging.getLogger("di_store")


def check_timeout(timeout: Any, option: str = "timeout") -> float | None:
    """Seconds, at most `_MOST_SECONDS`, or None for no limit.

    Raises:
        ValueError: negative or NaN. TypeError: not a number.
    """
    if timeout is None:
        return None
    seconds = config.as_float(option, timeout, "seconds, or None for no limit")
    if not seconds >= 0:
        raise ValueError(f"{option}={timeout!r}: give seconds >= 0, or None for no limit")
    if seconds < _MOST_SECONDS:
        return seconds
    return None if math.isinf(seconds) else _MOST_SECONDS


def core_seconds(seconds: float | None) -> float:
    """A timeout in the core's form: -1 for no limit."""
    return -1.0 if seconds is None else seconds


def lock_seconds(timeout: Any) -> float:
    """`core_seconds` of a caller's timeout, for calls that only wait for locks."""
    return core_seconds(check_timeout(timeout))


_Wait = TypeVar("_Wait", bound="Wait")
T = TypeVar("T")


class Missing(msgspec.Struct, Generic[T]):
    """Result of a look in `until` that did not find its result yet.

    Attributes:
        block: the core's wait on a sequence number, which changes when the result may exist.
        seen: value of that number before the look.
        reason: the condition that the call waits for, with counts.
        full: at the deadline raise `StoreFull` instead of `Timeout`.
        holder: the process that the reason names, by its place among the store's clients.
        late: returns the call's result at the deadline; None: the deadline is an error.
        error: raised at the deadline instead of `Timeout`.
    """

    block: Block
    seen: int
    reason: str
    full: bool = False
    holder: int | None = None
    late: Callable[[], T] | None = None
    error: Exception | None = None


def until(arena: Callable[[], Arena], timeout: float | None, what: str, look: Callable[[Arena], T | Missing[T]]) -> T:
    """Look repeatedly until the look returns something other than `Missing`.

    Args:
        arena: returns the store's attachment for each look, or raises to end the wait.
        timeout: seconds; None: no limit.
        what: name of the call, for its error.
        look: one attempt; must not block.

    Raises:
        Timeout, StoreFull: the deadline is over, and the last look gave neither `late` nor `error`.
    """
    wait: Wait | None = None
    found: T | Missing[T] | None = None
    try:
        while True:
            attached = arena()
            found = look(attached)
            if type(found) is not Missing:
                return found  # type: ignore[return-value]
            may_end = found.late is not None or found.error is not None
            if wait is None and not (may_end and timeout == 0):
                wait = Wait(attached, timeout, what)
                if not may_end and attached.reap():  # dead processes may have held what is missing
                    continue
            if wait is None or (left := wait.left) <= 0:
                if found.error is not None:
                    raise found.error
                if found.late is not None:
                    return found.late()
                assert wait is not None
                raise wait.failure(found.reason, full=found.full, holder=found.holder)
            wait.sleep_on(found.block, found.seen, found.reason, left, holder=found.holder)
    finally:
        found = None  # breaks the cycle error -> traceback -> frame -> error
        if wait is not None:
            wait.end()


class Wait:
    """One blocked call. Make this object when the first attempt was blocked, and call `pause` between attempts.

    A context manager: from the first pause to the end of the block, other processes see that this call waits.
    """

    def __init__(self, arena: Arena | None, timeout: float | None, what: str) -> None:
        """Begin the wait now.

        Args:
            arena: the store; None: the call has no store yet, and may only use `sleep`.
            timeout: seconds; None: no limit.
            what: name of the call, for its error.
        """
        self.began = time.monotonic()
        self._arena = arena
        self._timeout = timeout
        self._what = what
        self._deadline = math.inf if timeout is None else self.began + timeout
        self._log_at = self.began + LOG_SECONDS
        self._reap_at = self.began + SLICE_SECONDS / 2
        self._passed = False
        self._shown: _core.Wait | None = None
        self._about: NativeTable | None = None
        self._holder: int | None = None

    def __enter__(self: _Wait) -> _Wait:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the wait now: an exception may keep this object alive, and `stats()` must not show it as waiting."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end()

    @property
    def left(self) -> float:
        """Seconds until the deadline; zero or less when it is over."""
        return self._deadline - time.monotonic()

    def passed(self) -> None:
        """Note that a part of the call is done: from now on the error says that the call must not be repeated."""
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
        holder: int | None = None,
    ) -> None:
        """Sleep until something changes, for one slice at most.

        Args:
            block: the core's wait on a sequence number.
            seen: value of the number before the last look.
            reason: the condition that the call waits for, with counts.
            full: at the deadline raise `StoreFull` instead of `Timeout`.
            at_most: seconds.
            table: the table that the call waits for; only processes that use it can be the culprit. None: any process
                can be.
            holder: the process that the reason names, by its place among the store's clients.

        Raises:
            Timeout, StoreFull: the deadline is over.
        """
        left = self.left
        if left <= 0:
            raise self.failure(reason, full=full, table=table, holder=holder)
        self.sleep_on(block, seen, reason, min(left, max(at_most, 0.0)), table=table, holder=holder)

    def sleep_on(
        self,
        block: Block,
        seen: int,
        reason: str,
        seconds: float,
        *,
        table: NativeTable | None = None,
        holder: int | None = None,
    ) -> None:
        """The sleep of `pause`, with its arguments: at most `seconds`, and the deadline is not checked."""
        self._about, self._holder = table, holder
        assert self._arena is not None
        if self._shown is None:
            self._shown = _core.Wait(self._arena)
        _block(block, self._shown, seen, min(SLICE_SECONDS, seconds))
        now = time.monotonic()
        # A wait that was woken soon looks for dead processes later: a request and its answer are two such waits.
        if now >= self._reap_at or seconds < SLICE_SECONDS:
            self._reap_at = now + SLICE_SECONDS / 2
            self._arena.reap()
        self._log_if_due(reason)

    def sleep(
        self, seconds: float, reason: str, shown: Block | None = None, seen: int = 0, table: NativeTable | None = None
    ) -> None:
        """Sleep for a call that nothing wakes, for no longer than the deadline allows.

        `shown`, `seen`, `table`: as `block`, `seen`, `table` of `pause`, for a call that asks other stores too: other
        processes see that it waits for this.
        """
        end = time.monotonic() + min(seconds, max(self.left, 0.0))
        if shown is not None and self._shown is None:
            self.sleep_on(shown, seen, reason, end - time.monotonic(), table=table)
        time.sleep(max(end - time.monotonic(), 0.0))
        self._log_if_due(reason)

    def pause_turn(self, turn: _core.Turn, reason: str) -> None:
        """Sleep until the turn may be free, for one slice at most.

        The deadline is that of the call plus one slice, because nearly all turns end at once.

        Raises:
            Timeout: another thread held the turn until then.
        """
        left = self.left + SLICE_SECONDS
        if left <= 0:
            raise self.failure(reason, table=self._about, holder=self._holder)
        wakeup = threading.Lock()
        wakeup.acquire()
        if turn.hang(wakeup):
            wakeup.acquire(timeout=min(SLICE_SECONDS, left))
        else:  # free, perhaps reserved for a thread that has waited longer
            time.sleep(_KEPT_SECONDS)
        self._log_if_due(reason)

    def failure(
        self, reason: str, *, full: bool = False, table: NativeTable | None = None, holder: int | None = None
    ) -> StoreFull | Timeout:
        """The error of a call whose deadline is over; the arguments are those of `pause`."""
        self._about, self._holder = table, holder
        if full:
            return StoreFull(f"{self._what}: {reason}")
        waited = "" if self._timeout is None else f" after {round(self._timeout, 2):g} s"
        if not self._passed:
            return Timeout(f"{self._what} timed out{waited}", reason, self._suspect(), holder=self._holder)
        what = f"{self._what} has written its rows and some of its items, then timed out{waited}"
        late = Timeout(what, reason, self._suspect(), holder=self._holder, remedy=_FOLLOWS)
        late.passed = True
        return late

    def _suspect(self) -> str | None:
        return None if self._arena is None else suspect(self._arena, self._about, self._holder)

    def _log_if_due(self, reason: str) -> None:
        if _watched and (watch := _watched.get(threading.get_ident())) is not None:
            watch(reason)
        if time.monotonic() < self._log_at:
            return
        self._log_at += LOG_SECONDS
        waited = time.monotonic() - self.began
        culprit = self._suspect()
        held = f"; held up by {culprit}" if culprit else ""
        logger.warning("%s has waited %.0f s: %s%s", self._what, waited, reason, held)
        _flush()


def log_wait(before: float, now: float, reason: str) -> None:
    """Called by the core about once a second while a call waits inside it; logs a line every `LOG_SECONDS`.

    Args:
        before: seconds waited at the previous call.
        now: seconds waited.
        reason: the lock that the call waits for, and its holder.
    """
    if now // LOG_SECONDS > before // LOG_SECONDS:
        logger.warning("a call has waited %.0f s: %s", now, reason)
        _flush()


def _flush() -> None:
    for handler in (*logger.handlers, *logging.getLogger().handlers):
        handler.flush()


_watched: dict[int, Callable[[str], None]] = {}


class Watched:  # not made by contextlib: an agent enters one for each call
    """Call `watch` with the reason after each slice of a wait of this thread. `watch` may raise to end the wait."""

    __slots__ = ("_before", "_watch")

    def __init__(self, watch: Callable[[str], None]) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._before, _watched[me] = _watched.get(me), self._watch

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del _watched[threading.get_ident()]
        else:
            _watched[threading.get_ident()] = self._before


_inside: set[int] = set()
_ending = False


def _block(block: Block, shown: _core.Wait, seen: int, seconds: float) -> None:
    """Sleep one slice inside the core.

    Before the interpreter ends, all threads but the main one leave the core and then sleep in Python. Their calls go on
    and keep their deadlines, because an exit handler may wait for them. The interpreter can end a thread that sleeps in
    Python without harm.
    """
    me = threading.get_ident()
    if _ending and me != threading.main_thread().ident:
        time.sleep(seconds)
        return
    _inside.add(me)
    try:
        block(shown, seen, seconds)
    finally:
        _inside.discard(me)


def _leave() -> None:
    """Called before the interpreter ends: unwinding the stack of a thread inside the core would abort the process."""
    global _ending
    _ending = True
    me = {threading.get_ident()}  # an exception of a signal handler may have left its own entry
    until = time.monotonic() + 20 * SLICE_SECONDS
    while _inside - me and time.monotonic() < until:
        time.sleep(SLICE_SECONDS / 20)


def _forget() -> None:
    """Reset the state in a forked child, which has none of the parent's other threads."""
    _inside.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)


class SampleWait(Wait):
    """The wait of a `sample`. Even without a timeout it ends when nobody writes to the table any more."""

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        super().__init__(arena, timeout, what)
        self._attended = self.began

    def check_attended(self, table: NativeTable, reason: str) -> None:
        """Raise `Timeout` if for a minute no writer of the table was open, nothing was leased and no insert came."""
        if self._timeout is not None:
            return
        assert self._arena is not None
        now = time.monotonic()
        stats = table.stats()
        if stats["writers"] or stats["leased"]:  # leased items may come back
            self._attended = now
        if min(now - self._attended, stats["seconds_since_insert"]) < ABANDONED_SECONDS:
            return
        why = f"{reason}; for {ABANDONED_SECONDS:.0f} s no writer of the table was open and no insert came"
        raise Timeout(f"{self._what} would wait forever", why, suspect(self._arena, table))


class InsertWait(Wait):
    """The wait of an `append` or `insert`. Even without a timeout it ends when the table's learners have ended."""

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        super().__init__(arena, timeout, what)
        self._attended = self.began
        self._look_at = self.began + ABANDONED_SECONDS / 60
        self._table: NativeTable | None = None

    def pause_for(self, made: Blocked, table: NativeTable, arena: Arena) -> None:
        """Sleep until the blocking condition may have changed, for one slice at most.

        Raises:
            Timeout: the deadline is over, or for a minute there was no learner.
        """
        if not made.passed:
            self._check_attended(table, made.text)
        block: Block = arena.wait_room if made.why == BlockedBy.STORE_ROOM else table.wait_room
        if made.why == BlockedBy.LOCK:
            block = partial(_wait_lock, table, made.holder)
        elif made.why == BlockedBy.LIMITER:
            block = table.wait_limiter
        about = None if made.why == BlockedBy.STORE_ROOM else table
        full = made.why not in (BlockedBy.LIMITER, BlockedBy.LOCK)
        self.pause(block, made.seq, made.text, full=full, table=about, holder=made.holder)

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
        assert self._arena is not None
        why = f"{reason}; for {ABANDONED_SECONDS:.0f} s no process that has drawn from the table was there"
        raise Timeout(f"{self._what} would wait forever", why, suspect(self._arena, table))


def _wait_lock(table: NativeTable, holder: int | None, shown: _core.Wait, seen: int, seconds: float) -> None:
    table.wait_lock(shown, seen, seconds, holder)


def suspect(arena: Arena, table: NativeTable | None = None, holder: int | None = None) -> str | None:
    """A stopped process of the store that may block the call, as text: `holder` first, else one that uses the table.

    Args:
        arena: the store.
        table: only processes that have drawn from it, have a writer of it open, or hold a lock that it needs; None:
            all.
        holder: the process known to block the call, by its place among the clients.
    """
    try:
        clients = arena.stats()["clients"]
        concerned = None if table is None else set(table.concerned())
    except (StoreError, OSError, MemoryError):  # this text is part of an error; failing here must not hide it
        return None
    others = [client for client in clients if client["state"] in ("T", "t") and not client["self"]]
    suspects = [client for client in others if client["slot"] == holder]
    suspects += [client for client in others if concerned is None or client["slot"] in concerned]
    return _stopped(suspects[0]) if suspects else None


def _stopped(client: dict[str, Any]) -> str:
    return f"pid {client['pid']}, stopped"
