"""The calls of writers that may wait, for asyncio. The calls of the same names describe them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from di_store.runtime.deadline import Deadline
from di_store.runtime.waiter import in_task
from di_store.runtime.waits import Steps

CLOSE_SECONDS = 60.0


class InSteps(Protocol):
    """A writer whose calls are made in steps too."""

    def _entered(self) -> Any:
        """Its `WriterBackend`, for a call in this thread."""

    def _closing(self, timeout: Any) -> Steps[None]:
        """Its `close` in steps."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AioWriter:
    """The calls of a `Writer` that may wait, for asyncio. Made by `Writer.aio`; an asynchronous context manager.

    One call of a writer at a time: a second task gets `StoreError`. A cancelled call has written nothing, or, after it
    has written its rows, is finished by the writer's next call or `close`.
    """

    def __init__(self, writer: InSteps) -> None:
        self._writer = writer

    async def append(
        self,
        step: Any,
        *,
        next: Any = None,
        final: Any = None,
        lane: Any = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """As `Writer.append`."""
        deadline = Deadline.given(timeout)
        return await in_task(self._writer._entered().appending(None, step, next, final, lane, priority, deadline))

    async def extend(
        self,
        steps: Any,
        *,
        next: Any = None,
        final: Any = None,
        lane: Any = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """As `Writer.extend`."""
        deadline = Deadline.given(timeout)
        return await in_task(self._writer._entered().extending(steps, next, final, lane, priority, deadline))

    async def end_episode(
        self, final: Any = None, lane: Any = None, discard: bool = False, *, timeout: float | None = None
    ) -> Any:
        """As `Writer.end_episode`."""
        return await in_task(self._writer._entered().ending(final, lane, discard, Deadline.given(timeout)))

    async def close(self, *, timeout: float | None = CLOSE_SECONDS) -> None:
        """As `Writer.close`. If it is cancelled, the last items may be lost, as after `Timeout`."""
        await in_task(self._writer._closing(timeout))

    async def __aenter__(self) -> AioWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self._writer.__exit__(kind, error, trace)
