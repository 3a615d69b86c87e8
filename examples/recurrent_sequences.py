"""Overlapping sequences with burn-in, each with the recurrent state of its first step, as in R2D2.

Needs nothing but di-store: pip install di-store
"""

import numpy as np

import di_store

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    with di_store.open(memory="256MiB") as store:
        replay = store.create_table(
            "sequences",
            capacity=1_000,
            view=di_store.Sequence(40, period=20, burn_in=10, first=("state",), bootstrap=("obs",)),
            sampler=di_store.Prioritized(alpha=0.9, beta=0.6),
        )
        with replay.writer() as writer:
            for _ in range(5):
                length = int(rng.integers(60, 200))
                for row in range(length):
                    step = {
                        "obs": rng.normal(size=8).astype(np.float32),
                        "state": rng.normal(size=64).astype(np.float32),
                        "action": 0,
                        "reward": 1.0,
                        "terminated": row == length - 1,
                        "truncated": False,
                    }
                    writer.append(step)
                writer.end_episode(final={"obs": np.zeros(8, np.float32)})
        batch = replay.sample(16)
        assert batch.data["state"].shape == (16, 64)
        assert batch.data["obs"].shape == (16, 10 + 40 + 1, 8)  # burn-in, training part, one to bootstrap from
        valid = int(batch.data["mask"].sum())
        print(f"{len(replay)} sequences; a batch of 16 holds {valid} real rows and {16 * 50 - valid} padded ones")
