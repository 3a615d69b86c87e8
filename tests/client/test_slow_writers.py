"""Remote writers beside an agent that takes nothing: their calls, and calls behind them, end by their deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from cluster.nodes import Node, node, stopped

import di_store
from di_store.base.errors import NodeUnavailable, Timeout
from di_store.client.store import RemoteStore
from di_store.client.writer import RemoteWriter

LONG_SECONDS = 10.0
"""Of a call with a timeout of a second at most, with room for a busy machine."""
ROWS = 45_000  # whose priorities take about 400 KB of a frame's meta
LANES, MANY = 45_000, 60_000  # lanes that calls name: of the first, 5 gather in a frame; the second are asked for


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"t-slow-{time.monotonic_ns():x}", "--memory", "1GiB") as made:
        yield made


@pytest.fixture
def far(served: Node) -> Iterator[di_store.Store]:
    with served.connect() as store:
        assert isinstance(store._backend, RemoteStore)
        yield store
        for name in list(store.stats()["tables"]):
            store.drop_table(name)


def opened(store: di_store.Store, count: int) -> list[di_store.Writer]:
    """Writers of one table, each with a row that is there."""
    table = store.create_table("t", capacity=1_000, schema={"n": di_store.Spec((), "i8")})
    writers: list[di_store.Writer] = []
    for number in range(count):
        writer = table.writer()
        assert isinstance(writer._backend, RemoteWriter)
        writer.append({"n": number})
        writer.flush()
        writers.append(writer)
    return writers


def test_a_large_row_waits_for_the_agent_until_its_deadline(far: di_store.Store, served: Node) -> None:
    """It is larger than what sockets hold: who sends it waits for room, with the deadline of the call."""
    spec = di_store.Spec((64 << 20,), "u1")
    with far.create_table("t", capacity=2, lanes=1, schema={"x": spec}).writer() as writer:
        row = {"x": np.ones(spec.shape, np.uint8)}
        writer.append(row, timeout=60)
        with stopped(served.agent):
            began = time.monotonic()
            with pytest.raises((Timeout, NodeUnavailable)):
                writer.append(row, timeout=1)
            assert time.monotonic() - began < LONG_SECONDS
        writer.append(row, timeout=60)
    assert len(far.table("t")) == 2


def test_a_call_waits_for_all_writers_together(far: di_store.Store, served: Node) -> None:
    """It waits for what they have sent, a second for all of them, and not for each."""
    ref, writers = far.put(1), opened(far, 24)
    with stopped(served.agent):
        for each in writers:
            each.append({"n": -1})
        began = time.monotonic()
        with pytest.raises((Timeout, NodeUnavailable)):
            far.get(ref, timeout=0)
        assert time.monotonic() - began < LONG_SECONDS
    assert far.get(ref) == 1
    for each in writers:
        each.close()


def test_a_broken_writer_fails_only_its_own_next_call(far: di_store.Store, served: Node) -> None:
    """The writer's own next call does."""
    ref, (writer,) = far.put(1), opened(far, 1)

    def broken() -> None:
        writer._backend._pipe.close(ValueError("this writer is broken"))

    with stopped(served.agent):
        writer.append({"n": -1})
        breaks = threading.Timer(0.2, broken)
        breaks.start()
        with pytest.raises((Timeout, NodeUnavailable)):
            far.get(ref, timeout=1)
        breaks.join()
    assert far.get(ref) == 1
    with pytest.raises(ValueError, match="this writer is broken"):
        writer.append({"n": -2})


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_priorities_of_many_rows_fit_the_frames(far: di_store.Store, timeout: float | None) -> None:
    """They lie in a frame's meta, which takes 1 MiB: also those of one call for several tables."""
    drawn, sampler = np.random.default_rng(0).random(ROWS), di_store.Prioritized(0.6, 0.4)
    tables = [far.create_table(f"t{at}", capacity=400_000, view=di_store.Step(), sampler=sampler) for at in range(3)]
    each = {table.name: drawn for table in tables}
    with far.writer(tables) as writer:
        writer.append({"a": np.uint8(0)}, priority=1.0)
        writer.flush()
        for _ in range(2):
            writer.extend({"a": np.zeros(ROWS, np.uint8)}, priority=each, timeout=timeout)
        for _ in range(6):
            writer.extend({"a": np.zeros(ROWS, np.uint8)}, priority=drawn)
    assert [len(table) for table in tables] == [8 * ROWS + 1] * 3


@pytest.mark.extended
def test_calls_of_many_lanes_are_split_into_frames(far: di_store.Store, served: Node) -> None:
    """What gathers while the agent is slow goes in as many frames as its meta needs."""
    lanes = MANY + 100
    table = far.create_table("t", capacity=20 * lanes, view=di_store.Step(), lanes=lanes)
    with table.writer(lanes=lanes) as writer:
        writer.append({"a": np.zeros(lanes, np.uint8)})
        writer.flush()
        with stopped(served.agent):
            for at in range(9):
                writer.append({"a": np.zeros(LANES, np.uint8)}, lane=np.arange(at, LANES + at))
        writer.append({"a": np.zeros(MANY, np.uint8)}, lane=np.arange(9, MANY + 9))
        writer.end_episode(lane=np.arange(1, MANY))
    assert len(table) == lanes + 9 * LANES + MANY
