"""A store in this process's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from di_store import _core
from di_store.base.disk import budget_of_writes, new_capacity
from di_store.base.errors import of_core
from di_store.base.sizes import budget_bytes
from di_store.checkpoint.store import capture, durable
from di_store.objects import codec
from di_store.objects.access import Objects
from di_store.objects.draft import Draft, reserve
from di_store.objects.refs import Ref
from di_store.objects.weights import Published, Weights
from di_store.observe.machine import session_stats
from di_store.observe.stats import StoreStats
from di_store.policy.settings import Settings
from di_store.replay.local_mixture import LocalMixture
from di_store.replay.local_table import LocalTable
from di_store.replay.local_writer import LocalWriter
from di_store.replay.lost import drop_lost
from di_store.replay.table_backend import TableBackend
from di_store.replay.tables import Tables
from di_store.runtime import waits
from di_store.runtime.deadline import Deadline
from di_store.session import Session, loaded
from di_store.store.backend import ALONE, ImportChanges, Place, StoreBackend
from di_store.store.handle import Store, backend_of

_core.set_python(of_core, codec.encode, codec.decode, waits.log_wait)
os.register_at_fork(
    before=_core.before_fork, after_in_parent=_core.after_fork_parent, after_in_child=_core.after_fork_child
)


class LocalStore(StoreBackend):
    """A store that this process is attached to."""

    lacks = ALONE
    alone = True

    def __init__(self, session: Session) -> None:
        self.session = session
        self._objects = Objects(session)
        self._weights = Weights(session)
        self.in_steps = self._objects, self._weights
        self._tables = Tables(session)
        # The core's methods themselves, for speed; `close` replaces them.
        self.put_now = session.refuse_to_write if session.readonly else session.arena.put
        self.get_now = session.arena.get
        self._delete = session.refuse_to_write if session.readonly else session.arena.delete

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def seed(self) -> int:
        return self.session.seed

    def shown(self) -> str:
        return repr(self.name)

    def ended(self) -> bool:
        return self.session.ended()

    def pickled(self) -> tuple[Any, ...]:
        return load_store, (self.name, self.session.readonly)

    def close(self) -> None:
        durable.before_close(self.session)
        self.put_now = self.get_now = self._delete = self.session.refuse
        self.session.close()

    # -- the store ----------------------------------------------------------------------------------------------

    def resize(self, memory: Any, disk_capacity: Any, write_budget: Any) -> None:
        arena = self.session.writable()
        capacity = None if disk_capacity is None else new_capacity(arena.disk, disk_capacity)
        writes = budget_of_writes(arena.disk, write_budget)
        if memory is not None:
            arena.resize(budget_bytes(memory), waits.CALL_SECONDS)
        if capacity is not None:
            arena.resize_disk(capacity, waits.CALL_SECONDS)
        if write_budget is not None:
            arena.set_write_budget(writes)

    def stats(self) -> StoreStats:
        return session_stats(self.session)

    def check(self, repair: bool) -> list[str]:
        arena = self.session.writable() if repair else self.session.arena
        findings = arena.check(repair, waits.CALL_SECONDS) + arena.check_disk(repair, waits.CALL_SECONDS)
        if repair:
            drop_lost(arena, marked=True)
        return findings

    def sync(self, copies: int | None, deadline: Deadline) -> None:
        durable.sync(self.session.writable(), deadline.left)

    def checkpoint(self, path: str | os.PathLike[str], progress: capture.Progress | None, deadline: Deadline) -> None:
        capture.checkpoint(self.session.arena, path, deadline.left, progress)

    # -- objects ------------------------------------------------------------------------------------------------

    def put(self, value: Any, raw: bytes | None, ttl: float, durability: str, copies: int, deadline: Deadline) -> Ref:
        return self._objects.put(value, raw, ttl, deadline.left, durability)

    def reserve(self, spec: Any, raw: bytes | None, ttl: float, deadline: Deadline) -> Draft:
        return reserve(self.session, spec, raw, ttl, deadline.left)

    def get(self, raw: bytes, copy: bool | None, deadline: Deadline) -> Any:
        return self._objects.get(raw, deadline.left, copy)

    def put_many(
        self, values: Sequence[Any], raws: Sequence[bytes | None], durability: str, deadline: Deadline
    ) -> list[Ref]:
        return self._objects.put_many(values, raws, deadline, durability)

    def get_many(self, raws: list[bytes], copy: bool | None, deadline: Deadline) -> list[Any]:
        return self._objects.get_many(raws, deadline, copy)

    def wait(self, refs: list[Ref], num_returns: int, deadline: Deadline) -> tuple[list[Ref], list[Ref]]:
        return self._objects.wait(refs, num_returns, deadline.left)

    def contains(self, raw: bytes) -> bool:
        return self.session.arena.contains(raw, waits.CALL_SECONDS)

    def delete(self, raws: list[bytes]) -> int:
        return self._delete(raws, waits.CALL_SECONDS)

    def keys(self, start: Ref | None, n: int) -> list[Ref]:
        return self._objects.keys(start, n)

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(self, name: str, tree: Any, keep: int, group: Any, durability: str, deadline: Deadline) -> int:
        return self._weights.publish(name, tree, keep, deadline.left, durability)

    def latest(
        self, name: str, newer_than: int | None, version: int | None, group: Any, deadline: Deadline
    ) -> Published | None:
        return self._weights.latest(name, newer_than, version, deadline.left)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self, name: str, settings: Settings, place: Place, exist_ok: bool, deadline: Deadline
    ) -> LocalTable:
        return durable.made(self.session, name, settings, exist_ok, deadline.left)

    def import_table(
        self,
        path: str | os.PathLike[str],
        name: str | None,
        changes: ImportChanges,
        allow_pickle: bool,
        deadline: Deadline,
    ) -> LocalTable:
        capacity, sampler, limiter = changes
        return self._tables.import_table(
            path,
            name,
            capacity=capacity,
            sampler=sampler,
            limiter=limiter,
            allow_pickle=allow_pickle,
            timeout=deadline.left,
        )

    def table(self, name: str, deadline: Deadline) -> LocalTable:
        return self._tables.open(name, deadline.left)

    def drop_table(self, name: str, deadline: Deadline) -> None:
        self._tables.drop(name, deadline.core)

    def writer(self, tables: list[TableBackend], lanes: int | None, autoreset: Any) -> LocalWriter:
        return self._tables.writer(tables, lanes, autoreset)

    def mix(self, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None) -> LocalMixture:
        return self._tables.mix(weights, columns, seed)


def load_store(name: str, readonly: bool) -> Store:
    """Unpickle a store, in the process that loads it."""
    return Store(loaded(LocalStore, name, readonly))


def session_of(store: Store) -> Session:
    """The session of a store in this process's memory."""
    found = backend_of(store)
    assert isinstance(found, LocalStore)
    return found.session
