"""Items whose rows lie in thousands of chunks: a death beside a draw of them tears nothing and leaks nothing."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core

ROWS, EPISODES, WIDTH = 20_000, 4, 3
OLD_MOST = 2_047
SCHEMA = {"n": np.int64(0), "copies": np.zeros(WIDTH, np.int64), "terminated": np.bool_(False)}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def make(store: Any) -> Any:
    """A table of which a random remover takes items, so that a chunk has few rows."""
    view = di_store.Episode(ROWS)
    return store.create_table("t", capacity=EPISODES, view=view, remover=di_store.Uniform(), schema=SCHEMA, lanes=1)


def write(table: Any, first: int, count: int = EPISODES) -> None:
    """`count` episodes of rows numbered on from `first` episodes."""
    with table.writer() as writer:
        for episode in range(first, first + count):
            numbers = np.arange(ROWS) + episode * ROWS
            copies = np.repeat(numbers[:, None], WIDTH, axis=1)
            writer.extend({"n": numbers, "copies": copies, "terminated": numbers % ROWS == ROWS - 1}, timeout=60)


def whole(data: Any) -> bool:
    """Whether each example is one episode, row for row."""
    numbers = data["n"]
    wanted = numbers[:, :1] // ROWS * ROWS + np.arange(ROWS)
    return bool((numbers == wanted).all() and (data["copies"] == wanted[:, :, None]).all())


def chunks_of_an_item(table: Any) -> float:
    """How many of the table's chunks one item takes."""
    stats = table.stats()
    block = table._backend.handle.needs(table._backend.handle.schema, EPISODES).reserve.chunk_block
    return float(stats["used_bytes"] / block / stats["size"])


def act(table: Any, n: int, fault: str, pipe: Any) -> None:
    """In a child: a draw that dies, or stops, at a fault point."""
    _core.arm_fault(fault)
    data = table.sample(n, timeout=60).data
    pipe.send(whole(data))
    pipe.close()


def start(table: Any, n: int, fault: str) -> tuple[Any, Any]:
    """A child that has stopped at the fault point or died there, and what it will say."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=act, args=(table, n, fault, theirs), daemon=True)
    child.start()
    theirs.close()
    assert child.pid is not None
    if fault.endswith(":stop"):
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    else:
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
    return child, ours


@pytest.mark.parametrize("fault", ["sample.before_copy:1", "sample.before_deliver:1", "table.draw_item:3"])
def test_a_dead_learners_large_draw_leaks_nothing(store: Any, fault: str) -> None:
    table = make(store)
    write(table, 0)
    assert chunks_of_an_item(table) > OLD_MOST
    before = table.stats()["used_bytes"]
    start(table, 6, fault)
    assert store.check() == []
    assert whole(table.sample(3, timeout=60).data), "the chunks that only items use"
    assert table.stats()["used_bytes"] == before
    assert table.delete(table.keys()) == EPISODES
    assert store.check() == []
    assert table.stats()["used_bytes"] == 0


def test_a_draw_of_many_chunks_is_not_torn_by_a_recount(store: Any) -> None:
    """While one learner copies, another dies with the table's lock: what the first one reads stays."""
    table = make(store)
    write(table, 0)
    assert chunks_of_an_item(table) > OLD_MOST
    reader, said = start(table, 3, "sample.before_copy:1:stop")
    start(table, 3, "table.draw_item:1")
    table.delete(table.keys())  # takes the lock over: uses of chunks are counted anew
    write(table, EPISODES)
    write(table, 2 * EPISODES)
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGCONT)
    assert said.poll(60)
    assert said.recv(), "rows of other episodes in its batch"
    reader.join(60)
    table.delete(table.keys())
    assert store.check() == []
    assert table.stats()["used_bytes"] == 0
