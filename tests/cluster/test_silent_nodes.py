"""Nodes whose agents are stopped, or that are lost: every call ends by its deadline and a second, and says why."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pains import Program, until

from cluster.nodes import Node, attached, cluster_nodes, stopped
from cluster.test_cluster import TABLE, local, tables_of
from di_store import cluster
from di_store.base.errors import NodeUnavailable, ObjectNotFound, StoreError, Timeout
from di_store.client.address import Address
from di_store.cluster import cluster as seen
from di_store.cluster import groups, static
from di_store.cluster.node_objects import NodeObjects
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.cluster.store import ClusterStore
from di_store.objects.refs import Ref
from di_store.runtime.deadline import GRACE_SECONDS

SECONDS = 1.0
MOST_SECONDS = 40.0
CALLS = """
import sys
from di_store import cluster
from di_store.objects.refs import Ref
store = cluster.attach(sys.argv[1])
for line in sys.stdin:
    try:
        print(eval("store." + line), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""

LOADS = """
import os, pickle, sys
os.environ["DI_STORE_NODE"] = sys.argv[1]
for line in sys.stdin:
    try:
        print(len(pickle.loads(bytes.fromhex(line))), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"q-{uuid.uuid4().hex[:12]}", 3, "--memory", "64MiB") as running:
        yield running


@pytest.fixture(scope="module")
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    with attached(nodes) as made:
        yield made


def place_of(node: Node) -> str:
    """Its HOST:PORT."""
    return Address.parse(node.address).node


def failure(call: Callable[[], Any]) -> StoreError:
    """What a call raises, long before a minute has passed: other programs may hold it up."""
    began = time.monotonic()
    with pytest.raises((NodeUnavailable, Timeout)) as found:
        call()
    assert time.monotonic() - began < MOST_SECONDS
    return found.value


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on calls have ten times the seconds behind their deadlines, so that what others do matters little."""
    monkeypatch.setattr("di_store.runtime.deadline.GRACE_SECONDS", 10 * GRACE_SECONDS)
    monkeypatch.setattr(static, "LOOK_SECONDS", 10 * LOOK_SECONDS)
    monkeypatch.setattr(groups, "_NEWEST_SECONDS", 10 * groups._NEWEST_SECONDS)


def called(program: Program, text: str) -> str:
    """What a call of another process's store gives, as text; or the type of the error, and its text."""
    program.say(text)
    return program.line()


def test_a_failed_create_is_undone(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """What was made is taken back behind the call. Its error names the call, not what that is made of."""
    stores[0].create_table("first", timeout=20, **TABLE)
    stores[0].drop_table("first")  # so that the directory has its entries
    with stopped(nodes[1].agent):
        error = failure(lambda: stores[1].create_table("t", timeout=SECONDS, **TABLE))
        assert "create_table('t')" in error.message
    stores[0].create_table("t", timeout=20, **TABLE)
    stores[0].drop_table("t")
    assert not any(tables_of(each.name) for each in nodes)


def test_opening_a_table_waits_for_a_stopped_node(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """Whoever opens it waits for the node's answer as long as its timeout says, though not for the table."""
    stores[0].create_table("while", timeout=20, node=place_of(nodes[1]), **TABLE)
    assert len(stores[2].table("while")) == 0  # it has connected by now
    agent = nodes[1].agent
    goes_on = threading.Timer(4 * GRACE_SECONDS, os.kill, (agent, signal.SIGCONT))
    with stopped(agent):
        goes_on.start()
        assert len(stores[2].table("while", timeout=60)) == 0
        goes_on.join()
    stores[0].drop_table("while")


def test_a_handle_can_be_unpickled_while_its_node_is_stopped(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """Of a table that is there; a handle of one that was dropped does not load."""
    table = stores[0].create_table("loads", timeout=20, node=place_of(nodes[1]), **TABLE)
    handle = pickle.dumps(table).hex()
    agent = nodes[1].agent
    with Program(LOADS, nodes[2].name) as program:
        assert called(program, handle) == "0"
        goes_on = threading.Timer(4 * GRACE_SECONDS, os.kill, (agent, signal.SIGCONT))
        with stopped(agent):
            goes_on.start()
            assert called(program, handle) == "0"
            goes_on.join()
        stores[0].drop_table("loads")
        assert "TableNotFound" in called(program, handle)


def test_an_object_of_a_silent_node_is_found_on_others(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """Whether others have it is asked of those alone that are there."""
    ref = stores[1].put(1)
    with stopped(nodes[1].agent):
        assert "get of object" in failure(lambda: stores[0].get(ref, timeout=SECONDS)).message
    assert stores[0].get(ref, timeout=20) == 1


def test_an_unknown_object_is_refused_in_time(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory takes its second, and none is left for nodes that do not answer."""
    everywhere, pause = stores[0].node.cluster.others(fresh=True), threading.Event()

    def slowly() -> list[Any]:
        pause.wait(SECONDS)
        return everywhere

    monkeypatch.setattr(stores[0].node.cluster, "others", slowly)
    with stopped(nodes[1].agent, nodes[2].agent):
        began = time.monotonic()
        with pytest.raises(ObjectNotFound):
            stores[0].get(Ref(bytes(20)), timeout=0.1)
        assert time.monotonic() - began < MOST_SECONDS


def test_a_loader_of_a_silent_node_keeps_its_timeout(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """It is made with the loader's timeout."""
    stores[1].create_table("loaded", **TABLE)
    table = stores[0].table("loaded")
    with stopped(nodes[1].agent):
        assert "loader of table 'loaded'" in failure(lambda: table.loader(1, timeout=SECONDS)).message
    stores[0].drop_table("loaded")


def test_copies_wait_for_a_node_that_is_away(stores: list[ClusterStore], nodes: list[Node]) -> None:
    agent = nodes[2].agent
    with stopped(nodes[2].agent):
        until(lambda: len(stores[0].nodes()) == 2, "the node to be missed")
        text = str(failure(lambda: stores[0].create_table("t", node=nodes[2].name, timeout=0, **TABLE)))
        assert f"{place_of(nodes[2])} (store {nodes[2].name}, " in text
        assert "does not answer" in text
        back = threading.Timer(1, os.kill, (agent, signal.SIGCONT))
        back.start()
        ref = stores[0].put(1, copies=3, timeout=30)
        back.join()
    assert stores[0].delete(ref) == 1


def test_a_misspelt_node_name_is_refused_early(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name is refused long before the minute that the call has; the error tells the nodes apart."""
    monkeypatch.setattr(seen, "STARTING_SECONDS", 0.5)
    text = str(failure(lambda: stores[0].create_table("t", node="typo", **TABLE)))
    for node in nodes:
        assert node.name in text
        assert place_of(node) in text
    with pytest.raises(ValueError, match=f"give one of .*{place_of(nodes[0])}"):
        stores[0].create_table("t", node=stores[0].nodes()[0].name, **TABLE)


@pytest.mark.extended
def test_a_call_shares_its_time_with_a_silent_directory(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look for the node, and the directory's answer, share what a call has behind its deadline."""
    stores[1].create_table("first", timeout=20, **TABLE)
    stores[1].drop_table("first")  # so that the directory has its entries
    until(lambda: len(stores[1].nodes()) == len(nodes), "all nodes to answer")
    slowly(monkeypatch)
    with stopped(nodes[0].agent):
        stores[1].node.cluster._looked = float("-inf")
        began = time.monotonic()
        with pytest.raises((NodeUnavailable, Timeout)):
            stores[1].create_table("late", node=place_of(nodes[2]), timeout=0, **TABLE)
        took = time.monotonic() - began
    assert took < 10.8 * SECONDS


def test_wait_asks_silent_nodes_at_the_same_time(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """Two homes that say nothing are asked at once; a third one is asked all the same."""
    refs = [stores[1].put(1), stores[2].put(2), stores[0].put(3)]
    with stopped(nodes[1].agent, nodes[2].agent):
        began = time.monotonic()
        assert stores[0].wait(refs, 2, timeout=0) == (refs[2:], refs[:2])
        assert time.monotonic() - began < MOST_SECONDS
    assert stores[0].wait(refs, 3, timeout=60) == (refs, [])
    assert stores[0].delete(refs) == 3


def test_silent_nodes_of_one_delete_are_waited_for_together(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many objects lie on them. Those that answer have deleted theirs."""
    refs = [stores[at].put(number) for number in range(3) for at in (0, 1, 2)]
    begin, met, asked = threading.Barrier(2), threading.local(), NodeObjects.has

    def has(of: NodeObjects, node: Any, *given: Any) -> bool:
        if not hasattr(met, "node"):
            met.node = node
            begin.wait(MOST_SECONDS)
        return asked(of, node, *given)

    monkeypatch.setattr(NodeObjects, "has", has)
    with stopped(nodes[0].agent, nodes[2].agent):
        text = failure(lambda: stores[1].delete(refs)).message
    assert all(place_of(node) in text for node in (nodes[0], nodes[2]))
    monkeypatch.undo()
    until(lambda: len(stores[1].nodes()) == len(nodes), "all nodes to be there again")
    assert [stores[1].contains(ref) for ref in refs] == 3 * [True, False, True]
    assert stores[1].delete(refs) == 6


def test_attach_ends_in_time(nodes: list[Node]) -> None:
    with stopped(nodes[1].agent):
        failure(lambda: cluster.attach(nodes[1].name, timeout=0.5))


def test_a_returned_node_is_used_again(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test, where the node has the directory too. Its new store is used by who has spoken to the old one."""
    alone, two, copied = stores[0].put(1), stores[0].put(2, copies=2), stores[0].put(3, copies=3)
    assert all(stores[at].contains(each) for at in (1, 2) for each in (alone, two, copied))
    with Program(CALLS, nodes[1].name) as other:
        assert called(other, f"get(Ref.parse('{two.id}'))") == "2"
        assert called(other, f"contains(Ref.parse('{alone.id}'))") == "True"
        assert called(other, "create_table('old', capacity=3).name") == "old"
        stores[0].close()
        nodes[0].lose()
        assert all(stores[at].contains(two) for at in (1, 2))
        failure(lambda: stores[1].contains(alone))
        assert place_of(nodes[0]) in failure(lambda: stores[1].delete([two, copied, alone])).message
        assert not any(local(each, ref) for each in stores[1:] for ref in (two, copied))
        nodes[0].restart()
        with cluster.attach(nodes[0].name) as store:
            new = store.put([2, 3])
            store.create_table("new", timeout=20, **TABLE)
        assert called(other, f"get(Ref.parse('{new.id}'), timeout=20)") == "[2, 3]"
        assert "NodeUnavailable" in called(other, f"get(Ref.parse('{alone.id}'))")
        assert called(other, "table('new', timeout=20).name") == "new"
        assert called(other, f"create_table('there', capacity=3, node='{nodes[0].name}').name") == "there"
        assert called(other, "get(store.put(5, copies=3))") == "5"
    with monkeypatch.context() as look:
        look.setattr(stores[1].node.cluster, "last_seen", list)  # a look in which the new store was too slow
        assert not stores[1].contains(alone)
    assert stores[1].delete([alone, copied]) == 0
