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
