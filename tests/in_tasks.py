"""Calls in tasks of asyncio, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest

import di_store
from di_store.runtime import waiter

T = TypeVar("T")
BOUND_SECONDS = 150.0
SHORT = 0.05
SCHEMA = {"x": di_store.Spec((), "i8")}
QUEUE = {"capacity": 1_000, "schema": SCHEMA, "limiter": di_store.Queue(100)}


def run(main: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own, for no longer than a test may take."""

    async def bounded() -> T:
        return await asyncio.wait_for(main, BOUND_SECONDS)

    return asyncio.run(bounded())


async def asleep(call: Awaitable[T]) -> asyncio.Task[T]:
    """A task of a call that has to wait, when it sleeps."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    assert not task.done(), task
    return task  # type: ignore[return-value]


def rows(first: int, count: int = 1) -> dict[str, Any]:
    """`count` rows with rising numbers."""
    return {"x": np.arange(first, first + count)}


def numbers(batch: di_store.Batch) -> list[int]:
    """The rows of a batch."""
    found: list[int] = batch.data["x"].tolist()
    return found


def wake_by_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks do not look again every 100 ms, which would hide a missing wake-up."""
    monkeypatch.setattr(waiter._Queue, "idle", lambda _: [])
