"""What a batch without repeats costs: `sample(n, replace=False)` beside `sample(n)`, uniform and by priority.

`python -m bench.distinct`, in half a minute: medians of the ratios of alternating rounds, 100,000 small items.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np

import di_store
from bench.kit import time_alone

ITEMS, ROUNDS, SECONDS = 100_000, 15, 0.05
STEP = {"obs": di_store.Spec((17,), "f4"), "reward": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?")}
SAMPLERS = {"uniform": di_store.Uniform(), "prioritized": di_store.Prioritized(0.6, beta=0.4)}


def filled(store: di_store.Store, name: str) -> di_store.Table:
    table = store.create_table(name, capacity=ITEMS, schema=STEP, sampler=SAMPLERS[name], lanes=1)
    rows = {"obs": np.zeros((1_000, 17), "f4"), "reward": np.zeros(1_000, "f4"), "terminated": np.zeros(1_000, bool)}
    priorities = np.random.default_rng(0).random(1_000) + 0.1
    for _ in range(ITEMS // 1_000):
        keys = table.extend(rows)
        if name == "prioritized":
            table.update_priorities(keys, priorities)
    return table


def main() -> None:
    began = time.perf_counter()
    with di_store.open(memory="512MiB") as store:
        for name in SAMPLERS:
            table = filled(store, name)
            for n in (32, 256, 1_024, 4_096):
                again, apart = partial(table.sample, n), partial(table.sample, n, replace=False)
                ratios, times = [], []
                for _ in range(ROUNDS):
                    each = [float(np.median(time_alone(call, SECONDS))) for call in (again, apart)]
                    ratios.append(each[1] / each[0])
                    times.append(each[0])
                middle = statistics.median(times) / 1e3
                print(f"{name:12} n = {n:5,}: {middle:7.1f} us, without repeats x {statistics.median(ratios):.2f}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
