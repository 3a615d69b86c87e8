"""The decisions of a chain, in virtual time: many groups, faults and slow links."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from cluster.simulated import TICK, Group

from di_store.broadcast.announcement import AGAIN_SECONDS, MOST_AT_ONCE, MOST_DOUBTFUL, Announcement
from di_store.broadcast.children import MAX_CHILDREN, STALLED_SECONDS, Children
from di_store.broadcast.note import MOST_AFTER, MOST_BEFORE, Note, near
from di_store.broadcast.offer import OFFER_SECONDS, Offer
from di_store.broadcast.requested import Requested
from di_store.broadcast.transfer import (
    BEHIND_BYTES,
    PIECE_BYTES,
    REFUSED_SECONDS,
    SILENT_SECONDS,
    STUCK_SECONDS,
    TRIAL_AFTER_SECONDS,
    Left,
    Transfer,
)

RATE = 25e6
Count = Callable[[int, int], int]


def finished(group: Group, version: int, but: int = -1) -> float:
    """When the last member had it."""
    return max(node.finished[version] for node in group.nodes[1:] if node.number != but)


@pytest.mark.parametrize("members", [1, 3, 8, 20])
def test_a_quiet_chain_sends_the_bytes_once_per_link(members: int) -> None:
    size = 200 * PIECE_BYTES
    group = Group([RATE] * (members + 1), size)
    group.publish()
    group.run(size / RATE + members * 0.1 + 2)
    assert finished(group, 1) <= size / RATE + members * (PIECE_BYTES / RATE + 3 * TICK) + 0.1
    assert all(node.sent <= 1.05 * size for node in group.nodes)


@pytest.mark.parametrize("dies", [False, True])
def test_one_member_that_fails_delays_the_others_by_two_seconds(dies: bool, count: Count) -> None:
    """Stopped or killed for good, at any time of the transfer."""
    for seed in range(count(40, 5_000)):
        choice = random.Random(seed)
        members, size = choice.randrange(2, 9), choice.randrange(20, 200) * PIECE_BYTES
        quiet = size / RATE + members * (PIECE_BYTES / RATE + 3 * TICK) + 0.1
        group = Group([RATE] * (members + 1), size)
        group.publish()
        group.run(choice.random() * quiet)
        failed = choice.choice(group.nodes[1:])
        if dies:
            group.kill(failed, 1e9)
        else:
            failed.stopped = 1e9
        group.run(30)
        assert finished(group, 1, failed.number) <= quiet + 2, seed


def test_living_members_get_the_newest_despite_failures(count: Count) -> None:
    """Agents that stop, die and come back, connections that break, slow links, newer versions in between."""
    for seed in range(count(40, 10_000)):
        choice = random.Random(seed)
        members, size = choice.randrange(1, 7), choice.randrange(1, 120) * PIECE_BYTES - choice.randrange(1000)
        group = Group([RATE * choice.choice([1, 1, 1, 0.2]) for _ in range(members + 1)], size)
        newest = group.publish()
        for _ in range(choice.randrange(12)):
            group.run(choice.random())
            node = choice.choice(group.nodes)
            what = choice.randrange(5)
            if what == 0:
                node.stopped = group.now + choice.random() * 5
            elif what == 1:
                group.kill(node, choice.random() * 3)
            elif what == 2:
                group.cut(node)
            elif what == 3:
                newest = group.publish()
        lost = choice.choice(group.nodes[1:]) if choice.random() < 0.3 else None
        if lost is not None and members > 1:
            group.kill(lost, 1e9)
        group.run(60)
        for node in group.nodes:
            assert node.whole == newest or (node is lost and members > 1), (seed, node)
            assert list(node.finished) == sorted(node.finished), "a version after a newer one"


def test_a_slow_member_is_bypassed() -> None:
    """Those behind it pull from the one before it."""
    size = 20 * BEHIND_BYTES
    group = Group([RATE, RATE, RATE / 10, RATE, RATE], size)
    group.publish()
    group.run(60)
    assert finished(group, 1, but=2) <= 1.5 * size / RATE
    group.run(size / RATE * 10)
    assert finished(group, 1) <= 12 * size / RATE


def test_a_slow_first_member_is_detected_by_trial() -> None:
    """Its own source has all bytes from the start, so it does not fall behind."""
    size = 1000 * PIECE_BYTES
    group = Group([RATE, RATE / 10, RATE, RATE], size)
    group.publish()
    group.run(200)
    assert finished(group, 1, but=1) <= 2 * size / RATE + TRIAL_AFTER_SECONDS
    assert group.nodes[1].finished[1] <= 12 * size / RATE


@pytest.mark.parametrize("members", [2, 5])
def test_trials_of_a_long_transfer_cost_little(members: int) -> None:
    size = 1000 * PIECE_BYTES
    group = Group([RATE / 10] * (members + 1), size)
    group.publish()
    group.run(300)
    assert finished(group, 1) <= 1.15 * size / (RATE / 10)
    assert all(node.sent <= 1.1 * size for node in group.nodes)


def test_a_source_that_dropped_a_version_triggers_the_newer_one() -> None:
    """The note is late: "gone" says enough."""
    group = Group([RATE] * 3, 100 * PIECE_BYTES)
    group.publish()
    group.run(0.2)
    group.publish()
    group.announcement.took("2")  # a note that is lost after all
    group.run(10)
    assert [node.whole for node in group.nodes] == [2, 2, 2]


# -- single decisions -------------------------------------------------------------------------------------------------


def test_sources_are_tried_in_order() -> None:
    transfer = Transfer(["0", "1", "2", "3", "4"], 3, 10 * PIECE_BYTES, 0.0)
    assert transfer.next_source(0.0) == "2"
    assert transfer.heard(0, 0, 0.0) is None, "the one before may have nothing yet"
    transfer.got(PIECE_BYTES, 0.1)
    transfer.left(Left.LOST, 0.2)
    assert transfer.next_source(0.2) == "1"
    assert transfer.heard(PIECE_BYTES, 0, 0.2) is Left.STUCK, "others must have more"
    transfer.left(Left.STUCK, 0.2)
    assert transfer.next_source(0.2) == "0", "the publisher is the last one before it"
    transfer.left(Left.REFUSED, 0.2)
    assert transfer.next_source(0.2) == "4"
    transfer.left(Left.SILENT, 0.2)
    assert transfer.next_source(0.2) is None
    assert transfer.wake() == pytest.approx(0.3)
    assert transfer.next_source(0.31) == "2", "the next round"
    transfer.left(Left.SILENT, 0.2 + REFUSED_SECONDS)
    assert transfer.next_source(0.2 + REFUSED_SECONDS) == "1"


def test_a_slow_or_failed_source_is_abandoned() -> None:
    transfer = Transfer(["0", "1"], 2, 1000 * PIECE_BYTES, 0.0)
    transfer.next_source(0.0)
    assert transfer.tired(SILENT_SECONDS - 0.01) is None
    assert transfer.tired(SILENT_SECONDS) is Left.SILENT
    assert transfer.heard(0, 0, 1.0) is None
    assert transfer.heard(0, 0, STUCK_SECONDS) is Left.STUCK
    transfer.got(PIECE_BYTES, 2.5)
    assert transfer.heard(PIECE_BYTES, BEHIND_BYTES, 2.6) is None
    assert transfer.heard(PIECE_BYTES, BEHIND_BYTES + 1, 2.6) is Left.BEHIND
    transfer.left(Left.BEHIND, 2.6)
    assert transfer.next_source(2.6) == "0"
    transfer.left(Left.LOST, 2.6)
    assert transfer.next_source(2.6) == "1", "a slow one is better than none"
    assert transfer.heard(2 * PIECE_BYTES, 900 * PIECE_BYTES, 2.7) is None
    transfer.got(PIECE_BYTES, 2.8)
    assert transfer.heard(9 * PIECE_BYTES, 0, 2.9) is None
    assert transfer.fallen == 6 * PIECE_BYTES, "one piece ahead at first, seven now"
    transfer.left(Left.WRONG, 3.0)
    assert transfer.have == 0


def note(version: int, epoch: int = 1) -> Note:
    return Note("w", epoch, version, 1, 0, 0, [], 0, b"")


def test_the_newest_version_is_fetched() -> None:
    """The newest; and a publisher that is faster than the network starves nobody."""
    requested = Requested()
    assert requested.request(note(1))
    assert not requested.request(note(1))
    assert requested.next() == note(1)
    assert not requested.request(note(1)), "it is on its way"
    assert not requested.replaced(note(1), 9.0)
    assert requested.request(note(2))
    assert requested.request(note(3))
    assert not requested.request(note(2))
    assert requested.replaced(note(1), 0.0)
    requested.ended(False)
    assert requested.next() == note(3)
    assert requested.request(note(4))
    assert requested.newest == note(4)
    assert not requested.replaced(note(3), STUCK_SECONDS), "not two in a row"
    assert requested.replaced(note(3), STUCK_SECONDS + 0.1), "while bytes come"
    requested.ended(True)
    assert requested.next() == note(4)
    requested.epoch = 2
    assert requested.replaced(note(4), 0.0), "its publisher was replaced"
    assert not requested.request(note(5))
    assert requested.request(note(2, epoch=2))
    requested.ended(False)
    requested.epoch = 3
    assert requested.next() is None


def test_a_version_is_kept_for_members_that_were_told() -> None:
    """Or a publisher that is faster than the way to its members would have replaced it each time when they come."""
    offer = Offer()
    assert offer.waits(0.0) == 0
    data = np.arange(4)
    first = note(1)
    offer.make(first, data)
    assert (offer.waits(0.0), offer.note(0.0)) == (0, None), "nobody has been told yet"
    offer.tell(1.0)
    assert offer.waits(1.0) == OFFER_SECONDS
    assert offer.note(1.5) == first
    assert offer.take(2, first.size, first.check) is None
    assert offer.take(1, first.size, first.check + 1) is None
    assert offer.waits(1.0 + OFFER_SECONDS) == 0, "nobody came"
    assert offer.take(1, first.size, first.check) is data
    offer.tell(9.0)
    assert offer.waits(9.0) == 0, "somebody has it: the others of the chain get it there"
    offer.make(note(2), None)
    offer.tell(9.0)
    assert offer.waits(9.0) == 0, "it has no bytes that anybody comes for"
    offer.make(note(3), data)
    offer.tell(9.0)
    offer.end()
    assert (offer.waits(9.0), offer.note(9.0)) == (0, None)
    assert offer.take(3, note(3).size, note(3).check) is None


def test_hanging_children_do_not_count_as_children() -> None:
    children = Children()
    turns = [children.admit(bytes([number]), 0.0) for number in range(MAX_CHILDREN + 1)]
    assert turns == [1, 2, None]
    children.sends(b"\0", 0.0)
    assert children.admit(b"\2", STALLED_SECONDS) is None
    assert children.admit(b"\2", STALLED_SECONDS + 0.1) == 3
    children.took(b"\0")
    assert children.admit(b"\3", 9.0) is None
    assert children.admit(b"\0", 9.0) is None, "it has come back, and its place is taken"
    children.ends(b"\0", 1)
    assert children.admit(b"\1", 9.0) == 4
    assert not children.has(b"\1", 2), "its first connection ends"
    children.ends(b"\1", 2)
    assert children.has(b"\1", 4)


def test_hanging_members_leave_room_for_others() -> None:
    hang = [f"h{number}" for number in range(40)]
    live = [f"l{number}" for number in range(4)]
    first = Announcement(hang)
    while due := first.due(0.0):
        for each in due:
            first.failed(each, "hangs", 1.0)
    told = Announcement([*hang, *live], first)
    due = told.due(0.0)
    assert due[:4] == live
    assert len(due) == 4 + MOST_DOUBTFUL < MOST_AT_ONCE
    assert told.due(0.0) == []
    for each in due:
        told.took(each) if each in live else told.failed(each, "hangs", 1.0)
    assert told.wake() == 0.0
    assert not set(told.due(1.0)) & set(due)
    assert set(told.reasons.values()) == {"hangs"}
    only = Announcement(["a"])
    assert only.due(0.0) == ["a"]
    newer = Announcement(["a", "b", "c"], only)
    assert newer.due(0.0) == ["b", "c"], "one attempt at a time"
    only.failed("a", "late", 0.1)
    assert newer.due(0.1) == ["a"]
    newer.failed("a", "dead", 0.2)
    assert Announcement(["a", "b", "c"], newer).missing == ["b", "c", "a"]
    only = Announcement(["a"])
    assert only.due(0.0) == ["a"]
    only.failed("a", "dead", 5.0)
    assert only.wake() == 5.0 + AGAIN_SECONDS
    assert (only.due(5.0), only.due(5.0 + AGAIN_SECONDS), only.missing) == ([], ["a"], ["a"])


def test_a_note_names_the_neighbours() -> None:
    chain = [f"{number}" for number in range(1001)]
    for place in (1, 2, MOST_BEFORE, 500, 1000):
        part, at = near(chain, place)
        assert part[at] == chain[place]
        assert part[0] == "0"
        assert len(part) <= 2 + MOST_BEFORE + MOST_AFTER
        assert len(set(part)) == len(part)
