"""Stores of several nodes as one: objects found and copied, tables by name, handles that travel."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import Program, until

import di_store
from cluster.nodes import Node, cluster_nodes, free_ports
from cluster.nodes import node as one_node
from di_store import cluster
from di_store.base.errors import (
    CapacityError,
    NodeUnavailable,
    ObjectNotFound,
    StoreClosed,
    TableExists,
    TableNotFound,
)
from di_store.client.bulk import OwnTcp, PayloadRoom
from di_store.client.table import RemoteTable
from di_store.cluster import joining
from di_store.cluster.joining import STORE_ENV
from di_store.cluster.store import ClusterStore
from di_store.objects import codec
from di_store.replay.local_table import LocalTable
from di_store.server.membership import Membership

SCHEMA = {"x": di_store.Spec((4,), "float32")}
TABLE: dict[str, Any] = {"capacity": 1000, "schema": SCHEMA, "lanes": 8}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"c-{uuid.uuid4().hex[:12]}", 3) as running:
        yield running


@pytest.fixture
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    """Handles of them all. No table is left when the test ends."""
    made = [cluster.attach(each.name) for each in nodes]
    yield made
    with cluster.attach(nodes[0].name) as last:
        for name in {name for each in nodes for name in tables_of(each.name)}:
            last.drop_table(name)
    assert not any(tables_of(each.name) for each in nodes)
    for each in made:
        each.close()


def tables_of(name: str) -> list[str]:
    """The tables of one machine's store."""
    with di_store.attach(name) as plain:
        assert plain.check() == []
        return list(plain.stats()["tables"])


def local(store: ClusterStore, ref: di_store.Ref) -> bool:
    """Whether this machine's store has the object."""
    with di_store.attach(store.name) as plain:
        return plain.contains(ref)


def same(a: Any, b: Any) -> bool:
    return bool(np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b))


# --- objects ----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
LARGE = RNG.integers(0, 255, 30_000_000, dtype=np.uint8)
VALUES: list[Any] = [
    np.arange(10),
    np.array(2.5, np.float32),
    np.zeros((3, 0, 2), np.int16),
    LARGE,
    LARGE[:600_000].reshape(3, 200, 1000)[:, ::2],
    RNG.random((300, 400)) + 1j,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.dtype}{value.shape}")
def test_an_array_is_read_on_another_node(stores: list[ClusterStore], value: Any) -> None:
    """Small and large, of every form that a block has; the second time from the copy."""
    ref = stores[0].put(value)
    for _ in range(2):
        found = stores[1].get(ref)
        assert same(found, value)
        assert not found.flags.writeable
        assert local(stores[1], ref)
    assert stores[2].get(ref, copy=True).flags.writeable
    assert same(stores[1].get_many([ref, ref])[1], value)


def test_a_tree_is_read_on_another_node(stores: list[ClusterStore]) -> None:
    tree = {"a": [LARGE, 1, "two", None], "b": (2.5, b"x" * 300_000), "c": {"d": np.arange(4.0)}}
    found = stores[2].get(stores[0].put(tree))
    assert same(found["a"][0], LARGE)
    assert found["a"][1:] == [1, "two", None]
    assert found["b"] == tree["b"]
    assert same(found["c"]["d"], tree["c"]["d"])  # type: ignore[index]


def test_a_delete_removes_copies_and_the_original(stores: list[ClusterStore]) -> None:
    ref = stores[0].put(LARGE)
    stores[1].get(ref)
    assert stores[1].delete([ref, di_store.Ref(bytes(20))]) == 1
    for each in stores[:2]:
        assert not each.contains(ref)
    with pytest.raises(ObjectNotFound):
        stores[1].get(ref)
    with pytest.raises(ObjectNotFound):
        stores[2].get(ref, timeout=0.2)


def test_copies_end_with_their_lease(stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di_store.client.copying.LEASE_SECONDS", 0.2)
    refs = [stores[0].put(LARGE[:400_000]), stores[0].put(b"small")]
    assert same(stores[1].get(refs[0]), LARGE[:400_000])
    assert stores[1].get(refs[1]) == b"small"
    until(lambda: not any(local(stores[1], ref) for ref in refs), "the copies to go")
    assert stores[0].get(refs[1]) == b"small"
    assert same(stores[1].get(refs[0]), LARGE[:400_000])


def test_many_readers_copy_once(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """16 threads and handles of one machine: the bytes come once, and all have them."""
    ref = stores[0].put(LARGE)
    handles = [cluster.attach(nodes[1].name) for _ in range(4)]
    found: list[Any] = []
    sent = sent_bytes(nodes[0].agent)

    def read(store: ClusterStore) -> None:
        found.append(same(store.get(ref), LARGE))

    threads = [threading.Thread(target=read, args=(store,)) for store in handles for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 16
    assert sent_bytes(nodes[0].agent) - sent < 1.5 * len(LARGE)
    for each in handles:
        each.close()


def sent_bytes(pid: int) -> int:
    """Bytes that a process has written, to sockets and files."""
    with open(f"/proc/{pid}/io") as file:
        return int(next(line for line in file if line.startswith("wchar")).split()[1])


READ = """
import sys
from di_store import cluster, Ref
store = cluster.attach(sys.argv[1])
store.nodes()
print("ready", flush=True)
sys.stdin.readline()
store.get(Ref.parse(sys.argv[2]))
print("done", flush=True)
"""


def test_a_killed_copying_reader_blocks_no_other_reader(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Whoever waits for its copy makes one of its own."""
    value = np.tile(LARGE, 4)
    for pause in (0.005, 0.02, 0.05):
        ref = stores[0].put(value)
        with Program(READ, nodes[1].name, str(ref)) as child:
            assert child.line() == "ready"
            child.say()
            threading.Timer(pause, child.signal, (signal.SIGKILL,)).start()
            assert same(stores[1].get(ref, timeout=60), value)
            os.waitpid(child.pid, 0)
        stores[1].delete(ref)


def test_a_copy_by_another_reader_is_waited_for(stores: list[ClusterStore]) -> None:
    """Beyond the deadline: the object is there, and on its way."""
    ref, encoded = stores[0].put(LARGE), codec.encode(LARGE)
    copy = stores[1]._backend.session.arena.reserve(encoded.header, encoded.payload_bytes, ref.raw, 60.0)
    copy.payload()[:] = LARGE
    sealing = threading.Timer(2.5, copy.seal)
    sealing.start()
    assert same(stores[1].get(ref, timeout=0.1), LARGE)
    sealing.join()


def test_a_copy_that_failed_is_not_waited_for(stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """The home dies in the middle of it, and another node has a copy: the same call copies that one."""
    ref = stores[1].put(LARGE)
    assert same(stores[2].get(ref), LARGE)
    fill, errors = OwnTcp.fill, iter([NodeUnavailable("the home was killed")])

    def killed_once(own: OwnTcp, far: Any, raw: bytes, room: PayloadRoom, deadline: Any) -> None:
        for error in errors:
            raise error
        fill(own, far, raw, room, deadline)

    monkeypatch.setattr(OwnTcp, "fill", killed_once)
    assert same(stores[0].get(ref, timeout=60), LARGE)
    assert stores[0]._backend.session.arena.contains(ref.raw, 10.0)


def test_an_object_put_later_is_found_by_its_id(stores: list[ClusterStore]) -> None:
    """By an id that somebody chose: it is found wherever it is put."""
    name = "ab" * 20
    with pytest.raises(ObjectNotFound, match="no node"):
        stores[1].get(name, timeout=0.2)
    assert not stores[1].contains(name)
    threading.Timer(0.3, stores[2].put, (7,), {"id": name}).start()
    assert stores[1].get(name, timeout=60) == 7
    assert stores[0].contains(name)
    assert stores[0].delete(name) == 1
    with pytest.raises(ObjectNotFound):
        stores[0].get(name)


def test_wait_covers_objects_of_several_nodes(stores: list[ClusterStore]) -> None:
    refs = [store.put(at) for at, store in enumerate(stores)]
    missing = di_store.Ref(stores[1].put(1).raw[:12] + bytes(8))
    assert stores[0].wait([*refs, missing], 3) == (refs, [missing])
    began = time.monotonic()
    done, pending = stores[0].wait([missing, refs[2]], 2, timeout=0.3)
    assert (done, pending) == ([refs[2]], [missing])
    assert 0.3 <= time.monotonic() - began < 10
    with pytest.raises(ValueError, match="num_returns"):
        stores[0].wait(refs, 4)
    with pytest.raises(ValueError, match="twice"):
        stores[0].wait([refs[1], refs[1]], 1)


def test_pickles_of_other_nodes_are_not_loaded(stores: list[ClusterStore]) -> None:
    ref = stores[0].put(threading.Event)
    assert stores[0].get(ref) is threading.Event
    for _ in range(2):
        with pytest.raises(di_store.AccessDenied, match="another machine"):
            stores[1].get(ref)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_cluster_table_is_opened_by_name_everywhere(stores: list[ClusterStore]) -> None:
    """One name everywhere; in memory where it lies, through the agent elsewhere."""
    here = stores[0].create_table("t", **TABLE)
    there = stores[1].table("t")
    assert (type(here._backend), type(there._backend)) == (LocalTable, RemoteTable)
    with there.writer() as writer:
        for number in range(10):
            writer.append({"x": np.full(4, number, np.float32)})
    assert len(here) == len(there) == 10
    assert sorted(stores[2].table("t").sample(10, replace=False).data["x"][:, 0]) == list(range(10))
    stores[2].drop_table("t")
    for each in stores:
        with pytest.raises(TableNotFound):
            each.table("t")
    with pytest.raises(TableNotFound):
        here.sample(1, timeout=1)
    with pytest.raises(TableNotFound):
        stores[0].drop_table("t")


def test_a_table_on_another_node_works(nodes: list[Node], stores: list[ClusterStore]) -> None:
    stores[0].create_table("t", node=nodes[2].name, **TABLE)
    assert type(stores[2].table("t")._backend) is LocalTable
    with stores[0].writer(["t"]) as writer, stores[2].writer(["t"]) as own:
        writer.append({"x": np.ones(4, np.float32)})
        own.append({"x": np.ones(4, np.float32)})
    assert stores[1].mix({"t": 1}).sample(4).data["x"].sum() == 16
    stores[0].create_table("other", capacity=4, node=nodes[2].name).insert({"y": 1.0})
    for store in stores:
        with pytest.raises(ValueError, match="different columns: x, y"):
            store.mix({"t": 1, "other": 1})
    with pytest.raises(NodeUnavailable, match="no node 'nowhere'"):
        stores[0].create_table("u", node="nowhere", **TABLE)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        stores[0].create_table("u", colour=1, **TABLE)


def test_late_answers_to_a_remote_group_are_refused(nodes: list[Node], stores: list[ClusterStore]) -> None:
    schema = {"prompt": di_store.Spec((), "i8"), "x": di_store.Spec((), "f4")}
    view = di_store.Group(2, by="prompt", unique=True)
    stores[0].create_table("t", capacity=10, node=nodes[2].name, view=view, schema=schema)
    with stores[0].writer(["t"], lanes=2) as near, stores[2].writer(["t"], lanes=2) as own:
        for prompts in ([1, 1], [1, 2], [3, 3]):
            items = near.append({"prompt": np.array(prompts), "x": np.zeros(2, np.float32)})["t"]
            assert len(items.keys) == (1 if prompts == [1, 2] else 2)
        own.append({"prompt": np.array([3, 4]), "x": np.zeros(2, np.float32)})
    for store in stores:
        table = store.table("t")
        assert (len(table), table.stats()["late_answers"]) == (2, 2)
        found = [(each.value, each.answers, each.missing, each.late) for each in table.incomplete()]
        assert found == [(2, 1, 1, False), (4, 1, 1, False)]
        assert [len(each.keys) for each in table.incomplete()] == [1, 1]
    parts = stores[0].create_table("parts", shards="learners", **TABLE)
    with pytest.raises(ValueError, match="view=Group"):
        parts.incomplete()


def test_concurrent_creates_make_one_table(stores: list[ClusterStore]) -> None:
    """20 times two nodes make one table: one of them does, and it lies there."""
    for turn in range(20):
        made: list[Any] = []

        def make(store: ClusterStore, made: list[Any] = made, turn: int = turn) -> None:
            try:
                made.append(store.create_table(f"t{turn}", **TABLE))
            except TableExists as error:
                made.append(error)

        threads = [threading.Thread(target=make, args=(each,)) for each in stores[:2]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(each, di_store.Table) for each in made) == 1, made
        assert len(stores[2].table(f"t{turn}")) == 0
    assert stores[1].create_table("t0", exist_ok=True, **TABLE).name == "t0"
    with pytest.raises(TableExists, match="other settings"):
        stores[1].create_table("t0", exist_ok=True, **{**TABLE, "sampler": di_store.Once()})


def test_a_local_table_stays_local(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """What a program without the cluster made is the store's own, and not overwritten."""
    with di_store.attach(nodes[1].name) as plain:
        plain.create_table("own", **TABLE).extend({"x": np.zeros((3, 4), np.float32)})
        assert len(stores[1].table("own")) == 3
        with pytest.raises(TableNotFound):
            stores[0].table("own")
        with pytest.raises(TableExists, match="already has its own table"):
            stores[0].create_table("own", node=nodes[1].name, **TABLE)
        with pytest.raises(TableExists, match="other settings"):
            stores[1].create_table("own", exist_ok=True, **{**TABLE, "sampler": di_store.Once()})
        assert len(plain.table("own")) == 3
        assert stores[0].create_table("own", **TABLE).name == "own"
        stores[0].drop_table("own")
        assert len(plain.table("own")) == 3
        assert len(stores[1].create_table("own", exist_ok=True, **TABLE)) == 3
        assert len(stores[0].table("own")) == 3, "it is the cluster's now"
        stores[0].drop_table("own")
        assert plain.stats()["tables"] == {}


@pytest.mark.parametrize("place", [{}, {"node": "second"}, {"shards": "learners"}], ids=["here", "there", "in parts"])
def test_exist_ok_compares_with_declared_columns(
    place: dict[str, str], nodes: list[Node], stores: list[ClusterStore]
) -> None:
    """The directory does not know the columns that a first step has declared; the table does."""
    where: dict[str, Any] = {"node": nodes[1].name} if place == {"node": "second"} else place
    table = stores[0].create_table("t", capacity=90, lanes=8, **where)
    parts = {"shards": place["shards"]} if "shards" in place else {}
    for store in stores:
        with pytest.raises(TableExists, match="none yet"):
            store.create_table("t", capacity=90, schema=SCHEMA, exist_ok=True, **parts)
    table.extend({"x": np.zeros((9, 4), np.float32)})
    for store in stores:
        assert len(store.create_table("t", capacity=90, schema=SCHEMA, exist_ok=True, **parts)) == 9
        assert len(store.create_table("t", capacity=90, exist_ok=True, **parts)) == 9
        with pytest.raises(TableExists, match="'x'"):
            store.create_table("t", capacity=90, schema={"x": di_store.Spec((3,), "f4")}, exist_ok=True, **parts)


def test_a_table_that_does_not_fit_leaves_nothing(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Nothing is left of it, on no node and not in the directory."""
    big = {**TABLE, "capacity": 10**8}
    for node in (nodes[0].name, nodes[1].name):
        with pytest.raises(CapacityError):
            stores[0].create_table("t", node=node, **big)
    stores[2].create_table("t", **TABLE)


MAKE = """
import sys
import di_store
from di_store import cluster
store = cluster.attach(sys.argv[1])
store.nodes()
print("ready", flush=True)
sys.stdin.readline()
for turn in range(1000):
    store.create_table("t", capacity=1000, schema={"x": di_store.Spec((4,), "float32")}, lanes=8, node=sys.argv[2])
    store.drop_table("t")
"""


def test_a_killed_creator_leaves_no_half_made_table(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Wherever it was: the table can be opened, or made, and dropped."""
    rng = np.random.default_rng(1)
    for _ in range(8):
        with Program(MAKE, nodes[0].name, nodes[1].name) as child:
            assert child.line() == "ready"
            child.say()
            threading.Event().wait(rng.uniform(0, 0.1))
            child.signal(signal.SIGKILL)
            os.waitpid(child.pid, 0)
        made = stores[2].create_table("t", node=nodes[1].name, exist_ok=True, **TABLE)
        assert len(made) == len(stores[1].table("t")) == 0
        stores[2].drop_table("t")
        with pytest.raises(TableNotFound):
            stores[0].table("t")
    with di_store.attach(nodes[1].name) as plain:
        assert plain.stats()["tables"] == {}


# --- handles that travel ----------------------------------------------------------------------------------------------


def _there(name: str, sent: list[bytes], answer: Any) -> None:
    os.environ[STORE_ENV] = name
    for each in sent:
        store, table, ref = pickle.loads(each)
        again, _, _ = pickle.loads(each)
        answer.put((store.name, again is store, type(table._backend).__name__, len(table), store.get(ref)))


def test_pickled_handles_open_the_same_table(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """A table opens in memory where it lies, and through the agent elsewhere; a store is that of its machine."""
    table = stores[1].create_table("t", **TABLE)
    table.extend({"x": np.zeros((3, 4), np.float32)})
    answer = mp.get_context("spawn").Queue()
    handles = stores[1].table("t"), stores[0].table("t")
    sent = [pickle.dumps((stores[0], one, stores[0].put("value"))) for one in handles]
    for at, kind in enumerate(("RemoteTable", "LocalTable", "RemoteTable")):
        child = mp.get_context("spawn").Process(target=_there, args=(nodes[at].name, sent, answer))
        child.start()
        for _ in handles:
            assert answer.get(timeout=60) == (nodes[at].name, True, kind, 3, "value")
        child.join()


def test_calls_of_a_closed_store_raise(stores: list[ClusterStore]) -> None:
    ref = stores[0].put(1)
    stores[1].close()
    assert "(closed)" in repr(stores[1])
    for call in (lambda: stores[1].get(ref), lambda: stores[1].table("t"), lambda: stores[1].nodes()):
        with pytest.raises(StoreClosed):
            call()


def test_several_clusters_on_one_machine_need_a_name(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells them apart, and what each cluster is. Other tests may have clusters here too."""
    monkeypatch.delenv(STORE_ENV, raising=False)
    names, place = sorted(each.name for each in nodes), f"127.0.0.1:{free_ports(1)[0]}"
    with one_node(f"o-{uuid.uuid4().hex[:12]}", "--listen", place, "--peers", place) as other:
        with pytest.raises(ValueError, match=r"nodes of \d+ clusters are on this machine") as caught:
            cluster.attach()
        assert f"{names} of --peers 127.0.0.1:" in str(caught.value)
        assert f"['{other.name}'] of --peers {place}" in str(caught.value)


def test_several_nodes_on_one_machine_need_a_name() -> None:
    one = Membership("static", ("di-store://10.0.0.1:7370/",), "di-store://10.0.0.1:7370/a")
    text = str(joining._ambiguous({"b": one, "a": one}))
    assert text == "several nodes of a cluster are on this machine: give one of ['a', 'b'], or DI_STORE_NODE"
