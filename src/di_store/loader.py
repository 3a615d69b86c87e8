"""A loader: a background thread draws batches ahead and fills pooled buffers while the learner computes."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Protocol

from di_store import _core, config
from di_store.batch import Batch
from di_store.chores import run_ahead
from di_store.devices import Placer
from di_store.draw import Drawn, Stopped, Terms, check_fits, check_n
from di_store.errors import EndOfData, StoreClosed, StoreError
from di_store.handle import TableHandle

LEARNER_ROLE = 2


class Source(Protocol):
    """What a loader draws from."""

    name: str
    arena: _core.Arena

    def beta(self) -> float | None:
        """The samplers' own exponent of the importance weights."""

    def draw(self, terms: Terms, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Drawn:
        """A batch that is not delivered yet."""


class _Ahead:
    """Draws batches, in a thread if some are to be drawn ahead. Knows no `Loader`, so that one can be dropped."""

    def __init__(self, source: Source, terms: Terms, prefetch: int, beta: Any, drop_last: bool, placer: Placer) -> None:
        self.placer = placer
        self._source: Source | None = source
        self._terms = terms
        self._prefetch = prefetch
        self._beta = beta
        self._drop_last = drop_last
        self._drawn = 0
        self._ready: deque[tuple[Drawn, Any]] = deque()
        self._error: BaseException | None = None
        self._stop = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def next(self) -> tuple[Drawn, Any]:
        """The next batch; raises `StopIteration` when there is no more."""
        if self._prefetch == 0:
            try:
                return self._draw()
            except Stopped:
                raise StoreClosed("this loader was closed") from None
        with self._changed:
            if not self._running() and self._error is None and not self._stop:
                self._start()
            while not self._ready and self._error is None and not self._stop:
                self._changed.wait(0.1)  # in slices, so that Ctrl-C comes through
            if self._ready:
                found = self._ready.popleft()
                self._changed.notify_all()
                return found
            error, self._error = self._error, None
            if isinstance(error, StopIteration):
                self._error = error  # there is no more, however often one asks
        raise _closed(StoreClosed("this loader was closed")) if error is None else error

    def _running(self) -> bool:
        """Whether there is a thread. One that could not be started never lives, and another try may succeed."""
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="di-store loader", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no thread to draw batches ahead ({error}): prefetch=0 draws without one") from None

    def stop(self, *, wait: bool) -> None:
        """Draw no more, and give back what was not handed out."""
        with self._changed:
            self._stop = True
            thread = self._thread if self._running() else None
            self._changed.notify_all()
        if not wait:
            return  # the thread gives back; without one nothing is held
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._give_back()

    def _give_back(self) -> None:
        while True:
            with self._changed:  # a consumer may take one meanwhile
                if not self._ready:
                    break
                drawn, _ = self._ready.popleft()
            drawn.give_back()
        self.placer.close()
        self._source = None  # the mapping goes with the last handle

    def _draw(self) -> tuple[Drawn, Any]:
        """One batch, drawn now."""
        source = self._source
        if source is None:
            raise Stopped
        terms = Terms(self._terms.n, self._terms.timeout, stop=lambda: self._stop, ours=self._held)
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
        """Draws of a table that are ready and not handed out."""
        with self._changed:
            return sum(drawn.counts.get(handle, 0) for drawn, _ in self._ready)

    def _run(self) -> None:
        """The thread: keep `prefetch` batches ready."""
        try:
            while self._wanted():
                made = self._draw()
                with self._changed:
                    self._ready.append(made)
                    self._changed.notify_all()
        except Stopped:
            pass
        except BaseException as error:  # whatever it is, the consumer gets it
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._thread = None
                stopped = self._stop
                self._changed.notify_all()
            if stopped:
                self._give_back()

    def _wanted(self) -> bool:
        """Wait until a batch is wanted; False when the loader ends."""
        with self._changed:
            while not self._stop and len(self._ready) >= self._prefetch:
                self._changed.wait()
            return not self._stop


_open: weakref.WeakSet[Loader] = weakref.WeakSet()
_ending = threading.Event()


def _closed(error: StoreError) -> BaseException:
    """What asking a closed loader raises; while the interpreter ends, what ends a daemon thread without a word."""
    return SystemExit() if _ending.is_set() else error


class Loader:
    """Iterates over batches of a table or mixture. A context manager; made by their `loader`.

    Batches drawn ahead count as samples and lie outside the table's capacity; those not handed out are given back by
    `close`, and by the store when this process dies.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: Any = None,
        drop_last: bool = False,
        timeout: float | None = None,
    ) -> None:
        terms = Terms(check_n(batch_size, "batch_size"), timeout)
        check_fits(source.arena, terms.n)
        prefetch = config.count("prefetch", prefetch, minimum=0)
        if not callable(beta) and beta is not None:
            beta = config.real("beta", beta, why="it is the exponent of the importance weights")
        drop_last = config.flag("drop_last", drop_last)
        placer = Placer(device, config.flag("pin_memory", pin_memory))
        self._ahead = _Ahead(source, terms, prefetch, beta, drop_last, placer)
        self._pid = os.getpid()
        self._ended: StoreError | None = None
        source.arena.set_role(LEARNER_ROLE)
        run_ahead(source.arena)
        _open.add(self)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: the table is finished and gives no more. Timeout: it took too long; the loader goes on when
                asked again. StoreClosed: closed, or inherited through fork.
        """
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
        """Stop drawing ahead, and give back what was not handed out. A second call does nothing."""
        if self._ended is None:
            self._end_with(StoreClosed("this loader was closed", remedy="make a new one with table.loader()"))

    def _end_with(self, why: StoreError) -> None:
        """The store's handle is closed."""
        self._ended = self._ended or why
        if self._pid == os.getpid():
            self._ahead.stop(wait=True)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, ending: threading.Event = _ending) -> None:
        # At the interpreter's end a thread that will never run again may hold the lock; the store gives back its draws.
        if getattr(self, "_pid", -1) == os.getpid() and self._ended is None and not ending.is_set():
            self._ahead.stop(wait=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Loader does not pickle: pass the table and call table.loader() where it is used")


def _close_all() -> None:
    """Before the interpreter ends, which threads inside the core must not see."""
    _ending.set()
    for loader in list(_open):
        with contextlib.suppress(StoreError):  # a lock is held up: the store gives back what could not be
            loader.close()


atexit.register(_close_all)
