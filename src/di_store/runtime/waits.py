"""How every blocked call waits: in short slices, with a deadline, a reason and a line in the log."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from di_store import _core
from di_store._core import Arena, Awaited, Blocked, BlockedBy
from di_store._core import Table as NativeTable
from di_store.base import config
from di_store.base.errors import StoreError, StoreFull, Timeout
from di_store.runtime.inside import SLICE_SECONDS, sleep_inside

LOG_SECONDS = 30.0
KEPT_SECONDS = 0.0005
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


class Nap:
    """One sleep of a call between two attempts: `sleep` it in this thread, or in a task (`runtime.waiter`).

    `wait`: of the call. `awaited`, `seen`, `reason`: as in `Wait.pausing`. `seconds`: until the next attempt, at most.
    """

    __slots__ = ("awaited", "reason", "seconds", "seen", "wait")

    def __init__(self, wait: Wait, awaited: Awaited, seen: int, reason: str, seconds: float) -> None:
        self.wait, self.awaited, self.seen, self.reason, self.seconds = wait, awaited, seen, reason, seconds

    def sleep(self) -> None:
        """Sleep for one slice at most."""
        wait = self.wait
        sleep_inside(self.awaited, wait.shown(), self.seen, min(SLICE_SECONDS, self.seconds))
        wait.look_after(self.seconds < SLICE_SECONDS, self.reason)


class TurnNap:
    """A `Nap` until a turn is free."""

    __slots__ = ("reason", "seconds", "turn", "wait")

    def __init__(self, wait: Wait, turn: _core.Turn, reason: str, seconds: float) -> None:
        self.wait, self.turn, self.reason, self.seconds = wait, turn, reason, seconds

    def sleep(self) -> None:
        """Sleep for one slice at most."""
        wakeup = threading.Lock()
        wakeup.acquire()
        if self.turn.hang(wakeup):
            wakeup.acquire(timeout=min(SLICE_SECONDS, self.seconds))
        else:  # free, perhaps reserved for a thread that has waited longer
            time.sleep(KEPT_SECONDS)
        self.wait.log_if_due(self.reason)


Steps: TypeAlias = "Generator[Nap | TurnNap, None, T]"
"""A call that may wait: yields each sleep, and returns its result. An error thrown into it, or its close, undoes it."""


def run(steps: Steps[T]) -> T:
    """Make the call in this thread."""
    try:
        nap = next(steps)
    except StopIteration as done:  # most calls do not wait
        return done.value  # type: ignore[no-any-return]
    try:
        while True:
            try:
                nap.sleep()
            except BaseException as error:  # also Ctrl-C: the call undoes what it did
                nap = steps.throw(error)
            else:
                nap = next(steps)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()  # an exception of a signal handler may have ended the loop


class Wait:
    """One blocked call. Make this object when the first attempt was blocked, and `pause` between attempts.

    A context manager: from the first pause to the end of the block, other processes see that this call waits.
    `keeps`: the turn that the call keeps while it sleeps, and the number of its hold.
    """

    def __init__(self, arena: Arena | None, timeout: float | None, what: str) -> None:
        """Begin the wait now.

        Args:
            arena: the store; None: the call has no store yet, and may only use `sleep`.
            timeout: seconds; None: no limit.
            what: name of the call, for its error.
        """
        self.began = time.monotonic()
        self.arena = arena
        self._timeout = timeout
        self._what = what
        self._deadline = math.inf if timeout is None else self.began + timeout
        self._log_at = self.began + LOG_SECONDS
        self._reap_at = self.began + SLICE_SECONDS / 2
        self._passed = False
        self.keeps: tuple[_core.Turn, int] | None = None
        self._shown: _core.Wait | None = None
        self.ended = False
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
        self.ended = True
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end()

    @property
    def left(self) -> float:
        """Seconds until the deadline; zero or less when it is over."""
        return self._deadline - time.monotonic()

    def passed(self, keeps: tuple[_core.Turn, int] | None = None) -> None:
        """Note that a part of the call is done: from now on the error says that the call must not be repeated."""
        self._passed, self.keeps = True, keeps

    def pausing(
        self,
        awaited: Awaited,
        seen: int,
        reason: str,
        *,
        full: bool = False,
        at_most: float = math.inf,
        table: NativeTable | None = None,
        holder: int | None = None,
    ) -> Steps[None]:
        """Sleep until something changes.

        Args:
            awaited: the number that changes then.
            seen: that number before the last look.
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
        yield self.nap(awaited, seen, reason, min(left, max(at_most, 0.0)), table=table, holder=holder)

    def nap(
        self,
        awaited: Awaited,
        seen: int,
        reason: str,
        seconds: float,
        *,
        table: NativeTable | None = None,
        holder: int | None = None,
    ) -> Nap:
        """The sleep of `pausing`, with its arguments: at most `seconds`, and the deadline is not checked."""
        self._about, self._holder = table, holder
        return Nap(self, awaited, seen, reason, seconds)

    def shown(self) -> _core.Wait:
        """The record by which other processes see that this call waits."""
        if self._shown is None:
            assert self.arena is not None
            self._shown = _core.Wait(self.arena)
        return self._shown

    def look_after(self, always: bool, reason: str) -> None:
        """After a sleep: look for dead processes, and log the reason if a line is due.

        A wait that was woken soon looks later, if not `always`: a request and its answer are two such waits.
        """
        now = time.monotonic()
        if now >= self._reap_at or always:
            self._reap_at = now + SLICE_SECONDS / 2
            assert self.arena is not None
            self.arena.reap()
        self.log_if_due(reason)

    def sleep(
        self, seconds: float, reason: str, shown: Awaited | None = None, seen: int = 0, table: NativeTable | None = None
    ) -> None:
        """Sleep for a call that nothing wakes, for no longer than the deadline allows.

        `shown`, `seen`, `table`: what other processes see that it waits for, if it asks other stores too.
        """
        end = time.monotonic() + min(seconds, max(self.left, 0.0))
        if shown is not None and self._shown is None:
            self.nap(shown, seen, reason, end - time.monotonic(), table=table).sleep()
        time.sleep(max(end - time.monotonic(), 0.0))
        self.log_if_due(reason)

    def pausing_turn(self, turn: _core.Turn, reason: str) -> Steps[None]:
        """Sleep until the turn may be free, for one slice at most.

        The deadline is that of the call plus one slice, because nearly all turns end at once.

        Raises:
            Timeout: another thread held the turn until then.
        """
        left = self.left + SLICE_SECONDS
        if left <= 0:
            raise self.failure(reason, table=self._about, holder=self._holder)
        yield TurnNap(self, turn, reason, left)

    def failure(
        self, reason: str, *, full: bool = False, table: NativeTable | None = None, holder: int | None = None
    ) -> StoreFull | Timeout:
        """The error of a call whose deadline is over; the arguments are those of `pausing`."""
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
        return None if self.arena is None else suspect(self.arena, self._about, self._holder)

    def log_if_due(self, reason: str) -> None:
        """Log that the call still waits, every `LOG_SECONDS`."""
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


class SampleWait(Wait):
    """The wait of a `sample`. Even without a timeout it ends when nobody writes to the table any more."""

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        super().__init__(arena, timeout, what)
        self._attended = self.began

    def check_attended(self, table: NativeTable, reason: str) -> None:
        """Raise `Timeout` if for a minute no insert came, and nothing else was there from which items come."""
        if self._timeout is not None:
            return
        assert self.arena is not None
        now = time.monotonic()
        stats = table.stats()
        # Leased items may come back, versions may be published, and a group may be short at its deadline.
        if stats["writers"] or stats["leased"] or table.paced_out or table.group_due_seconds < math.inf:
            self._attended = now
        if min(now - self._attended, stats["seconds_since_insert"]) < ABANDONED_SECONDS:
            return
        why = f"{reason}; for {ABANDONED_SECONDS:.0f} s no writer of the table was open and no insert came"
        raise Timeout(f"{self._what} would wait forever", why, suspect(self.arena, table))


class InsertWait(Wait):
    """The wait of an `append` or `insert`. Even without a timeout it ends when the table's learners have ended."""

    def __init__(self, arena: Arena, timeout: float | None, what: str) -> None:
        super().__init__(arena, timeout, what)
        self._attended = self.began
        self._look_at = self.began + ABANDONED_SECONDS / 60
        self._table: NativeTable | None = None

    def pausing_for(self, made: Blocked, table: NativeTable, arena: Arena) -> Steps[None]:
        """Sleep until the blocking condition may have changed.

        Raises:
            Timeout: the deadline is over, or for a minute there was no learner.
        """
        if not made.passed:
            self._check_attended(table, made.text)
        awaited = arena.wait_room if made.why == BlockedBy.STORE_ROOM else table.wait_room
        if made.why == BlockedBy.LOCK:
            awaited = table.wait_lock(made.holder)
        elif made.why == BlockedBy.LIMITER:
            awaited = table.wait_limiter
        about = None if made.why == BlockedBy.STORE_ROOM else table
        full = made.why not in (BlockedBy.LIMITER, BlockedBy.LOCK)
        return self.pausing(awaited, made.seq, made.text, full=full, table=about, holder=made.holder)

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
        assert self.arena is not None
        why = f"{reason}; for {ABANDONED_SECONDS:.0f} s no process that has drawn from the table was there"
        raise Timeout(f"{self._what} would wait forever", why, suspect(self.arena, table))


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
