"""Writer: appends steps to one or several tables.

`Writer` has the signature and the docstring of each call, and knows its owner thread. Its `WriterBackend` knows where
the tables are. `append` calls the core directly if they are in this process's memory.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from threading import get_ident
from types import TracebackType
from typing import Any, NoReturn

from di_store._core import Blocked
from di_store.base.config import flag
from di_store.base.errors import SchemaMismatch, StoreError, WriterClosed
from di_store.base.lacks import no_aio
from di_store.replay.aio_writer import CLOSE_SECONDS, AioWriter
from di_store.replay.batch import Items
from di_store.replay.loader import Following
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child
from di_store.runtime.waits import Steps, run

LOOK_EVERY = 1024
"""After so many calls of `append`, or rows of `extend`, a writer looks after its tables and the store's chores."""


class WriterBackend(ABC):
    """The tables of a writer, for `Writer`. The methods of `Writer` with the same names describe the calls.

    All calls come from the writer's owner, or end the writer.

    Attributes:
        in_memory: whether calls are made in steps too, for asyncio.
        single: whether a call's result is that of the only table.
        calls: number of rows so far that `append_now` has made in this process's memory.
        episodes: reads the episode numbers of the only table's items.
        closing_seconds: the time that `close` may take when the store's handle ends.
    """

    in_memory = False
    single: bool
    calls = 0
    episodes: Any = None
    closing_seconds = 0.0

    @property
    @abstractmethod
    def session(self) -> Following:
        """The session that the writer ends with."""

    def append_now(self, step: Any, next: Any, final: Any, lane: Any, priority: Any) -> Any:
        """`Writer.append` without a timeout, and without priorities by table.

        Returns: For tables in this process's memory, the core's result: parts of items by table, or the reason to wait.
            Elsewhere: the call's result. None: nothing was written; call `append`.
        """
        return None

    def explained(self, error: SchemaMismatch, step: Any, lane: Any, total: int | None) -> Exception:
        """The error of `append_now`, with all known details."""
        return error

    def look(self) -> None:  # noqa: B027 - not every kind has it
        """Look after the tables and the store's chores, once in `LOOK_EVERY` calls."""

    def made(self, parts: list[Any]) -> Any:
        """The core's result as that of `Writer.append`."""
        raise AssertionError("the tables are elsewhere")

    def owned(self) -> None:  # noqa: B027 - not every kind has it
        """The thread that calls this owns the writer from now on."""

    @abstractmethod
    def append(self, begun: Any, step: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        """As `Writer.append`. `begun`: the reason to wait, from `append_now`; None: nothing was done yet."""

    @abstractmethod
    def extend(self, steps: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        """As `Writer.extend`."""

    @abstractmethod
    def end_episode(self, final: Any, lane: Any, discard: bool, deadline: Deadline) -> Any:
        """As `Writer.end_episode`."""

    @abstractmethod
    def close(self, deadline: Deadline) -> None:
        """As `Writer.close`; `end` follows, also if it raises."""

    def appending(self, *arguments: Any) -> Steps[Any]:
        """`append` in steps."""
        raise AssertionError("the tables are elsewhere")

    def extending(self, *arguments: Any) -> Steps[Any]:
        """`extend` in steps."""
        raise AssertionError("the tables are elsewhere")

    def ending(self, *arguments: Any) -> Steps[Any]:
        """`end_episode` in steps."""
        raise AssertionError("the tables are elsewhere")

    def closing(self, deadline: Deadline) -> Steps[None]:
        """`close` in steps: one, unless the tables are in this process's memory."""
        self.close(deadline)
        yield from ()

    @abstractmethod
    def flush(self, deadline: Deadline) -> None:
        """As `Writer.flush`."""

    @abstractmethod
    def end(self, why: StoreError, *, idle: bool) -> None:
        """The writer has ended: a call that is under way raises `why`. `idle`: none is."""

    @abstractmethod
    def forget(self, why: StoreError) -> None:
        """In a forked child: the writer is the parent's."""

    def check_idle(self) -> None:  # noqa: B027 - not every kind has it
        """Raise `StoreError` if the owner is inside a call, because then this call comes from a signal handler."""


class Writer:
    """Appends steps to one stream per lane. For one thread only. Made by `Table.writer` and `Store.writer`.

    For a table in parts, a call goes to one shard after the other. If the call fails in a shard that answers, it ends
    there, and rows in earlier shards stay: `error.written` lists their lanes. If a shard is lost, the call continues
    with the others, and then raises `NodeUnavailable`.
    """

    def __init__(self, backend: WriterBackend) -> None:
        self._backend = backend
        self._thread = 0  # ident of the owner thread; 0: none yet; -1: the writer has ended
        # The ident of the owner, or of a thread that ends a writer without an owner: the first that takes the place.
        self._claim: dict[None, int] = {}
        self._ended: StoreError | None = None
        in_child(self, Writer._forget)
        backend.session.follow(self, Writer._end_with)

    # -- the calls ----------------------------------------------------------------------------------------------

    def append(
        self,
        step: Any,
        *,
        next: Any = None,
        final: Any = None,
        lane: Any = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Append one row to every lane, or to the lanes in `lane`.

        Args:
            step: nested dict of leaves ``[…]``, with lanes ``[lanes, …]``. A row with `terminated` or `truncated` ends
                its lane's episode. If a view needs to know where episodes end, a first step that marks the end under
                another name (``done``) is refused.
            next: what the environment returned with the step, usually ``{"obs": nxt}``: the lane's next row, or the
                final observation. With `next`, items that end at this row are complete at once. Exception: if `next`
                lacks a ragged column without ``max=``, they are complete with the following row or at the end of the
                episode.
            final: final observations of the lanes whose episodes end here: like `next`, for all lanes or only those
                that end; or Gymnasium's ``final_obs``. `end_episode` can supply missing ones later.
            lane: int, int array or bool mask; None: all lanes.
            priority: priority of every item that this call completes: scalar, one per lane, or a dict by table.
            timeout: seconds to wait for limiters and room; None: no limit.

        Returns:
            The completed `Items`; for a writer over several tables a dict of `Items` by table name.

        Raises:
            Timeout, StoreFull, SchemaMismatch, ValueError: nothing was written in any lane or table. ValueError also if
            the row differs from an earlier `next`, or if more lanes complete items than a table's capacity; a queue
            accepts items of any number of lanes. WriterClosed: the writer was closed, used from another thread, or made
            before a fork.
        """
        if get_ident() != self._thread:
            self._enter()
        backend, begun = self._backend, None
        if timeout is None and type(priority) is not dict:
            try:
                begun = backend.append_now(step, next, final, lane, priority)
            except SchemaMismatch as error:
                raise backend.explained(error, step, lane, None) from None
            if type(begun) is list:
                backend.calls += 1
                if not backend.calls % LOOK_EVERY:
                    backend.look()
                if backend.single:
                    items = Items(*begun[0])
                    items._episodes = backend.episodes
                    return items
                return backend.made(begun)
            if begun is not None and type(begun) is not Blocked:
                return begun
        return backend.append(begun, step, next, final, lane, priority, Deadline.given(timeout))

    def extend(
        self,
        steps: Any,
        *,
        next: Any = None,
        final: Any = None,
        lane: Any = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Append T rows to every lane in one call, as T calls of `append` would.

        Args:
            steps: nested dict of leaves ``[T, …]``, with lanes ``[T, lanes, …]``.
            next: as in `append`, with the same leading axes.
            final: as in `append`, with the same leading axes.
            lane: as in `append`.
            priority: scalar, ``[T]`` or ``[T, lanes]``, or a dict of these by table. An item gets the priority of the
                row that completes it.
            timeout: as in `append`.

        Returns:
            The completed `Items`, as `append`.

        Raises:
            ValueError: the call completes more items than a table's capacity. Others as in `append`.
        """
        return self._entered().extend(steps, next, final, lane, priority, Deadline.given(timeout))

    def end_episode(
        self, final: Any = None, lane: Any = None, discard: bool = False, *, timeout: float | None = None
    ) -> Any:
        """End the episodes of some lanes, or supply the final observation of episodes that have ended.

        The call may complete more items than a table's capacity: the last items then evict the first ones.

        Args:
            final: the final observation, like `next` of `append`.
            lane: as in `append`.
            discard: drop the episode's rows that no item uses, and items that still wait for its final observation.
                Windows across episodes stop before the dropped rows, and start again after them.
            timeout: as in `append`.

        Returns:
            The completed `Items`, as `append`.

        Raises:
            Timeout, StoreFull, ValueError, WriterClosed: as in `append`.
        """
        return self._entered().end_episode(final, lane, flag("discard", discard), Deadline.given(timeout))

    def close(self, *, timeout: float | None = CLOSE_SECONDS) -> None:
        """End open episodes and release the tables. A second call does nothing.

        Args:
            timeout: seconds to wait for limiters and room; None: no limit.

        Raises:
            Timeout: a limiter did not let the last items pass. They are lost, and the writer is closed anyway. For a
            store on another machine, `close` also raises the errors of calls that were not acknowledged yet.
        """
        run(self._closing(timeout))

    def flush(self, *, timeout: float | None = 60) -> None:
        """Wait until all appended rows are in the tables' memory. On the store's own machine they always are.

        Raises:
            Timeout, NodeUnavailable: the other machine did not acknowledge the rows in time. `flush` also raises the
            errors of calls that were not acknowledged yet.
        """
        self._entered().flush(Deadline.given(timeout))

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close(timeout=0.0)
        except Exception:
            pass  # the exception of the with block matters more

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Writer does not pickle: pass the table and call table.writer() where it is used")

    # -- for asyncio --------------------------------------------------------------------------------------------

    @property
    def aio(self) -> AioWriter:
        """`append`, `extend`, `end_episode` and `close` for asyncio: ``await writer.aio.append(step)``.

        Also a context manager: ``async with table.writer().aio as writer``. While a call is under way, a second one
        raises `StoreError`.

        Raises:
            StoreError: the tables are not in this process's memory.
        """
        if not self._backend.in_memory:
            raise no_aio("this writer")
        return AioWriter(self)

    def _entered(self) -> WriterBackend:
        """The backend, for a call in this thread."""
        if get_ident() != self._thread:
            self._enter()
        return self._backend

    def _closing(self, timeout: Any) -> Steps[None]:
        """`close` in steps."""
        if self._ended is not None:
            return
        deadline, backend = Deadline.given(timeout), self._entered()
        backend.check_idle()
        try:
            yield from backend.closing(deadline)
        finally:
            self._end(WriterClosed("this writer was closed"), idle=True)

    # -- the owner ----------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Called in a thread that is not the owner. The first thread becomes the owner; any other raises."""
        if self._ended is None and self._is_mine():
            self._backend.owned()
            self._thread = get_ident()
            return
        if self._ended is not None:
            raise copy.copy(self._ended)  # several threads may raise it
        raise WriterClosed("a writer is for one thread, and this one is used by another")

    def _is_mine(self) -> bool:
        """Whether this thread is the owner, or becomes it now. A signal handler may raise at any place around it."""
        return self._claim.setdefault(None, get_ident()) == get_ident()

    def _end(self, why: StoreError, *, idle: bool) -> None:
        self._ended = why
        self._thread = -1
        self._backend.end(why, idle=idle)

    def _forget(self) -> None:
        """In a forked child: the writer is the parent's."""
        self._ended = why = WriterClosed("this writer was opened before fork and belongs to the parent process")
        self._thread = -1
        self._backend.forget(why)

    def _end_with(self, why: StoreError) -> None:
        """Called when the store's handle is closed: close the writer without waiting."""
        if self._ended is not None:
            return
        mine = self._is_mine()
        if mine:
            self._thread = get_ident()
            try:
                self._backend.close(Deadline(self._backend.closing_seconds))
            except Exception:
                pass  # items that a limiter did not let pass are lost, as is what a dead node had not got
        self._end(why, idle=mine)


def backend_of(writer: Writer) -> WriterBackend:
    """The writer's backend."""
    return writer._backend
