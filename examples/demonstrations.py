"""Batches mixed from two tables: one element in 64 is a demonstration, the others are the agent's own experience.

Needs nothing but di-store: pip install di-store
"""

import numpy as np

import di_store

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    with di_store.open(memory="256MiB", seed=0) as store:
        tables = {name: store.create_table(name, capacity=5_000, view=di_store.Step()) for name in ("agent", "demo")}
        for name, table in tables.items():
            table.extend(
                {
                    "obs": rng.normal(size=(1_000, 8)).astype(np.float32),
                    "action": np.full(1_000, 0 if name == "agent" else 1),
                }
            )
        mixture = store.mix({"agent": 63, "demo": 1}, seed=0)
        shown = 0
        for _ in range(100):
            batch = mixture.sample(64)
            assert (batch.data["action"] == batch.source).all()
            shown += int(batch.source.sum())
        print(f"{shown} of 6,400 sampled steps are demonstrations, 100 expected")
