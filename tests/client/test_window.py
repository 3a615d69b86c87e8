"""The calls of a writer beside deaths and broken connections: the same code, without sockets, threads or clocks."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

import di_store
from di_store._core import Autoreset
from di_store.client.lanes import WriterLanes
from di_store.client.window import SendWindow
from di_store.client.writer_calls import Outgoing, Sent
from di_store.protocol.connection import Message
from di_store.protocol.frame import Kind, view
from di_store.protocol.rows import Acknowledgement, Record, Records

pytestmark = pytest.mark.filterwarnings("ignore:writer. the agent at here was restarted")
EPISODE = 5
NOTHING = np.empty(0, np.uint8)


def values_of(frame: Outgoing) -> list[int]:
    """The numbers in the body of a frame; behind that of a row of one lane is a gap."""
    return np.frombuffer(b"".join(bytes(view(part)) for part in frame.body), np.int64).tolist()


def call(number: int, *, lanes: int = 1) -> Sent:
    """Row `number` of every lane."""
    ends = np.full((1, lanes), number % EPISODE == EPISODE - 1)
    record = Record(0, "append", [lanes], {"step": [0]}, None)
    return Sent(record, [np.full(lanes, number)], np.arange(lanes), ends)


class SimulatedAgent:
    """What an agent does with a writer's calls, and what of it outlives the agent.

    Attributes:
        table: numbers of the rows, in order; it outlives agents, and so does `mark`.
    """

    def __init__(self) -> None:
        self.table: list[int] = []
        self.mark = 0
        self.begin()

    def begin(self) -> None:
        """Another agent."""
        self.done = self.epoch = 0
        self.connected = True
        self.answers: list[tuple[bytes, np.ndarray]] = []

    def make(self, frame: Outgoing, most: int) -> None:
        """Make the calls of a frame, up to `most`; the answer may be lost."""
        records = msgspec.msgpack.decode(frame.meta, type=Records)
        made = []
        for record, value in zip(records.records[:most], values_of(frame)[::2], strict=False):
            if record.seq <= self.done:
                continue
            assert record.seq > self.mark, "a call is made again"
            self.table.append(value)
            self.mark = self.done = record.seq
            made.append([(np.array([record.seq], np.uint64), np.zeros(1, np.int32), np.zeros(1, np.int64))])
        self.connected = most >= len(records.records)  # else the connection breaks in the middle
        if self.connected:
            found, body = Acknowledgement.of(self.done, self.epoch, made, b"", [])
            self.answers.append((found, np.frombuffer(b"".join(bytes(part) for part in body), np.uint8)))


def run(seed: int, calls: int, *, spans: bool) -> tuple[SimulatedAgent, SendWindow, list[Sent]]:
    """Send calls through connections that break and agents that die, until all are acknowledged."""
    choice = random.Random(seed)
    agent, window = SimulatedAgent(), SendWindow(WriterLanes(1, Autoreset.OFF, spans=spans), 16)
    window.lanes.ends = spans
    sent: list[Sent] = []
    while len(sent) < calls or len(window):
        what = choice.random()
        if what < 0.5 and len(sent) < calls and window.has_room():
            each = call(len(sent))
            sent.append(each)
            window.push_whole(each)
        elif what < 0.8 and agent.connected:
            frame = window.next_message()
            if frame is not None:
                agent.make(frame, most=choice.choice([0, 1, 2, 99, 99, 99]))
        elif what < 0.95 and agent.answers:
            meta, body = agent.answers.pop(0)
            window.note(msgspec.msgpack.decode(meta, type=Acknowledgement), body, None)
        elif what < 0.98:  # the connection breaks; the agent says again what it has said
            agent.connected = True
            window.resume(agent.done)
            keys = [[(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int64))]] * agent.done
            agent.answers = [(Acknowledgement.of(agent.done, 0, keys, b"", [])[0], np.empty(0, np.uint8))]
        else:
            agent.begin()
            window.begin_anew({"t": (agent.mark, 1, True)}, "writer", "here")
    return agent, window, sent


def test_every_call_is_executed_once(count: Callable[[int, int], int]) -> None:
    for seed in range(count(60, 10_000)):
        agent, _, sent = run(seed, 60, spans=False)
        assert agent.table == list(range(60)), f"seed {seed}"
        assert all(each.made is not None for each in sent)


def test_only_the_rest_of_cut_episodes_is_dropped(count: Callable[[int, int], int]) -> None:
    for seed in range(count(60, 10_000)):
        agent, window, _ = run(seed, 60, spans=True)
        assert agent.table == sorted(set(agent.table)), f"seed {seed}: twice, or out of order"
        missing = sorted(set(range(60)) - set(agent.table))
        assert len(missing) == window.lanes.dropped
        for number in missing:  # a hole reaches to the end of its episode, and begins inside it
            assert number % EPISODE, f"seed {seed}: the first row of an episode"
            last = number - number % EPISODE + EPISODE - 1
            assert set(range(number, last + 1)) <= set(missing), f"seed {seed}: rows behind a hole"


def test_a_call_over_two_tables_is_done_if_both_have_it() -> None:
    for marks, done in (
        ({"a": (2, 1, True), "b": (2, 3, True)}, True),
        ({"a": (2, 1, True), "b": (1, 1, True)}, False),
        ({"a": (2, 64, False), "b": (2, 1, True)}, False),
    ):
        window = SendWindow(WriterLanes(1, Autoreset.OFF, spans=False), 16)
        calls = [call(number) for number in range(4)]
        for each in calls:
            window.push(each)
        window.begin_anew(marks, "writer", "here")
        assert calls[0].made == []
        assert calls[1].made == ([] if done else None)
        assert done or isinstance(calls[1].error, di_store.NodeUnavailable)
        assert window.take_failure() is calls[1].error, "nobody may read its items"
        left = [each for each in calls if each.made is None and each.error is None]
        assert left == calls[2:]
        assert left[1].record.seq > left[0].record.seq > 2
        assert len(window) == 2


def test_a_call_continues_without_its_cut_lanes() -> None:
    """A call goes on with the lanes that are whole; its leaves, lanes and priorities fit."""
    window = SendWindow(WriterLanes(4, Autoreset.OFF, spans=True), 16)
    window.lanes.ends = True
    first = call(0, lanes=4)
    first.ends = np.array([[False, True, False, True]])
    window.push(first)
    first.note(window.lanes)
    second = call(1, lanes=4)
    second.record.priority = [0.0, 1.0, 2.0, 3.0]
    window.push(second)
    window.begin_anew({"t": (1, 4, True)}, "writer", "here")
    assert second.record.lane == [1, 3]
    assert second.record.lead == [2]
    assert second.record.priority == [1.0, 3.0]
    assert second.arrays[0].tolist() == [1, 1]
    assert window.lanes.dropped == 2


def test_rows_after_an_episode_end_inside_an_extend_are_kept() -> None:
    """Two lanes are cut; one has an end in the middle of the next call, the other has none."""
    window = SendWindow(WriterLanes(3, Autoreset.OFF, spans=True), 16)
    window.lanes.ends = True
    first = call(0, lanes=3)
    window.push(first)
    first.note(window.lanes)
    first.ends[0] = [False, True, False]
    first.note(window.lanes)
    ends = np.zeros((4, 3), np.bool_)
    ends[1, 0] = True
    rows = np.arange(12).reshape(4, 3)
    record = Record(0, "extend", [4, 3], {"steps": [0]}, None, {"t": rows.tolist(), "u": [0, 1, 2, 3]})
    window.push(Sent(record, [rows], np.arange(3), ends))
    window.begin_anew({"t": (1, 3, True)}, "writer", "here")
    assert window.lanes.dropped == 2 + 4
    frame = window.next_message()
    assert frame is not None
    whole, behind = msgspec.msgpack.decode(frame.meta, type=Records).records
    assert values_of(frame) == [1, 4, 7, 10, 6, 9]
    assert (whole.lead, whole.lane) == ([4, 1], [1])
    assert whole.priority == {"t": [[1], [4], [7], [10]], "u": [0, 1, 2, 3]}
    assert (behind.lead, behind.lane) == ([2], 0)
    assert behind.priority == {"t": [6, 9], "u": [2, 3]}
    assert behind.seq == whole.seq + 1
    third = call(3, lanes=3)
    third.without_cut(window.lanes)
    assert third.record.lane == [0, 1], "the lane with an end is whole again, the other is not"


@pytest.mark.parametrize("what", ["append", "close"])
@pytest.mark.parametrize("mark", [0, 1])
def test_an_awaited_call_is_resolved_too(what: str, mark: int) -> None:
    """It is done, or its thread asks again."""
    window = SendWindow(WriterLanes(1, Autoreset.OFF, spans=True), 16)
    window.lanes.ends = True
    asked = call(0)
    asked.record.method = what
    window.ask(asked, {}, None)
    message = window.next_message()
    assert message is not None
    assert (message.kind, message.request) == (Kind.CALL, 1)
    window.begin_anew({"t": (mark, 1, True)}, "writer", "here")
    assert asked.message is None
    assert asked.is_done == bool(mark)
    assert not len(window)


def test_an_awaited_call_is_asked_again_over_another_connection() -> None:
    """With the time that is left; but not if the agent has made it."""
    window = SendWindow(WriterLanes(1, Autoreset.OFF, spans=False), 16)
    asked = call(0)
    for number, done in ((1, 0), (1, 0), (1, 1)):
        window.ask(asked, {}, None)
        message = window.next_message()
        assert message is not None
        assert message.request == number, "the number by which calls that always break a connection are known"
        window.resume(done)
        assert (asked.message is None) == (not done)
        assert not asked.is_done
        assert len(window) == done
        assert window.next_message() is None


def test_the_answer_to_an_awaited_call_is_taken_once() -> None:
    """Also if the agent acknowledges the call first, on the next connection."""
    window = SendWindow(WriterLanes(1, Autoreset.OFF, spans=False), 16)
    first, second = call(0), call(1)
    window.ask(first, {}, None)
    assert window.next_message() is not None
    window.resume(1)
    found, _ = Acknowledgement.of(1, 0, [[]], b"", [])
    window.note(msgspec.msgpack.decode(found, type=Acknowledgement), NOTHING, None)
    assert first.is_done
    window.ask(second, {}, None)
    assert window.answer(Message(Kind.ANSWER, 1, 0, b"", NOTHING)) is None
    assert not second.is_done
    assert window.answer(Message(Kind.ANSWER, 2, 0, b"", NOTHING)) is second
    assert second.is_done
    assert not len(window)


@pytest.mark.parametrize("spans", [True, False])
@pytest.mark.parametrize("sent", [1, 2])
def test_the_row_after_an_end_is_no_step_for_the_next_agent(spans: bool, sent: int) -> None:
    """With next-step autoreset: the dead agent's writer would have dropped it, and the next one does not know of it."""
    lanes = WriterLanes(2, Autoreset.NEXT_STEP, spans=spans)
    lanes.ends = True
    window = SendWindow(lanes, 16)
    calls = [call(number, lanes=2) for number in range(4)]
    calls[0].ends[:] = [[True, False]]
    for each in calls:
        each.record.lead = [2]
        window.push(each)
    window.begin_anew({"t": (sent, 2, True)}, "writer", "here")
    frame = window.next_message()
    assert frame is not None
    kept = [(record.lane, record.lead) for record in msgspec.msgpack.decode(frame.meta, type=Records).records]
    if not spans:
        assert kept == [([1], [1])] * (2 - sent) + [(None, [2])] * 2
    else:
        assert kept == [([0], [1])] * 2


def acknowledged(last: int, count: int, failure: bytes = b"") -> Acknowledgement:
    """Of so many calls up to this one."""
    found, _ = Acknowledgement.of(last, int(bool(failure)), [[]] * count, failure, [])
    return msgspec.msgpack.decode(found, type=Acknowledgement)


def test_calls_after_one_that_failed_stay_unmade_over_another_connection() -> None:
    """It breaks before the failure is known here: until then the agent is to skip them."""
    window = SendWindow(WriterLanes(1, Autoreset.OFF, spans=False), 16)
    calls = [call(number) for number in range(3)]
    window.push(calls[0])
    assert window.next_message() is not None
    for each in calls[1:]:
        window.push(each)
    window.resume(1)  # the agent has made call 1, or failed to
    frame = window.next_message()
    assert frame is not None
    assert msgspec.msgpack.decode(frame.meta, type=Records).epoch == 0
    failure = ValueError("call 1")
    window.note(acknowledged(1, 0, b"call 1"), NOTHING, failure)
    assert calls[0].error is window.take_failure() is failure
    assert all(isinstance(each.error, di_store.StoreError) for each in calls[1:])
    window.push(call(3))
    frame = window.next_message()
    assert frame is not None
    assert msgspec.msgpack.decode(frame.meta, type=Records).epoch == 1


def test_no_call_is_skipped_after_an_interrupted_acknowledgement() -> None:
    """Another thread may send before the connection ends: the agent takes a later number for progress."""

    class Interrupted(list[Sent]):
        def __delitem__(self, key: object) -> None:
            super().__delitem__(key)  # type: ignore[arg-type]
            raise KeyboardInterrupt

    window = SendWindow(WriterLanes(1, Autoreset.OFF, spans=False), 2)
    calls = [call(number) for number in range(4)]
    for each in calls[:2]:
        window.push(each)
    assert window.next_message() is not None
    for each in calls[2:]:
        window.push(each)
    window._calls = Interrupted(window._calls)
    with pytest.raises(KeyboardInterrupt):
        window.note(acknowledged(2, 2), NOTHING, None)
    frame = window.next_message()
    assert frame is not None
    assert msgspec.msgpack.decode(frame.meta, type=Records).records[0].seq == 3


def test_the_row_after_a_row_and_an_end_is_a_step() -> None:
    """With next-step autoreset: which row is none follows from rows alone, not from `end_episode`."""
    lanes = WriterLanes(2, Autoreset.NEXT_STEP, spans=True)
    lanes.ends = True
    window = SendWindow(lanes, 16)
    calls = [call(number, lanes=2) for number in range(4)]
    calls[0].ends[:] = True  # the row after it is no step
    calls[2] = Sent(Record(0, "end_episode", [], {}), [], lanes.every, np.ones((1, 2), np.bool_))
    for each in calls:
        each.which = lanes.every
        window.push(each)
    window.note(acknowledged(1, 1), NOTHING, None)
    window.note(acknowledged(4, 3), NOTHING, None)
    window.begin_anew({"t": (4, 1, True)}, "writer", "here")
    assert lanes.is_cut(lanes.every).all(), "a row of the next episode is there"
