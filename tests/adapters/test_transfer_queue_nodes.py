"""TransferQueue in a Ray whose processes have the stores of two nodes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

pytest.importorskip("transfer_queue", reason="runs with make adapters ADAPTER=transfer_queue")

import ray
import torch
import transfer_queue as tq
from cluster.nodes import attached, cluster_nodes
from omegaconf import OmegaConf
from transfer_queue_jobs import Worker, get, put, ray_here

from di_store.adapters.transfer_queue import register

KEYS = [f"sample_{at}" for at in range(4)]


def test_processes_of_two_nodes_share_the_samples() -> None:
    """Each process uses the store of its node, and reads what those of the other node have put."""
    register()
    with (
        cluster_nodes(f"tq-{uuid.uuid4().hex[:12]}", 2, "--memory", "64MiB") as nodes,
        attached(nodes) as (here, there),
        ray_here(DI_STORE_NODE=nodes[0].name),
    ):
        backend = {"storage_backend": "DiStore", "DiStore": {"store": here}}
        tq.init(OmegaConf.create({"backend": backend}, flags={"allow_objects": True}))
        put(KEYS[:2], {"a": torch.arange(6).reshape(2, 3)})
        kind: Any = Worker
        worker = kind.options(runtime_env={"env_vars": {"DI_STORE_NODE": nodes[1].name}}).remote()
        ray.get(worker.put.remote(KEYS[2:], 7))
        assert [len(each.keys()) for each in (here, there)] == [2, 2]
        assert [each.tolist() for each in get(KEYS, ["a"])["a"].unbind()] == [[0, 1, 2], [3, 4, 5], [7] * 3, [7] * 3]
        assert [each.tolist() for each in ray.get(worker.get.remote(KEYS[1:3]))] == [[3, 4, 5], [7, 7, 7]]
        ray.get(worker.put.remote(KEYS[:1], 8))  # on the other node
        assert get(KEYS[:1], ["a"])["a"].unbind()[0].tolist() == [8] * 3
        assert [len(each.keys()) for each in (here, there)] == [1, 3]
        tq.kv_clear(keys=KEYS, partition_id="train")
        assert [len(each.keys()) for each in (here, there)] == [0, 0]
        tq.close()
