"""A queue of rollouts: each is used once, in order; actors wait for the learner; outdated rollouts are dropped.

Needs nothing but di-store: pip install di-store
"""

import multiprocessing as mp

import numpy as np

import di_store

UPDATES, BATCH, ROLLOUT = 10, 4, 20


def actor(store: di_store.Store) -> None:
    rollouts, version = store.table("rollouts"), 0
    rng = np.random.default_rng()
    with rollouts.writer() as writer:
        while True:
            if new := store.latest("policy", newer_than=version):
                version = new.version
            step = {"obs": rng.normal(size=4).astype(np.float32), "reward": 1.0, "version": version}
            writer.append(step | {"terminated": False, "truncated": False})


if __name__ == "__main__":
    store = di_store.open(memory="256MiB")
    store.publish("policy", {"w": np.zeros(4, np.float32)})
    rollouts = store.create_table(
        "rollouts",
        capacity=64,
        view=di_store.Sequence(ROLLOUT, bootstrap=("obs",)),
        limiter=di_store.Queue(2 * BATCH),
        weights="policy",
        max_staleness=4,
    )
    workers = [mp.Process(target=actor, args=(store,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for update in range(UPDATES):
        batch = rollouts.sample(BATCH)
        assert batch.data["obs"].shape == (BATCH, ROLLOUT + 1, 4)
        newest = store.publish("policy", {"w": np.full(4, update, np.float32)})
        print(f"update {update}: rollouts of versions {sorted(batch.versions.tolist())}, newest {newest}")
    for worker in workers:
        worker.terminate()
        worker.join()
