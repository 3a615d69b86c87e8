"""Loaders draw batches ahead. A background thread copies them into pooled buffers while the learner computes."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypedDict, TypeVar

from di_store.base import config
from di_store.base.errors import DrawsLost, StoreClosed, StoreError
from di_store.replay.batch import Batch
from di_store.replay.devices import Placer
from di_store.replay.lease import lease_seconds
from di_store.replay.prefetch import DrawSource, Prefetch
from di_store.replay.sampling import Draws, Terms, check_n
from di_store.runtime.staging import Staging

H = TypeVar("H")
CLOSE_SECONDS = 60.0
"""How long `close` waits for the thread. Only code of the user (`beta=`) can delay the thread by more than 0.1 s."""
MAX_PREFETCH = 1024
"""The most batches that are drawn ahead. Each is so many steps older when it is used, and all are held until then."""
END_SECONDS = 5.0
"""How long the end of the interpreter waits for the threads of all loaders together, and `Store.close` for the thread
of a dropped loader."""


_open: weakref.WeakValueDictionary[int, Loader] = weakref.WeakValueDictionary()  # by id(loader)
_ending = False


class LoaderOptions(TypedDict, total=False):
    """The options of a loader as a caller gave them, not checked yet. `Table.loader` explains each option."""

    prefetch: int
    device: Any
    pin_memory: bool
    beta: float | Callable[[int], float | None] | None
    columns: str | Iterable[str] | None
    drop_last: bool
    timeout: float | None
    replace: bool
    lease: float | None


LOADER_OPTIONS: tuple[str, ...] = tuple(LoaderOptions.__annotations__)
"""The names of the options."""


class Following(Protocol):
    """The session that a loader ends with."""

    @property
    def staging(self) -> Staging | None:
        """The budget of batches that its loaders hold ahead; None: only `prefetch` limits them."""

    def follow(self, handle: H, end: Callable[[H, StoreError], None]) -> None:
        """As `Session.follow`."""


class Drawn(Protocol):
    """The backend of the table or mixture that a loader draws from."""

    @property
    def session(self) -> Following:
        """The session that the loader ends with."""


def _closed(error: StoreError) -> BaseException:
    """The exception of a closed loader. While the interpreter ends: SystemExit, which ends a thread silently."""
    return SystemExit() if _ending else error


class Loader:
    """Iterates over batches of a table or mixture. A context manager; made by `Table.loader` and `Mixture.loader`.

    Each `next` draws up to `prefetch` batches ahead, as far as the table gives them without waiting. All draws happen
    in `next`, so the same program with the same seed gets the same batches. A background thread copies the rows, from
    disk if necessary.

    Batches drawn ahead count as samples. Their memory is not part of the table's capacity. Batches that were not handed
    out are given back by `close`, or by the store if this process dies. With ``lease=``, the seconds of a batch begin
    when `next` returns it, and `close` leaves it leased.
    """

    def __init__(self, drawn: Drawn, source: DrawSource, batch_size: int, options: LoaderOptions) -> None:
        for name in options:
            if name not in LOADER_OPTIONS:
                raise TypeError(f"loader() got an unexpected keyword argument {name!r}")
        terms = Terms(check_n(batch_size, "batch_size"), options.get("timeout"), replace=options.get("replace", True))
        terms.lease = lease_seconds(options.get("lease"))
        source.check(terms)
        prefetch = config.count("prefetch", options.get("prefetch", 2), minimum=0, maximum=MAX_PREFETCH)
        beta = options.get("beta")
        if not callable(beta) and beta is not None:
            beta = config.real("beta", beta, why="it is the exponent of the importance weights")
        drop_last = config.flag("drop_last", options.get("drop_last", False))
        placer = Placer(options.get("device"), config.flag("pin_memory", options.get("pin_memory", False)))
        source.begin_loading(terms.n)
        self._prefetch = Prefetch(self, source, terms, prefetch, beta, drop_last, placer)
        session = drawn.session
        if session.staging is not None:
            self._prefetch.share(session.staging)
        self._interrupted: deque[tuple[Draws, Batch, Any]] = deque()  # batches that a call could not hand out
        self._pid = os.getpid()
        self._ended: StoreError | None = None
        _open[id(self)] = self
        session.follow(self, Loader._end_with)
        session.follow(self._prefetch, partial(_stop_thread, self._pid))  # it outlives a loader that is dropped

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: the table is finished and has nothing left. Timeout: the batch took longer than `timeout`;
            the next call continues. StoreClosed: the loader was closed, or made before a fork.
        """
        if self._pid != os.getpid():
            raise StoreClosed(
                "this loader was made before fork and belongs to the parent process",
                remedy="call table.loader() in the process that uses it",
            )
        if self._ended is not None:
            raise _closed(copy.copy(self._ended))
        while True:
            try:
                draws, batch, placed = self._interrupted.popleft() if self._interrupted else self._prefetch.next()
            except IndexError:  # another thread has taken it
                continue
            except StoreClosed as error:
                raise _closed(error) from None
            try:
                draws.deliver()
            except DrawsLost:
                self._prefetch.look_again()
                continue  # the agent that held them is gone: others may get these items
            except BaseException:
                self._interrupted.append((draws, batch, placed))  # the next call goes on with it
                raise
            return self._prefetch.placer.hand_out(batch, placed)

    def close(self) -> None:
        """Stop drawing ahead, and give back the batches that were not handed out. A second call does nothing.

        The call waits up to 60 s for the thread. If your `beta` function runs longer, the thread gives its batch back
        when that function returns.
        """
        self._end_with(StoreClosed("this loader was closed", remedy="make a new one with table.loader()"))

    def _end_with(self, why: StoreError, seconds: float = CLOSE_SECONDS) -> None:
        """End the loader, because it or the store's handle is closed. A call after an interrupted one continues it."""
        self._ended = self._ended or why
        if self._pid == os.getpid():
            while self._interrupted:
                with contextlib.suppress(IndexError, StoreError):
                    self._interrupted.popleft()[0].give_back()
            self._prefetch.stop(seconds)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Loader does not pickle: pass the table and call table.loader() where it is used")


def _stop_thread(pid: int, ahead: Prefetch, _: StoreError) -> None:
    if pid == os.getpid():
        ahead.stop(END_SECONDS)


def _close_all() -> None:
    """Stop all loaders before the interpreter ends: no thread may be inside the core then."""
    global _ending
    _ending = True
    until = time.monotonic() + END_SECONDS
    for reference in _open.valuerefs():
        if (loader := reference()) is not None:
            with contextlib.suppress(StoreError):  # a lock is held: after this process the store gives the rest back
                loader._end_with(StoreClosed("the interpreter is shutting down"), max(until - time.monotonic(), 0.0))


atexit.register(_close_all)
