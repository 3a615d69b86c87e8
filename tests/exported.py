"""What the tests of exported tables share: what a table holds, and a copy of it in another store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import di_store
from di_store import Spec

STEP: dict[str, Any] = {
    "obs": Spec((3,), "f4"),
    "reward": Spec((), "f4"),
    "terminated": Spec((), "?"),
    "truncated": Spec((), "?"),
}


def flat(data: Any, path: str = "") -> dict[str, Any]:
    """The leaves of a batch by path; a ragged one as its rows."""
    if isinstance(data, dict):
        return {name: leaf for key, value in data.items() for name, leaf in flat(value, f"{path}/{key}").items()}
    if isinstance(data, di_store.Ragged):
        return {path: [row.tolist() for row in data]}
    return {path: data if isinstance(data, list) else data.tolist()}


def content(table: di_store.Table) -> dict[str, Any]:
    """All that a table shows of its items, in their order; episodes are numbered as they come."""
    batch = table.peek(table.keys())
    numbers: dict[int, int] = {}
    return {
        **flat(batch.data),
        "priorities": batch.priorities.tolist(),
        "times_sampled": batch.times_sampled.tolist(),
        "versions": batch.versions.tolist(),
        "starts": batch.starts.tolist(),
        "episodes": [numbers.setdefault(number, len(numbers)) for number in batch.episodes.tolist()],
        "waiting": table.stats()["waiting"],
        "settings": (table.view, table.sampler, table.capacity),
    }


def moved(table: di_store.Table, path: Path, **options: Any) -> di_store.Table:
    """The table, exported and imported into another store."""
    table.export(path)
    found = di_store.open(memory="64MiB").import_table(path, **options)
    assert found._backend.session.arena.check(False, 10.0) == []
    return found


def write_episodes(table: di_store.Table, steps: int, length: int = 7, lanes: int = 3, seed: int = 0) -> None:
    """Interleaved episodes with final observations; every third ends by termination."""
    rng = np.random.default_rng(seed)
    with table.writer(lanes=lanes) as writer:
        for t in range(steps):
            ends = np.arange(lanes) * 2 % length == t % length
            row = {
                "obs": rng.random((lanes, 3), np.float32),
                "reward": rng.random(lanes, np.float32),
                "terminated": ends & (t % 3 == 0),
                "truncated": ends & (t % 3 != 0),
            }
            writer.append(row, final={"obs": rng.random((lanes, 3), np.float32)} if ends.any() else None)
