"""Weights published to any number of readers: one copy in the store, numbered versions, never a mix of two versions.

Needs nothing but di-store: pip install di-store
"""

import multiprocessing as mp

import numpy as np

import di_store


def actor(store: di_store.Store) -> None:
    version = 0
    while version < 5:
        new = store.latest("policy", newer_than=version, timeout=60)
        assert new is not None, "no newer version within 60 seconds"
        layers = new.value
        assert (layers["w"] == layers["b"][0]).all(), "two versions are mixed"
        print(f"{mp.current_process().name}: version {new.version}, {layers['w'].nbytes:,} bytes")
        version = new.version


if __name__ == "__main__":
    with di_store.open(memory="256MiB") as store:
        actors = [mp.Process(target=actor, args=(store,), name=f"actor {index}") for index in range(2)]
        for process in actors:
            process.start()
        for update in range(1, 6):
            weights = {"w": np.full((512, 512), update, np.float32), "b": np.full(512, update, np.float32)}
            store.publish("policy", weights)
        for process in actors:
            process.join()
            assert process.exitcode == 0
