"""Weights: one writer publishes versions under a name, readers take the newest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from di_store.base import config
from di_store.base.errors import ObjectNotFound, Timeout, shown
from di_store.objects.refs import Handle, repeat
from di_store.runtime.waits import Wait


@dataclass(frozen=True, slots=True)
class Published:
    """One version of published weights.

    Attributes:
        version: its number, from 1, rising by one.
        value: the tree, as `store.get` would return it; None for a version whose weights travel elsewhere.
    """

    version: int
    value: Any


def publish(store: Handle, name: str, tree: Any, keep: Any, group: Any, timeout: float | None) -> int:
    """Make `tree` the next version of `name`; the newest `keep` stay readable.

    Raises:
        StoreFull: no room within `timeout`; no version was counted.
    """
    config.later("group=", group)
    check_name(name)
    kept = config.count("keep", keep, minimum=1, why="the newest version stays readable")
    return repeat(store, timeout, f"publish of {name!r}", lambda arena: arena.publish(name, tree, kept))


def latest(store: Handle, name: str, newer_than: Any, version: Any, timeout: float | None) -> Published | None:
    """The newest version of `name`, or the one asked for.

    Args:
        store: whose handle ends the wait when it is closed.
        name: as published.
        newer_than: only a version above this one; None: any.
        version: exactly this one; None: the newest.
        timeout: seconds to wait for one.

    Returns:
        None: nothing is newer at the deadline, or the version asked for is not there (any more).
    """
    check_name(name)
    if version is not None and newer_than is not None:
        raise ValueError("latest() takes newer_than= or version=, not both")
    wanted = None if version is None else config.count("version", version, minimum=1, maximum=2**62)
    least = 1 if newer_than is None else config.count("newer_than", newer_than, minimum=-1, maximum=2**62) + 1
    wait: Wait | None = None
    try:
        while True:
            arena = store._arena
            seen = arena.sealed_seq()
            newest = arena.newest(name)
            number = newest if wanted is None else wanted
            reason = f"the newest version is {newest}, version {least if wanted is None else wanted} was asked for"
            held_up: Timeout | None = None
            if newest >= max(1, least if wanted is None else wanted):
                try:
                    return Published(number, arena.latest(name, number, None))
                except ObjectNotFound:
                    if arena.newest(name) != newest:
                        continue  # overtaken while we looked
                    return Published(number, None) if number >= arena.oldest(name) else None
                except Timeout as error:  # a lock is held up
                    held_up, reason = error, error.reason
            over = timeout is not None and timeout <= 0
            if not over:
                wait = wait or Wait(arena, timeout, f"latest({name!r})")
                over = wait.left <= 0
            if over and held_up is not None:
                raise held_up
            if over or wait is None:
                return None
            wait.pause(arena.wait_weights, seen, reason, at_most=max(wait.left, 0.0))
    finally:
        if wait is not None:
            wait.end()


def check_name(name: Any) -> None:
    """ValueError unless weights can be called so."""
    if not config.is_name(name, 100):
        raise ValueError(f"name={shown(name)}: weights are called by 1 to 100 bytes of text")
