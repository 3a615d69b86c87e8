"""A session is one attachment of this process to a store, shared by a `Store` and all handles made from it.

Closing the `Store` ends the session and every handle registered with `Session.follow`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

from di_store import _core
from di_store.base.errors import AccessDenied, StoreClosed, StoreError
from di_store.runtime import chores, waiter, waits
from di_store.runtime.staging import Staging

H = TypeVar("H")


class Versions(dict[str, int]):
    """The version of each name of a store's weights that this process last got from `latest`."""


_versions: weakref.WeakValueDictionary[str, Versions] = weakref.WeakValueDictionary()
"""By uuid of the store: the versions of all stores that have a session, and of those in `_recent`."""
_recent: deque[Versions] = deque(maxlen=64)
"""A process that closes a store and attaches to it again continues with the versions that it had."""


_sessions: dict[int, weakref.ref[Session]] = {}
"""All sessions of this process, by id(). A plain dict without a lock, like `Session._followers`."""


def _has_session(key: int) -> bool:
    """Whether a session that has not ended is of the arena with this id()."""
    return any((each := known()) is not None and id(each._arena) == key for known in list(_sessions.values()))


def _versions_of(uuid: str) -> Versions:
    found = _versions.setdefault(uuid, Versions())
    _recent.append(found)
    return found


class Session:
    """One attachment, and the handles that end with it. Thread-safe.

    Attributes:
        name: name of the store.
        seed: seed of all random choices in the store.
        readonly: whether its handles only read.
        uuid: uuid of the store.
        versions: the version of each name of weights that this process last got from `latest`; for a client on another
            machine, its own versions.
        staging: budget of the batches that its loaders hold ahead.
    """

    def __init__(
        self,
        arena: _core.Arena,
        *,
        seed: int | None = None,
        readonly: bool = False,
        staging: int | None = None,
        versions: dict[str, int] | None = None,
    ) -> None:
        self.name: str = arena.name
        self.seed: int = arena.seed if seed is None else seed
        self.readonly = readonly
        self.staging = Staging(staging)
        self.uuid: str = arena.uuid
        self.versions = _versions_of(self.uuid) if versions is None else versions
        self.abroad: Callable[[str], tuple[Any, ...]] | None = None
        """How a table pickles, given its name, if processes on other machines may load it; None: only this machine's
        may."""
        self._arena: _core.Arena | None = arena
        # By id() of the handle. A plain dict without a lock: threads add to it while `close` iterates over a copy.
        self._followers: dict[int, tuple[weakref.ref[Any], Callable[[Any, StoreError], None]]] = {}
        number = id(self)
        _sessions[number] = weakref.ref(self, lambda _: _sessions.pop(number, None))

    @classmethod
    def attach(cls, name: str, *, readonly: bool = False) -> Session:
        """A session of a store that exists."""
        return cls(_core.Arena.open(name, _core.Mode.ATTACH, 0, 0, waits.CALL_SECONDS), readonly=readonly)

    @property
    def arena(self) -> _core.Arena:
        """The core's attachment. Read this once per call, because another thread may end the session meanwhile.

        Raises:
            StoreClosed: the session has ended.
        """
        arena = self._arena
        if arena is None:
            raise self._closed()
        return arena

    def ended(self) -> bool:
        """Whether `close` was called."""
        return self._arena is None

    def check_writable(self) -> None:
        """Raise `AccessDenied` if handles of this session only read."""
        if self.readonly:
            text = f"this handle of store {self.name!r} only reads"
            raise AccessDenied(text, remedy='it was opened with mode="r"; use "rw"')

    def writable(self) -> _core.Arena:
        """The core's attachment, for a call that writes."""
        if self.readonly:
            self.check_writable()
        return self.arena

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Replaces the core's calls once the session has ended: raises `StoreClosed`."""
        raise self._closed()

    def refuse_to_write(self, *_: Any, **__: Any) -> NoReturn:
        """Replaces the core's calls that write, if handles only read: raises `AccessDenied`."""
        self.check_writable()
        self.refuse()

    def follow(self, handle: H, end: Callable[[H, StoreError], None]) -> None:
        """Call ``end(handle, why)`` when the session ends; the session does not keep the handle alive.

        Raises:
            StoreClosed: the session has already ended; `end` was called.
        """
        key, known = id(handle), self._followers
        known[key] = weakref.ref(handle, lambda _: known.pop(key, None)), end
        if self.ended():
            self.close()
            raise self._closed()

    def end_some(self, why_of: Callable[[Any], StoreError | None]) -> None:
        """End the handles for which this gives an error, which their calls then raise."""
        for reference, end in list(self._followers.values()):
            if (handle := reference()) is not None and (why := why_of(handle)) is not None:
                end(handle, why)

    def close(self) -> None:
        """End the session and all its handles. The memory is unmapped with the last handle and array."""
        key = id(self._arena)
        self._arena = None  # first: `follow` checks this after it registers, so no handle is missed
        for reference, end in list(self._followers.values()):
            if (handle := reference()) is not None:
                end(handle, self._closed())
        waiter.look_again()
        chores.let_go(key, partial(_has_session, key))

    def _closed(self) -> StoreError:
        return StoreClosed(f"this handle of store {self.name!r} was closed")


def loaded(attach: Callable[[Session], H], name: str, readonly: bool) -> H:
    """Load a pickled handle in this process, with a new session.

    Args:
        attach: makes the handle; if it fails, the session ends.
        name: name of the store.
        readonly: whether the pickled handle's session was read-only.
    """
    session = Session.attach(name, readonly=readonly)
    try:
        return attach(session)
    except BaseException:  # also Ctrl-C: no handle is returned that would end it
        session.close()
        raise
