"""Processes that have not seen a node yet, or that saw too few at their last look: what is silent is not gone."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pains import until

from cluster.nodes import Node, attached, cluster_nodes, stopped
from cluster.test_cluster import TABLE, tables_of
from cluster.test_silent_nodes import SECONDS, failure, place_of, slowly
from di_store import cluster
from di_store.base.errors import NodeUnavailable, StoreError, Timeout
from di_store.client.sessions import Credentials
from di_store.cluster import node as places
from di_store.cluster import static
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import unavailable
from di_store.cluster.session_pool import SessionPool
from di_store.cluster.static import StaticDirectory
from di_store.cluster.store import ClusterStore
from di_store.runtime.deadline import GRACE_SECONDS, Deadline

AWAY_SECONDS = 3 * GRACE_SECONDS


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"i-{uuid.uuid4().hex[:12]}", 3, "--memory", "64MiB") as running:
        yield running


@pytest.fixture(scope="module")
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    with attached(nodes) as made:
        yield made


@pytest.fixture
def newcomer(nodes: list[Node]) -> Iterator[ClusterStore]:
    """It knows its own node alone."""
    with cluster.attach(nodes[1].name) as store:
        yield store


def come_back(node: Node) -> threading.Timer:
    """Its agent goes on after a while."""
    back = threading.Timer(AWAY_SECONDS, os.kill, (node.agent, signal.SIGCONT))
    back.start()
    return back


@pytest.mark.parametrize("options", [{}, {"shards": "learners"}], ids=["whole", "in parts"])
def test_a_drop_waits_for_shards_on_silent_nodes(
    stores: list[ClusterStore], nodes: list[Node], newcomer: ClusterStore, options: dict[str, Any]
) -> None:
    """Its shards on a silent node are waited for; else they would come back as tables of their own."""
    where = {} if options else {"node": place_of(nodes[2])}
    stores[2].create_table("dropped", timeout=20, **where, **TABLE, **options)
    with stopped(nodes[2].agent):
        back = come_back(nodes[2])
        newcomer.drop_table("dropped", timeout=60)
        back.join()
    assert not any(tables_of(each.name) for each in nodes)


def test_a_table_opens_with_an_incomplete_node_list(
    stores: list[ClusterStore], nodes: list[Node], newcomer: ClusterStore
) -> None:
    stores[2].create_table("opened", node=place_of(nodes[2]), timeout=20, **TABLE)
    with stopped(nodes[2].agent):
        back = come_back(nodes[2])
        assert len(newcomer.table("opened", timeout=60)) == 0
        back.join()
    stores[2].drop_table("opened")


def test_no_call_denies_an_object_while_a_node_is_unknown(
    stores: list[ClusterStore], nodes: list[Node], newcomer: ClusterStore
) -> None:
    """Nobody knows whether its id was chosen: no call says that it is not there."""
    ref = stores[2].put(1)
    with stopped(nodes[2].agent):
        for call in (newcomer.contains, newcomer.store_of, newcomer.delete):
            assert place_of(nodes[2]) in failure(lambda call=call: call(ref)).message
    assert newcomer.contains(ref)
    assert newcomer.delete(ref) == 1


def test_copies_ask_again_after_an_incomplete_node_list(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """The list of a moment ago does not say that the cluster is too small."""
    with stopped(nodes[2].agent):
        until(lambda: len(stores[1].nodes()) == 2, "the node to be missed")
    until(lambda: len(stores[0].nodes()) == 3, "the node to be there again")
    assert stores[1].delete(stores[1].put(1, copies=3, timeout=20)) == 1
    stores[1].node.cluster._nodes = stores[1].node.cluster._nodes[:2]  # as a look in which the node was too slow
    stores[1].node.cluster._looked = time.monotonic()
    assert stores[1].delete(stores[1].put(1, copies=3, timeout=0)) == 1  # no time for more than one look anew


def test_known_nodes_take_copies_while_the_directory_is_away(
    stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that were seen take copies, and say what they have; none that was not seen is asked."""
    here, there, chosen = stores[0].put(1), stores[2].put(2), stores[2].put(3, id="ab" * 20)
    seen = stores[0].node.cluster

    def away(*given: Any) -> Any:
        raise unavailable("it is away")

    assert len(stores[0].nodes()) == 3
    with monkeypatch.context() as patched:
        patched.setattr(seen.directory, "nodes", away)
        patched.setattr(seen, "_looked", float("-inf"))
        assert stores[0].wait([here, there, chosen], 3, timeout=5) == ([here, there, chosen], [])
        copied = stores[0].put(4, copies=3, timeout=20)
        with pytest.raises(NodeUnavailable, match="it is away"):
            stores[0].put(5, copies=4, timeout=0)
    assert stores[0].delete([here, there, chosen, copied]) == 4


def test_an_object_with_a_chosen_id_is_found_despite_a_silent_node(
    stores: list[ClusterStore], nodes: list[Node]
) -> None:
    """The look takes all that a call without time has; those that answer are asked all the same."""
    chosen = stores[0].put(1, id="cd" * 20)
    assert len(stores[1].nodes()) == 3
    with stopped(nodes[2].agent):
        stores[1].node.cluster._looked = float("-inf")
        assert stores[1].wait([chosen], 1, timeout=0) == ([chosen], [])
    assert stores[0].delete(chosen) == 1


class Slow:
    """A directory of two nodes that answers when it may, or fails."""

    def __init__(self, here: places.Node) -> None:
        self.here = here
        self.asked, self.answers = threading.Event(), threading.Event()

    def nodes(self, timeout: Any) -> list[places.Node]:
        self.asked.set()
        if not self.answers.wait(30):
            raise unavailable("never")
        return [self.here]

    def missing(self, nodes: list[places.Node]) -> list[str]:
        return [] if len(nodes) == 2 else ["127.0.0.1:2"]


def slow_cluster() -> tuple[Slow, Cluster]:
    here = places.Node("a" * 32, "vm", "di-store://127.0.0.1:1/s")
    directory = Slow(here)
    return directory, Cluster(directory, SessionPool(Credentials()), here)  # type: ignore[arg-type]


def test_a_call_does_not_wait_for_another_threads_lookup() -> None:
    """A thread with much time asks the directory, which is silent; one without time ends."""
    directory, seen = slow_cluster()
    found: list[Any] = []
    patient = threading.Thread(target=lambda: found.append(seen.nodes(60)))
    patient.start()
    assert directory.asked.wait(30)
    began = time.monotonic()
    with pytest.raises(NodeUnavailable, match="another thread"):
        seen.nodes(0)
    assert time.monotonic() - began < 10
    directory.answers.set()
    patient.join()
    assert found == [[directory.here]]


def test_a_silent_node_leaves_time_for_the_requested_one(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call without time looks for nodes first, of which one has just fallen silent."""
    stores[0].create_table("there", node=place_of(nodes[1]), timeout=20, **TABLE)
    reach, rests = SessionPool.of, list[float]()

    def of(sessions: SessionPool, node: Any, timeout: Any, what: str | None = None) -> Any:
        rests.append(Deadline.of(timeout).rest() or 0.0)
        return reach(sessions, node, timeout, what)

    monkeypatch.setattr(SessionPool, "of", of)
    until(lambda: len(stores[0].nodes()) == len(nodes), "all nodes to be seen")
    slowly(monkeypatch)
    rests.clear()
    with stopped(nodes[2].agent):
        stores[0].node.cluster._looked = float("-inf")
        assert stores[0].table("there", timeout=0).name == "there"
    assert min(rests) > GRACE_SECONDS, rests  # half of ten times that, but for what the machine was busy with
    stores[0].drop_table("there", timeout=20)


def test_an_incomplete_node_list_is_not_shared() -> None:
    """It has missed a node for lack of time: calls that have time look again."""
    directory, seen = slow_cluster()
    directory.answers.set()
    late = Deadline(0)
    late.count(0.85)
    for step, looks in ((late.another(), True), (Deadline(20), True), (Deadline(20), False)):
        directory.asked.clear()
        assert seen.nodes(step) == [directory.here]
        assert directory.asked.is_set() == looks


def test_local_tables_open_though_a_peer_is_silent(
    nodes: list[Node], stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory does not answer then; what lies here is there all the same."""

    def silent(*given: Any) -> Any:
        raise Timeout("list of its tables timed out", "no answer")

    directory = stores[2].node.cluster.directory
    assert isinstance(directory, StaticDirectory)
    stores[2].create_table("own", timeout=20, **TABLE)
    with monkeypatch.context() as patched:
        patched.setattr(static, "kept_entries", silent)
        patched.setattr(directory, "_ask", lambda call, deadline: None)
        with pytest.raises(NodeUnavailable, match="the directory of the cluster does not answer"):
            directory.read("table/own", 0)
        assert len(stores[2].table("own")) == 0
    stores[2].drop_table("own")


def test_publishers_of_one_process_do_not_block_each_other(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """One waits for its agent, which is silent; a call of another thread has its own time, also for the same name."""
    assert stores[1].publish("w", 1, group="g", timeout=20) == 1

    def publish(name: str, timeout: float) -> StoreError:
        with pytest.raises(StoreError) as found:
            stores[1].publish(name, 2, group="g", timeout=timeout)
        return found.value

    with stopped(nodes[1].agent):
        patient = threading.Thread(target=publish, args=("w", 30.0))
        patient.start()
        until(lambda: stores[1].node._groups._publishing["w"].locked(), "the first one to wait")
        began = time.monotonic()
        publish("v", 0)
        assert isinstance(publish("w", 0), Timeout)
        took = time.monotonic() - began
        assert patient.is_alive()
        assert took < 20
        stores[1].close()
        patient.join()


@pytest.mark.extended
def test_a_silent_former_publisher_is_asked_within_the_deadline(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newest version is asked for within the call's own time."""
    stores[2].publish("before", 1, group="silent", timeout=20)
    until(lambda: len(stores[0].nodes()) == len(nodes), "all nodes to be seen")
    slowly(monkeypatch)
    with stopped(nodes[2].agent):
        began = time.monotonic()
        with suppress(StoreError):
            stores[0].publish("before", 2, group="silent", timeout=0)
        took = time.monotonic() - began
    assert took < 14 * SECONDS
