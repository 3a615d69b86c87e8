"""The batches of a loader that are drawn and not handed out yet.

The consumer draws, in `next`. So a program's draws follow the order of its calls, and the same seed and `prefetch` give
the same batches. A thread copies them. For each batch it first copies the rows in memory, so that their chunks become
free. Then it copies the rows on disk, beginning with the batch that is due next, and reads ahead meanwhile.

A signal handler may raise an exception in the consumer between any two steps. So the consumer holds no lock for which
the thread waits, and the thread never waits for a second step of the consumer: it finds its work in the queue.
Consumers take turns (`_core.Turn`).
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

from di_store import _core
from di_store.base import config
from di_store.base.errors import DrawsLost, EndOfData, RowsLost, StoreClosed, StoreError
from di_store.replay.batch import Batch
from di_store.replay.devices import Placer
from di_store.replay.handle import TableHandle
from di_store.replay.sampling import Copying, Draws, Stopped, Terms
from di_store.runtime.background import LOOK_SECONDS, Background, Wakeup
from di_store.runtime.staging import Staging
from di_store.runtime.waits import Wait, run


class DrawSource(Protocol):
    """The source of a loader's draws."""

    name: str

    @property
    def arena(self) -> _core.Arena | None:
        """The store's attachment; None: the store is elsewhere."""

    def begin_loading(self, n: int) -> None:
        """Note that a loader over batches of n begins."""

    def end_loading(self) -> None:
        """Note that the loader has ended, so that its draws are no longer needed."""

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """Note that a batch was handed out after a wait, and how many more are ahead."""

    def drop_lost(self) -> None:
        """Remove the items of rows that could not be read."""

    def beta(self) -> float | None:
        """The sampler's exponent of the importance weights; None: weights are 1, or each table has its own."""

    def check(self, terms: Terms) -> None:
        """Refuse terms under which batches cannot be drawn; raises as the function `check_replace`."""

    def begin(self, n: int) -> Draws:
        """The draws of a batch of n, not made yet."""


class Ready:
    """One batch, from its draws until it is handed out. The thread alone calls `advance`.

    Attributes:
        draws: draws of the batch.
        least_bytes: bytes of its arrays, without ragged outputs.
        begun: whether the rows in memory are copied.
        done: whether `take` has a result.
        lost: some of its rows cannot be read. Their items are removed, the draws are given back and must be made again.
    """

    def __init__(self, draws: Draws, beta: float | None, placer: Placer, source: DrawSource) -> None:
        self.draws = draws
        self._source = source
        self.least_bytes = draws.least_bytes()
        self._beta = beta
        self._placer = placer
        self._copying: Copying | None = None
        self._found: tuple[Batch, Any] | None = None
        self._error: BaseException | None = None
        self.begun = self.done = self.lost = False

    @property
    def bytes(self) -> int:
        """Bytes of its arrays, as far as known."""
        copying = self._copying
        return self.least_bytes if copying is None else copying.bytes

    def advance(self) -> None:
        """Copy the rows in memory, or the next portion of the rows on disk. Errors are kept for `take`."""
        try:
            if self._copying is None:
                self._copying = self.draws.copy(self._beta, self._placer.allocate)
                self.begun = True
            else:
                self._copying.copy_portion()
            if self._copying.is_whole:
                batch = self._copying.batch()
                self._found = batch, self._placer.place(batch)
                self.done = True
        except (RowsLost, DrawsLost):
            try:
                self.give_back()
                self._source.drop_lost()
                self.begun = self.done = self.lost = True
            except BaseException as error:  # the consumer raises it, whatever its type
                self._fail(error)
        except BaseException as error:  # the consumer raises it, whatever its type
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(StoreError):  # a lock is held: a later call of this process gives them back
            self.give_back()
        self._error = error
        self.begun = self.done = True

    def again(self) -> Ready:
        """The same batch, after its draws were made again."""
        return Ready(self.draws, self._beta, self._placer, self._source)

    def read_ahead(self) -> bool:
        """Begin to read. True: the remaining rows of this batch are being read, or `advance` will raise the error."""
        try:
            return self._copying is None or self._copying.read_ahead()
        except StoreError:
            return True

    def take(self) -> tuple[Batch, Any]:
        """The batch and the placer's result for it, or the error that prevented it."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def give_back(self) -> None:
        """Give the draws back after their reads have ended, since the reads use the chunks that the draws hold."""
        self._copying = self._found = None
        self.draws.give_back()


def _refuse() -> NoReturn:
    raise StoreError("next() was called inside a next() of the same loader and thread, perhaps by a signal handler")


class Prefetch:
    """Draws batches and has them copied, in a thread unless prefetch=0. Has only a weak reference to its loader."""

    def __init__(
        self, loader: Any, source: DrawSource, terms: Terms, prefetch: int, beta: Any, drop_last: bool, placer: Placer
    ) -> None:
        self.placer = placer
        self._source: DrawSource | None = source
        self._terms = terms
        self._prefetch = prefetch
        self._beta = beta
        self._drop_last = drop_last
        self._drawn = 0
        self._turn = _core.Turn()
        self._queue: deque[Ready] = deque()  # in order; only who has the turn changes it, or the end of the loader
        self._begun: Draws | None = None  # of the next batch, of which none could be made yet
        self._late: BaseException | None = None  # raised once the queue is empty
        self._ended = False  # the data has ended; what is in the queue is left
        self._batch_bytes = 0  # of the last batch that was handed out
        self._more = Wakeup()  # when a batch is done
        self._wakes: SimpleQueue[Any] = SimpleQueue()  # anything put into it wakes the thread
        self._sleeps = False
        self._closed = False
        # A dropped loader wakes the thread. SimpleQueue.put runs in C, so no signal handler can interrupt it.
        self._loader = weakref.ref(loader, self._wakes.put)
        self._thread = Background(self._run)
        self._staging: Staging | None = None

    def share(self, staging: Staging) -> None:
        """Keep the batches ahead within a budget."""
        self._staging = staging
        staging.follow(self)

    # -- the consumer ---------------------------------------------------------------------------------------------

    def next(self) -> tuple[Draws, Batch, Any]:
        """The next batch.

        Raises:
            StopIteration: there is no further batch. StoreClosed: the loader is closed. Otherwise the error that
                prevented the batch.
        """
        if self._prefetch == 0:
            return self._next_now()
        wait: Wait | None = None
        drew, waits_since = False, 0.0
        try:
            while not self._stopped():
                with self._take_turn(wait is None) as mine:
                    if mine:
                        if not drew or not self._queue:
                            self._draw_ahead()
                            drew = True
                        if self._queue[0].lost:
                            self._draw_lost()
                            continue
                        if self._queue[0].done:
                            return self._hand_out(time.monotonic() - waits_since if waits_since else 0.0)
                if mine:
                    waits_since = waits_since or time.monotonic()
                    self._attend()
                    self._more.wait(LOOK_SECONDS)
                    continue
                wait = wait or self._turn_wait()
                run(wait.pausing_turn(self._turn, "another thread takes a batch of this loader"))
        except Stopped:
            pass
        self.stop(LOOK_SECONDS)  # what was drawn while another thread closed the loader
        raise StoreClosed("this loader was closed")

    def look_again(self) -> None:
        """Note that a batch's draws were given back: its items may be drawn again, even if the data had ended."""
        self._ended = False

    def _take_turn(self, newcomer: bool) -> AbstractContextManager[bool]:
        found: AbstractContextManager[bool] | None = self._turn.take(newcomer)
        return found or _refuse()

    def _turn_wait(self) -> Wait:
        if (source := self._source) is None:
            raise Stopped
        return Wait(source.arena, self._terms.timeout, f"next batch of {source.name}")

    def _hand_out(self, waited: float) -> tuple[Draws, Batch, Any]:
        first = self._queue.popleft()
        try:
            if (source := self._source) is not None:
                source.note_loaded(len(self._queue), waited)
            if self._queue and self._queue[0].done:
                self._more.wake()  # this wakes only one consumer: wake the next one
            batch, placed = first.take()
        except BaseException:  # also Ctrl-C: the queue has one batch fewer, and a kept traceback would hold its draws
            with contextlib.suppress(StoreError):  # a lock is held: a later call of this process gives them back
                first.give_back()
            self.look_again()
            raise
        self._batch_bytes = first.bytes
        return first.draws, batch, placed

    def _next_now(self) -> tuple[Draws, Batch, Any]:
        try:
            source = self._source_now()
            draws = source.begin(self._terms.n)
            ready = self._draw(draws, now=False)
            assert ready is not None
            began = time.monotonic()
            while ready.lost or not ready.done:
                if ready.lost:
                    self._draw_all(draws, now=False)
                    ready = ready.again()
                ready.advance()
        except Stopped:
            raise StoreClosed("this loader was closed") from None
        except EndOfData as error:
            raise StopIteration from error
        batch, placed = ready.take()
        source.note_loaded(0, time.monotonic() - began)
        return draws, batch, placed

    def _attend(self) -> None:
        """Start the thread, unless it runs, because the due batch is not copied.

        If the thread cannot start, the next call tries again.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no thread to copy batches ahead ({error}): prefetch=0 does without one") from None

    def _stopped(self) -> bool:
        return self._closed or self._loader() is None

    # -- drawing --------------------------------------------------------------------------------------------------

    def _draw_ahead(self) -> None:
        """Draw the due batch and wait for it, unless it was drawn before; then draw more batches without waiting.

        Raises:
            StopIteration: no batch is due any more. Stopped: the loader is closed. Otherwise the error that prevents
                the draw.
        """
        if not self._queue:
            if (late := self._late) is not None:
                self._late = None
                raise late
            if self._ended or not self._draw_next(now=False):
                raise StopIteration
        while len(self._queue) <= self._prefetch and not self._ended and self._late is None:
            if len(self._queue) > 1 and not self._has_room():
                break
            if not self._draw_next(now=True):
                break
        # Also if nothing was drawn now: a call that was interrupted may have drawn.
        if self._sleeps:
            self._wakes.put(None)

    def _has_room(self) -> bool:
        """Whether the budget allows another batch. One batch ahead is always taken."""
        staging, source = self._staging, self._source
        if staging is None or source is None or source.arena is None:
            return True
        size = max(self._batch_bytes, self._queue[0].least_bytes)
        if staging.has_room(source.arena, size):
            return True
        staging.tell(source.arena, source.name, len(self._queue) - 1, self._prefetch, size)
        return False

    def staged(self) -> int:
        """As `Holder.staged`."""
        queue = tuple(self._queue)
        return sum(max(self._batch_bytes, each.least_bytes) for each in queue[1:])

    def _draw_next(self, now: bool) -> bool:
        """Draw a batch and append it to the queue; False: no batch could be drawn now, or the data has ended."""
        source = self._source_now()
        if self._begun is None or any(each.draws is self._begun for each in self._queue):  # after an interrupt
            self._begun = source.begin(self._terms.n)
        try:
            ready = self._draw(self._begun, now)
        except EndOfData:
            self._note_end()
            return False
        except Stopped:
            raise
        except StoreError:
            if now:  # whoever waits for the batch gets it, if it is lasting
                return False
            raise
        except Exception as error:  # a user's `beta` may raise anything
            if not now:
                raise
            self._late = error  # in its order: after the batches that were drawn before
            return False
        if ready is None:
            return False
        self._queue.append(ready)
        self._begun = None
        return True

    def _draw_lost(self) -> None:
        """Repeat the draws of the due batch, because some of its rows were lost. Later batches stay."""
        first = self._queue[0]
        try:
            self._draw_all(first.draws, now=False)
        except EndOfData:
            self._queue.popleft()
            self._note_end()
            return
        self._queue[0] = first.again()
        if self._sleeps:
            self._wakes.put(None)

    def _note_end(self) -> None:
        """The data has ended; with a lease only once no batch is ahead, since its items may come back."""
        self._ended = self._terms.lease is None or not self._queue

    def _draw_all(self, draws: Draws, now: bool) -> bool:
        terms, stop, ours = self._terms, self._stopped, self._held
        own = Terms(terms.n, terms.timeout, None, None, stop, ours, terms.replace, now, terms.lease)
        if not draws.draw(own):
            return False
        if self._drop_last and draws.held < terms.n:
            draws.give_back()
            raise EndOfData("the rest is smaller than a batch, and drop_last=True")
        return True

    def _draw(self, draws: Draws, now: bool) -> Ready | None:
        """Make the draws of one batch; None: not possible without waiting.

        Raises:
            EndOfData: the data has ended. Stopped: the loader is closed.
        """
        source = self._source_now()
        if not self._draw_all(draws, now):
            return None
        try:
            beta = self._beta
            if callable(beta) and (beta := beta(self._drawn)) is not None:
                beta = config.real("beta", beta, why="it is the exponent of the importance weights")
            ready = Ready(draws, source.beta() if beta is None else beta, self.placer, source)
        except BaseException:  # also a user's `beta`: nobody else knows of these draws
            draws.give_back()
            raise
        self._drawn += 1
        return ready

    def _source_now(self) -> DrawSource:
        source = self._source
        if source is None:
            raise Stopped
        return source

    def _held(self, handle: TableHandle) -> int:
        """Number of a table's draws in batches that are not handed out."""
        return sum(each.draws.counts().get(handle, 0) for each in tuple(self._queue))

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Copy drawn batches until the loader ends."""
        while not self._stopped():
            open_batches = []
            for each in tuple(self._queue):
                if not each.begun:
                    each.advance()
                    if each.done:
                        self._more.wake()
                    break
                if not each.done:
                    open_batches.append(each)
            else:
                if self._read(open_batches):
                    self._more.wake()
        with contextlib.suppress(StoreError):  # another process holds a lock: a later close() gives the rest back
            self._give_back()

    def _read(self, rest: list[Ready]) -> bool:
        """Copy a portion of the first of these batches; returns whether it was the batch's last portion.

        Sleeps if there are no batches.
        """
        if not rest:
            self._sleeps = True
            if all(each.done for each in tuple(self._queue)):  # look again: who drew more may not have seen `_sleeps`
                self._wakes.get()
            self._sleeps = False
            return False
        if len(rest) > 1 and rest[0].read_ahead():
            rest[1].read_ahead()
        rest[0].advance()
        return rest[0].done

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self, seconds: float) -> None:
        """Stop, and give back the batches that were not handed out.

        Waits at most `seconds` for the thread. If the thread takes longer, it gives the batches back itself when it
        ends. After an interrupt it can be called again and continues.
        """
        self._closed = True
        self._wakes.put(None)
        if self._thread.join(seconds):
            self._give_back()

    def _give_back(self) -> None:
        while self._queue:
            with contextlib.suppress(IndexError):  # another thread may have taken the last one
                self._queue.popleft().give_back()
        if (source := self._source) is not None:
            self.placer.close()
            self._begun = None
            source.end_loading()
            self._source = None  # the last handle to go unmaps the store
