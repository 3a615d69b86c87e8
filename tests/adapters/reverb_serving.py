"""Serves Reverb's tables to tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from di_store.adapters import reverb

MEMORY = "512MiB"


def table(name: str = "t", **changes: Any) -> reverb.Table:
    """A prioritized table of 100 items."""
    settings: dict[str, Any] = {
        "sampler": reverb.selectors.Prioritized(1.0),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100,
        "rate_limiter": reverb.rate_limiters.MinSize(1),
    }
    return reverb.Table(name, **settings | changes)


Serve = Callable[..., reverb.Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves tables; returns a client of them."""
    servers: list[reverb.Server] = []

    def served(*tables: reverb.Table) -> reverb.Client:
        servers.append(reverb.Server(tables, memory=MEMORY))
        return servers[-1].localhost_client()

    yield served
    for server in servers:
        server.stop()


def drawn(client: reverb.Client, name: str = "t", count: int = 1) -> list[list[np.ndarray[Any, Any]]]:
    return [sample.data for sample in client.sample(name, count, emit_timesteps=False)]


def act(client: reverb.Client, begin: int, end: int) -> None:
    """What an actor does: steps with text, an entry of no elements and a name with a slash, in two tables."""
    with client.trajectory_writer(3) as writer:
        for number in range(begin, end):
            writer.append({"walker/pos": np.full(2, number), "goal": np.zeros((2, 0)), "text": f"step {number}"})
            held = writer.history
            numbers = {name: held[name][-1:] for name in ("walker/pos", "goal")}
            writer.create_item("t", 1.0 + number, numbers | {"text": held["text"][-1:]})
            writer.create_item("q", 1.0, numbers)
