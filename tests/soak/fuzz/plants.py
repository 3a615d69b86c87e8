"""Faults made on purpose: each must be noticed by the test, or the fuzzer would tell nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from threading import Event
from typing import Any

import di_store
from soak.fuzz.verdict import Finding
from soak.stamps import VAULT, object_id

PLANTS = {
    "crash": "crash",
    "exit": "crash",
    "hang": "hang",
    "raw-text": "raw text",
    "empty-text": "empty text",
    "unnamed": "error without a name",
    "pin-leak": "pinned bytes",
    "draw-leak": "held draws",
    "lost-object": "guarded object",
    "wrong-priority": "guarded item",
    "left-table": "tables are left",
}
"""What is planted, and what the test says of it."""
LEAKED: list[Any] = []


def plant(name: str, store: Any, report: Callable[[Finding], None]) -> None:
    """Make one of the calls wrong from now on."""

    def guarded() -> Any:
        return store.table("guard")

    def leak_draws() -> None:
        queue = store.create_table("w-planted", capacity=9, limiter=di_store.Queue(3), exist_ok=True)
        queue.insert({"x": 1.0})
        reader = queue._backend.handle.reader()
        draws = reader.begin()
        reader.draw(draws, 1)
        LEAKED.append((queue, reader, draws))

    acts: dict[str, Callable[[], Any]] = {
        "crash": lambda: ctypes.string_at(0),
        "exit": lambda: os._exit(3),
        "hang": lambda: Event().wait(),
        "raw-text": lambda: _raise(TypeError("contains(): incompatible function arguments")),
        "empty-text": lambda: _raise(di_store.StoreError("", remedy="")),
        "unnamed": lambda: _raise(IndexError("list index out of range")),
        "pin-leak": lambda: LEAKED.append(store.get(object_id(VAULT, 0, 9, 100 << 9))),
        "draw-leak": leak_draws,
        "lost-object": lambda: store.delete("ff" + "0" * 38),
        "wrong-priority": lambda: guarded().update_priorities(guarded().keys(0, 1), [77.0]),
        "left-table": lambda: store.create_table("left", capacity=3, exist_ok=True),
    }
    kept = di_store.Store.contains

    def contains(self: Any, ref: Any) -> bool:
        acts[name]()
        return kept(self, ref)

    di_store.Store.contains = contains  # type: ignore[method-assign]


def _raise(error: Exception) -> None:
    raise error
