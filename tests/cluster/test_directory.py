"""Directories: nodes, and words that one process may change at a time. Each kind passes the same tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.nodes import Node
from di_store.base.errors import NodeUnavailable
from di_store.client.sessions import Credentials
from di_store.cluster.directory import Directory, Owner, TableEntry, packed, unpacked
from di_store.cluster.directory_entries import keep_entry, kept_entries
from di_store.cluster.node import called
from di_store.cluster.session_pool import SessionPool
from di_store.cluster.static import StaticDirectory

SECONDS = 20.0


@pytest.fixture
def opened(nodes: list[Node]) -> Iterator[Callable[[], Directory]]:
    """Makes clients of the directory, as different processes would have them."""
    made: list[SessionPool] = []

    def client() -> Directory:
        made.append(SessionPool(Credentials()))
        return StaticDirectory(tuple(each.address for each in nodes), made[-1])

    yield client
    for sessions in made:
        sessions.close()


def test_directory_entries_are_read_and_written(opened: Callable[[], Directory]) -> None:
    one, two = opened(), opened()
    assert one.read("table/a", SECONDS) is None
    assert one.swap("table/a", None, b"first", SECONDS)
    assert not two.swap("table/a", None, b"second", SECONDS)
    assert not two.swap("table/a", b"other", b"second", SECONDS)
    assert two.swap("table/a", b"first", b"second", SECONDS)
    assert two.swap("table/b/ä", None, b"\x00\xff", SECONDS)
    assert two.swap("group/g/1", None, b"", SECONDS)
    assert one.listed("table/", SECONDS) == {"table/a": b"second", "table/b/ä": b"\x00\xff"}
    assert one.read("group/g/1", SECONDS) == b""
    assert one.swap("table/a", b"second", None, SECONDS)
    assert not one.swap("table/a", b"second", b"third", SECONDS)
    assert two.listed("table/", SECONDS) == {"table/b/ä": b"\x00\xff"}


def test_one_of_many_concurrent_swaps_wins(opened: Callable[[], Directory]) -> None:
    """Each of 8 threads counts 10 times up: no step is lost, none is done twice."""

    def count(directory: Directory) -> None:
        done = 0
        while done < 10:
            known = directory.read("count", SECONDS)
            done += directory.swap("count", known, str(int(known or b"0") + 1).encode(), SECONDS)

    threads = [threading.Thread(target=count, args=(opened(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened().read("count", SECONDS) == b"80"


def test_directory_entries_outlive_every_agent(nodes: list[Node], opened: Callable[[], Directory]) -> None:
    directory = opened()
    assert directory.swap("k", None, b"v", SECONDS)
    for each in nodes:
        each.kill_agent()
    assert directory.read("k", SECONDS) == b"v"
    assert len(directory.nodes(SECONDS)) == 3


def test_a_gone_node_is_not_listed(nodes: list[Node], opened: Callable[[], Directory]) -> None:
    directory = opened()
    assert [each.name for each in directory.nodes(SECONDS)]
    nodes[2].lose()
    assert len(directory.nodes(SECONDS)) == 2
    assert len(opened().nodes(SECONDS)) == 2


def test_an_unreachable_directory_raises_in_time(nodes: list[Node], opened: Callable[[], Directory]) -> None:
    """Its error says what it is, and comes within the deadline."""
    directory = opened()
    directory.read("k", SECONDS)
    nodes[0].lose()
    with pytest.raises(NodeUnavailable, match="directory of the cluster") as found:
        directory.swap("k", None, b"v", 0.5)
    assert "keep working" in str(found.value)


def test_directory_entries_are_rebuilt_from_the_nodes(nodes: list[Node], opened: Callable[[], Directory]) -> None:
    """The node with the words is lost, and comes back with an empty store: tables of other nodes are known."""
    directory = opened()
    sessions = SessionPool(Credentials())
    try:
        there = directory.nodes(SECONDS)
        second = next(each for each in there if each.address == nodes[1].address)
        assert directory.swap("table/again", None, b"kept", SECONDS)
        keep_entry(sessions, second, "table/again", b"kept", SECONDS, what="a test")
        nodes[0].restart()
        assert opened().listed("table/", SECONDS) == {"table/again": b"kept"}
        assert not opened().swap("table/again", None, b"another", SECONDS)
        keep_entry(sessions, second, "table/again", None, SECONDS, what="a test")
        assert kept_entries(sessions, second, SECONDS) == {}
    finally:
        sessions.close()


def test_nodes_are_found_by_name(nodes: list[Node], opened: Callable[[], Directory]) -> None:
    there = opened().nodes(SECONDS)
    assert called(there, nodes[1].name).address == nodes[1].address
    assert called(there, nodes[1].address.split("/")[2]).address == nodes[1].address
    assert called(there, there[2].uuid) == there[2]
    with pytest.raises(NodeUnavailable, match="no node 'elsewhere'"):
        called(there, "elsewhere")
    with pytest.raises(ValueError, match="the name of 3 nodes"):
        called(there, there[0].name)


def test_entries_of_another_version_are_refused() -> None:
    entry = TableEntry("text", ("a", "b"), "mass")
    assert unpacked(packed(entry), TableEntry) == entry
    wrong: Any
    for wrong in (b"", b"\xc1", packed(Owner("u", 1, "g")), b"\x80"):
        with pytest.raises(NodeUnavailable, match="cannot read"):
            unpacked(wrong, TableEntry)
