"""Weights: one writer publishes versions under a name, and readers take the newest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import ObjectNotFound, Timeout, shown
from di_store.objects.access import is_durable, writing
from di_store.runtime.looks import Missing, Search, until
from di_store.runtime.waits import check_timeout
from di_store.session import Session

T = TypeVar("T")
RESERVED = "di-store/"
"""Names that begin so are the library's own: agents keep there what must outlive them."""


class Published(msgspec.Struct, frozen=True, weakref=True):
    """One version of published weights.

    Attributes:
        version: its number, counted from 1.
        value: the tree, as `store.get` would return it; None for a version whose weights were sent another way.
    """

    version: int
    value: Any


class Weights:
    """The published weights of a store, as one session sees them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def publish(self, name: str, tree: Any, keep: int, timeout: float | None, durability: str) -> int:
        """`Store.publish`: make `tree` the next version of `name`; the newest `keep` stay readable.

        Raises:
            StoreFull: no room within `timeout` seconds; the version number did not change.
        """
        return until(*self.publishing(name, tree, keep, timeout, durability))

    def publishing(self, name: str, tree: Any, keep: int, timeout: float | None, durability: str) -> Search[int]:
        """The search of `publish`."""
        self._session.check_writable()
        durable = is_durable(self._session, durability)
        publish = partial(_publish_durable if durable else _publish, name, tree, keep)
        return writing(self._session, timeout, f"publish of {name!r}", publish)

    def latest(self, name: str, newer_than: int | None, version: int | None, timeout: float | None) -> Published | None:
        """`Store.latest`: the newest version of `name`, or the given one.

        Args:
            name: name of the weights.
            newer_than: only a version above this one; None: any.
            version: exactly this one; None: the newest.
            timeout: seconds to wait for such a version.

        Returns:
            None: no newer version at the deadline, or the given version does not exist (any more).
        """
        return until(*self._finding(name, newer_than, version, timeout, _read, self._noted))

    def finding(
        self, name: str, newer_than: int | None, version: int | None, timeout: float | None
    ) -> Search[Published | None]:
        """The search of `latest`."""
        return self._finding(name, newer_than, version, timeout, _read, self._noted)

    def _finding(
        self,
        name: str,
        newer_than: int | None,
        version: int | None,
        timeout: float | None,
        read: Callable[[_core.Arena, str, int], Any],
        made: Callable[[str, int, Any], T],
    ) -> Search[T | None]:
        """`made`: makes the result of a name, a version, and what `read` gave; None for weights sent another way."""
        check_name(name)
        if version is not None and newer_than is not None:
            raise ValueError("latest() takes newer_than= or version=, not both")
        wanted = None if version is None else config.count("version", version, minimum=1, maximum=2**62)
        least = 1 if newer_than is None else config.count("newer_than", newer_than, minimum=-1, maximum=2**62) + 1
        look = partial(_look, name, wanted, max(1, least), read, made)
        return lambda: self._session.arena, timeout, f"latest({name!r})", look

    def _noted(self, name: str, number: int, value: Any) -> Published:
        self._session.versions[name] = number
        return Published(number, value)

    def raw_latest(
        self, name: str, newer_than: int | None, version: int | None, timeout: float | None
    ) -> tuple[int, Array | None] | None:
        """`latest` for a client on another machine: the version and its block (`Objects.raw`)."""
        seconds = check_timeout(timeout)
        return until(*self._finding(name, newer_than, version, seconds, _core.Arena.raw_weights, _as_they_are))


def _as_they_are(name: str, number: int, block: Any) -> tuple[int, Any]:
    return number, block


def _read(arena: _core.Arena, name: str, number: int) -> Any:
    return arena.latest(name, number, None)


def _publish(name: str, tree: Any, keep: int, arena: _core.Arena) -> int:
    return arena.publish(name, tree, keep)


def _publish_durable(name: str, tree: Any, keep: int, arena: _core.Arena) -> int:
    return arena.publish_durable(name, tree, keep)


def _look(
    name: str,
    wanted: int | None,
    least: int,
    read: Callable[[_core.Arena, str, int], Any],
    made: Callable[[str, int, Any], T],
    arena: _core.Arena,
) -> T | Missing[T | None] | None:
    """The version `wanted`, or the newest that is at least `least`."""
    while True:
        seen, newest = arena.sealed_seq(), arena.newest(name)
        number, asked = (newest, least) if wanted is None else (wanted, wanted)
        if newest < asked:
            reason = f"the newest version is {newest}, version {asked} was asked for"
            return Missing(arena.wait_weights, seen, reason, late=lambda: None)
        try:
            return made(name, number, read(arena, name, number))
        except ObjectNotFound:
            if arena.newest(name) == newest:
                return made(name, number, None) if number >= arena.oldest(name) else None
            # a newer version was published meanwhile: look again
        except Timeout as error:  # a lock is held
            return Missing(arena.wait_weights, seen, error.reason, holder=error.holder, error=error)


def check_published(name: Any, tree: Any, keep: Any, durability: Any) -> int:
    """The checked `keep` of `Store.publish`.

    Raises: ValueError, TypeError: the name or another argument is wrong.
    """
    check_own_name(name)
    kept = config.count("keep", keep, minimum=1, why="the newest version stays readable")
    config.choice("durability", durability, ("memory", "disk"))
    if durability == "disk" and tree is None:
        raise ValueError("tree=None has no value to write to disk: leave durability= out")
    return kept


def check_name(name: Any) -> None:
    """ValueError unless `name` can name weights."""
    if not config.is_name(name, 100):
        raise ValueError(f"name={shown(name)}: the name of weights is 1 to 100 bytes of text")


def check_own_name(name: Any) -> None:
    """`check_name`, for names that a user may publish."""
    check_name(name)
    if name.startswith(RESERVED):
        raise ValueError(f"name={shown(name)}: names that begin with {RESERVED!r} are reserved for the library")
