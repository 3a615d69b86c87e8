"""Writer: appends steps to one or several tables.

A call passes its arguments to the core unchanged. Most of this file handles rare cases: the first step declares
columns, a call waits, a call is refused, or another thread closes the writer.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, NoReturn

from di_store.base import tree
from di_store.base.config import flag, listed
from di_store.base.errors import EndOfData, SchemaMismatch, StoreError, WriterClosed, shown
from di_store.replay.batch import Items, no_items
from di_store.replay.handle import TableHandle, episodes_reader
from di_store.replay.stream import (
    check_priority,
    rows_of,
)
from di_store.replay.writer_stream import BUSY, LATER, WriterStream
from di_store.runtime.waits import check_timeout, core_seconds
from di_store.session import Session

CLOSE_SECONDS = 60.0
LOOK_EVERY = 1024
"""After so many calls of `append`, or rows of `extend`, a writer looks after its tables and the store's chores."""
_open: weakref.WeakSet[Writer] = weakref.WeakSet()


def forget_writers() -> None:
    """End all writers in a forked child, because they belong to the parent."""
    for writer in _open:
        writer._end(WriterClosed("this writer was opened before fork and belongs to the parent process"))
    _open.clear()


def count_calls(writer: Writer, calls: int) -> None:
    """Count calls of `append` that were made elsewhere, and look after the writer once in `LOOK_EVERY` of them."""
    before, writer._calls = writer._calls, writer._calls + calls
    if writer._calls // LOOK_EVERY > before // LOOK_EVERY:
        writer._open().look()


class Writer:
    """Appends steps to one stream per lane. For one thread only. Made by `Table.writer` and `Store.writer`."""

    def __init__(
        self,
        session: Session,
        handles: Iterable[TableHandle],
        lanes: int | None,
        autoreset: Any,
        *,
        single: bool,
        marked: bytes | None = None,
    ) -> None:
        stream = WriterStream(handles, lanes, autoreset, marked)
        self._stream: WriterStream | None = stream
        self._names = [handle.name for handle in stream.handles]
        self._episodes = [episodes_reader(handle) for handle in stream.handles]
        self._single = single
        self._thread = 0  # ident of the owner thread; 0: none yet; -1: the writer has ended
        # Acquired once and never released: by the owner, or by a thread that ends a writer without an owner.
        self._claim = threading.Lock()
        self._ended: StoreError | None = None
        self._call: Any = self._first_call if stream.native is None else stream.call
        self._calls = 0
        self._fresh = stream.native is None  # the first step is still to come
        _open.add(self)
        session.follow(self, Writer._end_with)

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
        if timeout is not None or self._fresh:
            timeout = self._prepare(step, next, final, lane, priority, None, timeout)
        try:
            made = self._call(step, next, final, lane, self._by_table(priority) if type(priority) is dict else priority)
        except SchemaMismatch as error:
            raise self._explained(error, step, lane, None) from None
        if type(made) is not list:
            arguments = (step, next, final, lane, self._by_table(priority) if type(priority) is dict else priority)
            stream = self._open()
            made = stream.finish_waiting("append", made, timeout, stream.again, *arguments)
        self._calls += 1
        if not self._calls % LOOK_EVERY and (own := self._stream) is not None:
            own.look()
        if self._single:
            items = Items(*made[0])
            items._episodes = self._episodes[0]
            return items
        return self._made(made)

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
        if get_ident() != self._thread:
            self._enter()
        timeout, stream = check_timeout(timeout), self._open()
        if stream.opaque:
            steps = listed("steps", steps, "a list of values")
        total = len(steps) if stream.opaque else rows_of(steps)
        if total == 0:
            raise ValueError("extend() needs at least one row")
        self._prepare(steps, next, final, lane, priority, total, timeout)
        native = stream.opened()
        stream.take_versions()
        if stream.opaque:
            steps = stream.encoded(steps, next, final, lane, total, core_seconds(timeout))
        arguments = (steps, next, final, lane, self._by_table(priority) if type(priority) is dict else priority, total)
        try:
            made = native.extend(*arguments)
        except SchemaMismatch as error:
            raise self._explained(error, steps, lane, total) from None
        made = stream.finish_waiting("extend", made, timeout, native.extend, *arguments)
        count_calls(self, total)
        return self._made(made)

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
        if get_ident() != self._thread:
            self._enter()
        timeout, stream = check_timeout(timeout), self._open()
        arguments = (final, lane, flag("discard", discard))
        if (native := stream.native) is None:
            return self._made([no_items() for _ in self._names])
        made = stream.finish_waiting(
            "end_episode", native.end_episode(*arguments), timeout, native.end_episode, *arguments
        )
        return self._made(made)

    def close(self, *, timeout: float | None = CLOSE_SECONDS) -> None:
        """End open episodes and release the tables. A second call does nothing.

        Args:
            timeout: seconds to wait for limiters and room; None: no limit.

        Raises:
            Timeout: a limiter did not let the last items pass. They are lost, and the writer is closed anyway. For a
            store on another machine, `close` also raises the errors of calls that were not acknowledged yet.
        """
        if self._ended is not None:
            return
        if get_ident() != self._thread:
            self._enter()
        timeout, stream = check_timeout(timeout), self._open()
        native = stream.native
        if stream.is_busy():
            raise StoreError(BUSY, remedy=LATER)
        try:
            if native is not None:
                stream.finish_waiting("close", native.finish(), timeout, native.finish)
        except EndOfData:
            pass  # a finished table accepts no items: the open episodes add none
        finally:
            stream.look()
            self._end(WriterClosed("this writer was closed"))
            if native is not None:
                native.close()

    def flush(self, *, timeout: float | None = 60) -> None:
        """Wait until all appended rows are in the tables' memory. On the store's own machine they always are.

        Raises:
            Timeout, NodeUnavailable: the other machine did not acknowledge the rows in time. `flush` also raises the
            errors of calls that were not acknowledged yet.
        """
        check_timeout(timeout)
        self._open()

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

    # -- rare cases ---------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Called in a thread that is not the owner. The first thread becomes the owner; any other raises."""
        if self._ended is None and not self._thread and self._claim.acquire(blocking=False):
            self._thread = get_ident()
            return
        raise self._closed()

    def _closed(self) -> StoreError:
        """The error to raise: the writer has ended, or another thread owns it. A copy: several threads may raise it."""
        if self._ended is not None:
            return copy.copy(self._ended)
        return WriterClosed("a writer is for one thread, and this one is used by another")

    def _open(self) -> WriterStream:
        """The stream, which a call keeps a reference to until it ends; raises if the writer has ended."""
        stream = self._stream
        if stream is None:
            raise self._closed()
        return stream

    def _refuse(self, *_: Any) -> Any:
        raise self._closed()

    def _prepare(
        self, step: Any, next: Any, final: Any, lane: Any, priority: Any, total: int | None, timeout: Any
    ) -> float | None:
        """Check `timeout` and return it. For a first step, check all arguments, then declare the columns."""
        seconds = check_timeout(timeout)
        if self._fresh:
            for value in self._by_table(priority).values() if type(priority) is dict else (priority,):
                check_priority(value)
            for option, given in (("next", next), ("final", final)):
                if isinstance(given, Mapping) and isinstance(step, Mapping):
                    unknown = sorted(set(tree.flatten(given, what=option)) - set(tree.flatten(step)))
                    if unknown:
                        raise SchemaMismatch(f"{option}= holds column {unknown[0]!r}, which the step lacks")
            self._open().declare(step, lane, total, core_seconds(seconds))
            self._fresh = False
        return seconds

    def _abandon(self, why: StoreError) -> None:
        """End the writer as a kill of its process would: open episodes make no more items."""
        stream = self._stream
        self._end(why)
        if stream is not None and stream.native is not None:
            stream.native.close()

    def _begin_call(self, seq: int) -> None:
        """`serving.begin_call`."""
        stream = self._open()
        stream.seq = seq
        if stream.native is not None:
            stream.native.begin_call(seq)

    def _first_call(self, step: Any, next: Any, final: Any, lane: Any, priority: Any) -> Any:
        stream = self._open()
        stream.opened()
        self._call = stream.call
        if self._ended is not None:  # another thread closed the store meanwhile
            self._call = self._refuse
        return stream.call(step, next, final, lane, priority)

    def _end(self, why: StoreError) -> None:
        self._ended = why
        self._thread = -1
        self._call = self._refuse
        # The last handle to go unmaps the store. A call in another thread has its own reference.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end(why)

    def _end_with(self, why: StoreError) -> None:
        """The store's handle is closed: close the writer without waiting."""
        mine = self._ended is None and (self._thread == get_ident() or self._claim.acquire(blocking=False))
        if mine and self._stream is not None and self._stream.marked is not None:
            self._abandon(why)
        elif mine:
            self._thread = get_ident()
            try:
                self.close(timeout=0.0)
            except StoreError:
                pass  # items that a limiter did not let pass are lost
        self._end(why)

    def _by_table(self, priority: dict[str, Any]) -> dict[int, Any]:
        if unknown := set(priority) - set(self._names):
            raise ValueError(f"priority= names {shown(list(unknown))}, this writer's tables are {self._names}")
        return {number: priority[name] for number, name in enumerate(self._names) if name in priority}

    def _made(self, made: list[Any]) -> Items | dict[str, Items]:
        found = [Items(*parts) for parts in made]
        for items, episodes in zip(found, self._episodes, strict=True):
            items._episodes = episodes
        return found[0] if self._single else dict(zip(self._names, found, strict=True))

    def _explained(self, error: SchemaMismatch, step: Any, lane: Any, total: int | None) -> Exception:
        """The error with the full path of the leaf that is wrong; `error` itself if this slow check finds nothing."""
        stream = self._stream
        if stream is not None and stream.schema is not None and not stream.opaque and isinstance(step, Mapping):
            try:
                stream.schema.coerce(step, stream.lead(lane, total) or None, partial=True)
            except (SchemaMismatch, ValueError, TypeError) as told:
                return told
        return error
