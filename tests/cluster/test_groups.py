"""Weights of a group of nodes: who gets them, who publishes, and who comes late."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from cluster.nodes import Node, cluster_nodes
from di_store import cluster
from di_store.base.errors import NodeUnavailable, StoreError
from di_store.cluster.store import ClusterStore


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"g-{uuid.uuid4().hex[:12]}", 3) as running:
        yield running


@pytest.fixture
def name() -> str:
    """Of weights and of a group: another one in each test."""
    return uuid.uuid4().hex


def weights(number: int) -> dict[str, Any]:
    return {"w": np.full(1_000_000, number, np.float32), "n": number}


def whole(found: Any) -> int:
    """The number of weights that are not torn."""
    assert (found.value["w"] == found.value["n"]).all()
    return int(found.value["n"])


def test_members_get_every_version_in_time(stores: list[ClusterStore], name: str) -> None:
    """Those that have asked; not others, and not without a group."""
    learner, member, stranger = stores
    assert member.latest(name, group=name) is None
    for number in range(1, 4):
        assert learner.publish(name, weights(number), group=name) == number
        found = member.latest(name, newer_than=number - 1, timeout=60, group=name)
        assert found is not None
        assert (found.version, whole(found)) == (number, number)
    assert stranger.latest(name) is None
    assert whole(member.latest(name)) == 3
    assert learner.publish(f"{name}-own", 1) == 1
    assert member.latest(f"{name}-own", group=name, timeout=0.3) is None


def test_a_late_member_gets_the_newest_version(stores: list[ClusterStore], name: str) -> None:
    learner, early, late = stores
    learner.publish(name, weights(1), group=name)
    assert whole(early.latest(name, timeout=60, group=name)) == 1
    learner.publish(name, weights(2), group=name)
    assert whole(late.latest(name, timeout=60, group=name)) == 2
    learner.publish(name, weights(3), group=name, keep=2)
    for each in (early, late):
        assert whole(each.latest(name, newer_than=2, timeout=60, group=name)) == 3


def test_a_member_may_wait_before_the_publisher_starts(stores: list[ClusterStore], name: str) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(stores[1].latest(name, timeout=60, group=name)))
    thread.start()
    stores[0].publish(name, weights(1), group=name)
    thread.join()
    assert whole(found[0]) == 1


def test_another_node_can_take_over_a_name(stores: list[ClusterStore], name: str) -> None:
    """Versions go on rising, and the one that was replaced is told so."""
    for each in stores[1:]:
        assert each.latest(name, group=name) is None
    for number in (1, 2, 3):
        assert stores[0].publish(name, weights(number), group=name) == number
    assert whole(stores[2].latest(name, newer_than=2, timeout=60, group=name)) == 3
    assert stores[1].publish(name, weights(4), group=name) == 4
    assert whole(stores[2].latest(name, newer_than=3, timeout=60, group=name)) == 4
    refused: list[StoreError] = []

    def refuses() -> bool:
        try:
            stores[0].publish(name, weights(99), group=name)
        except StoreError as error:
            refused.append(error)
        return bool(refused)

    until(refuses, "the older publisher to be told")
    assert "published by another process now" in str(refused[0])
    assert stores[1].publish(name, weights(5), group=name) == 5
    assert whole(stores[2].latest(name, newer_than=4, timeout=60, group=name)) == 5


def test_a_new_learner_continues_the_version_numbers(nodes: list[Node], stores: list[ClusterStore], name: str) -> None:
    """On a node that was no member: its versions are above all that members have."""
    assert stores[2].latest(name, group=name) is None
    for number in (1, 2):
        stores[0].publish(name, weights(number), group=name)
    assert whole(stores[2].latest(name, newer_than=1, timeout=60, group=name)) == 2
    with cluster.attach(nodes[1].name) as learner:
        assert learner.publish(name, weights(3), group=name) == 3
    assert whole(stores[2].latest(name, newer_than=2, timeout=60, group=name)) == 3
    with cluster.attach(nodes[0].name) as learner:
        assert learner.publish(name, weights(4), group=name) == 4
    assert whole(stores[2].latest(name, newer_than=3, timeout=60, group=name)) == 4


def test_versions_reach_members_despite_killed_agents(nodes: list[Node], stores: list[ClusterStore], name: str) -> None:
    """Each version reaches the members all the same."""
    for each in stores[1:]:
        assert each.latest(name, group=name) is None
    for number in range(1, 7):
        stores[0].publish(name, weights(number), group=name)
        nodes[number % 3].kill_agent()
        for each in stores[1:]:
            assert whole(each.latest(name, newer_than=number - 1, timeout=60, group=name)) == number


def test_groups_work_while_the_directory_is_away(nodes: list[Node], name: str) -> None:
    """A publisher and members that know each other go on; a new publisher says what is missing."""
    with cluster.attach(nodes[1].name) as learner, cluster.attach(nodes[2].name) as member:
        assert member.latest(name, group=name) is None
        learner.publish(name, weights(1), group=name)
        assert whole(member.latest(name, timeout=60, group=name)) == 1
        nodes[0].lose()
        for number in (2, 3):
            assert learner.publish(name, weights(number), group=name, timeout=5) == number
            assert whole(member.latest(name, newer_than=number - 1, timeout=60, group=name)) == number
        with pytest.raises(NodeUnavailable, match="directory"):
            member.publish(f"{name}-2", 1, group=name, timeout=0.5)
        nodes[0].restart()
        until(lambda: _published(learner, name), "the directory to know the publisher again")


def _published(learner: ClusterStore, name: str) -> bool:
    number = learner.publish(name, 0, group=name)
    return number > 0 and learner.node.cluster.directory.read(f"owner/{name}", 20) is not None


def test_wrong_names_are_refused(stores: list[ClusterStore]) -> None:
    for group in ("", "a/b", "x" * 101, 3):
        with pytest.raises(ValueError, match="group="):
            stores[0].publish("w", 1, group=group)
        with pytest.raises(ValueError, match="group="):
            stores[0].latest("w", group=group)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reserved for the library"):
        stores[0].publish("di-store/groups", 1, group="g")


def test_a_name_stays_in_its_group(stores: list[ClusterStore], name: str) -> None:
    """Also if another process names another group; and what a member publishes for itself is no version of it."""
    learner, other, member = stores
    learner.publish(name, 1, group=name)
    assert member.latest(name, timeout=60, group=name) is not None
    with pytest.raises(ValueError, match=f"group '{name}' already"):
        other.publish(name, 99, group=f"{name[:30]}-2")
    with pytest.raises(ValueError, match=f"group '{name}' already"):
        other.latest(name, timeout=60, group=f"{name[:30]}-2")
    for each in (learner, member):
        with pytest.raises(ValueError, match="belong to a group of nodes: give group="):
            each.publish(name, 99)
    assert learner.publish(name, 2, group=name) == 2
    assert whole_number(member.latest(name, newer_than=1, timeout=60, group=name)) == 2
    assert other.publish(name, 3, group=name) == 3


def whole_number(found: Any) -> int:
    return int(found.value)


def test_a_new_member_gets_the_next_version(nodes: list[Node], stores: list[ClusterStore], name: str) -> None:
    """Without another call: though the publisher has listed the members before; also if its agent is killed."""
    learner, *members = stores
    assert learner.publish(name, 1, group=name) == 1
    assert whole_number(members[0].latest(name, timeout=60, group=name)) == 1
    assert learner.publish(name, 2, group=name) == 2
    with di_store.attach(nodes[1].name) as near:
        assert whole_number(near.latest(name, newer_than=1, timeout=60)) == 2
    assert whole_number(members[1].latest(name, newer_than=1, timeout=60, group=name)) == 2
    nodes[0].kill_agent()
    assert learner.publish(name, 3, group=name) == 3
    for each in nodes[1:]:
        with di_store.attach(each.name) as near:
            assert whole_number(near.latest(name, newer_than=2, timeout=60)) == 3


def test_concurrent_publishers_get_consistent_versions(
    nodes: list[Node], stores: list[ClusterStore], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both get their first version published; the older one takes the name over again."""
    first, member = stores[0], stores[2]
    assert member.latest(name, group=name) is None
    with cluster.attach(nodes[0].name) as second:
        look, others = first.node._groups._newest_of, iter([second])

        def publish_meanwhile(*given: Any) -> int:
            newest = look(*given)
            for each in others:
                assert each.publish(name, "second", group=name) == 1
            return newest

        monkeypatch.setattr(first.node._groups, "_newest_of", publish_meanwhile)
        version = first.publish(name, "first", group=name)
        assert member.latest(name, version=version, timeout=60, group=name).value == "first"  # type: ignore[union-attr]
        with pytest.raises(StoreError, match="another process"):
            second.publish(name, "stale", group=name)
        assert first.publish(name, "again", group=name) == version + 1
