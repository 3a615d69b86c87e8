"""Measures Ray's object store: put and get by size, get also in a process that has not put the object.

Environment: ``bench/peers/ray.txt``. Run from the repository root: ``python -m bench.peers.ray_bench --seconds 2``.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import ray  # type: ignore[import-not-found,unused-ignore]

from bench.measure import OBJECT_BYTES, Script, arguments, random_bytes, rate

STORE_BYTES = 4 << 30


class Reader:
    """The actor of the other process."""

    def rate(self, boxed: list[Any], seconds: float, burst: int) -> float:
        """Gets per second of the one ref in ``boxed``: Ray would resolve a ref that is an argument itself."""
        return rate(lambda: ray.get(boxed[0]), seconds, burst)


def main() -> None:
    args = arguments("Ray's object store")
    script = Script("ray", args.seconds, args.repeats, args.only)
    ray.init(num_cpus=2, object_store_memory=STORE_BYTES, log_to_driver=False, include_dashboard=False)
    # Fill half the store once and free it: Ray's large puts are up to eight times slower on new pages.
    large = random_bytes(10 << 20)
    held = [ray.put(large) for _ in range(STORE_BYTES // 2 // large.nbytes)]
    del held
    reader = ray.remote(Reader).remote()
    for name, size in OBJECT_BYTES.items():
        value = random_bytes(size)
        script.take(name, "put", partial(ray.put, value))  # the ref is dropped at once, so freeing is included
        ref = ray.put(value)
        script.take(name, "get", partial(ray.get, ref))
        if script.wants(name, "get, other process"):
            ray.get(reader.rate.remote([ref], script.seconds / 10, 1))
            rates = [ray.get(reader.rate.remote([ref], script.seconds, 10)) for _ in range(script.repeats)]
            script.emit(name, "get, other process", statistics.median(rates))
    ray.shutdown()


if __name__ == "__main__":
    main()
