"""di_store.Client: the interface of the original DI-store, over a store of this machine."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store

CONFIG = """
common:
  dial_timeout: 60s
etcd_servers:
  - hostname: localhost
    listen_client_urls: [http://127.0.0.1:2379]
node_trackers:
  - hostname: localhost
    rpc_host: 127.0.0.1
    rpc_port: {port}
storage_servers:
  - hostname: "*"
    rpc_port: 0
    plasma_socket: /tmp/plasma
    plasma_memory_byte: {memory}
"""


def config(**own: Any) -> dict[str, Any]:
    name = f"client-test-{os.getpid()}-{config.number}"  # type: ignore[attr-defined]
    return {"store": {"name": name, "memory": "16MiB"} | own}


config.number = 0  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _another_store() -> None:
    config.number += 1  # type: ignore[attr-defined]


@pytest.fixture
def client() -> di_store.Client:
    return di_store.Client(config())


def test_the_original_readme_program_runs(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "di_store.yaml"
    path.write_text(CONFIG.format(port=50_000 + os.getpid() % 10_000, memory=50_000_000_000))
    client = di_store.Client(str(path))
    ref = client.put(b"Hello world.")
    assert len(ref) == 40
    assert client.get(ref) == b"Hello world."
    client.delete(ref)
    client.register_group("actor")
    ref = client.put(b"Hello world.", prefetch_group="actor", prefetch_hostname=["a", "b"])
    assert di_store.Client(conf_path=str(path), hostname="other").get(ref) == b"Hello world."
    [store] = [each for each in di_store.list_stores() if each.name.startswith("client-127.0.0.1-")]
    assert os.getpid() in store.pids


def test_values_come_back_unchanged(client: di_store.Client) -> None:
    value = {"a": np.arange(3.0), "b": [1, "x", None]}
    found = client.get(client.put(value))
    assert found["b"] == value["b"]
    assert np.array_equal(found["a"], value["a"])
    assert not found["a"].flags.writeable
    assert client.get("0" * 40) is None
    own = "ab" * 20
    assert client.put(1, object_id=own) == own
    with pytest.raises(di_store.ObjectExists):
        client.put(2, object_id=own)
    client.delete(own)
    assert client.put(3, object_id=own) == own
    assert client.get(own, src_node="n", via_rpc=True) == 3


def _reader(client: di_store.Client, refs: Any, found: Any) -> None:
    for ref in iter(refs.get, None):
        value = client.get(ref)
        client.delete(ref)
        found.put(value)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_can_read_recently_deleted_objects(client: di_store.Client, method: Any) -> None:
    """As DI-engine does it: who reads an object deletes it, and may read it again."""
    context: Any = mp.get_context(method)
    refs, found = context.Queue(), context.Queue()
    reader = context.Process(target=_reader, args=(client, refs, found), daemon=True)
    reader.start()
    ref = client.put([1, 2])
    for _ in range(3):
        refs.put(ref)
        assert found.get(timeout=60) == [1, 2]
    refs.put(None)
    reader.join(60)
    assert reader.exitcode == 0
    assert client.get(ref) == [1, 2]


def test_deleted_objects_make_room() -> None:
    client = di_store.Client(config())
    kept = client.put(np.zeros(100_000, np.uint8))
    refs = []
    for number in range(200):  # 40 times what fits
        refs.append(client.put(np.full(1_000_000, number, np.uint8)))
        client.delete(refs[-1])
        client.delete(refs[-1])
    there = [client.get(ref) is not None for ref in refs]
    assert there[-1]
    assert there == sorted(there), "the first that were deleted are the first to go"
    assert client.get(kept) is not None
    other = di_store.Client(config())
    assert other.put(np.zeros(8_000_000, np.uint8))


def test_deletions_make_room_for_a_put_that_waits() -> None:
    client, other = di_store.Client(config()), di_store.Client(config())
    refs = [client.put(np.zeros(1_000_000, np.uint8)) for _ in range(12)]
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(client.put(np.ones(6_000_000, np.uint8))))
    waiting.start()
    with di_store.attach(config()["store"]["name"]) as store:
        until(lambda: store.stats()["waiters"], "put to wait for room")
    other.delete(refs)
    waiting.join(120)
    assert other.get(found[0])[0] == 1


def test_the_number_of_kept_deleted_objects_is_limited() -> None:
    client = di_store.Client(config(keep_deleted=3))
    refs = [client.put(number) for number in range(10)]
    client.delete(refs)
    assert [client.get(ref) for ref in refs] == [None] * 7 + [7, 8, 9]
    client = di_store.Client(config(name=f"client-none-{os.getpid()}", keep_deleted=0))
    ref = client.put(1)
    client.delete([ref, "0" * 40])
    assert client.get(ref) is None
    with pytest.raises(di_store.CapacityError):
        client.put(np.zeros(10**9, np.uint8))


def test_pickles_follow_the_configuration(client: di_store.Client) -> None:
    assert pickle.loads(pickle.dumps(client)).get(client.put(5)) == 5
    assert "client-test" in repr(client)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("no such file.yaml", FileNotFoundError, "DI_STORE_CONFIG_PATH"),
        ({}, ValueError, "names no store"),
        ({"node_trackers": "x"}, ValueError, "not a list of mappings"),
        ({"store": {"memmory": 1}}, ValueError, "its options are"),
        ({"store": {"name": "a/b"}}, ValueError, "letters, digits"),
        ({"store": {"name": "a", "keep_deleted": -1}}, ValueError, "keep_deleted"),
        ({"store": {"name": "a", "memory": "1x"}}, ValueError, "memory"),
    ],
)
def test_a_bad_configuration_is_refused(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        di_store.Client(given)


def test_bad_arguments_are_refused(client: di_store.Client) -> None:
    for call in (
        lambda: client.get("xyz"),
        lambda: client.delete("xyz"),
        lambda: client.put(1, object_id="xyz"),
    ):
        with pytest.raises(ValueError, match="40 hex characters"):
            call()
    for other in (lambda: client.register_group(3), lambda: client.put(1, prefetch_group=[1])):
        with pytest.raises(TypeError, match="give a name"):
            other()


def test_the_client_is_imported_lazily() -> None:
    program = (
        "import sys, di_store; a = 'di_store.compat' in sys.modules; from di_store import Client; print(a, Client)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False <class 'di_store.compat.Client'>\n"
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        di_store.Clients  # noqa: B018
