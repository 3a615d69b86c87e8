"""Pain 10: a snapshot survives kills and is faithful: the old or the new one is there; the next draws are the same."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import WARM

import di_store
from di_store import MinSize, Prioritized
from di_store.checkpoint.tree.folder import MANIFEST

ROWS, BYTES = 4_000, 4_096
FLAGS = np.zeros(100, bool)
FIRST_SAMPLE_SECONDS = 20.0
"""Ten times what `pains.md` asks for: the machine may be busy."""


def fill(table: di_store.Table, first: int, rows: int) -> None:
    rng = np.random.default_rng(first)
    with table.writer() as writer:
        for at in range(first, first + rows, 100):
            obs = rng.integers(0, 256, (100, BYTES), dtype=np.uint8)
            writer.extend({"obs": obs, "number": np.arange(at, at + 100), "terminated": FLAGS, "truncated": FLAGS})


def snapshots(name: str, folder: str) -> None:
    with di_store.attach(name) as store:
        while True:
            store.checkpoint(folder)


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    def make(name: str) -> dict[str, Any]:
        tier = {"disk": tmp_path / name, "disk_capacity": "128MiB"} if request.param else {}
        return {"memory": "16MiB" if request.param else "64MiB", **tier}

    return make


@pytest.mark.timeout(900)
def test_a_kill_at_any_moment_leaves_a_complete_checkpoint(
    options: Callable[[str], dict[str, Any]], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rng = random.Random(10)
    with di_store.open(**options("d")) as store:
        table = store.create_table("t", capacity=ROWS, lanes=1, compress=None)
        fill(table, 0, ROWS)
        store.checkpoint(tmp_path / "c")
        oldest = 0
        for turn in range(1, count(3, 50) + 1):
            child = WARM.Process(target=snapshots, args=(store.name, str(tmp_path / "c")))
            before = os.stat(tmp_path / "c" / MANIFEST).st_mtime_ns
            child.start()
            fill(table, turn * ROWS, ROWS)
            while child.is_alive() and os.stat(tmp_path / "c" / MANIFEST).st_mtime_ns == before:
                pass
            child.join(rng.random() * 0.1)
            child.kill()
            child.join(60)
            with di_store.restore(tmp_path / "c", **options(f"e{turn}")) as again:
                data = again.table("t").peek(again.table("t").keys()).data
                assert len(np.unique(data["number"])) == len(data["number"]) == ROWS
                assert int(data["number"].min()) >= oldest
                oldest = int(data["number"].min())
                assert again.check() == []
        store.checkpoint(tmp_path / "c")
        assert store.stats()["pinned"] == 0


def test_a_restored_store_continues_with_the_same_draws(
    options: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    with di_store.open(seed=3, **options("d")) as store:
        table = store.create_table(
            "t", capacity=ROWS, lanes=1, compress=None, sampler=Prioritized(alpha=0.6, beta=0.4), limiter=MinSize(ROWS)
        )
        fill(table, 0, 2 * ROWS)
        keys = table.keys()
        table.update_priorities(keys, np.random.default_rng(0).random(len(keys)) + 0.01)
        store.checkpoint(tmp_path / "c")
        began = time.monotonic()
        with di_store.restore(tmp_path / "c", tables={"t": {"limiter": MinSize(1)}}, **options("e")) as again:
            other = again.table("t")
            first = other.sample(32)
            assert time.monotonic() - began < FIRST_SAMPLE_SECONDS
            assert (first.keys == table.sample(32).keys).all()
            for _ in range(31):
                mine, its = table.sample(32), other.sample(32)
                assert (mine.keys == its.keys).all()
                assert (np.asarray(mine.probabilities) == np.asarray(its.probabilities)).all()
                assert (mine.data["obs"] == its.data["obs"]).all()
            counts = [each.stats() for each in (table, other)]
            for name in ("inserts", "samples", "size"):
                assert counts[0][name] == counts[1][name]
            other.delete(other.keys()[:-1])
            assert len(other.sample(4)) == 4  # the caller's limiter has won
