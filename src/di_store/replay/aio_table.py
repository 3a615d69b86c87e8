"""The calls of tables that may wait, for asyncio. The calls of the same names describe them.

A call first runs in the thread of the event loop, without waiting. If it has to wait, the task sleeps, and one thread
of the process waits for all tasks (`runtime.waiter`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from di_store.base.dtypes import Array
from di_store.base.errors import Timeout
from di_store.base.lacks import no_aio
from di_store.replay.batch import Batch
from di_store.replay.laws import DrawOptions, draw_terms
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline
from di_store.runtime.inside import SLICE_SECONDS
from di_store.runtime.looks import Missing, looking
from di_store.runtime.waiter import in_task
from di_store.runtime.waits import Steps

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AioTable:
    """The calls of a `Table` that may wait, for asyncio. Made by `Table.aio`.

    A cancelled call has changed nothing: a `sample` gives its draws back. Exception: an `extend` whose error says that
    it must not be repeated (`Timeout`) has written its rows, and the next insert makes the rest of its items.
    """

    def __init__(self, backend: TableBackend, update: Callable[..., int]) -> None:
        if not backend.in_memory:
            raise no_aio(f"table {backend.shown()}")
        self._backend = backend
        self._update = update  # the plain call, which waits for locks only

    async def insert(self, value: Any, *, priority: float | None = None, timeout: float | None = None) -> Array:
        """As `Table.insert`."""
        return await in_task(self._backend.inserting(value, priority, Deadline.given(timeout)))

    async def extend(self, batch: Any, *, priority: Any = None, timeout: float | None = None) -> Array:
        """As `Table.extend`."""
        return await in_task(self._backend.inserting(batch, priority, Deadline.given(timeout), one=False))

    async def sample(
        self,
        n: int | None = None,
        *,
        timeout: float | None = None,
        min_n: int | None = None,
        beta: float | None = None,
        columns: str | Iterable[str] | None = None,
        out: Batch | None = None,
        replace: bool = True,
        lease: float | None = None,
        **options: Unpack[DrawOptions],
    ) -> Batch:
        """As `Table.sample`. Rows on disk are read in the thread of the event loop."""
        terms, beta = draw_terms(self._backend, n, timeout, min_n, beta, out, replace, lease, options)
        return await in_task(self._backend.sampling(None, terms, beta, columns, out))

    async def update(
        self, keys: Any, values: Any, *, row: int | None = 0, ack: bool = False, timeout: float | None = 60
    ) -> int:
        """As `Table.update`."""
        return await in_task(self._updating(keys, values, row, ack, Deadline.given(timeout)))

    def _updating(self, keys: Any, values: Any, row: int | None, ack: bool, deadline: Deadline) -> Steps[int]:
        if (handle := self._backend.handle) is None:
            return self._update(keys, values, row=row, ack=ack)  # raises StoreClosed

        def look(_: Any) -> int | Missing[int]:
            seen = handle.native.room_seq()
            try:
                return self._update(keys, values, row=row, ack=ack, timeout=deadline.at_most(SLICE_SECONDS))
            except Timeout as error:  # a lock is held
                return Missing(handle.native.wait_lock(error.holder), seen, error.reason, holder=error.holder)

        return (yield from looking(lambda: handle.arena, deadline.left, f"update of table {handle.name!r}", look))
