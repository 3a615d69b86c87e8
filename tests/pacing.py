"""Tables with a `Pace`, and the room that it leaves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from leasing import LONG, PATIENCE

import di_store
from di_store import Pace, Spec

PROMPTS = 60
SCHEMA = {"n": Spec((), "i8")}


def publish(store: di_store.Store, times: int = 1) -> None:
    """Further versions of the weights."""
    for _ in range(times):
        store.publish("policy", {"w": np.zeros(1)})


def prompts(store: di_store.Store, batch: int = 4, ahead: int = 1, name: str = "t", **options: Any) -> di_store.Table:
    """A table of numbered prompts, oldest first."""
    pace = Pace("policy", batch, ahead)
    options = {"capacity": PROMPTS, "schema": SCHEMA, "sampler": di_store.Fifo(), "max_times_sampled": 1} | options
    table = store.create_table(name, limiter=pace, **options)
    table.extend({"n": np.arange(PROMPTS)})
    return table


def drawn_later(table: di_store.Table, n: int) -> tuple[threading.Thread, list[int]]:
    """A thread that waits for a draw of n, and a list that gets the numbers drawn."""
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.extend(table.sample(n, timeout=PATIENCE).data["n"]))
    waiter.start()
    return waiter, found


def room(table: di_store.Table, most: int = PROMPTS) -> int:
    """How many draws pass now; they are given back."""
    try:
        batch = table.sample(most, lease=LONG, timeout=0)
    except di_store.Timeout:
        return 0
    assert table.give_back(batch) == len(batch)
    return len(batch)
