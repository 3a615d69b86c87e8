"""A loader: a background thread draws batches ahead and fills pooled buffers while the learner computes."""

from __future__ import annotations

import atexit
import contextlib
import copy
import itertools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NoReturn, Protocol

from di_store import _core
from di_store.base import config
from di_store.base.errors import EndOfData, StoreClosed, StoreError
from di_store.replay.batch import Batch
from di_store.replay.devices import Placer
from di_store.replay.handle import TableHandle
from di_store.replay.sampling import Drawn, Stopped, Terms, check_fits, check_n
from di_store.runtime.background import LOOK_SECONDS, Background, Bell
from di_store.runtime.chores import run_ahead
from di_store.session import Session

LEARNER_ROLE = 2
CLOSE_SECONDS = 60.0
"""How long `close` waits for the thread. Only code of the user (`beta=`) can delay the thread by more than 0.1 s."""
END_SECONDS = 5.0
"""How long the end of the interpreter waits for the threads of all loaders together."""


class Source(Protocol):
    """What a loader draws from."""

    name: str
    arena: _core.Arena

    def beta(self) -> float | None:
        """The sampler's exponent of the importance weights; None: weights are 1, or each table has its own."""

    def check_replace(self, n: int, replace: bool) -> None:
        """Check the option `replace` of batches of n; raises as the function of that name."""

    def draw(self, terms: Terms, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Drawn:
        """Draw a batch without delivering it; `terms`: size and time limits; `allocate`: makes its arrays."""


class _Ahead:
    """Draws batches, in a thread unless prefetch=0. Ends with its `Loader`, to which it has only a weak reference.

    A signal handler may raise an exception in the consumer between any two steps. So the consumer holds no lock that
    the thread waits for, and the thread never waits for a second step of the consumer. The consumer takes batches from
    `_ready`; whenever `_ready` is empty, it makes sure that the thread runs and is awake. The number of batches still
    to draw is computed from the size of `_ready` each time.
    """

    def __init__(
        self, loader: Loader, source: Source, terms: Terms, prefetch: int, beta: Any, drop_last: bool, placer: Placer
    ) -> None:
        self.placer = placer
        self._source: Source | None = source
        self._terms = terms
        self._prefetch = prefetch
        self._beta = beta
        self._drop_last = drop_last
        self._drawn = 0
        # Batches in order, then what ended the thread: an error, or None after the last batch.
        self._ready: SimpleQueue[tuple[Drawn, Any] | BaseException | None] = SimpleQueue()
        self._more = Bell()  # rung when `_ready` grows, and by a consumer that leaves batches for other consumers
        self._counts: deque[dict[TableHandle, int]] = deque(maxlen=prefetch)  # draws by table, of the latest batches
        self._wakes: SimpleQueue[Any] = SimpleQueue()  # anything put into it wakes the thread
        self._sleeps = False
        self._closed = False
        # A dropped loader wakes the thread. SimpleQueue.put runs in C, so no signal handler can interrupt it.
        self._loader = weakref.ref(loader, self._wakes.put)
        self._thread = Background(self._run)

    def next(self) -> tuple[Drawn, Any]:
        """The next batch.

        Raises:
            StopIteration: there is none. StoreClosed: the loader is closed. Else what ended the thread.
        """
        if self._prefetch == 0:
            try:
                return self._draw()
            except Stopped:
                raise _closed(StoreClosed("this loader was closed")) from None
        while not self._stopped():
            if self._ready.qsize() > 1:
                self._more.ring()  # one ring wakes only one consumer: wake the next one
            try:
                found = self._ready.get_nowait()
            except Empty:
                self._attend()
                self._more.wait(LOOK_SECONDS)
                continue
            if self._sleeps:
                self._wakes.put(None)
            if isinstance(found, tuple):
                return found
            if found is not None:
                raise found
            self._hand(None)  # put it back: later calls, in any thread, end as well
            if not self._stopped():
                raise StopIteration
        raise _closed(StoreClosed("this loader was closed"))

    def _attend(self) -> None:
        """Nothing is ready: start the thread or wake it. If it could not start, the next call tries again."""
        # mutant: an-interrupt-leaves-the-loader-asleep
        if self._sleeps:
            self._wakes.put(None)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no thread to draw batches ahead ({error}): prefetch=0 draws without one") from None

    def _stopped(self) -> bool:
        return self._closed or self._loader() is None

    def stop(self, seconds: float) -> None:
        """Stop drawing, and give back the batches that were not handed out.

        Waits at most `seconds` for the thread. If the thread takes longer, it gives them back itself when it ends.
        After an interrupt it can be called again and continues.
        """
        self._closed = True
        self._wakes.put(None)
        if self._thread.join(seconds):
            self._give_back()

    def _give_back(self) -> None:
        while not self._ready.empty():
            with contextlib.suppress(Empty):  # another thread may have taken the last one
                found = self._ready.get_nowait()
                if isinstance(found, tuple):
                    # mutant: loader-keeps-its-draws
                    found[0].give_back()
        if self._source is not None:
            self.placer.close()
            self._counts.clear()
            self._source = None  # the last handle to go unmaps the store

    def _draw(self) -> tuple[Drawn, Any]:
        """Draw one batch in this thread.

        Raises:
            StopIteration: the data has ended. Stopped: the loader is closed.
        """
        source = self._source
        if source is None:
            raise Stopped
        terms = Terms(
            self._terms.n, self._terms.timeout, stop=self._stopped, ours=self._held, replace=self._terms.replace
        )
        beta = self._beta
        if callable(beta) and (beta := beta(self._drawn)) is not None:
            beta = config.real("beta", beta, why="it is the exponent of the importance weights")
        if beta is None:
            beta = source.beta()
        try:
            drawn = source.draw(terms, beta, self.placer.allocate)
            if self._drop_last and len(drawn.parts) < terms.n:
                drawn.give_back()
                raise EndOfData("the rest is smaller than a batch, and drop_last=True")
        except EndOfData as error:
            raise StopIteration from error
        self._drawn += 1
        try:
            return drawn, self.placer.place(drawn.parts)
        except BaseException:
            drawn.give_back()
            raise

    def _held(self, handle: TableHandle) -> int:
        """Number of a table's draws in batches that are ready and not handed out."""
        latest = itertools.islice(reversed(self._counts), self._ready.qsize())
        return sum(counts.get(handle, 0) for counts in latest)

    def _run(self) -> None:
        """The thread: keep `prefetch` batches ready."""
        try:
            while self._wanted():
                self._make_ready(*self._draw())
        except Stopped:
            pass
        except StopIteration:
            self._hand(None)
        except BaseException as error:  # the consumer raises it, whatever its type
            self._hand(error)
        if self._stopped():
            with contextlib.suppress(StoreError):  # another process holds a lock: a later close() gives the rest back
                self._give_back()

    def _make_ready(self, drawn: Drawn, placed: Any) -> None:
        self._counts.append(drawn.counts)
        self._hand((drawn, placed))

    def _hand(self, what: tuple[Drawn, Any] | BaseException | None) -> None:
        self._ready.put(what)
        self._more.ring()

    def _wanted(self) -> bool:
        """Wait until fewer than `prefetch` batches are ready; False: the loader has ended."""
        while not self._stopped():
            # mutant: one-batch-ready-and-no-more
            if self._ready.qsize() < self._prefetch:
                return True
            self._sleeps = True
            if self._ready.qsize() >= self._prefetch:  # look again: a consumer may not have seen `_sleeps` yet
                self._wakes.get()
            self._sleeps = False
        return False


_open: weakref.WeakValueDictionary[int, Loader] = weakref.WeakValueDictionary()  # by id(loader)
_ending = False


def _closed(error: StoreError) -> BaseException:
    """The exception of a closed loader. While the interpreter ends: SystemExit, which ends a thread silently."""
    return SystemExit() if _ending else error


class Loader:
    """Iterates over batches of a table or mixture. A context manager; made by `Table.loader` and `Mixture.loader`.

    Batches drawn ahead count as samples, and their memory is not part of the table's capacity. Batches that were not
    handed out are given back by `close`, or by the store if this process dies.
    """

    def __init__(
        self,
        session: Session,
        source: Source,
        batch_size: int,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: float | Callable[[int], float | None] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
        replace: bool = True,
    ) -> None:
        terms = Terms(check_n(batch_size, "batch_size"), timeout, replace=replace)
        source.check_replace(terms.n, replace)
        check_fits(source.arena, terms.n)
        prefetch = config.count("prefetch", prefetch, minimum=0)
        if not callable(beta) and beta is not None:
            beta = config.real("beta", beta, why="it is the exponent of the importance weights")
        drop_last = config.flag("drop_last", drop_last)
        placer = Placer(device, config.flag("pin_memory", pin_memory))
        self._ahead = _Ahead(self, source, terms, prefetch, beta, drop_last, placer)
        self._pid = os.getpid()
        self._ended: StoreError | None = None
        source.arena.set_role(LEARNER_ROLE)
        run_ahead(source.arena)
        _open[id(self)] = self
        session.follow(self, Loader._end_with)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: the table is finished and has nothing left. Timeout: the batch took longer than `timeout`;
                the next call continues. StoreClosed: the loader was closed, or made before a fork.
        """
        # mutant: inherited-loader-draws-on
        if self._pid != os.getpid():
            raise StoreClosed(
                "this loader was made before fork and belongs to the parent process",
                remedy="call table.loader() in the process that uses it",
            )
        if self._ended is not None:
            raise _closed(copy.copy(self._ended))
        drawn, placed = self._ahead.next()
        drawn.deliver()
        batch: Batch = self._ahead.placer.hand_out(drawn.parts, placed)
        return batch

    def close(self) -> None:
        """Stop drawing ahead, and give back the batches that were not handed out. A second call does nothing.

        Waits up to 60 s for the thread. If your `beta` function runs longer there, the thread gives its batch back
        when that function returns.
        """
        self._end_with(StoreClosed("this loader was closed", remedy="make a new one with table.loader()"))

    def _end_with(self, why: StoreError, seconds: float = CLOSE_SECONDS) -> None:
        """End the loader: it or the store's handle is closed. A call after an interrupted one does the rest."""
        self._ended = self._ended or why
        if self._pid == os.getpid():
            self._ahead.stop(seconds)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Loader does not pickle: pass the table and call table.loader() where it is used")


def _close_all() -> None:
    """Stop all loaders before the interpreter ends: no thread may be inside the core then."""
    global _ending
    _ending = True
    until = time.monotonic() + END_SECONDS
    for reference in _open.valuerefs():
        if (loader := reference()) is not None:
            with contextlib.suppress(StoreError):  # a lock is held: after this process the store gives the rest back
                loader._end_with(StoreClosed("the interpreter ends"), max(until - time.monotonic(), 0.0))


atexit.register(_close_all)
