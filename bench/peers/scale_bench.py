"""Measures cpprb or Tianshou by table size, for ``bench.scale``: fills buffers, then one round per line on stdin.

``python -m bench.peers.scale_bench cpprb 100000 1000000``. A line on stdin has the seconds of one measurement; the
answer is one JSON line of lists: size, metric, value, unit. The element is that of ``bench/scale/elements.py`` plus its
next observation. Both buffers are prioritized, sampled in batches of 256, and updated at random indices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from bench.kit import Nanoseconds, time_alone, time_calls

ALPHA, BETA, BATCH, UPDATES = 0.6, 0.4, 256, (32, 256, 1024)
INDEX_BATCHES = 1_000


def columns(size: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs, next_obs, action = (rng.random((size, numbers), np.float32) for numbers in (11, 11, 3))
    rest = {"reward": rng.random(size, np.float32), "terminated": np.zeros(size, bool)}
    return {"obs": obs, "next_obs": next_obs, "action": action, **rest}


def cpprb_calls(size: int) -> tuple[Callable[[], object], Callable[[Any, Any], object]]:
    """Draws and updates of cpprb's prioritized buffer."""
    import cpprb  # type: ignore[import-not-found,import-untyped,unused-ignore]

    data = columns(size)
    shapes = {name: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for name, leaf in data.items()}
    buffer = cpprb.PrioritizedReplayBuffer(size, shapes, alpha=ALPHA)
    buffer.add(**data)
    return partial(buffer.sample, BATCH, beta=BETA), buffer.update_priorities


def tianshou_calls(size: int) -> tuple[Callable[[], object], Callable[[Any, Any], object]]:
    """Draws and updates of Tianshou's prioritized buffer, filled step by step as its collectors do."""
    from tianshou.data import Batch, PrioritizedReplayBuffer  # type: ignore[import-not-found,unused-ignore]

    data = columns(1_000)
    buffer = PrioritizedReplayBuffer(size, alpha=ALPHA, beta=BETA)
    for at in range(size):
        row = {name: leaf[at % 1_000] for name, leaf in data.items()}
        step = {"obs": row["obs"], "act": row["action"], "rew": row["reward"], "obs_next": row["next_obs"]}
        buffer.add(Batch(terminated=False, truncated=False, info={}, **step))
    return partial(buffer.sample, BATCH), buffer.update_weight


def one_round(buffers: dict[int, Any], seconds: float) -> list[tuple[int, str, float, str]]:
    found: list[tuple[int, str, float, str]] = []
    rng = np.random.default_rng()
    for size, (sample, update) in buffers.items():
        time_alone(sample, seconds / 10)
        found += lines(size, f"sample({BATCH})", BATCH, time_alone(sample, seconds))
        for n in UPDATES:
            feed, priorities = cycle([rng.integers(0, size, n) for _ in range(INDEX_BATCHES)]), rng.random(n) + 0.1

            def call(places: Any, update: Any = update, priorities: Any = priorities) -> None:
                update(places, priorities)

            time_calls(call, feed, seconds / 10)
            found += lines(size, f"update({n})", n, time_calls(call, feed, seconds))
    return found


def lines(size: int, metric: str, count: int, taken: Nanoseconds) -> list[tuple[int, str, float, str]]:
    """Percentiles and rate of calls that handle `count` items each."""
    parts = [(size, f"{metric} p{percent}", float(np.percentile(taken, percent)) / 1e3, "µs") for percent in (50, 99)]
    return [*parts, (size, metric, float(count * len(taken) * 1e9 / taken.sum()), "items/s")]


def main() -> None:
    make = {"cpprb": cpprb_calls, "tianshou": tianshou_calls}[sys.argv[1]]
    buffers = {int(size): make(int(size)) for size in sys.argv[2:]}
    rng = np.random.default_rng(1)
    for size, (_, update) in buffers.items():
        for begin in range(0, size, 10_000):
            places = np.arange(begin, min(size, begin + 10_000))
            update(places, rng.random(len(places)) + 0.1)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(one_round(buffers, float(line))), flush=True)


if __name__ == "__main__":
    main()
