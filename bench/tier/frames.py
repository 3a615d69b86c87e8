"""What real frames of a game take of the disk, and how fast batches of them are read and unpacked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench.tier.lines import Line, Options, alone
from bench.tier.stores import disk_stats, opened

FRAMES, STEPS, EPISODE = 4_096, 80_000, 500
MEMORY, BATCH, BATCHES = 128 << 20, 256, 40
ELEMENT = 4 * 84 * 84 * 4
"""Bytes of the element that the target table counts: a stack of four float32 frames, 110 KB."""
LEAST_TIMES, LEAST_RATE = 500.0, 5_000.0
Frames = Any


def qbert() -> Frames:
    """Frames of a random policy at Qbert, frame skip 4: grey, means over areas as 84 x 84."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    game, rng = gymnasium.make("ALE/Qbert-v5", obs_type="grayscale", frameskip=4), np.random.default_rng(1)
    rows, columns = (np.linspace(0, edge, 85).astype(int) for edge in (210, 160))
    areas, found = np.diff(rows)[:, None] * np.diff(columns), list[Frames]()
    game.reset(seed=1)
    while len(found) < FRAMES:
        frame, _, terminated, truncated, _ = game.step(int(rng.integers(game.action_space.n)))  # type: ignore[attr-defined]
        sums = np.add.reduceat(np.add.reduceat(frame.astype(np.float32), rows[:-1], 0), columns[:-1], 1)
        found.append((sums / areas).astype(np.uint8))
        if terminated or truncated:
            game.reset()
    return np.stack(found)


def load(path: Path | None) -> Frames:
    return qbert() if path is None else np.fromfile(path, np.uint8).reshape(-1, 84, 84)


def write(store: di_store.Store, steps: int, shown: Frames) -> di_store.Table:
    """A table of so many steps; `shown` is repeated."""
    view = di_store.Transition(n_step=1, gamma=0.99, frame_stack={"obs": 4})
    table = store.create_table("replay", capacity=steps, lanes=1, view=view)
    with table.writer() as writer:
        for i in range(steps):
            row = {"obs": shown[i % len(shown)], "action": i % 6, "reward": 0.0, "truncated": False}
            writer.append(row | {"terminated": i % EPISODE == EPISODE - 1})
    return table


def frames(options: Options) -> list[Line]:
    shown, steps = load(options.frames), max(20_000, int(STEPS * options.scale))
    names = ("on disk", "with slots", "written", "drawn")
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        with opened(options.folder, MEMORY, 4 << 30) as store:
            before, begin = store.stats()["meta"], time.process_time()
            table = write(store, steps, shown)
            taken["written"].append(steps / (time.process_time() - begin))
            stats, disk = store.stats(), disk_stats(store)
            # Not all rows are on disk: those that are tell what a step takes. Heads lie there as well.
            step = disk["live"] / disk["raw"] * stats["tables"]["replay"]["bytes_stored"] / steps
            taken["on disk"].append(ELEMENT / step)
            taken["with slots"].append(ELEMENT / (step + (stats["meta"] - before) / steps))
            begin = time.process_time()
            for _ in range(BATCHES):
                table.sample(BATCH)
            taken["drawn"].append(BATCH * BATCHES / (time.process_time() - begin))
    return [
        alone("Qbert, 110 KB by a step's bytes on disk, with head and record", "times", taken["on disk"], LEAST_TIMES),
        alone("Qbert, the same with the item's slot in memory", "times", taken["with slots"], None),
        alone("Qbert, transitions drawn for a second of a core", "/s", taken["drawn"], LEAST_RATE),
        alone("Qbert, steps written for a second of a core", "/s", taken["written"], None),
    ]
