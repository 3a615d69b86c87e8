"""A writer of tables in this process's memory.

A call passes its arguments to the core unchanged. Most of this file handles rare cases: the first step declares
columns, a call waits, a call is refused, or another thread closes the writer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from di_store.base import tree
from di_store.base.config import listed
from di_store.base.errors import EndOfData, SchemaMismatch, StoreError, shown
from di_store.replay.batch import Items, no_items
from di_store.replay.handle import TableHandle, episodes_reader
from di_store.replay.stream import check_priority, rows_of
from di_store.replay.writer import LOOK_EVERY, WriterBackend
from di_store.replay.writer_stream import BUSY, LATER, WriterStream
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import Steps, run
from di_store.session import Session


class LocalWriter(WriterBackend):
    """A writer of a store that this process is attached to."""

    in_memory = True

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
        self.stream: WriterStream | None = stream
        self.names = [handle.name for handle in stream.handles]
        self.single = single
        self.calls = 0
        self._session = session
        self._each = [episodes_reader(handle) for handle in stream.handles]
        self.episodes = self._each[0]
        self._fresh = stream.native is None  # the first step is still to come
        self._ended: StoreError | None = None
        if not self._fresh:
            self._begin(stream)

    @property
    def session(self) -> Session:
        return self._session

    def open(self) -> WriterStream:
        """The stream; a call keeps a reference to it until the call ends. Raises if the writer has ended."""
        stream = self.stream
        if stream is None:
            assert self._ended is not None
            raise copy.copy(self._ended)
        return stream

    def _begin(self, stream: WriterStream) -> None:
        """From now on `append_now` is the core's own method."""
        self.append_now = stream.call  # type: ignore[method-assign]
        if self._ended is not None:  # another thread closed the store meanwhile
            del self.append_now

    def look(self) -> None:
        if (stream := self.stream) is not None:
            stream.look()

    def count(self, calls: int) -> None:
        """Count calls of `append`, and look after the writer once in `LOOK_EVERY` of them."""
        before, self.calls = self.calls, self.calls + calls
        if self.calls // LOOK_EVERY > before // LOOK_EVERY:
            self.open().look()

    def append(self, begun: Any, step: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        return run(self.appending(begun, step, next, final, lane, priority, deadline))

    def appending(
        self, begun: Any, step: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline
    ) -> Steps[Any]:
        stream, seconds = self.open(), deadline.left  # a wait has all the time that there was at the call
        self._declare(step, next, final, lane, priority, None, deadline)
        arguments = (step, next, final, lane, self.by_table(priority))
        if begun is None:
            try:
                begun = stream.call(*arguments)
            except SchemaMismatch as error:
                raise self.explained(error, step, lane, None) from None
        if type(begun) is not list:
            begun = yield from stream.finishing("append", begun, seconds, stream.again, *arguments)
        self.count(1)
        return self.made(begun)

    def extend(self, steps: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Any:
        return run(self.extending(steps, next, final, lane, priority, deadline))

    def extending(self, steps: Any, next: Any, final: Any, lane: Any, priority: Any, deadline: Deadline) -> Steps[Any]:
        stream, seconds = self.open(), deadline.left
        if stream.opaque:
            steps = listed("steps", steps, "a list of values")
        total = len(steps) if stream.opaque else rows_of(steps)
        if total == 0:
            raise ValueError("extend() needs at least one row")
        self._declare(steps, next, final, lane, priority, total, deadline)
        native = stream.opened()
        stream.take_versions()
        if stream.opaque:
            steps = stream.encoded(steps, next, final, lane, total, deadline.core)
        arguments = (steps, next, final, lane, self.by_table(priority), total)
        try:
            made = native.extend(*arguments)
        except SchemaMismatch as error:
            raise self.explained(error, steps, lane, total) from None
        if type(made) is not list:
            made = yield from stream.finishing("extend", made, seconds, native.extend, *arguments)
        self.count(total)
        return self.made(made)

    def end_episode(self, final: Any, lane: Any, discard: bool, deadline: Deadline) -> Any:
        return run(self.ending(final, lane, discard, deadline))

    def ending(self, final: Any, lane: Any, discard: bool, deadline: Deadline) -> Steps[Any]:
        stream, seconds, arguments = self.open(), deadline.left, (final, lane, discard)
        if (native := stream.native) is None:
            return self.made([no_items() for _ in self.names])
        made = native.end_episode(*arguments)
        made = yield from stream.finishing("end_episode", made, seconds, native.end_episode, *arguments)
        return self.made(made)

    def check_idle(self) -> None:
        if self.open().is_busy():
            raise StoreError(BUSY, remedy=LATER)

    def close(self, deadline: Deadline) -> None:
        run(self.closing(deadline))

    def closing(self, deadline: Deadline) -> Steps[None]:
        stream, seconds = self.open(), deadline.left
        native = stream.native
        if stream.marked is not None and self._session.ended():
            return  # of a client: as after a kill of its process, open episodes make no more items
        try:
            if native is not None:
                yield from stream.finishing("close", native.finish(), seconds, native.finish)
        except EndOfData:
            pass  # a finished table accepts no items: the open episodes add none
        finally:
            stream.look()

    def flush(self, deadline: Deadline) -> None:
        self.open()

    def end(self, why: StoreError, *, idle: bool) -> None:
        self._ended = why
        self.__dict__.pop("append_now", None)
        # The last handle to go unmaps the store. A call in another thread has its own reference.
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.end(why)
            if idle and stream.native is not None and not stream.is_busy():  # a task may be inside a call
                stream.native.close()

    def forget(self, why: StoreError) -> None:
        self.end(why, idle=False)

    def begin_call(self, seq: int) -> None:
        """Begin call number `seq` of the writer's session."""
        stream = self.open()
        stream.seq = seq
        if stream.native is not None:
            stream.native.begin_call(seq)

    def _declare(
        self, step: Any, next: Any, final: Any, lane: Any, priority: Any, total: int | None, deadline: Deadline
    ) -> None:
        """For a first step: check all arguments, then declare the columns."""
        if not self._fresh:
            return
        for value in self.by_table(priority).values() if type(priority) is dict else (priority,):
            check_priority(value)
        for option, given in (("next", next), ("final", final)):
            if isinstance(given, Mapping) and isinstance(step, Mapping):
                unknown = sorted(set(tree.flatten(given, what=option)) - set(tree.flatten(step)))
                if unknown:
                    raise SchemaMismatch(f"{option}= holds column {unknown[0]!r}, which the step lacks")
        stream = self.open()
        stream.declare(step, lane, total, deadline.core)
        self._fresh = False
        self._begin(stream)

    def by_table(self, priority: Any) -> Any:
        """Priorities by the numbers of the tables; priorities in other forms are unchanged."""
        if type(priority) is not dict:
            return priority
        if unknown := set(priority) - set(self.names):
            raise ValueError(f"priority= names {shown(list(unknown))}, and this writer's tables are {self.names}")
        return {number: priority[name] for number, name in enumerate(self.names) if name in priority}

    def made(self, parts: list[Any]) -> Items | dict[str, Items]:
        found = [Items(*each) for each in parts]
        for items, episodes in zip(found, self._each, strict=True):
            items._episodes = episodes
        return found[0] if self.single else dict(zip(self.names, found, strict=True))

    def explained(self, error: SchemaMismatch, step: Any, lane: Any, total: int | None) -> Exception:
        """The error with the full path of the leaf that is wrong; `error` itself if this slow check finds nothing."""
        stream = self.stream
        if stream is not None and stream.schema is not None and not stream.opaque and isinstance(step, Mapping):
            try:
                stream.schema.coerce(step, stream.lead(lane, total) or None, partial=True)
            except (SchemaMismatch, ValueError, TypeError) as told:
                return told
        return error
