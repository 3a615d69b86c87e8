"""TransferQueue's samples in a store that is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transfer_queue", reason="runs with make adapters ADAPTER=transfer_queue")

import ray
import torch
import transfer_queue as tq
from cluster.nodes import attached, cluster_nodes
from cluster.served import TOKEN, noted_calls
from given_stores import KINDS, killed_after_a_checkpoint, opened
from omegaconf import OmegaConf
from transfer_queue_jobs import Worker, get, put, ray_here

import di_store
from di_store import cluster
from di_store.adapters.transfer_queue import StorageClient, register
from di_store.client.objects import RemoteObjects

KEYS = [f"sample_{at}" for at in range(4)]


def values(at: int, size: int = 10) -> list[Any]:
    """What lies under the keys `numbers` and `others` of a sample."""
    return [torch.full((size,), float(at)), {"text": f"sample {at}", "array": np.arange(at % 5)}]


def keys(at: int) -> list[str]:
    return [f"{at}@numbers", f"{at}@others"]


def check(client: StorageClient, samples: range) -> None:
    for at in samples:
        numbers, others = client.get(keys(at))
        assert (numbers == at).all()
        assert others["text"] == f"sample {at}"
        assert others["array"].tolist() == list(range(at % 5))


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        client, other = StorageClient({"store": store}), StorageClient({"store": store, "table": "others"})
        theirs = client.store.put_many(["theirs", np.arange(3)])
        for at in range(20):
            client.put(keys(at), values(at))
        other.put(keys(3), values(4))
        client.put(keys(7), values(8))  # again
        client.put(keys(7), values(7))
        client.clear(keys(19))
        check(client, range(19))
        with pytest.raises(KeyError, match="19@numbers"):
            client.get(keys(19))
        client.save(tmp_path / "saved")
        client.put(keys(21), values(21))
        client.clear(keys(2))
        client.load(tmp_path / "saved")
        check(client, range(19))
        with pytest.raises(KeyError, match="21@numbers"):
            client.get(keys(21))
        assert other.get(keys(3))[0].tolist() == [4.0] * 10
        assert other.store.get(theirs[0]) == "theirs"
        assert client.store.get(theirs[1]).tolist() == [0, 1, 2]
        client.close()  # the store is the program's
        check(other, range(0))
        assert other.store.contains(theirs[0])


def test_a_killed_queue_larger_than_memory_is_resumed(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB."""
    samples, memory, size = count(600, 4_235), count(32, 256) << 20, 50_000

    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        client = StorageClient({"store": store})
        StorageClient({"store": store, "table": "others"}).put(keys(0), values(5))
        store.put("theirs", id="ab" * 20)
        for at in range(samples):
            client.put(keys(at), values(at, size))
        checkpoint()
        for at in range(samples, 10**9):
            client.put(keys(at % samples), values(0))

    assert samples * size * 4 > 3 * memory
    path = killed_after_a_checkpoint(fill, tmp_path, memory=memory)
    with di_store.restore(path, memory=memory, disk=tmp_path / "tier") as store:
        client = StorageClient({"store": store})
        check(client, range(0, samples, 7))
        client.save(tmp_path / "saved")
        client.clear([key for at in range(samples) for key in keys(at)])
        assert len(store.keys()) == 3
        client.load(tmp_path / "saved")
        check(client, range(0, samples, 11))
        assert store.stats()["committed"] <= memory
        assert store.get("ab" * 20) == "theirs"
        assert StorageClient({"store": store, "table": "others"}).get(keys(0))[0].tolist() == [5.0] * 10


def test_a_sample_can_be_put_again_on_another_node() -> None:
    name = "transfer-queue-nodes"
    with (
        cluster_nodes(name, 2, "--memory", "64MiB") as nodes,
        cluster.attach(nodes[0].name) as here,
        cluster.attach(nodes[1].name) as there,
    ):
        first, second = StorageClient({"store": here}), StorageClient({"store": there})
        first.put(keys(1), values(1))
        check(second, range(1, 2))
        second.put(keys(1), [torch.zeros(2), "again"])
        for each in (first, second):
            assert each.get(keys(1))[1] == "again"
        with pytest.raises(ValueError, match="2 nodes of a cluster"):
            first.save(Path("saved"))
        first.clear(keys(1))
        with pytest.raises(KeyError):
            second.get(keys(1))


def test_a_reader_asks_other_nodes_once_for_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples stay on their nodes, whoever reads them. No value of another column is asked for."""
    with cluster_nodes("transfer-queue-columns", 2, "--memory", "64MiB") as nodes, attached(nodes) as (here, there):
        first, second = StorageClient({"store": here}), StorageClient({"store": there})
        numbers = [f"{at}@numbers" for at in range(40)]
        first.put(numbers[:20], [torch.full((10,), at) for at in range(20)])
        second.put(numbers[20:], [torch.full((10,), at) for at in range(20, 40)])
        second.put([f"{at}@others" for at in range(40)], [torch.zeros(1_000)] * 40)
        calls, asked = noted_calls(monkeypatch), noted_ids(monkeypatch)
        assert [int(each[0]) for each in first.get(numbers)] == list(range(40))
        assert calls == ["get_many"]
        assert len(asked) == 20
        assert [len(each.keys()) for each in (here, there)] == [20, 60]
        with di_store.attach(nodes[0].name) as store:
            assert len(store.keys()) == 20  # nor does it keep copies


def noted_ids(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The ids of all objects that this process asks other nodes for, from now on."""
    asked: list[bytes] = []
    present = RemoteObjects.present

    def noted(self: RemoteObjects, raws: list[bytes], *given: Any) -> Any:
        asked.extend(raws)
        return present(self, raws, *given)

    monkeypatch.setattr(RemoteObjects, "present", noted)
    return asked


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DiStore\.memory is for a store of TransferQueue's own"):
        StorageClient({"store": "mine", "memory": "1GiB"})
    with pytest.raises(TypeError, match="store= is a int"):
        StorageClient({"store": 3})


# --- in TransferQueue -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_system() -> Iterator[None]:
    with ray_here(DI_STORE_TOKEN=TOKEN):
        yield


def configuration(store: Any) -> Any:
    backend = {"storage_backend": "DiStore", "DiStore": {"store": store}}
    return OmegaConf.create({"backend": backend}, flags={"allow_objects": True})


@pytest.mark.parametrize("kind", KINDS)
def test_processes_share_the_samples_and_resume(
    kind: str, ray_system: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_STORE_TOKEN", TOKEN)  # a store in the configuration takes no token along
    register()
    with opened(kind, tmp_path) as store:
        for turn in range(1 if kind == "options" else 2):  # that store ends with the system
            tq.init(configuration(store))
            try:
                if turn:
                    tq.load_checkpoint(tmp_path / "saved")
                else:
                    put(KEYS, {"a": torch.arange(12).reshape(4, 3)})
                worker: Any = Worker.remote()
                found = ray.get(worker.get.remote([KEYS[2], KEYS[0]]))
                assert [each.tolist() for each in found] == [[6, 7, 8], [0, 1, 2]]
                ray.get(worker.put.remote(KEYS[3:], 7))
                assert get(KEYS, ["a"])["a"].unbind()[3].tolist() == [7, 7, 7]
                manager = tq.get_client().storage_manager
                assert len(manager.store.keys()) == 4
                tq.save_checkpoint(tmp_path / "saved", include_storage=False)
            finally:
                tq.close()
                del worker
