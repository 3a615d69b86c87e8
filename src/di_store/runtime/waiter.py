"""How calls wait in asyncio: tasks sleep, and one thread of the process waits for all of them.

A call that may wait is a generator of its sleeps (`waits.Steps`). `in_task` runs it in the thread of the event loop, so
data that is there comes without another thread. For each sleep the task leaves a `_Ticket` with the process's `Waiter`.
Its thread sleeps on the numbers of all tickets at once, and wakes the tasks whose numbers have changed.

Tasks and the thread share no lock: tasks only append to `_inbox`. Everything else belongs to the thread. A missing
wake-up costs time alone, because the thread also wakes up to `_AT_ONCE` tasks of each number every slice, those first
that have not looked for longest. Deadlines are timers of the event loops.
"""

from __future__ import annotations

import heapq
import math
import os
import time
from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, TypeVar

from di_store import _core
from di_store.runtime.background import Background, Wakeup
from di_store.runtime.inside import SLICE_SECONDS, sleep_inside
from di_store.runtime.waits import KEPT_SECONDS, Nap, Steps, TurnNap, logger

if TYPE_CHECKING:
    import asyncio  # which loads TLS: only those who run a loop need it

_AT_ONCE = 64
"""Tasks of one number that are woken together, if what has come is for one of them alone. Each that ends wakes two
more. So thousands of tasks do not all look for one item."""
_IDLE_SECONDS = 3600.0

T = TypeVar("T")
_orders = count()


async def in_task(steps: Steps[T]) -> T:
    """Make the call in a task. If the task is cancelled, the call ends as after an exception in the plain call."""
    ticket: _Ticket | None = None
    try:
        nap = next(steps)
        from asyncio import get_running_loop

        order, loop = next(_orders), get_running_loop()
        while True:
            try:
                if isinstance(nap, Nap):
                    ticket = _Ticket(nap, order, loop)
                    try:
                        _waiter.add(ticket)
                        await ticket.future
                    finally:
                        ticket.end()
                else:
                    await _sleep_until_free(nap, loop)
            except BaseException as error:  # also a task's end: the call undoes what it did
                nap = steps.throw(error)
            else:
                nap = next(steps)
    except StopIteration as done:
        found: T = done.value
        return found
    finally:
        steps.close()
        if ticket is not None:
            _waiter.pass_on(ticket)


class _Ticket:
    """A task that sleeps. After its wake-up it is of no use.

    Attributes:
        nap: its sleep.
        record: shows other processes that the call waits.
        order: a number of its call: the lower, the longer it has waited.
        asleep: whether nobody has woken it yet.
        queue: the tasks that sleep on the same number; None: the thread has not seen the ticket yet.
    """

    __slots__ = ("_timer", "asleep", "future", "loop", "nap", "order", "queue", "record")

    def __init__(self, nap: Nap, order: int, loop: asyncio.AbstractEventLoop) -> None:
        self.nap, self.order, self.loop = nap, order, loop
        self.record = nap.wait.shown()
        self.future: asyncio.Future[None] = loop.create_future()
        self._timer = None if nap.seconds == math.inf else loop.call_later(nap.seconds, self.wake)
        self.asleep = True
        self.queue: _Queue | None = None
        if (keeps := nap.wait.keeps) is not None:
            turn, hold = keeps
            turn.sleep(hold)

    def wake(self) -> None:
        """Called in the event loop."""
        self.asleep = False
        _set(self.future)

    def end(self) -> None:
        """The task is awake, or was cancelled."""
        self.asleep = False
        if self._timer is not None:
            self._timer.cancel()
        if (keeps := self.nap.wait.keeps) is not None:
            turn, hold = keeps
            turn.wake(hold)


class _Bell:
    """What a turn releases when it is free: wakes a task."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        self._loop, self._future = loop, future

    def release(self) -> None:
        """Called in any thread."""
        self._loop.call_soon_threadsafe(_set, self._future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _sleep_until_free(nap: TurnNap, loop: asyncio.AbstractEventLoop) -> None:
    future: asyncio.Future[None] = loop.create_future()
    seconds = nap.seconds if nap.turn.hang(_Bell(loop, future)) else KEPT_SECONDS
    timer = loop.call_later(min(SLICE_SECONDS, seconds), _set, future)
    try:
        await future
    finally:
        timer.cancel()


class _Queue:
    """The tasks that sleep on one number. Used by the waiter's thread only."""

    def __init__(self, awaited: _core.Awaited, seen: int) -> None:
        self.awaited = awaited
        self.seen = seen  # the number when tasks were last woken
        self.tickets: dict[int, _Ticket] = {}  # by order; first those that have not looked for longest
        self._orders: list[int] = []  # a heap of the orders of these tickets, and of some that have left
        self._woken = False  # whether some tickets are to be woken, although the number is still `seen`

    def add(self, ticket: _Ticket) -> None:
        """A task goes to sleep. It looked before it came, so it may have missed a change."""
        ticket.queue, self._woken = self, self._woken or ticket.nap.seen != self.seen
        self.tickets[ticket.order] = ticket
        heapq.heappush(self._orders, ticket.order)

    def changed(self) -> list[_Ticket]:
        """The tickets to wake, if the number has changed."""
        now = self.awaited.seq
        if now == self.seen and not self._woken:
            return []
        self.seen, self._woken = now, False
        return self.oldest(_AT_ONCE if self.awaited.for_one else len(self.tickets))

    def oldest(self, most: int) -> list[_Ticket]:
        """Take up to so many tickets, those first that have waited for longest."""
        found: list[_Ticket] = []
        while self.tickets and len(found) < most:
            ticket = self.tickets.pop(heapq.heappop(self._orders), None)
            if ticket is not None and ticket.asleep:
                found.append(ticket)
        return found

    def first(self) -> _Ticket:
        """The ticket that has waited for longest; there is one."""
        while self._orders[0] not in self.tickets:
            heapq.heappop(self._orders)
        return self.tickets[self._orders[0]]

    def idle(self) -> list[_Ticket]:
        """Take the tickets that have not looked for longest. Forget those of ended calls and closed loops."""
        for ticket in [each for each in self.tickets.values() if not each.asleep or each.loop.is_closed()]:
            del self.tickets[ticket.order]
        found = list(islice(self.tickets.values(), _AT_ONCE))
        for ticket in found:
            del self.tickets[ticket.order]
        self._orders = sorted(self.tickets)
        return found


class Waiter:
    """The thread that waits for all tasks of this process. It starts with the first sleep, and stays."""

    def __init__(self) -> None:
        self._inbox: deque[_Ticket | _Queue | None] = deque()
        self._called = False  # whether the thread was called since it last read the inbox
        self._sleeper = _core.Sleeper()
        self._work = Wakeup()  # for the thread while no task sleeps
        self._thread = Background(self._run)
        self._queues: dict[tuple[int, bool], _Queue] = {}
        self._shown: _Ticket | None = None  # stands for all in the store's list of waits, and in the log

    def add(self, ticket: _Ticket) -> None:
        """A task goes to sleep."""
        self._send(ticket)

    def pass_on(self, ticket: _Ticket) -> None:
        """A call has ended: what woke it may be enough for others."""
        if ticket.queue is not None and ticket.queue.tickets:
            self._send(ticket.queue)

    def look_again(self) -> None:
        """See the function."""
        if self._thread.lives():
            self._send(None)

    def _send(self, what: _Ticket | _Queue | None) -> None:
        self._inbox.append(what)
        if not self._called:
            self._called = True
            self._sleeper.wake()
            self._work.wake()
            self._thread.start()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        look_at = 0.0
        while True:
            calls, self._called = self._sleeper.calls, False
            try:
                look_at = self._serve(look_at)
                self._sleep(calls, look_at - time.monotonic())
            except Exception as error:  # the tasks have no other thread: whatever it is, the next round may do better
                logger.warning("the thread that waits for tasks: %s: %s", type(error).__name__, error)
                time.sleep(SLICE_SECONDS)

    def _serve(self, look_at: float) -> float:
        """Wake tasks. Returns when to look around next. Its frame ends, so that a sleeping thread keeps no ticket."""
        woken: list[_Ticket] = []
        try:
            self._read(woken)
            for queue in self._queues.values():
                woken += queue.changed()
            if (now := time.monotonic()) >= look_at:
                look_at = now + SLICE_SECONDS
                self._look_around(woken)
        finally:
            _wake(woken)
        return look_at

    def _read(self, woken: list[_Ticket]) -> None:
        """Read the inbox. Adds the tickets to wake."""
        while self._inbox:
            what = self._inbox.popleft()
            if what is None:
                woken += [each for queue in self._queues.values() for each in queue.oldest(len(queue.tickets))]
            elif isinstance(what, _Queue):
                woken += what.oldest(2)
            elif what.asleep:
                awaited = what.nap.awaited
                key = awaited.address, awaited.for_one
                if (queue := self._queues.get(key)) is None:
                    queue = self._queues[key] = _Queue(awaited, what.nap.seen)
                queue.add(what)

    def _look_around(self, woken: list[_Ticket]) -> None:
        """Once in a slice: look for dead processes, and log. Adds the tickets to wake."""
        if (shown := self._shown) is not None and not shown.nap.wait.ended:
            shown.nap.wait.log_if_due(shown.nap.reason)
        arenas: dict[int, _core.Arena] = {}
        for queue in self._queues.values():
            found = queue.idle()
            woken += found
            arenas.update((id(arena), arena) for ticket in found if (arena := ticket.nap.wait.arena) is not None)
        for arena in arenas.values():
            arena.reap()

    def _sleep(self, calls: int, seconds: float) -> None:
        self._queues = {key: queue for key, queue in self._queues.items() if queue.tickets}
        queues = list(self._queues.values())
        if not queues:
            self._shown = None
            self._work.wait(_IDLE_SECONDS)
            return
        if self._shown is None or self._shown.nap.wait.ended or self._shown.loop.is_closed():
            self._shown = min((queue.first() for queue in queues), key=lambda each: each.order)
        shown = self._shown
        awaited, seen = [shown.nap.awaited], [shown.nap.awaited.seq]
        awaited += [queue.awaited for queue in queues]
        seen += [queue.seen for queue in queues]
        sleep_inside(self._sleeper.sleep, awaited, seen, calls, shown.record, seconds)


def _wake(tickets: list[_Ticket]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
    for ticket in tickets:
        loops.setdefault(ticket.loop, []).append(ticket)
    for loop, mine in loops.items():
        try:
            loop.call_soon_threadsafe(_wake_some, loop, mine)
        except RuntimeError:
            pass  # the loop is closed: its tasks are garbage, which undoes their calls


def _wake_some(loop: asyncio.AbstractEventLoop, tickets: list[_Ticket]) -> None:
    """Called in the event loop, which runs other tasks in between."""
    for ticket in tickets[:_AT_ONCE]:
        ticket.wake()
    if rest := tickets[_AT_ONCE:]:
        loop.call_soon(_wake_some, loop, rest)


_waiter = Waiter()
_of_parents: list[Waiter] = []
"""In a forked child: the tasks are the parent's, and the end of their calls is none of the child's business."""


def look_again() -> None:
    """Have all tasks look: a store's handle was closed."""
    _waiter.look_again()


def _forget() -> None:
    global _waiter
    _of_parents.append(_waiter)
    _waiter = Waiter()


os.register_at_fork(after_in_child=_forget)
