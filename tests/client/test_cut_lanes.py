"""Remote writers of several lanes, some of which are cut because the agent was killed in mid-episode."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node, stop, stopped
from pains import until

import di_store
from client.pipes import STEP, pipe_of

Names = Callable[[], str]


def kill(served: Node, writer: di_store.Writer) -> None:
    """Kill the agent, and wait until the writer has reached the next one."""
    shared = pipe_of(writer)._connection
    before = shared._connection
    served.kill_agent()
    until(lambda: shared.is_open() and shared._connection is not before, "the next agent")


def lanes_row(n: int, ended: tuple[bool, bool] = (False, False)) -> dict[str, Any]:
    """A row of two lanes."""
    rows = np.array([n, 100 + n])
    return {"obs": rows, "reward": np.zeros(2), "terminated": np.array(ended), "truncated": np.zeros(2, np.bool_)}


@contextmanager
def two_lanes(store_name: Names, **options: Any) -> Iterator[tuple[Node, di_store.Table, di_store.Writer]]:
    """A table on a node, and a writer of two lanes, of which only the first is in mid-episode."""
    with node(store_name()) as served, served.connect() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = store.create_table("t", capacity=100, view=di_store.Transition(), lanes=2, schema=STEP, **options)
        with table.writer(lanes=2) as writer:
            writer.append(lanes_row(0, (False, True)), next={"obs": np.array([1, 101])})
            writer.flush()
            yield served, table, writer


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("finals", ["entries", "dict"])
def test_lanes_that_are_not_cut_go_on_in_calls_with_final(
    store_name: Names, timeout: float | None, finals: str
) -> None:
    """Lane 0 is cut, lane 1 had just ended: each row of lane 1 comes, also of calls that are waited for."""
    with two_lanes(store_name) as (served, table, writer):
        kill(served, writer)
        for n in range(2, 5):
            final: Any = {"obs": np.array([n + 1, 101 + n])}
            if finals == "entries":
                final = np.array([None, {"obs": 101 + n} if n == 4 else None], object)
            follows = {"obs": np.array([n + 1, 101 + n])}
            writer.append(lanes_row(n, (False, n == 4)), next=follows, final=final, timeout=timeout)
        writer.append(lanes_row(5, (True, False)), next={"obs": np.array([6, 106])}, timeout=timeout)
        writer.append(lanes_row(6), next={"obs": np.array([7, 107])}, timeout=timeout)
        writer.flush()
        assert pipe_of(writer).lanes.dropped == 4
        batch = table.peek(table.keys())
        both = sorted(zip(batch.data["obs"].tolist(), batch.data["next_obs"].tolist(), strict=True))
        assert both == [(0, 1), (6, 7), *((n, n + 1) for n in (100, 102, 103, 104, 105, 106))]


def test_a_call_over_cut_lanes_that_timed_out_is_not_made_later(store_name: Names) -> None:
    """The queue is full: after `Timeout` nothing was written, and nothing is when there is room."""
    with two_lanes(store_name, limiter=di_store.Queue(2)) as (served, table, writer):
        kill(served, writer)
        with pytest.raises(di_store.Timeout):
            writer.append(lanes_row(2), next={"obs": np.array([3, 103])}, timeout=0.5)
        assert sorted(table.sample(2).data["obs"].tolist()) == [0, 100]
        writer.append(lanes_row(2), next={"obs": np.array([3, 103])}, timeout=60)
        writer.flush()
        assert table.sample(1).data["obs"].tolist() == [102]
        assert len(table) == 0


def test_a_call_over_cut_lanes_is_not_made_later_by_an_agent_that_was_stopped(store_name: Names) -> None:
    with two_lanes(store_name) as (served, table, writer):
        kill(served, writer)
        with stopped(served.agent):
            with pytest.raises(di_store.Timeout):
                writer.append(lanes_row(2), next={"obs": np.array([3, 103])}, timeout=0.2)
            assert not len(pipe_of(writer).window), "later calls would wait for it"
        writer.append(lanes_row(4), next={"obs": np.array([5, 105])}, timeout=60)
        writer.close()
        assert sorted(table.peek(table.keys()).data["obs"].tolist()) == [0, 100, 104]


def test_the_warning_of_cut_lanes_is_raised_where_the_program_calls(store_name: Names) -> None:
    """In another thread it would point to no line of the program, and as an error end the writer."""
    with node(store_name()) as served, served.connect() as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        table = store.create_table("t", capacity=100, view=di_store.Transition(), schema=STEP)
        with table.writer() as writer:
            row = {"reward": 0.0, "truncated": False}
            writer.append({"obs": 0, "terminated": False, **row}, next={"obs": 1})
            writer.flush()
            kill(served, writer)
            with pytest.raises(RuntimeWarning, match="was restarted; the open episodes of lanes"):
                writer.append({"obs": 1, "terminated": True, **row}, next={"obs": 2})
            writer.append({"obs": 1, "terminated": True, **row}, next={"obs": 2})
            writer.append({"obs": 3, "terminated": True, **row}, next={"obs": 4})
        assert table.peek(table.keys()).data["obs"].tolist() == [0, 3]


def test_a_call_that_is_asked_again_and_again_leaves_out_its_cut_lanes(store_name: Names) -> None:
    """Lane 0 is cut by the first of two kills, while the call waits for room in a queue."""
    with two_lanes(store_name, limiter=di_store.Queue(2)) as (served, table, writer):
        window = pipe_of(writer).window

        def kill_twice() -> None:
            for _ in range(2):
                until(window.is_under_way, "the call")
                kill(served, writer)
            until(window.is_under_way, "the call")
            table.sample(2)

        other = threading.Thread(target=kill_twice)
        other.start()
        row, final = {**lanes_row(1), "obs": np.array([1, 102])}, {"obs": np.array([2, 103])}
        writer.append(row, next=final, final=final, timeout=60)
        other.join()
        assert table.sample(1).data["obs"].tolist() == [102]
        assert len(table) == 0


def test_close_ends_the_writer_though_lanes_are_cut(store_name: Names) -> None:
    """One of two: the agent hears of the end, and nobody is told to repeat it."""
    with node(store_name()) as served, served.connect() as store, di_store.attach(served.name) as near:
        table = store.create_table("t", capacity=100, view=di_store.Transition(), lanes=2, schema=STEP)
        writer = table.writer(lanes=2)
        writer.append(lanes_row(0, (False, True)), next={"obs": np.array([1, 101])})
        writer.flush()
        agent = served.agent
        stop(agent)
        closing = threading.Timer(0, os.kill, (agent, signal.SIGKILL))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            closing.start()
            writer.close(timeout=60)
        closing.join()
        until(lambda: near.stats()["tables"]["t"]["writers"] == 0, "the writer to end")
