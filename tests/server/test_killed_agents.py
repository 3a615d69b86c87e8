"""Agents that are killed or stopped beside clients: nothing acknowledged is lost, nothing comes twice.

With `-s` it prints how long clients waited for the next agent.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node, show_kills, stop
from pains import until
from warm import WARM

import di_store

pytestmark = pytest.mark.filterwarnings("ignore:.*was restarted:RuntimeWarning")
Names = Callable[[], str]
EPISODE = 7
LEASE_SECONDS = 5.0
"""After which others do what a killed client had drawn."""


class Actor(threading.Thread):
    """Appends numbered rows until it is told to stop.

    Attributes:
        acknowledged: numbers of the rows whose items it knows to be there.
        failed: what a call has raised, by number of its row.
    """

    def __init__(self, address: str, number: int, spans: bool) -> None:
        super().__init__()
        self.address, self.number, self.spans = address, number, spans
        self.done = threading.Event()
        self.acknowledged: list[int] = []
        self.failed: dict[int, di_store.StoreError] = {}
        self.dropped = 0
        self.written = 0
        self.start()

    def run(self) -> None:
        with di_store.connect(self.address) as store, store.table("t", timeout=60).writer() as writer:
            waiting: deque[tuple[int, Any]] = deque()
            while not self.done.is_set():
                n = self.written
                row = {
                    "w": self.number,
                    "n": n,
                    "reward": 0.0,
                    "terminated": n % EPISODE == EPISODE - 1,
                    "truncated": False,
                }
                made = writer.append({**row, "obs": n}, next={"obs": n + 1}) if self.spans else writer.append(row)
                waiting.append((n, made))
                self.written += 1
                if len(waiting) > 100:
                    self.take(*waiting.popleft())
            writer.flush(timeout=60)
            for each in waiting:
                self.take(*each)
            self.dropped = writer._backend._pipe.lanes.dropped

    def take(self, n: int, made: Any) -> None:
        """Note what has become of a row."""
        try:
            if len(made.keys) or not self.spans:
                self.acknowledged.append(n)
        except di_store.StoreError as error:
            self.failed[n] = error

    def end(self) -> None:
        self.done.set()
        self.join(120)
        assert not self.is_alive()


def serve_again(served: Node, store: di_store.Store) -> float:
    """Kill the agent; seconds until a client's call is answered again."""
    served.kill_agent()
    began = time.monotonic()
    store.table("t", timeout=30)
    return time.monotonic() - began


def kill_often(served: Node, times: int, seed: int) -> None:
    """Kill the agent again and again, each as soon as it serves: so that there are pauses before the next one."""
    choice = random.Random(seed)
    kills = []
    with served.connect() as store:
        for _ in range(times):
            table = store.table("t", timeout=60)
            grown = len(table) + choice.randrange(1, 400)
            until(partial(_has, table, grown), "more rows")
            kills.append(serve_again(served, store))
    show_kills(kills)


def _came(got: list[int], wanted: int, threads: list[threading.Thread]) -> bool:
    return len(got) >= wanted or not any(thread.is_alive() for thread in threads)


def _has(table: di_store.Table, rows: int) -> bool:
    return len(table) >= rows


@pytest.mark.parametrize("view", [pytest.param("step", marks=pytest.mark.extended), "transition"])
def test_rows_arrive_exactly_once_despite_killed_agents(
    view: str, store_name: Names, count: Callable[[int, int], int]
) -> None:
    """Rows of actors elsewhere, beside kills of the agent: all in order, none twice, none lost but of a cut."""
    columns = {"w": "i8", "n": "i8", "reward": "f4", "terminated": "?", "truncated": "?"}
    columns |= {"obs": "i8"} if view == "transition" else {}
    schema = {name: di_store.Spec((), dtype) for name, dtype in columns.items()}
    with node(store_name()) as served, di_store.attach(served.name) as store:
        chosen: di_store.Step | di_store.Transition
        chosen = di_store.Step() if view == "step" else di_store.Transition(n_step=2, frame_stack={"obs": 4})
        table = store.create_table("t", capacity=1_000_000, view=chosen, schema=schema)
        actors = [Actor(served.address, number, view == "transition") for number in range(2)]
        kill_often(served, count(4, 200), seed=3)
        for actor in actors:
            actor.end()
        batch = table.peek(table.keys())
        data = {name: np.asarray(value) for name, value in batch.data.items()}
        for actor in actors:
            rows = data["n"][data["w"] == actor.number]
            assert max(Counter(rows.tolist()).values()) == 1, "a row came twice"
            assert actor.acknowledged
            assert (np.diff(rows) > 0).all()
            assert not actor.failed, actor.failed
            missing = set(range(actor.written)) - set(rows.tolist())
            if view == "step":
                assert not missing, "rows were lost"
            else:
                assert len(missing) <= actor.dropped + 4 * EPISODE * (count(4, 200) + 1)
        if view == "transition":
            begins, last = data["n"] - data["n"] % EPISODE, data["n"]
            stacked = np.maximum(last[:, None] - np.arange(3, -1, -1), begins[:, None])
            assert (data["obs"] == stacked).all(), "frames of a hole, or of an episode that begins in its middle"
            assert (data["next_obs"][:, -1] == last + data["steps"]).all(), "a window over a hole"
        assert not store.check()


def test_a_queue_gives_each_item_once(store_name: Names, count: Callable[[int, int], int]) -> None:
    """Consumers by `sample` and by a loader, beside kills of the agent: every item reaches one of them, once."""
    total = count(6_000, 100_000)
    got: list[int] = []
    with node(store_name()) as served, served.connect() as store:
        queue = store.create_table(
            "t", capacity=1_000, limiter=di_store.Queue(100), schema={"n": di_store.Spec((), "i8")}
        )

        def produce() -> None:
            with served.connect() as own, own.table("t", timeout=60).writer() as writer:
                for n in range(total):
                    writer.append({"n": n})
                writer.flush()
            queue.finish()

        def consume(loads: bool) -> None:
            with served.connect() as own:
                table = own.table("t", timeout=60)
                batches: Any = table.loader(7) if loads else iter(lambda: table.sample(9, min_n=1), None)
                try:
                    for batch in batches:
                        got.extend(batch.data["n"].tolist())
                except di_store.EndOfData:
                    pass

        threads = [threading.Thread(target=produce)]
        threads += [threading.Thread(target=consume, args=(loads,)) for loads in (False, True)]
        for thread in threads:
            thread.start()
        choice = random.Random(5)
        kills = []
        for _ in range(count(3, 100)):
            seen = len(got) + choice.randrange(1, 500)
            until(partial(_came, got, min(seen, total), threads), "items")
            kills.append(serve_again(served, store))
        show_kills(kills)
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert max(Counter(got).values()) == 1, "an item came twice"
        assert len(got) >= total - 9 * count(3, 100), "more than the batches on their way were lost"


def lease_and_work(address: str, pipe: Any) -> None:
    """Do leased items until there are no more; tell of batches, and of how many of them were acknowledged."""
    with di_store.connect(address, timeout=60) as store:
        table = store.table("t", timeout=60)
        while True:
            try:
                batch = table.sample(4, min_n=1, lease=LEASE_SECONDS, timeout=120)
            except di_store.EndOfData:
                break
            pipe.send((batch.data["n"].tolist(), None))
            if (counted := acknowledged(table, batch)) is not None:
                pipe.send((batch.data["n"].tolist(), counted))
    pipe.send(None)


def acknowledged(table: di_store.Table, batch: di_store.Batch) -> int | None:
    """None: the agent was killed meanwhile, and nobody knows what the first call has counted."""
    try:
        return table.ack(batch)
    except di_store.NodeUnavailable:
        acknowledged(table, batch)
        return None


def test_leased_items_are_done_whoever_is_killed(store_name: Names, count: Callable[[int, int], int]) -> None:
    """Clients, their agent, or both: each number is done, and once; drawn again is at most what was under way."""
    total, kills = count(600, 20_000), count(4, 100)
    rng, drawn = random.Random(7), Counter[int]()
    done: list[int] = []
    late, ended = 0, 0
    with node(store_name()) as served, di_store.attach(served.name) as store:
        table = store.create_table("t", capacity=total, max_times_sampled=1, schema={"n": di_store.Spec((), "i8")})
        table.extend({"n": np.arange(total)})
        table.finish()
        workers: list[Any] = []

        def start() -> None:
            ours, theirs = WARM.Pipe()
            workers.append((WARM.Process(target=lease_and_work, args=(served.address, theirs), daemon=True), ours))
            workers[-1][0].start()
            theirs.close()

        def listen(pipe: Any) -> bool:
            """Note what a worker tells; False: it was killed."""
            nonlocal late, ended
            try:
                told = pipe.recv()
            except EOFError:
                return False
            if told is None:
                ended += 1
                return False
            if told[1] is None:
                drawn.update(told[0])
            else:
                late += len(told[0]) - told[1]
                done.extend(told[0] if told[1] == len(told[0]) else [])
            return True

        def hear() -> None:
            for pipe in wait([pipe for _, pipe in workers], 120):
                if not listen(pipe):
                    workers[:] = [each for each in workers if each[1] is not pipe]

        start()
        start()
        for at in range(kills):
            enough = min(total, len(done) + rng.randrange(1, 40))
            while len(done) < enough and ended < 2:
                hear()
            if at % 3 != 1:
                served.kill_agent()
            if at % 3 and workers:
                workers[0][0].kill()
                start()
        while workers:
            hear()
        assert set(drawn) == set(range(total)), "nothing is lost"
        assert max(Counter(done).values()) == 1, "nothing is acknowledged twice"
        assert drawn.total() - total <= 4 * 2 * kills + late
        assert len(done) >= total - 4 * 2 * kills - late
        stats = table.stats()
        assert (stats["size"], stats["samples"], stats["leased"]["items"]) == (0, total, 0)
        assert not store.check()


def test_a_stopped_agent_holds_no_call_beyond_its_deadline(store_name: Names) -> None:
    """Calls end at their deadline, and name the node. When the agent goes on, it makes none that was given up."""
    with node(store_name()) as served, served.connect() as store:
        table = store.create_table("t", capacity=100, schema={"n": di_store.Spec((), "i8")})
        table.insert({"n": 1})
        writer = table.writer()
        stopped = served.agent
        stop(stopped)
        for call in (
            lambda: store.get("00" * 20, timeout=0.2),
            lambda: table.sample(1, timeout=0.2),
            lambda: table.insert({"n": 2}, timeout=0.2),
            lambda: writer.append({"n": 3}, timeout=0.2),
            lambda: table.update_priorities(np.zeros(1, np.uint64), np.ones(1), timeout=0.2),
        ):
            began = time.monotonic()
            with pytest.raises(di_store.Timeout, match="timed out") as told:
                call()
            assert time.monotonic() - began < 12, "the deadline and one second, ten times"
            assert "node 127.0.0.1" in str(told.value.culprit)
        os.kill(stopped, signal.SIGCONT)
        assert table.sample(1, timeout=30).data["n"].tolist() == [1]
        writer.append({"n": 4})
        writer.close()
        assert table.peek(table.keys()).data["n"].tolist() == [1, 4]


def test_the_writers_of_a_killed_client_end(store_name: Names) -> None:
    """The rows of a client that vanishes stay; what it had drawn is given back at once."""
    with node(store_name()) as served, served.connect() as store, di_store.attach(served.name) as local:
        table = store.create_table("t", capacity=100, limiter=di_store.Queue(50), schema={"n": di_store.Spec((), "i8")})
        table.extend({"n": np.arange(20)})
        child = os.fork()
        if child == 0:
            with di_store.connect(served.address) as own:
                iterator = own.table("t", timeout=60).loader(5, prefetch=2)
                next(iterator)
                os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        near = local.table("t")
        assert len(near) == 5, "three batches are drawn"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        until(lambda: len(near) == 15, "the two batches that it had not received to come back")
