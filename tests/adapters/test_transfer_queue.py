"""di_store.adapters.transfer_queue: TransferQueue over Ray, with its samples in a store."""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("transfer_queue", reason="runs with make adapters ADAPTER=transfer_queue")

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from transfer_queue_jobs import ROOT, Worker, get, put, ray_here

import di_store
from di_store.adapters.transfer_queue import StorageClient, register, starting
from di_store.adapters.transfer_queue import client as client_module
from di_store.store import opening

KEYS = [f"sample_{at}" for at in range(4)]
TENSORS = {
    "int64": torch.arange(24).reshape(4, 6),
    "float32": torch.rand(4, 2, 3),
    "bool": torch.tensor([[True], [False], [True], [False]]),
    "bfloat16": torch.rand(4, 5).to(torch.bfloat16),
    "numbers": torch.rand(4),
    "empty": torch.zeros(4, 0),
    "columns": torch.rand(6, 4).T,
    "expanded": torch.ones(1, 3).expand(4, 3),
    "conjugate": torch.tensor([[1 + 2j]] * 4).conj(),
    "gradient": torch.rand(4, 2, requires_grad=True) * 2,
}


def jagged(*parts: Any) -> Any:
    return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)


NESTED = {
    "ragged": jagged(*(torch.arange(n) for n in (3, 1, 0, 5))),
    "equal": jagged(*(torch.full((2, 3), n) for n in range(4))),
    "wide": jagged(*(torch.rand(n, 7) for n in (1, 2, 3, 4))),
    "transposed": jagged(*(torch.rand(n, 7) for n in (1, 2, 3, 4))).transpose(1, 2),
    "strided": torch.nested.as_nested_tensor([torch.rand(n, 5 - n) for n in (1, 2, 3, 4)], layout=torch.strided),
}


class Step(NamedTuple):
    image: Any
    text: str


OTHERS: dict[str, list[Any]] = {
    "text": ["", "a", "ünïcode", "long" * 1_000],
    "none": [None, 1, 2.5, True],
    "bytes": [b"", b"1", bytearray(b"2"), b"3" * 10_000],
    "arrays": [np.arange(3), np.float32(2.5), np.array(["a", "bc"]), np.array([{1}, None])],
    "dicts": [{"a": np.arange(4), "b": torch.arange(3), "c": [1, {"d": np.zeros(2)}]} for _ in range(4)],
    "tuples": [Step(np.ones(2), "x"), (np.ones(1),), [np.ones(1)], {3}],
}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="256MiB") as opened:
        yield opened


@pytest.fixture
def client(store: di_store.Store) -> StorageClient:
    return StorageClient({"name": store.name})


def equal(a: Any, b: Any) -> bool:
    """Same types and same contents, down to the leaves."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.all(a == b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


# --- the client, without Ray ------------------------------------------------------------------------------------------


def values() -> list[Any]:
    found: list[Any] = []
    for column in (*TENSORS.values(), *NESTED.values()):
        found.extend(column.unbind())
    for others in OTHERS.values():
        found.extend(others)
    return found


def test_every_value_comes_back_as_it_was_put(client: StorageClient) -> None:
    put = values()
    keys = [f"{at}@field" for at in range(len(put))]
    client.put(keys, put)
    for was, found in zip(put, client.get(keys), strict=True):
        assert equal(was.detach() if isinstance(was, torch.Tensor) else was, found), (was, found)


def test_values_belong_to_the_reader(client: StorageClient) -> None:
    put = [torch.zeros(3), np.zeros(3), {"a": np.zeros(3), "b": torch.zeros(3)}, torch.zeros(2, dtype=torch.bfloat16)]
    keys = [f"{at}@field" for at in range(len(put))]
    client.put(keys, put)
    tensor, array, both, half = client.get(keys)
    for each in (tensor, array, both["a"], both["b"], half):
        each += 1
    assert all(map(equal, put, client.get(keys)))


def test_a_put_takes_a_copy(client: StorageClient) -> None:
    value = torch.zeros(3)
    client.put(["0@a"], [value])
    value += 1
    assert client.get(["0@a"])[0].tolist() == [0, 0, 0]


def test_a_key_put_again_holds_the_new_value(client: StorageClient) -> None:
    keys = [f"{at}@a" for at in range(5)]
    client.put(keys[1:4], [torch.zeros(2)] * 3)
    client.put(keys, [torch.full((at,), at) for at in range(5)])
    assert [each.tolist() for each in client.get(keys)] == [[at] * at for at in range(5)]
    client.put(["0@a", "9@a", "0@a"], [1, 2, 3])
    assert client.get(["0@a", "9@a"]) == [3, 2]


def test_cleared_keys_are_gone_and_named(client: StorageClient, store: di_store.Store) -> None:
    keys = [f"{at}@a" for at in range(3)]
    client.put(keys, [torch.zeros(2)] * 3)
    client.clear([keys[1], "7@never"])
    assert len(store.keys()) == 2
    with pytest.raises(KeyError, match=r"1 of 3 values are not in the store .*'1@a'"):
        client.get(keys)
    if hasattr(tq, "StorageKeyNotFoundError"):
        with pytest.raises(tq.StorageKeyNotFoundError):
            client.get(["1@a"])


def test_a_full_store_names_the_setting() -> None:
    with di_store.open(memory="16MiB") as store:
        client = StorageClient({"name": store.name, "timeout": 0.05})
        with pytest.raises(di_store.StoreFull, match=r"raise backend\.DiStore\.memory"):
            client.put([f"{at}@a" for at in range(64)], [torch.zeros(250_000)] * 64)
        assert store.keys() == []


def test_keys_of_any_form_address_separate_objects(client: StorageClient) -> None:
    keys = ["1@a", "01@a", "1@b", "11@a", "1@", "@a", "a", "1@a@b", "²@a", "9" * 30 + "@a", ""]
    client.put(keys, list(range(len(keys))))
    assert client.get(keys) == list(range(len(keys)))


def test_keys_and_values_must_have_equal_length(client: StorageClient) -> None:
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        client.put(["0@a", "1@a"], [1])


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_dead_store_is_named(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_ATTACH_SECONDS", 0.0)
    config = {"name": store.name}
    store.close()
    with pytest.raises(di_store.StoreNotFound, match=r"TransferQueue's store .* is gone, .*init\(\) to start again"):
        StorageClient(config)


def test_settings_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match=r"no setting 'total_storage_size'; there are memory, disk"):
        StorageClient({"name": "x", "total_storage_size": 3})
    with pytest.raises(ValueError, match=r"has no name: transfer_queue\.init\(\)"):
        StorageClient({})


@pytest.mark.parametrize(
    ("version", "fits"),
    [("0.1.9", False), ("0.1.10", True), ("0.1.11", True), ("0.1.12.dev0", True), ("0.2.0", False), ("1.0", False)],
)
def test_supported_versions_are_accepted_and_others_named(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tq, "__version__", version)
    monkeypatch.delitem(sys.modules, "di_store.adapters.transfer_queue")
    if fits:
        importlib.import_module("di_store.adapters.transfer_queue")
        return
    with pytest.raises(ImportError, match=re.escape(f"transfer_queue >=0.1.10,<0.2, and {version} is installed")):
        importlib.import_module("di_store.adapters.transfer_queue")


def test_a_queue_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """What the keeper of the store opens with `disk` holds more than its memory."""
    samples, memory, size = count(600, 4_000), count(32, 256) << 20, 50_000
    options = {"memory": memory, "disk": str(tmp_path / "tier"), "disk_capacity": "2GiB"}
    keeper = starting.Keeper.__ray_metadata__.modified_class({"name": "transfer-queue-disk", "mode": "x", **options})
    client = StorageClient({"name": keeper.ready(), "timeout": 60})
    assert samples * size * 4 > 3 * memory
    for at in range(samples):
        client.put([f"{at}@a"], [torch.full((size,), float(at))])
    for at in range(0, samples, 7):
        (found,) = client.get([f"{at}@a"])
        assert (found == at).all()
    assert client.store.stats()["committed"] <= memory
    client.save(tmp_path / "checkpoint")
    client.clear([f"{at}@a" for at in range(samples)])
    client.load(tmp_path / "checkpoint")
    assert client.get([f"{samples - 1}@a"])[0].unique().tolist() == [samples - 1]


# --- in TransferQueue -------------------------------------------------------------------------------------------------


def configuration(**settings: Any) -> Any:
    return OmegaConf.create({"backend": {"storage_backend": "DiStore", "DiStore": {"memory": "256MiB", **settings}}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_here():
        yield


@pytest.fixture(scope="module")
def started(cluster: None) -> Iterator[str]:
    register()
    register()  # twice is as good as once
    conf = tq.init(configuration())
    yield conf.backend.DiStore.name
    tq.close()


@pytest.fixture
def system(started: str) -> Iterator[str]:
    yield started
    for partition, keys in tq.kv_list().items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)


def test_batches_come_back_unchanged(system: str) -> None:
    others = {name: NonTensorStack(*column) for name, column in OTHERS.items()}
    put(KEYS, {**TENSORS, **NESTED, **others})
    found = get(KEYS)
    for name, column in (TENSORS | NESTED).items():
        assert all(map(equal, column.detach().unbind(), found[name].unbind())), name
    for name, column in OTHERS.items():
        assert all(map(equal, column, list(found[name]))), name
    reversed_ = get(KEYS[::-1], ["ragged"])["ragged"]
    assert [len(each) for each in reversed_.unbind()] == [5, 0, 1, 3]


def test_columns_have_the_layout_of_transfer_queue(system: str) -> None:
    put(KEYS, {**TENSORS, **NESTED})
    found = get(KEYS)
    assert found["int64"].is_nested
    assert found["int64"].layout is torch.jagged
    assert found["numbers"].shape == (4,)
    assert found["strided"].layout is torch.strided
    assert (found["ragged"] + 1).sum().item() == int(NESTED["ragged"].values().sum()) + 9
    padded = torch.nested.to_padded_tensor(found["ragged"], 0)
    assert padded.shape == (4, 5)


def test_values_put_by_one_process_are_read_by_another(system: str) -> None:
    put(KEYS, {"a": torch.arange(12).reshape(4, 3)})
    worker = Worker.remote()
    found = ray.get(worker.get.remote([KEYS[2], KEYS[0]]))
    assert [each.tolist() for each in found] == [[6, 7, 8], [0, 1, 2]]
    ray.get(worker.put.remote(KEYS[:2], 7))
    assert [each.tolist() for each in get(KEYS, ["a"])["a"].unbind()] == [[7] * 3, [7] * 3, [6, 7, 8], [9, 10, 11]]


def test_samples_outlive_the_worker_that_put_them(system: str) -> None:
    worker = Worker.remote()
    ray.get(worker.put.remote(KEYS, 5))
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(worker.died.remote())
    assert [each.tolist() for each in get(KEYS, ["a"])["a"].unbind()] == [[5] * 3] * 4


def test_clear_frees_the_memory(system: str) -> None:
    with di_store.attach(system) as store:
        before = len(store.keys())
        put(KEYS, {"a": torch.zeros(4, 3), "b": torch.zeros(4)})
        assert len(store.keys()) == before + 8
        tq.kv_clear(keys=KEYS[1:], partition_id="train")
        assert len(store.keys()) == before + 2


def test_tasks_take_each_sample_once(system: str) -> None:
    client = tq.get_client()
    client.put(TensorDict({"a": torch.arange(8).reshape(8, 1)}, batch_size=8), partition_id="steps")
    seen: list[int] = []
    for _ in range(4):
        meta = client.get_meta(data_fields=["a"], batch_size=2, partition_id="steps", mode="fetch", task_name="train")
        seen.extend(int(each) for each in client.get_data(meta)["a"].unbind())
    assert sorted(seen) == list(range(8))
    client.clear_partition("steps")


def test_a_checkpoint_holds_the_samples(system: str, tmp_path: Path) -> None:
    put(KEYS, {**TENSORS, **NESTED, "arrays": NonTensorStack(*OTHERS["arrays"])})
    tq.save_checkpoint(tmp_path / "saved")
    put(KEYS, {"int64": torch.zeros(4, 6, dtype=torch.int64)})
    put(["later"], {"int64": torch.zeros(1, 6, dtype=torch.int64)})
    tq.load_checkpoint(tmp_path / "saved")
    found = get(KEYS)
    for name, column in (TENSORS | NESTED).items():
        assert all(map(equal, column.detach().unbind(), found[name].unbind())), name
    assert all(map(equal, OTHERS["arrays"], list(found["arrays"])))
    assert set(tq.kv_list()["train"]) == set(KEYS)
    with di_store.attach(system) as store:
        assert len(store.keys()) == 4 * (len(TENSORS) + len(NESTED) + 1)
    shutil.rmtree(tmp_path / "saved" / "di_store")
    with pytest.raises(Exception, match=r"not saved with backend DiStore"):
        tq.load_checkpoint(tmp_path / "saved")


def test_the_configuration_registers_where_it_is_unpickled(started: str) -> None:
    conf = ray.get(ray.get_actor("TransferQueueController", namespace="transfer_queue").get_config.remote())
    program = (
        "import pickle, sys; conf = pickle.load(sys.stdin.buffer)\n"
        "from transfer_queue.storage.managers.base import StorageManagerFactory\n"
        "print('DiStore' in StorageManagerFactory._registry, conf.backend.DiStore.name)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(conf), capture_output=True, env=environment
    )
    assert run.stdout.decode().split() == ["True", started], run.stderr.decode()


def test_a_second_system_needs_another_name(started: str) -> None:
    with pytest.raises(ValueError, match=r"a store named .* exists already"):
        starting.start(configuration(name=started))
    with pytest.raises(ValueError, match="no setting 'size'"):
        starting.start(configuration(size=3))
    with pytest.raises(RuntimeError, match=r"the store could not be created: ."):
        starting.start(configuration(memory="some"))


def test_a_removed_store_is_named(store: di_store.Store) -> None:
    client = StorageClient({"name": store.name})
    client.put(["0@a"], [1])
    opening.remove(store)
    with pytest.raises(di_store.StoreClosed, match=store.name):
        client.get(["0@a"])


def test_parallel_puts_to_one_key_end_with_one_of_them(client: StorageClient) -> None:
    keys = [f"{at}@a" for at in range(64)]

    async def both() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(loop.run_in_executor(None, client.put, keys, [value] * 64) for value in range(4) for _ in range(10))
        )

    asyncio.run(both())
    assert set(client.get(keys)) <= set(range(4))
