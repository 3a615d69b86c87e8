"""`di_store.Client` on the nodes of a cluster: as users of the original DI-store used it on several machines."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from cluster.nodes import Node, cluster_nodes, stopped
from di_store import Client, compat

LARGE = np.arange(1_000_000, dtype=np.float32)  # comes in pieces


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"client-{uuid.uuid4().hex[:12]}", 2, "--memory", "64MiB") as made:
        yield made


def client_of(node: Node, **own: Any) -> Client:
    return Client({"store": {"name": node.name} | own})


@pytest.fixture
def clients(nodes: list[Node]) -> list[Client]:
    """One of each node."""
    return [client_of(each) for each in nodes]


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


def comes(node: Node, ref: str) -> None:
    """Wait until the object lies in the node's own memory."""
    store = di_store.attach(node.name)
    until(lambda: store.contains(ref), "the object to come", seconds=20)
    store.close()


def lies(node: Node, ref: str) -> bool:
    store = di_store.attach(node.name)
    try:
        return store.contains(ref)
    finally:
        store.close()


def run(target: Any, *calls: tuple[Any, ...]) -> None:
    """Make each call in a process of its own, all at once; they have ended when this returns."""
    processes = [mp.get_context("spawn").Process(target=target, args=each) for each in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_objects_of_another_node_are_read(nodes: list[Node], clients: list[Client]) -> None:
    here, there = clients
    assert "of a cluster" in repr(here)
    ref = there.put({"a": LARGE})
    assert bytes.fromhex(ref).startswith(bytes.fromhex(di_store.connect(nodes[1].address).stats()["uuid"])[:6])
    assert (here.get(ref)["a"] == LARGE).all()
    own = uuid.uuid4().hex + "0" * 8
    assert there.put(5, object_id=own) == own
    assert here.get(own, src_node="any", via_rpc=True) == 5
    assert here.get(uuid.uuid4().hex + "0" * 8) is None


def _register(name: str, groups: list[str]) -> None:
    Client({"store": {"name": name}}).register_group(groups)


def test_a_group_has_objects_before_it_reads_them(nodes: list[Node], clients: list[Client], group: str) -> None:
    """Two processes of the other node register, and are gone when the object is put."""
    run(_register, (nodes[1].name, [group]), (nodes[1].name, [group, f"{group}-2"]))
    for value in (LARGE, {"small": [1, 2]}):
        ref = clients[0].put(value, prefetch_group=[group, f"{group}-2"])
        comes(nodes[1], ref)
        with stopped(*nodes[0].pids):
            found = clients[1].get(ref)
        assert np.array_equal(found, LARGE) if isinstance(value, np.ndarray) else found == value
    assert not lies(nodes[1], clients[0].put(LARGE)), "what is put for no group stays where it is"
    ref = clients[1].put(1, prefetch_group=group)
    assert not lies(nodes[0], ref), "the other node is no member"


def test_nodes_are_found_by_host_name(nodes: list[Node], clients: list[Client]) -> None:
    names = [nodes[1].name, nodes[1].address.split("/")[2]]
    for name in names:
        comes(nodes[1], clients[0].put(LARGE, prefetch_hostname=name))
    comes(nodes[1], clients[0].put(LARGE, prefetch_hostname=[os.uname().nodename, nodes[0].name]))


def test_unknown_groups_and_nodes_fail_no_put(
    clients: list[Client], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert clients[0].get(clients[0].put(1, prefetch_group=group, prefetch_hostname=f"{group}-host")) == 1
    said = [each.getMessage() for each in caplog.records]
    assert len([each for each in said if f"group '{group}' has no members" in each]) == 1
    assert len([each for each in said if f"the cluster has no node '{group}-host'" in each]) == 1
    clients[0].put(1, object_id=uuid.uuid4().hex + "0" * 8, prefetch_group=group)
    assert any("an id of your own" in each.getMessage() for each in caplog.records)


def test_the_next_agent_sends_and_copies_after_a_kill(nodes: list[Node], clients: list[Client], group: str) -> None:
    """The one that serves next sends and copies."""
    clients[1].register_group(group)
    comes(nodes[1], clients[0].put(1, prefetch_group=group))
    for node in nodes:
        node.kill_agent()
        ref = ""

        def put() -> bool:
            nonlocal ref
            ref = clients[0].put(LARGE, prefetch_group=group)
            began = time.monotonic()
            while time.monotonic() < began + 0.5:
                if lies(nodes[1], ref):
                    return True
            return False

        until(put, "an object to come", seconds=30)
        assert (clients[1].get(ref) == LARGE).all()


def test_deleted_objects_make_room_where_they_were_put(nodes: list[Node], clients: list[Client]) -> None:
    """More than fits is put on one node, and deleted by a client of the other one."""
    refs = []
    for number in range(60):  # 4 MB each, 64 MiB
        refs.append(clients[0].put(LARGE + number))
        clients[1].delete(refs[-1])
        clients[1].delete([refs[-1], uuid.uuid4().hex + "0" * 8])
    assert clients[1].get(refs[-1])[0] == 59, "it can be read while there is room"
    assert clients[0].get(refs[0]) is None
    clients[0].delete(refs)


def test_deletions_that_a_silent_node_missed_are_made_when_it_answers() -> None:
    """Without another call of the client that deleted: a `put` there waits for the room."""
    with cluster_nodes(f"silent-{uuid.uuid4().hex[:12]}", 2, "--memory", "64MiB") as nodes:
        there, here = map(client_of, nodes)
        refs = [there.put(LARGE + number) for number in range(12)]  # 4 MB each, 64 MiB
        with stopped(*nodes[0].pids):
            here.delete(refs)
        refs = [there.put(LARGE + number) for number in range(12)]
        assert there.get(refs[-1])[0] == 11


def test_deleted_objects_leave_nothing(nodes: list[Node]) -> None:
    here, there = (client_of(each, keep_deleted=0) for each in nodes)
    own = uuid.uuid4().hex + "0" * 8
    for ref in (there.put(7), there.put(7, object_id=own)):
        assert here.get(ref) == 7
        here.delete(ref)
        assert here.get(ref) is None
        assert there.get(ref) is None
    assert there.put(8, object_id=own) == own
    assert here.get(own) == 8


def _put(name: str, path: Path) -> None:
    path.write_text(Client({"store": {"name": name}}).put(2))


def test_a_lost_node_is_named(group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cluster_nodes(f"lost-{uuid.uuid4().hex[:12]}", 2, "--memory", "64MiB") as nodes:
        here = client_of(nodes[0])
        run(_register, (nodes[1].name, [group]))
        comes(nodes[1], here.put(1, prefetch_group=group))
        run(_put, (nodes[1].name, tmp_path / "ref"))  # in this process it would keep the store
        ref = (tmp_path / "ref").read_text()
        nodes[1].lose()
        began = time.monotonic()
        for _ in range(10):
            assert here.get(here.put(1, prefetch_group=group, prefetch_hostname=nodes[1].name)) == 1
        assert time.monotonic() - began < 30  # ten times what it may take
        with pytest.raises(di_store.NodeUnavailable):
            here.get(ref)
        here.delete(ref)
        assert any("are deleted when their node answers" in each.getMessage() for each in caplog.records)


def test_the_configured_store_is_used(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = {"node_trackers": [{"rpc_host": "test", "rpc_port": uuid.uuid4().hex[:12]}]}
    assert "of a cluster" not in repr(Client(trackers)), "nodes that nobody has named are other jobs'"
    assert "of a cluster" not in repr(client_of(nodes[0], cluster=False))
    monkeypatch.setenv("DI_STORE_NODE", nodes[1].name)
    assert nodes[1].name in repr(Client(trackers))
    assert nodes[1].name in repr(Client({"store": {"cluster": True}}))
    assert nodes[0].name in repr(client_of(nodes[0])), "a name in the configuration comes first"
    monkeypatch.setenv("DI_STORE_NODE", "no-such-node")
    with pytest.raises(di_store.StoreNotFound, match="no-such-node"):
        Client(trackers)
    monkeypatch.setattr(compat, "_NODE_SECONDS", 0.2)
    with pytest.raises(di_store.StoreNotFound, match="no store on this machine is a node"):
        Client({"store": {"name": f"none-{os.getpid()}", "cluster": True}})


def test_wrong_inputs_are_refused(clients: list[Client]) -> None:
    for wrong in ("", "a/b", "x" * 101):
        with pytest.raises(ValueError, match="a group's name is"):
            clients[0].register_group(wrong)
        with pytest.raises(ValueError, match="a group's name is"):
            clients[0].put(1, prefetch_group=wrong)
    for call in (
        lambda: clients[0].register_group([1]),  # type: ignore[list-item]
        lambda: clients[0].put(1, prefetch_group=3),  # type: ignore[arg-type]
        lambda: clients[0].put(1, prefetch_hostname=[None]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError, match="give a name"):
            call()
    with pytest.raises(ValueError, match="40 hex characters"):
        clients[0].delete("xyz")
    with pytest.raises(ValueError, match=r"store\.cluster='yes'"):
        Client({"store": {"name": "a", "cluster": "yes"}})
    with pytest.raises(ValueError, match="letters, digits"):
        di_store.cluster.attach("a/b")
