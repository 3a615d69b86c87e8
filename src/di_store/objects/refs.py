"""Objects: immutable values with an id, put by one process and read in place by others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from di_store import _core
from di_store.base import config
from di_store.base.config import as_float, count
from di_store.base.errors import ObjectNotFound, StoreFull, Timeout, shown
from di_store.runtime import waits
from di_store.runtime.waits import SLICE_SECONDS, Wait

T = TypeVar("T")

_ID_BYTES = 20
_FOREVER_SECONDS = 100 * 365 * 86_400.0
"""A longer ttl is none: no machine runs for a century, and its nanoseconds still fit 64 bits."""


class Handle(Protocol):
    """What a call that waits needs of the store's handle: its core, until it is closed."""

    @property
    def _arena(self) -> _core.Arena: ...


class Ref:
    """The handle of an object: its id. Dropping it frees nothing. Hashes and compares by id, pickles as it."""

    __slots__ = ("_bytes",)

    def __init__(self, raw: bytes) -> None:
        if type(raw) is not bytes or len(raw) != _ID_BYTES:
            raise TypeError(f"Ref({shown(raw)}): store.put() makes refs, Ref.parse() reads their text")
        self._bytes = raw

    @property
    def id(self) -> str:
        """40 hex characters."""
        return self._bytes.hex()

    @classmethod
    def parse(cls, text: str) -> Ref:
        """The ref whose text this is.

        Raises:
            ValueError: not 40 hex characters. TypeError: no text.
        """
        return cls(parse_id(text))

    def __bytes__(self) -> bytes:
        return self._bytes

    def __str__(self) -> str:
        return self._bytes.hex()

    def __repr__(self) -> str:
        return f"Ref({self._bytes.hex()})"

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, Ref) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return Ref, (self._bytes,)


def parse_id(text: Any) -> bytes:
    """The 20 bytes of an id.

    Raises:
        ValueError: not 40 hex characters. TypeError: no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"id={shown(text)} is a {type(text).__name__}: give 40 hex characters")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != _ID_BYTES or len(text) != 2 * _ID_BYTES:
        raise ValueError(f"id={shown(text)}: an id is 40 hex characters")
    return raw


def id_of(ref: Any) -> bytes:
    """The id that a ref, or its text, names; TypeError for anything else."""
    if isinstance(ref, Ref):
        return ref._bytes
    if isinstance(ref, str):
        return parse_id(ref)
    many = "; several at once go to get_many()" if isinstance(ref, (list, tuple, set)) else ""
    raise TypeError(f"{shown(ref)} is a {type(ref).__name__}: give a Ref, as store.put() returns it{many}")


def ids_of(refs: Any) -> list[bytes]:
    """The ids of one ref or of several."""
    if type(refs) is not list:
        refs = [refs] if isinstance(refs, (Ref, str)) else listed(refs)
    return [ref._bytes if type(ref) is Ref else id_of(ref) for ref in refs]


def listed(refs: Any) -> list[Any]:
    """Several refs as a list.

    Raises:
        TypeError: one alone, or nothing that can be gone through.
    """
    return config.listed("refs", refs, "a list of refs")


def check_ttl(ttl: Any) -> float:
    """Seconds until the object is deleted; 0 for never."""
    if ttl is None:
        return 0.0
    seconds = as_float("ttl", ttl, "seconds, or None for an object that stays")
    if not seconds > 0:
        raise ValueError(f"ttl={shown(ttl)}: give seconds > 0, or None for an object that stays")
    return 0.0 if seconds > _FOREVER_SECONDS else seconds


def put_waiting(store: Handle, value: Any, raw: bytes | None, ttl: float, timeout: float | None) -> bytes:
    """Put again and again until there is room; the object's id."""
    return repeat(store, timeout, "put", lambda arena: arena.put(value, raw, ttl))


def repeat(store: Handle, timeout: float | None, what: str, call: Callable[[_core.Arena], T]) -> T:
    """What writes an object, again and again until there is room.

    Args:
        store: whose handle ends the wait when it is closed.
        timeout: seconds to wait for room; None: no limit.
        what: the call, as its failure names it.
        call: writes, or raises and has written nothing.

    Raises:
        StoreFull: no room within `timeout`.
    """
    wait: Wait | None = None
    try:
        while True:
            arena = store._arena
            seen = arena.room_seq()
            try:
                return call(arena)
            except StoreFull as error:
                reason, full = error.message, True
            except Timeout as error:  # a lock is held up; nothing was written
                reason, full = error.reason, False
            if wait is None:
                wait = Wait(arena, timeout, what)
                if arena.reap():  # the dead may have held what is missing
                    continue
            wait.pause(arena.wait_room, seen, reason, full=full)
    finally:
        if wait is not None:
            wait.end()


def get_waiting(store: Handle, raw: bytes, timeout: float | None, copy: bool | None) -> Any:
    """Look again and again until the object is there and sealed.

    Raises:
        ObjectNotFound: it was not within `timeout`. Timeout: nobody could look, a lock was held up.
    """
    wait: Wait | None = None
    try:
        while True:
            arena = store._arena
            seen = arena.sealed_seq()
            try:
                return arena.get(raw, copy)
            except (ObjectNotFound, Timeout) as error:
                if timeout is not None and timeout <= 0:
                    raise
                wait = wait or Wait(arena, timeout, f"get of object {raw.hex()}")
                if wait.left <= 0:
                    raise
                reason = error.reason if isinstance(error, Timeout) else error.message
            wait.pause(arena.wait_sealed, seen, reason, at_most=max(wait.left, 0.0))
    finally:
        if wait is not None:
            wait.end()


def get_all(store: Handle, refs: Iterable[Any], timeout: float | None, copy: bool | None) -> list[Any]:
    """Several objects under one deadline."""
    deadline = None if timeout is None else time.monotonic() + timeout
    found = []
    for ref in listed(refs):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        found.append(get_waiting(store, id_of(ref), left, copy))
    return found


def put_all(store: Handle, values: Iterable[Any], ids: Any, timeout: float | None) -> list[Ref]:
    """Several objects under one deadline. All are written before the first is sealed; those of a failing call go."""
    if isinstance(values, dict):
        raise TypeError("put_many() takes a list of values, not one dict: put() stores that")
    every = config.listed("values", values, "put_many() a list of values; put() stores one")
    raws: Sequence[bytes | None] = [None] * len(every)
    if ids is not None:
        raws = [parse_id(each) for each in config.listed("ids", ids, "a list of ids, 40 hex characters each")]
    if len(raws) != len(every):
        raise ValueError(f"put_many: {len(raws)} ids for {len(every)} values")
    deadline = None if timeout is None else time.monotonic() + timeout
    written: list[_core.Unsealed] = []
    for value, raw in zip(every, raws, strict=True):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        # mutant: half-of-put-many-stays
        written.append(repeat(store, left, "put", partial(_write, value, raw)))
    for each in written:  # takes no lock: nothing can hold it up
        each.seal()
    return [Ref(each.id) for each in written]


def _write(value: Any, raw: bytes | None, arena: _core.Arena) -> _core.Unsealed:
    return arena.write(value, raw)


def wait_for(store: Handle, refs: Any, num_returns: Any, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
    """Those of `refs` that are there, at most `num_returns`, and the rest, each in the order given.

    Returns at the deadline with fewer.

    Raises:
        Timeout: nobody could look, a lock was held up.
    """
    pending = [ref if isinstance(ref, Ref) else Ref(id_of(ref)) for ref in listed(refs)]
    wanted = count("num_returns", num_returns, minimum=1)
    if wanted > len(pending):
        raise ValueError(f"num_returns={wanted}, but there are {len(pending)} refs to wait for")
    if len(set(pending)) != len(pending):
        raise ValueError("wait() was given a ref twice")
    there: set[Ref] = set()
    with Wait(store._arena, timeout, f"wait for {wanted} of {len(pending)} objects") as wait:
        while True:
            arena = store._arena
            seen = arena.sealed_seq()
            reason = ""
            try:
                for ref in pending:
                    if len(there) < wanted and ref not in there and arena.contains(bytes(ref), SLICE_SECONDS):
                        there.add(ref)
            except Timeout as error:
                reason = error.reason
            if len(there) >= wanted or (wait.left <= 0 and not reason):
                return [ref for ref in pending if ref in there], [ref for ref in pending if ref not in there]
            reason = reason or f"{len(there)} of them are there"
            wait.pause(arena.wait_sealed, seen, reason, at_most=min(SLICE_SECONDS, wait.left))


def list_keys(arena: _core.Arena, start: Any, n: Any) -> list[Ref]:
    """Refs of up to `n` objects behind `start`."""
    after = None if start is None else id_of(start)
    return [Ref(raw) for raw in arena.keys(after, count("n", n, minimum=0), waits.CALL_SECONDS)]
