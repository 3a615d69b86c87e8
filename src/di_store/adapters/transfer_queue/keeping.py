"""Calls of the actor that keeps a durable queue, from any process of TransferQueue."""

from __future__ import annotations

from typing import Any

import ray

_NAMESPACE = "transfer_queue"
_END_SECONDS = 30.0
_held: dict[str, Any] = {}
"""The keepers that this process has started, by name. They live as long as these handles."""


def hold(name: str, actor: Any) -> None:
    """Keep a keeper that this process has started until `end`."""
    _held[name] = actor


def options(name: str) -> dict[str, Any]:
    """Options of the actor, so that other processes find it."""
    return {"name": name, "namespace": _NAMESPACE, "max_concurrency": 8}


def save(name: str) -> None:
    """Return once the present state of the controller is in the store."""
    ray.get(ray.get_actor(name, namespace=_NAMESPACE).save.remote())


def forget(name: str) -> None:
    """Take the controller's state out of the store until it is another one."""
    ray.get(ray.get_actor(name, namespace=_NAMESPACE).forget.remote())


def end(name: str) -> None:
    """Save a last time and end the keeper, if this process has started it."""
    if (actor := _held.pop(name, None)) is not None:
        ray.get(actor.end.remote(), timeout=_END_SECONDS)
        ray.kill(actor)
