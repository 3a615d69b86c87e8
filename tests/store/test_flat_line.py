"""Flat line: a store in steady use takes no more memory, descriptors or mappings at the end than near the beginning."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program, private_bytes, until

import di_store

HUNDRED_MB = 100_000_000


def test_deleted_objects_leave_memory_flat(count: Callable[[int, int], int], store_name: Callable[[], str]) -> None:
    """The loop of ray#31421: nothing piles up, whatever is read in between."""
    value = np.zeros(HUNDRED_MB, np.uint8)
    with di_store.open(store_name(), memory="512MiB") as store:
        for number in range(count(30, 1_000)):
            value[::4096] = number % 256
            ref = store.put(value, timeout=0)
            view = store.get(ref)
            assert view[0] == view[4096 * 24_000] == number % 256
            del view
            assert store.delete([ref]) == 1
            assert store.stats()["present"] <= 512 * MIB
        stats = store.stats()
        assert stats["live"] + stats["pinned"] + stats["pending"] < 16 * MIB
        assert store.check() == []


CHURN = """
import random, sys, numpy as np, di_store
name, seed = sys.argv[1], int(sys.argv[2])
store = di_store.attach(name, timeout=60)
table, rng = store.table("t"), random.Random(seed)
share = int(0.25 * store.stats()["memory"])
live, used, number = [], 0, 0
value = np.zeros(2 << 20, np.uint8)
with table.writer() as writer:
    while True:
        size = rng.choice((100, 5_000, 60_000, 1 << 20, 2 << 20))
        while used + size > share:
            ref, old, first = live.pop(rng.randrange(len(live)))
            assert store.get(ref)[0] == first
            store.delete([ref])
            used -= old
        value[0] = number % 256
        live.append((store.put(value[:size], timeout=60), size, number % 256))
        used += size
        for _ in range(8):
            obs = value[:7056].reshape(84, 84)
            writer.append({"obs": obs, "n": number, "reward": 0.5})
        if number % 20 == 19:
            writer.end_episode()
        number += 1
        if number % 100 == 0:
            print(number, flush=True)
"""

LEARN = """
import sys, numpy as np, di_store
store = di_store.attach(sys.argv[1], timeout=60)
table, number = store.table("t"), 0
with table.loader(32) as loader:
    for batch in loader:
        table.update_priorities(batch.keys, np.random.rand(32) + 0.1)
        version = store.publish("policy", {"w": batch.data["obs"][:4]})
        assert store.latest("policy", version=version) is not None or store.latest("policy") is not None
        number += 1
        if number % 100 == 0:
            print(number, flush=True)
"""


@dataclass
class Reading:
    """What a process and the store hold at one moment."""

    private: dict[int, int]
    descriptors: dict[int, int]
    maps: dict[int, int]
    live: int
    present: int

    @classmethod
    def take(cls, store: Any, pids: list[int]) -> Reading:
        """Now."""
        stats = store.stats()
        return cls(
            {pid: private_bytes(pid) for pid in pids},
            {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in pids},
            {pid: Path(f"/proc/{pid}/maps").read_text().count("\n") for pid in pids},
            stats["live"],
            stats["present"],
        )


@pytest.mark.memory_only
@pytest.mark.timeout(2_400)
def test_steady_use_leaves_memory_flat(count: Callable[[int, int], int], store_name: Callable[[], str]) -> None:
    """Two processes put, delete and append at 80 % occupancy, one learns and publishes, for half an hour in full."""
    seconds = count(5, 1_800)
    with di_store.open(store_name(), memory="512MiB") as store:
        store.create_table(
            "t",
            capacity=20_000,
            view=di_store.Transition(n_step=3),
            schema={"obs": di_store.Spec((84, 84), "u1"), "n": di_store.Spec((), "i8"), "reward": 0.0},
            sampler=di_store.Prioritized(alpha=0.6),
            limiter=di_store.MinSize(1_000),
        )
        with (
            Program(CHURN, store.name, 1) as one,
            Program(CHURN, store.name, 2) as two,
            Program(LEARN, store.name) as learner,
        ):
            programs = [one, two, learner]
            pids = [*(program.pid for program in programs), os.getpid()]
            until(lambda: store.stats()["live"] > 0.7 * 512 * MIB, "the store to fill", 120)
            until(lambda: len(store.table("t")) == 20_000, "the table to fill", 120)
            for program in programs:
                program.line()
            begin = time.monotonic()
            lines = 0
            early = Reading.take(store, pids)
            while time.monotonic() - begin < seconds:
                for program in programs:
                    program.line()  # each goes on
                lines += 1
                if time.monotonic() - begin < seconds / 10:
                    early = Reading.take(store, pids)
            late = Reading.take(store, pids)
            print(f"{lines} rounds\nearly {early}\nlate  {late}", file=sys.stderr)
            for pid in pids:
                assert late.private[pid] <= 1.05 * early.private[pid] + 4 * MIB
                assert late.descriptors[pid] <= early.descriptors[pid] + 2
                assert late.maps[pid] <= early.maps[pid] + 20
            assert late.present <= 512 * MIB
            assert abs(late.live - early.live) <= 0.05 * 512 * MIB
        assert store.check() == []
