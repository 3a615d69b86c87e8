"""cpprb and Tianshou by table size, for ``bench.scale``: fills its buffers, then one round for each line on stdin.

``python -m bench.peers.scale_bench cpprb 100000 1000000``; a line holds the seconds of one measurement, the answer is
one JSON line of lists: size, metric, value, unit. The element is that of ``bench/scale/elements.py``, with its next
observation beside it; both buffers are prioritized, drawn in batches of 256 and given new priorities by random index.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from bench.scale.figures import Nanoseconds, time_alone, time_calls

ALPHA, BETA, BATCH, UPDATES = 0.6, 0.4, 256, (32, 256, 1024)
INDEX_BATCHES = 1_000


def columns(size: int) -> dict[str, Any]:
    """`size` elements."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.random((size, 11), np.float32),
        "action": rng.random((size, 3), np.float32),
        "reward": rng.random(size, np.float32),
        "terminated": np.zeros(size, bool),
        "next_obs": rng.random((size, 11), np.float32),
    }


class Cpprb:
    """cpprb's prioritized buffer."""

    def __init__(self, size: int) -> None:
        import cpprb  # type: ignore[import-not-found,import-untyped,unused-ignore]

        data = columns(size)
        shapes = {name: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for name, leaf in data.items()}
        self.buffer = cpprb.PrioritizedReplayBuffer(size, shapes, alpha=ALPHA)
        self.buffer.add(**data)

    def sample(self) -> object:
        return self.buffer.sample(BATCH, beta=BETA)

    def update(self, places: Any, priorities: Any) -> None:
        self.buffer.update_priorities(places, priorities)


class Tianshou:
    """Tianshou's prioritized buffer; filled step by step, as its own collectors do."""

    def __init__(self, size: int) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer  # type: ignore[import-not-found,unused-ignore]

        data = columns(1_000)
        self.buffer = PrioritizedReplayBuffer(size, alpha=ALPHA, beta=BETA)
        for at in range(size):
            row = {name: leaf[at % 1_000] for name, leaf in data.items()}
            step = {"obs": row["obs"], "act": row["action"], "rew": row["reward"], "obs_next": row["next_obs"]}
            self.buffer.add(Batch(terminated=False, truncated=False, info={}, **step))

    def sample(self) -> object:
        return self.buffer.sample(BATCH)

    def update(self, places: Any, priorities: Any) -> None:
        self.buffer.update_weight(places, priorities)


def one_round(buffers: dict[int, Any], seconds: float) -> list[tuple[int, str, float, str]]:
    """All figures once."""
    found: list[tuple[int, str, float, str]] = []
    rng = np.random.default_rng()
    for size, buffer in buffers.items():
        time_alone(buffer.sample, seconds / 10)
        found += lines(size, f"sample({BATCH})", BATCH, time_alone(buffer.sample, seconds))
        for n in UPDATES:
            feed = cycle([rng.integers(0, size, n) for _ in range(INDEX_BATCHES)])
            call = partial(update, buffer, rng.random(n) + 0.1)
            time_calls(call, feed, seconds / 10)
            found += lines(size, f"update({n})", n, time_calls(call, feed, seconds))
    return found


def update(buffer: Any, priorities: Any, places: Any) -> None:
    """New priorities by index."""
    buffer.update(places, priorities)


def lines(size: int, metric: str, count: int, taken: Nanoseconds) -> list[tuple[int, str, float, str]]:
    """Percentiles and rate of calls that handle `count` items each."""
    parts = [(size, f"{metric} p{percent}", float(np.percentile(taken, percent)) / 1e3, "µs") for percent in (50, 99)]
    return [*parts, (size, metric, float(count * len(taken) * 1e9 / taken.sum()), "items/s")]


def main() -> None:
    kind: Any = {"cpprb": Cpprb, "tianshou": Tianshou}[sys.argv[1]]
    buffers = {int(size): kind(int(size)) for size in sys.argv[2:]}
    rng = np.random.default_rng(1)
    for size, buffer in buffers.items():
        for begin in range(0, size, 10_000):
            places = np.arange(begin, min(size, begin + 10_000))
            buffer.update(places, rng.random(len(places)) + 0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(one_round(buffers, float(line))), flush=True)


if __name__ == "__main__":
    main()
