"""A TransferQueue with durable samples, in a program that is killed and started again.

`python transfer_queue_killed.py work|look SETTINGS [NODE …]`: SETTINGS is `backend.DiStore` as JSON. NODE are the names
of nodes of a cluster: their store is given, and samples are put on all of them in turns. Each line that it prints is
JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue_jobs import Worker, get, put, ray_here

from di_store import cluster
from di_store.adapters.transfer_queue import register
from di_store.cluster.store import ClusterStore, stores_of

AT_ONCE = 6
KEPT = 60
"""Samples that stay when older ones are cleared."""


def say(what: str, numbers: list[int]) -> None:
    print(json.dumps([what, numbers]), flush=True)


def keys_of(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


def taken() -> list[int]:
    """The next samples for the task `train`."""
    client = tq.get_client()
    fields = {"data_fields": ["a"], "partition_id": "train", "task_name": "train"}
    meta = client.get_meta(batch_size=4, mode="fetch", **fields)
    return [int(each[0]) for each in client.get_data(meta)["a"].unbind()]


def putters(nodes: list[str]) -> list[Callable[[list[int]], None]]:
    """Calls that put samples with these numbers: of this process, and of one on each of the other nodes."""

    def here(numbers: list[int]) -> None:
        put(keys_of(numbers), {"a": torch.tensor(numbers)[:, None].expand(-1, 3)})

    def far(worker: Any, numbers: list[int]) -> None:
        for number in numbers:
            ray.get(worker.put.remote([str(number)], number))

    kinds = [Worker.options(runtime_env={"env_vars": {"DI_STORE_NODE": each}}) for each in nodes[1:]]  # type: ignore[attr-defined]
    workers = [kind.remote() for kind in kinds]
    return [here, *((lambda numbers, worker=worker: far(worker, numbers)) for worker in workers)]


def work(nodes: list[str]) -> None:
    """Put, take and clear until the end."""
    first = max((int(key) for key in tq.kv_list().get("train", {})), default=-1) + 1
    calls = itertools.cycle(putters(nodes))
    for begin in itertools.count(first, AT_ONCE):
        numbers = list(range(begin, begin + AT_ONCE))
        next(calls)(numbers)
        say("put", numbers)
        say("taken", taken())
        old = [int(key) for key in tq.kv_list()["train"] if int(key) < begin - KEPT]
        if old:
            say("clearing", old)
            tq.kv_clear(keys=keys_of(old), partition_id="train")
            say("cleared", old)


def look() -> None:
    """Say what is there."""
    numbers = [int(key) for key in tq.kv_list().get("train", {})]
    found = get(keys_of(numbers), ["a"])["a"].unbind() if numbers else []
    say("keys", numbers)
    say("values", [int(each.unique()) for each in found])
    say("taken", list(itertools.chain.from_iterable(taken() for _ in range(min(3, len(numbers) // 8)))))
    store = tq.get_client().storage_manager.store
    stores = stores_of(store) if isinstance(store, ClusterStore) else [store]
    say("objects", [len(each.keys()) for each in stores])


if __name__ == "__main__":
    what, settings, nodes = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
    if nodes:
        settings["store"] = cluster.attach(nodes[0])
    backend = {"storage_backend": "DiStore", "DiStore": settings}
    register()
    with ray_here(**({"DI_STORE_NODE": nodes[0]} if nodes else {})):
        tq.init(OmegaConf.create({"backend": backend}, flags={"allow_objects": True}))
        say("ready", [])
        work(nodes) if what == "work" else look()
        tq.close()
