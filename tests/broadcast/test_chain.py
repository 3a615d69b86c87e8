"""Weights of one node reach the others of its group: real agents, real sockets, and kills in the middle."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from cluster.groups import MIB, Member, check, group, wait_for, weights
from cluster.served import fake_agent
from pains import until

import di_store
from di_store.base.errors import OldEpoch
from di_store.broadcast.note import Note, SourceProgress, note_of
from di_store.broadcast.other_agents import OtherAgents
from di_store.client.address import own_token
from di_store.client.sessions import Credentials
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import Welcome, answer
from di_store.protocol.values import call_of, value_of

pytestmark = pytest.mark.filterwarnings("ignore:.*was restarted:RuntimeWarning")
Names = Callable[[], str]
SIZE = 20 * MIB


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Member]]:
    """Four of them, for all tests of this file."""
    with group(lambda: f"t-{uuid.uuid4().hex[:12]}", 4) as found:
        yield found


@pytest.fixture
def four(nodes: list[Member], store_name: Names) -> Iterator[list[Member]]:
    """The nodes, with weights of a new name."""
    name = store_name()
    for each in nodes:
        each.weights = name
    yield nodes
    for each in nodes:
        each.clear()


def publish(first: Member, members: list[Member], size: int = SIZE, **options: Any) -> int:
    """The next version, on its way to the members."""
    version = first.publish(weights(first.newest() + 1, size))
    first.spread(version, members, **options)
    return version


def test_all_get_each_version_and_the_publisher_sends_it_once(four: list[Member]) -> None:
    first, *members = four
    for version in range(1, 4):
        assert publish(first, members) == version
        wait_for(members, version, SIZE)
    until(lambda: not first.state()["missing"], "the last answer")
    for each in (first, *members):
        assert each.state()["sent"] <= 1.05 * 3 * SIZE
    assert [each.state()["received"] >= 3 * SIZE for each in (first, *members)] == [False, True, True, True]


def test_a_large_version_reaches_all_members(four: list[Member]) -> None:
    first, *members = four[:3]
    publish(first, members, 200 * MIB)
    wait_for(members, 1, 200 * MIB)
    assert first.state()["sent"] <= 1.3 * 200 * MIB


@pytest.mark.parametrize(
    "value",
    [
        None,
        np.empty(0),
        np.arange(7.0),
        "a text",
        {"a": np.zeros(0), "b": {"c": [1, 2]}},
        {f"{number:060d}": number for number in range(30_000)},
        {"header": ["x" * 1000] * 1500, "data": np.arange(100_000)},
    ],
    ids=["none", "no-bytes", "array", "text", "empty-array", "header-of-2MB", "header-of-1.5MB"],
)
def test_versions_of_any_type_reach_all_members(four: list[Member], value: Any) -> None:
    first, *members = four[:3]
    first.spread(first.publish(value), members)
    for each in members:
        found = each.latest(newer_than=0, timeout=60)
        assert found is not None
        assert found.version == 1
        np.testing.assert_equal(found.value, value)
    late = members[1]
    late.follow([first.address, members[0].address])
    until(lambda: not late.state()["asks"], "the sources to answer")


@pytest.mark.parametrize("at", [0, 4])
def test_a_stopped_member_delays_nobody_for_long(four: list[Member], at: int) -> None:
    """Stopped before the note came, and in mid-transfer."""
    size = 100 * MIB
    first, *members = four
    go_on = members[0].stop() if not at else None
    publish(first, members, size)
    if go_on is None:
        until(lambda: members[0].under_way(1, at), "a part to come")
        go_on = members[0].stop()
    began = time.monotonic()
    wait_for(members[1:], 1, size)
    assert time.monotonic() - began < 20, "two seconds, ten times"
    go_on()
    wait_for(members, 1, size)


@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.extended), 2])
def test_the_successor_of_a_killed_agent_continues(four: list[Member], who: int) -> None:
    """Who dies has the version in the end too, as all others."""
    size = 100 * MIB
    first, *members = four
    publish(first, members, size)
    until(lambda: members[who].under_way(1, 4), "a part to come")
    members[who].served.kill_agent()
    wait_for(members, 1, size)
    publish(first, members, size)
    wait_for(members, 2, size)


def test_a_version_arrives_though_the_publishers_agent_dies(four: list[Member]) -> None:
    """Once `spread` has returned, the version arrives."""
    first, *members = four[:3]
    for version in range(1, 4):
        publish(first, members)
        first.served.kill_agent()
        wait_for(members, version, SIZE)


def test_a_newer_version_replaces_one_in_transfer(four: list[Member]) -> None:
    size = 60 * MIB
    first, *members = four
    for _ in range(5):
        newest = publish(first, members, size)
        until(lambda: members[0].under_way(newest), "its start")  # noqa: B023 - called at once
    seen: list[list[int]] = [[] for _ in members]
    for each, versions in zip(members, seen, strict=True):
        while not versions or versions[-1] < newest:
            found = each.latest(newer_than=versions[-1] if versions else 0, timeout=60)
            assert found is not None
            check(found, found.version, size)
            versions.append(found.version)
    assert [versions[-1] for versions in seen] == [newest] * 3


def test_a_publisher_faster_than_the_network_starves_nobody(four: list[Member]) -> None:
    """While versions come faster than they travel, each member gets one now and then."""
    data = np.arange(60 * MIB // 8)
    first, *members = four[:3]
    seen: list[set[int]] = [set() for _ in members]
    while min(map(len, seen)) < 6:
        newest = first.publish(data)
        first.spread(newest, members)
        for each, versions in zip(members, seen, strict=True):
            versions.update({each.newest()} - {0})
        assert max(map(len, seen)) < 60, "one member got ten times as many as another"
    for each in members:
        found = each.latest(newer_than=newest - 1, timeout=60)
        assert found is not None
        assert np.array_equal(found.value, data)


def test_an_old_publisher_is_refused(four: list[Member]) -> None:
    old, new, member = four[:3]
    publish(old, [new, member], epoch=4)
    wait_for([new, member], 1, SIZE)
    assert new.publish(weights(2, SIZE)) == 2
    new.spread(2, [member], epoch=5)  # it does not know of the old one's node
    wait_for([member], 2, SIZE)
    with pytest.raises(OldEpoch, match="epoch 4"):
        new.spread(2, [member], epoch=4)
    for _ in range(2):
        publish(old, [new, member], epoch=4)
    until(lambda: old.state()["stale"], "the old one to learn of it", 30)
    assert (new.newest(), member.newest()) == (2, 2)
    for each in (new, member):
        each.served.kill_agent()
        until(lambda: each.state()["epoch"] == 5, "its successor")  # noqa: B023 - called at once
    publish(old, [new, member], epoch=4)
    until(lambda: old.state()["stale"], "the old one to learn of it again")
    assert (new.newest(), member.newest()) == (2, 2)
    check(member.latest(), 2, SIZE)
    for version in (3, 4, 5):
        new.publish(weights(version, SIZE))
    new.spread(5, [member, old], epoch=5)
    wait_for([member, old], 5, SIZE)


def test_a_late_node_gets_the_newest_version(four: list[Member]) -> None:
    """It asks whom it knows, one of which is gone; and a second time changes nothing."""
    first, member, late, later = four
    publish(first, [member])
    wait_for([member], 1, SIZE)
    nobody = "di-store://127.0.0.1:1/none"
    for _ in range(2):
        late.follow([nobody, first.address, member.address])
        wait_for([late], 1, SIZE)
    later.follow([late.address])
    later.served.kill_agent()
    wait_for([later], 1, SIZE)
    publish(first, [member, late, later])
    wait_for([member, late, later], 2, SIZE)
    assert member.newest() == 2


def test_a_member_waits_for_its_sources(four: list[Member]) -> None:
    """None is there when it asks."""
    first, late = four[:2]
    first.publish(weights(1, SIZE))
    go_on = first.stop()
    late.follow([first.address])
    assert late.state()["asks"]
    go_on()
    wait_for([late], 1, SIZE)


def test_a_member_without_room_gets_it_later(four: list[Member]) -> None:
    first, *members = four[:3]
    held = members[0].local.put(np.zeros(495 * MIB, np.uint8))
    publish(first, members)
    wait_for(members[1:], 1, SIZE)
    until(lambda: members[0].state()["version"] == 1, "the note")
    assert members[0].newest() == 0
    members[0].local.delete(held)
    wait_for(members, 1, SIZE)


def test_keep_applies_at_the_members(four: list[Member]) -> None:
    first, member = four[:2]
    for version in (1, 2, 3):
        first.publish(weights(version, MIB), keep=2)
        first.spread(version, [member], keep=2)
        wait_for([member], version, MIB)
    there = [member.latest(version=version) is not None for version in (1, 2, 3)]
    assert there == [False, True, True]


def test_pickles_of_another_machine_are_not_loaded(four: list[Member]) -> None:
    """A set travels as a pickle."""
    first, member = four[:2]
    first.spread(first.publish({1, 2}), [member])
    until(lambda: member.state()["newest"] == 1, "it")
    with pytest.raises(di_store.AccessDenied):
        member.latest()


@pytest.mark.extended
def test_pickles_are_loaded_where_the_nodes_allow_it(store_name: Names) -> None:
    with group(store_name, 2, "--allow-pickle") as (first, member):
        first.spread(first.publish({1, 2}), [member])
        found = member.latest(newer_than=0, timeout=60)
        assert found is not None
        assert found.value == {1, 2}


def test_a_new_member_missing_in_an_old_list_is_told(four: list[Member]) -> None:
    """Before the first version and after it; a later list is the truth again. The agent's successor knows of it too."""
    first, early, late, last = four
    epoch = first.state()["epoch"] + 1

    def spread(joins: int, members: list[Member], **value: Any) -> tuple[int, int]:
        version = first.publish(weights(first.newest() + 1, 8))
        addresses = [each.address for each in members]
        given = {"name": first.weights, "version": version, "keep": 1, "epoch": epoch, "members": addresses}
        return version, first.call("spread", **given, joins=joins)

    def join(member: Member, epoch: int) -> None:
        first.call("joins", name=first.weights, epoch=epoch, member=member.address)

    before = first.state()["joins"]
    join(early, epoch)
    version, joins = spread(before, [])
    wait_for([early], version, 8)
    join(late, epoch)
    join(last, epoch - 1)  # it has joined before this publisher listed the members
    version, joins = spread(joins, [early])
    wait_for([early, late], version, 8)
    assert first.state()["members"] == [early.address, late.address]
    version = first.publish(weights(version + 1, 8))
    first.served.kill_agent()
    wait_for([early, late], version, 8)
    version, joins = spread(joins, [last])
    wait_for([last], version, 8)
    assert first.state()["members"] == [last.address]
    assert joins == first.state()["joins"] == before + 2


def test_invalid_spread_calls_are_refused(four: list[Member]) -> None:
    first = four[0]
    with pytest.raises(di_store.ObjectNotFound, match="version 1"):
        first.spread(1, [])
    first.publish(1)
    given = {"name": first.weights, "version": 1, "keep": 1, "epoch": 1, "members": []}
    for wrong in (
        {"version": 0},
        {"keep": 0},
        {"epoch": -1},
        {"members": ["x"]},
        {"members": "x"},
        {"name": "di-store/groups"},
        {"own": "x"},
    ):
        with pytest.raises((ValueError, TypeError)):
            first.call("spread", **{**given, **wrong})
    with pytest.raises(di_store.CorruptData):
        first.call("note", note=np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match="reserved for the library"):
        first.local.publish("di-store/groups", 1)
    first.call("spread", **given)


@pytest.mark.extended
def test_versions_are_sent_over_tls(store_name: Names, authorities: Any) -> None:
    ours, _ = authorities
    certificate, key = ours.sign("chain")
    options = ("--tls-cert", certificate, "--tls-key", key, "--tls-ca", ours.path)
    with group(store_name, 3, *options, tls=ours.path) as (first, *members):
        publish(first, members)
        wait_for(members, 1, SIZE)


class Watcher(threading.Thread):
    """A process of one machine that takes each version: whole ones, in order.

    Attributes:
        seen: their numbers.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member
        self.done = threading.Event()
        self.seen = [0]
        self.start()

    def run(self) -> None:
        while not self.done.is_set():
            found = self.member.latest(newer_than=self.seen[-1], timeout=0.1)
            if found is not None:
                check(found, found.version, SIZE)
                self.seen.append(found.version)


@pytest.mark.extended
def test_versions_stay_whole_while_agents_die_and_stop(four: list[Member], count: Callable[[int, int], int]) -> None:
    """Whoever dies when: each process sees whole versions in order, and the newest is everywhere in the end."""
    choice = random.Random(7)
    watchers = [Watcher(each) for each in four[1:]]
    try:
        for _ in range(count(4, 60)):
            newest = publish(four[0], four[1:])
            stopped = choice.choice(four[1:]).served.agent
            for pid, number in (
                (stopped, signal.SIGSTOP),
                (choice.choice(four).served.agent, signal.SIGKILL),
                (choice.choice(four).served.agent, signal.SIGKILL),
                (stopped, signal.SIGCONT),
            ):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        wait_for(four[1:], newest, SIZE)
        until(lambda: all(each.seen[-1] == newest for each in watchers), "the watchers", 30)
    finally:
        for each in watchers:
            each.done.set()
        for each in watchers:
            each.join(30)
    assert all(each.seen == sorted(set(each.seen)) for each in watchers)


def described(member: Member, chain: list[str]) -> Note:
    """The note of a member's newest version, for a node behind this chain."""
    return note_of(member.call("newest", name=member.weights)).seen(chain, len(chain))


def test_a_source_with_other_bytes_of_a_version_is_not_used(four: list[Member]) -> None:
    """Two nodes have published a version of the same number; nothing of one gets into the other."""
    first, other, member = four[:3]
    first.publish(weights(1, SIZE))
    other.publish(weights(2, SIZE))
    note = described(first, [first.address, other.address])
    assert member.call("note", note=note.packed()) == "taken"
    wait_for([member], 1, SIZE)
    assert other.state()["sent"] == 0


def test_bytes_with_a_wrong_checksum_are_not_published(four: list[Member]) -> None:
    """A source that sends what it should not: its bytes are dropped, and come from another one."""
    first, member = four[:2]
    first.publish(weights(1, SIZE))
    size = described(first, []).size

    def serve(connection: Connection) -> None:
        token = own_token(make=False)
        assert token is not None
        hello, mac = answer(connection, token, "")
        welcome = Welcome(mac, "", "", "", bytes(16), 0, False, False)
        connection.send(Kind.WELCOME, meta=msgspec.msgpack.encode(welcome))
        connection.most_bytes = MIB
        connection.receive()
        for at in range(0, size, MIB):
            count = min(MIB, size - at)
            connection.send(Kind.WAITING, meta=msgspec.msgpack.encode(SourceProgress(size, 0, count)))
            connection.send_pieces([bytes(count)])
        served.append(hello.name)
        connection.drain()

    served: list[str] = []
    with fake_agent(serve) as address:
        note = described(first, [first.address, address])
        assert member.call("note", note=note.packed()) == "taken"
        wait_for([member], 1, SIZE)
    assert len(served) == 1


def test_no_other_message_is_sent_between_pieces(four: list[Member]) -> None:
    """What agents say of calls that are at work would lie between the pieces: the child would lose its source."""
    agents = OtherAgents(Credentials())
    connection = agents.connect(four[0].address)
    asked = {"name": four[0].weights, "version": 1, "size": 1, "check": 0, "at": 0}
    meta, body = call_of("pull", "", asked, once=False)
    connection.send(Kind.CALL, meta=meta, body=body)  # it waits a second for that version, and says so
    while (message := connection.receive()).kind == Kind.WAITING:
        assert msgspec.msgpack.decode(message.meta, type=SourceProgress) == SourceProgress(0, 0, 0)
    assert value_of(message) == "unknown"
    connection.close()
    agents.close()
