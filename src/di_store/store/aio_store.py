"""The calls of a store that may wait, for asyncio. The calls of the same names describe them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from di_store.base import config
from di_store.base.lacks import check_option, no_aio
from di_store.objects.refs import Ref, checked_new, id_of, waited_for
from di_store.objects.weights import Published, check_published
from di_store.runtime.deadline import Deadline
from di_store.runtime.looks import looking
from di_store.runtime.waiter import in_task
from di_store.store.backend import StoreBackend, check_copies


class AioStore:
    """The calls of a `Store` that may wait, for asyncio. Made by `Store.aio`. A cancelled call has changed nothing."""

    def __init__(self, backend: StoreBackend) -> None:
        if backend.in_steps is None:
            raise no_aio(f"store {backend.shown()}")
        self._backend = backend
        self._objects, self._weights = backend.in_steps

    async def put(
        self,
        value: Any,
        *,
        id: str | None = None,
        ttl: float | None = None,
        durability: str = "memory",
        copies: int = 1,
        timeout: float | None = 60,
    ) -> Ref:
        """As `Store.put`."""
        check_copies(self._backend, copies, default=1)
        raw, lasts = checked_new(id, ttl)
        seconds = Deadline.given(timeout).left
        return await in_task(looking(*self._objects.putting(value, raw, lasts, seconds, durability)))

    async def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        """As `Store.get`. An object on disk is read in the thread of the event loop."""
        flag = None if copy is None else config.flag("copy", copy)
        return await in_task(looking(*self._objects.getting(id_of(ref), Deadline.given(timeout).left, flag)))

    async def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        """As `Store.wait`."""
        pending, wanted = waited_for(refs, num_returns)
        return await in_task(looking(*self._objects.waiting(pending, wanted, Deadline.given(timeout).left)))

    async def publish(
        self,
        name: str,
        tree: Any,
        *,
        keep: int = 1,
        group: Any = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> int:
        """As `Store.publish`."""
        if group is not None:
            check_option(self._backend, "group", group)
        kept = check_published(name, tree, keep, durability)
        seconds = Deadline.given(timeout).left
        return await in_task(looking(*self._weights.publishing(name, tree, kept, seconds, durability)))

    async def latest(
        self,
        name: str,
        *,
        newer_than: int | None = None,
        version: int | None = None,
        timeout: float | None = 0,
        group: Any = None,
    ) -> Published | None:
        """As `Store.latest`."""
        if group is not None:
            check_option(self._backend, "group", group)
        seconds = Deadline.given(timeout).left
        return await in_task(looking(*self._weights.finding(name, newer_than, version, seconds)))
