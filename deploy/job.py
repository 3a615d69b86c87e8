"""What the files in this folder run: a learner and actors, to be replaced by your own.

    python job.py learner | actor | member

A learner works on the store of its node. An actor does too, unless its environment names stores to connect to
(DI_STORE_ROWS and DI_STORE_WEIGHTS), as in Kubernetes, where a pod sees the processes of no other pod. A member keeps
its node in the group that gets the weights, and the store alive while its server is started anew.

Change: `act` and `learn`, and the table's options. Check: `di-store status` on the learner's node shows rates.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

import di_store
from di_store import cluster

GROUP, POLICY, TABLE = "actors", "policy", "replay"
PATIENCE = 600.0
"""Seconds that the parts of a job wait for each other when it begins."""


def act(weights: dict[str, np.ndarray] | None, random: np.random.Generator) -> dict[str, Any]:
    """One step of an environment: yours."""
    obs = random.random(8, np.float32)
    bias = 0.0 if weights is None else float(weights["w"] @ obs)
    return {
        "obs": obs,
        "action": int(bias > 0),
        "reward": bias,
        "terminated": random.random() < 0.01,
        "truncated": False,
    }


def learn(batch: Any, step: int) -> dict[str, np.ndarray]:
    """One update: yours. Returns the new weights."""
    return {"w": np.full(8, batch.data["reward"].mean(), np.float32), "step": np.int64(step)}


def attached() -> di_store.Store:
    """The store of this node, as soon as it is served."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return cluster.attach()
        except di_store.StoreNotFound:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def replay_of(store: di_store.Store) -> di_store.Table:
    """The table, made if it is not there. A learner that was started anew goes on with the one that it had."""
    options: dict[str, Any] = {
        "capacity": 100_000,
        "view": di_store.Transition(n_step=3),
        "limiter": di_store.SamplesPerInsert(8, min_size=1_000, tolerance=0.1),
    }
    try:
        return store.create_table(TABLE, exist_ok=True, **options)
    except di_store.NodeUnavailable:  # it lay on a node that is lost, and only its name is left
        store.drop_table(TABLE)
        return store.create_table(TABLE, **options)


def learner() -> None:
    """Draw batches and publish weights, DI_STORE_STEPS times."""
    with attached() as store:
        replay = replay_of(store)
        for step in range(int(os.environ.get("DI_STORE_STEPS", "1000"))):
            batch = replay.sample(256, timeout=PATIENCE)
            store.publish(POLICY, learn(batch, step), group=GROUP)
        print(f"learned: {replay.stats()['samples']:,} samples", flush=True)


def actor() -> None:
    """Append steps for ever, with the newest weights that this node has."""
    if address := os.environ.get("DI_STORE_ROWS"):
        rows = di_store.connect(address, timeout=PATIENCE)
        near: Any = di_store.connect(os.environ["DI_STORE_WEIGHTS"], timeout=PATIENCE)
        group: dict[str, str] = {}  # the members see to it that the node has them
    else:
        rows = near = attached()
        group = {"group": GROUP}
    random, weights, version = np.random.default_rng(), None, 0
    with rows.table(TABLE, timeout=PATIENCE).writer() as writer:
        while True:
            if new := near.latest(POLICY, newer_than=version, **group):
                weights, version = new.value, new.version
            writer.append(act(weights, random), timeout=PATIENCE)


def member() -> None:
    """See to it that weights come to this node's store, and that a process beside its server holds it."""
    with attached() as store:
        version = 0
        while True:
            if new := store.latest(POLICY, newer_than=version, timeout=60, group=GROUP):
                version = new.version
            del new  # it keeps the version's memory


if __name__ == "__main__":
    {"learner": learner, "actor": actor, "member": member}[sys.argv[1]]()
