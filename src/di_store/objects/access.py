"""Objects: immutable values with an id, put by one process and read in place by others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import ObjectNotFound, StoreFull, Timeout
from di_store.objects.refs import Ref
from di_store.runtime import waits
from di_store.runtime.deadline import Deadline
from di_store.runtime.inside import SLICE_SECONDS
from di_store.runtime.looks import Missing, Search, until
from di_store.session import Session

T = TypeVar("T")

Parted: TypeAlias = "tuple[list[Ref], list[Ref]]"
"""Refs of objects that are there, and all others."""


class Objects:
    """The objects of a store, as one session sees them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put(self, value: Any, raw: bytes | None, ttl: float, timeout: float | None, durability: str) -> Ref:
        """`Store.put`, for a value that may have to wait for room. `ttl` 0: it stays."""
        return until(*self.putting(value, raw, ttl, timeout, durability))

    def putting(self, value: Any, raw: bytes | None, ttl: float, timeout: float | None, durability: str) -> Search[Ref]:
        """The search of `put`."""
        durable = is_durable(self._session, durability)

        def put(arena: _core.Arena) -> Ref:
            return Ref(arena.put_durable(value, raw, ttl) if durable else arena.put(value, raw, ttl))

        return writing(self._session, timeout, "put", put)

    def put_many(
        self, values: Sequence[Any], raws: Sequence[bytes | None], deadline: Deadline, durability: str
    ) -> list[Ref]:
        """`Store.put_many`. All values are written before the first is sealed; if the call fails, all are freed."""
        durable = is_durable(self._session, durability)
        drafts: list[_core.Unsealed] = []
        arena = self._session.writable()
        for value, raw in zip(values, raws, strict=True):
            try:
                drafts.append(arena.write(value, raw))
                continue
            except (StoreFull, Timeout):  # wait for it
                pass
            drafts.append(written(self._session, deadline.left, "put", partial(_write, value, raw)))
        if durable:
            written(self._session, deadline.left, "put", lambda arena: arena.keep(drafts))
        for each in drafts:  # takes no lock and cannot block
            each.seal()
        return [Ref(each.id) for each in drafts]

    def get(self, raw: bytes, timeout: float | None, copy: bool | None) -> Any:
        """The value of an object that may not exist yet.

        Raises:
            ObjectNotFound: no sealed object of this id within `timeout` seconds. Timeout: another process held a lock.
            StoreFull: the object lies on disk, and memory had no room for it.
        """
        return until(*self.getting(raw, timeout, copy))

    def getting(self, raw: bytes, timeout: float | None, copy: bool | None) -> Search[Any]:
        """The search of `get`."""
        return self._reading(raw, timeout, lambda arena: arena.get(raw, copy))

    def raw(self, raw: bytes, timeout: float | None) -> Array:
        """The block of an object, as docs/object_format.md draws it: uint8, read-only, pinned while it lives.

        Raises:
            As `get`.
        """
        return until(*self._reading(raw, timeout, lambda arena: arena.raw(raw)))

    def _reading(self, raw: bytes, timeout: float | None, read: Callable[[_core.Arena], T]) -> Search[T]:
        def look(arena: _core.Arena) -> T | Missing[T]:
            seen, room = arena.sealed_seq(), arena.room_seq()
            try:
                return read(arena)
            except StoreFull as error:
                return Missing(arena.wait_room, room, error.message, full=True)
            except (ObjectNotFound, Timeout) as error:
                reason = error.reason if isinstance(error, Timeout) else error.message
                return Missing(arena.wait_sealed, seen, reason, holder=error.holder, error=error)

        return self._arena, timeout, f"get of object {raw.hex()}", look

    def get_many(self, raws: list[bytes], deadline: Deadline, copy: bool | None) -> list[Any]:
        """`Store.get_many`: several objects under one deadline."""
        found = []
        for raw in raws:
            try:
                found.append(self._session.arena.get(raw, copy))
                continue
            except (ObjectNotFound, StoreFull, Timeout):
                pass
            found.append(self.get(raw, deadline.left, copy))
        return found

    def wait(self, pending: list[Ref], wanted: int, timeout: float | None) -> Parted:
        """`Store.wait`: at most `num_returns` refs of existing objects, and all other refs, each in the given order.

        Raises:
            Timeout: another process held a lock until the deadline.
        """
        return until(*self.waiting(pending, wanted, timeout))

    def waiting(self, pending: list[Ref], wanted: int, timeout: float | None) -> Search[Parted]:
        """The search of `wait`."""
        there: set[Ref] = set()

        def parted() -> Parted:
            return [ref for ref in pending if ref in there], [ref for ref in pending if ref not in there]

        def look(arena: _core.Arena) -> Parted | Missing[Parted]:
            seen = arena.sealed_seq()
            try:
                for ref in pending:
                    if len(there) < wanted and ref not in there and arena.contains(ref.raw, SLICE_SECONDS):
                        there.add(ref)
            except Timeout as error:
                return Missing(arena.wait_sealed, seen, error.reason, holder=error.holder)
            if len(there) >= wanted:
                return parted()
            return Missing(arena.wait_sealed, seen, f"{len(there)} of them are there", late=parted)

        return self._arena, timeout, f"wait for {wanted} of {len(pending)} objects", look

    def keys(self, start: Ref | None, n: int) -> list[Ref]:
        """`Store.keys`: refs of up to `n` objects after `start`."""
        after = None if start is None else start.raw
        return [Ref(raw) for raw in self._session.arena.keys(after, n, waits.CALL_SECONDS)]

    def _arena(self) -> _core.Arena:
        return self._session.arena


def is_durable(session: Session, durability: Any) -> bool:
    """Whether an object must be on disk before the call returns.

    Raises:
        ValueError: neither "memory" nor "disk", or the store has no disk tier.
    """
    config.choice("durability", durability, ("memory", "disk"))
    if durability == "memory":
        return False
    if not session.arena.tiered:
        raise ValueError(
            'durability="disk" keeps the object in the folder of the disk tier, and the store has none: open it with '
            "disk=, or leave durability= out"
        )
    return True


def written(session: Session, timeout: float | None, what: str, write: Callable[[_core.Arena], T]) -> T:
    """Write an object. While there is no room, wait and try again.

    Args:
        session: the session; its end also ends the wait.
        timeout: seconds to wait for room; None: no limit.
        what: name of the call, for its error.
        write: one attempt; if it raises, it has written nothing.

    Raises:
        StoreFull: no room within `timeout`.
    """
    return until(*writing(session, timeout, what, write))


def writing(session: Session, timeout: float | None, what: str, write: Callable[[_core.Arena], T]) -> Search[T]:
    """The search of `written`."""

    def look(arena: _core.Arena) -> T | Missing[T]:
        seen = arena.room_seq()
        try:
            return write(arena)
        except StoreFull as error:
            return Missing(arena.wait_room, seen, error.message, full=True)
        except Timeout as error:  # a lock is held; nothing was written
            return Missing(arena.wait_room, seen, error.reason, holder=error.holder)

    return session.writable, timeout, what, look


def _write(value: Any, raw: bytes | None, arena: _core.Arena) -> _core.Unsealed:
    return arena.write(value, raw)
