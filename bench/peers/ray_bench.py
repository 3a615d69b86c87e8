"""Ray's object store: put and get by size, a replay buffer in an actor, get from another node.

Environment: ``bench/peers/ray.txt``. Run from the repository root: ``python -m bench.peers.ray_bench --seconds 2``.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import ray  # type: ignore[import-not-found,unused-ignore]
from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]

from bench.measure import OBJECT_BYTES, Meter, arguments, one_rate

STORE_BYTES = 4 << 30
WARM_BYTES = STORE_BYTES // 2
BATCH = 32
BATCH_BYTES = 110 << 10


def random_bytes(size: int) -> npt.NDArray[np.uint8]:
    """uint8[size]."""
    return np.random.default_rng(0).integers(0, 255, size, np.uint8)


class Reader:
    """Gets in a process that did not put (an actor)."""

    def rate(self, boxed: list[Any], seconds: float, burst: int) -> float:
        """Gets per second of the one ref in ``boxed`` (boxed, so that Ray does not resolve it on the way in)."""
        return one_rate(lambda: ray.get(boxed[0]), seconds, burst)


class Buffer:
    """The replay buffer that users write as an actor: rows in one array, batches drawn by fancy indexing."""

    def __init__(self) -> None:
        self.rows = np.zeros((512, BATCH_BYTES), np.uint8)
        self.count = 0

    def add(self, row: npt.NDArray[np.uint8]) -> None:
        """One row in, over the oldest."""
        self.rows[self.count % len(self.rows)] = row
        self.count += 1

    def sample(self, n: int) -> npt.NDArray[np.uint8]:
        """uint8[n, BATCH_BYTES], uniform."""
        drawn: npt.NDArray[np.uint8] = self.rows[np.random.randint(0, len(self.rows), n)]
        return drawn


class Putter:
    """Puts on whatever node it was placed on."""

    def put(self, size: int) -> Any:
        """A ref to fresh bytes that live on this actor's node."""
        return ray.put(random_bytes(size))


def touch_pages() -> None:
    """Fill half the store once and free it: fresh pages would make Ray's large puts up to eight times slower."""
    large = random_bytes(10 << 20)
    held = [ray.put(large) for _ in range(WARM_BYTES // large.nbytes)]
    del held


def objects(meter: Meter) -> None:
    """Put and get, the latter also in another process. Each put's ref is dropped at once, so puts include freeing."""
    touch_pages()
    reader = ray.remote(Reader).remote()
    for name, size in OBJECT_BYTES.items():
        value = random_bytes(size)
        meter.take(name, "put", partial(ray.put, value))
        ref = ray.put(value)
        meter.take(name, "get", partial(ray.get, ref))
        if meter.wants(name, "get, other process"):
            ray.get(reader.rate.remote([ref], meter.seconds / 10, 1))
            rates = [ray.get(reader.rate.remote([ref], meter.seconds, 10)) for _ in range(meter.repeats)]
            meter.emit(name, "get, other process", statistics.median(rates))


def actor(meter: Meter) -> None:
    """A replay buffer as an actor."""
    buffer = ray.remote(Buffer).remote()
    row = random_bytes(BATCH_BYTES)
    meter.take("110KB", "actor add, one by one", lambda: ray.get(buffer.add.remote(row)))
    many = BATCH
    meter.take("110KB", "actor add, 32 in flight", lambda: ray.get([buffer.add.remote(row) for _ in range(many)]), many)
    meter.take("110KB", "actor sample", lambda: ray.get(buffer.sample.remote(many)), many)


def other_node(meter: Meter) -> None:
    """The first get of an object that lives on another node of this machine, in milliseconds (median of 12)."""
    sizes = {"110KB": 110 << 10, "10MB": 10 << 20, "100MB": 100 << 20}
    if not any(meter.wants(name, "get, other node") for name in sizes):
        return
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES // 4})
    cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES // 4, resources={"far": 1})
    ray.init(address=cluster.address, log_to_driver=False)
    far = ray.remote(resources={"far": 0.1})(Putter).remote()
    for name, size in sizes.items():
        waits = []
        for _ in range(12):
            ref = ray.get(far.put.remote(size))
            start = time.perf_counter()
            ray.get(ref)
            waits.append(time.perf_counter() - start)
            del ref
        meter.emit(name, "get, other node", 1e3 * statistics.median(waits), "ms")
    ray.shutdown()
    cluster.shutdown()


def main() -> None:
    args = arguments("Ray's object store", parts=("objects,actor,node", "which of objects, actor, node"))
    meter = Meter("ray", args.seconds, args.repeats, args.only)
    ray.init(num_cpus=2, object_store_memory=STORE_BYTES, log_to_driver=False, include_dashboard=False)
    if "objects" in args.parts:
        objects(meter)
    if "actor" in args.parts:
        actor(meter)
    ray.shutdown()
    if "node" in args.parts:
        other_node(meter)


if __name__ == "__main__":
    main()
