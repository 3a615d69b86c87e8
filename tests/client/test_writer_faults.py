"""Remote writers beside errors, signal handlers, forks, killed agents and timeouts that come at an odd moment."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node, stop, stopped
from pains import Program, until

import di_store
from di_store.client.pipe import WriterPipe
from di_store.client.writer import RemoteWriter

Names = Callable[[], str]
ROW = {"n": di_store.Spec((), "i8")}
STEP = {"obs": di_store.Spec((), "i8"), "reward": di_store.Spec((), "f4")}
STEP |= {"terminated": di_store.Spec((), "?"), "truncated": di_store.Spec((), "?")}


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"t-faults-{os.getpid():x}") as made:
        yield made


@pytest.fixture
def far(served: Node) -> Iterator[di_store.Store]:
    with served.connect() as store:
        yield store
        for name in list(store.stats()["tables"]):
            store.drop_table(name)


def pipe_of(writer: di_store.Writer) -> WriterPipe:
    assert isinstance(writer._backend, RemoteWriter)
    return writer._backend._pipe


def full(store: di_store.Store, name: str = "t") -> tuple[di_store.Table, di_store.Writer, Any]:
    """A queue, a writer of it whose last call waits for room there, and the call's items."""
    table = store.create_table(name, capacity=20, limiter=di_store.Queue(2), schema=ROW)
    writer = table.writer()
    for n in range(2):
        writer.append({"n": n})
    writer.flush()
    return table, writer, writer.append({"n": 2})


def test_a_row_after_one_that_failed_is_not_written(far: di_store.Store, served: Node) -> None:
    """The failure becomes known while a call waits for room: that call raises it, and its row is not sent."""
    table = far.create_table("t", capacity=100, view=di_store.Transition(), limiter=di_store.Queue(50), schema=STEP)
    rest = {"reward": 0.0, "terminated": False, "truncated": False}
    with table.writer() as writer:
        writer.append({"obs": 0, **rest}, next={"obs": 1})
        writer.flush()
        shared, main, agent = pipe_of(writer)._connection, threading.get_ident(), served.agent

        def go_on() -> None:
            until(lambda: shared._reader == main, "the call to wait")
            os.kill(agent, signal.SIGCONT)

        with stopped(agent):
            writer.append({"obs": 99, **rest}, next={"obs": 100})  # not the row that the last one said
            while pipe_of(writer).window.has_room():
                writer.append({"obs": 100, **rest}, next={"obs": 100})
            other = threading.Thread(target=go_on)
            other.start()
            with pytest.raises(ValueError, match="obs"):
                writer.append({"obs": 100, **rest}, next={"obs": 100})
            other.join()
        writer.append({"obs": 1, **rest}, next={"obs": 2})
        writer.flush()
    assert table.peek(table.keys()).data["obs"].tolist() == [0, 1]


def test_a_connection_made_while_the_writer_ends_is_closed(
    far: di_store.Store, served: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = far.create_table("t", capacity=100, schema=ROW)
    writer = table.writer()
    assert isinstance(writer._backend, RemoteWriter)
    channel, made = writer._backend._session.channel, list[Any]()
    connecting, ended = threading.Event(), threading.Event()

    def connect(role: str, deadline: Any) -> Any:
        connecting.set()
        assert ended.wait(60)
        made.append(type(channel).connect(channel, role, deadline))
        return made[0]

    monkeypatch.setattr(channel, "connect", connect)
    pipe_of(writer)._connection.tear()
    assert connecting.wait(60)
    writer._backend.end(di_store.WriterClosed("ended"), idle=True)
    ended.set()
    until(lambda: made and made[0].fileno() == -1, "the connection to be closed")
    assert made[0] not in channel._busy


def test_an_interrupted_send_is_repeated(far: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the message may be on its way: it goes over another connection, whole."""
    table = far.create_table("t", capacity=100, schema=ROW)
    with table.writer() as writer:
        writer.append({"n": 0})
        writer.flush()

        def send(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(pipe_of(writer)._connection._connection, "send", send)
        with pytest.raises(KeyboardInterrupt):
            writer.append({"n": 1})
        writer.append({"n": 2})
        writer.flush(timeout=60)
    assert table.peek(table.keys()).data["n"].tolist() == [0, 1, 2]


INSIDE = """
import os, signal, sys, threading
import di_store

store = di_store.connect(sys.argv[1])
writer, ref = store.table("t").writer(), store.put(7)
made, told = writer.append({"n": 2}), threading.Event()
shared, main = writer._backend._pipe._connection, threading.get_ident()

def handler(*_):
    if shared._reader == main and not told.is_set():
        for call in (lambda: made.keys, lambda: store.get(ref)):
            try:
                print(call(), flush=True)
            except di_store.StoreError as error:
                print(error.message, flush=True)
        told.set()

def interrupt():
    while not told.wait(0.01):
        if shared._reader == main:
            os.kill(os.getpid(), signal.SIGUSR1)

signal.signal(signal.SIGUSR1, handler)
threading.Thread(target=interrupt).start()
writer.flush()
print("flushed", len(made.keys))
"""


def test_a_signal_handler_never_waits_for_the_call_that_it_interrupts(far: di_store.Store, served: Node) -> None:
    """Items that the call waits for are refused there; other calls are made."""
    table, writer, _ = full(far)
    with Program(INSIDE, served.address) as program:
        assert "in the middle of another call" in program.line()
        assert program.line() == "7"
        table.sample(2)
        table.sample(2)
        out, _ = program.finish()
        assert out.split() == ["flushed", "1"]
    writer.close()


FORKED = """
import os, sys
import di_store

store = di_store.connect(sys.argv[1])
writer = store.table("t").writer()
made = writer.append({"n": 2})
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
try:
    made.keys
except di_store.WriterClosed as error:
    os._exit(0 if "fork" in error.message else 1)
os._exit(2)
"""


def test_items_of_the_parents_writer_raise_at_once_in_a_forked_child(far: di_store.Store, served: Node) -> None:
    """Whose call is not acknowledged: the child has no connection that could tell."""
    full(far)
    with Program(FORKED, served.address) as program:
        assert program.line() == "0"


def test_interrupts_in_a_row_do_not_end_a_writer(far: di_store.Store) -> None:
    """Each sends the first call again, but it is not that call that breaks the connection."""
    table, writer, made = full(far)
    shared = pipe_of(writer)._connection
    for _ in range(30):
        before = shared._connection
        shared.tear()
        until(lambda before=before: shared.is_open() and shared._connection is not before, "a connection")  # type: ignore[misc]
    assert [table.sample(1).data["n"].item() for _ in range(3)] == [0, 1, 2]
    assert len(made.keys) == 1
    writer.close()


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


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("finals", ["entries", "dict"])
def test_lanes_that_are_not_cut_go_on_in_calls_with_final(
    store_name: Names, timeout: float | None, finals: str
) -> None:
    """Lane 0 is cut, lane 1 had just ended: each row of lane 1 comes, also of calls that are waited for."""
    with node(store_name()) as served, served.connect() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = store.create_table("t", capacity=100, view=di_store.Transition(), lanes=2, schema=STEP)
        with table.writer(lanes=2) as writer:
            writer.append(lanes_row(0, (False, True)), next={"obs": np.array([1, 101])})
            writer.flush()
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
    with node(store_name()) as served, served.connect() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view = di_store.Transition()
        table = store.create_table("t", capacity=100, view=view, lanes=2, limiter=di_store.Queue(2), schema=STEP)
        writer = table.writer(lanes=2)
        writer.append(lanes_row(0, (False, True)), next={"obs": np.array([1, 101])})
        writer.flush()
        kill(served, writer)
        with pytest.raises(di_store.Timeout):
            writer.append(lanes_row(2), next={"obs": np.array([3, 103])}, timeout=0.5)
        assert sorted(table.sample(2).data["obs"].tolist()) == [0, 100]
        writer.append(lanes_row(2), next={"obs": np.array([3, 103])}, timeout=60)
        writer.flush()
        assert table.sample(1).data["obs"].tolist() == [102]
        assert len(table) == 0
        writer.close()


def test_a_call_that_is_asked_again_and_again_leaves_out_its_cut_lanes(store_name: Names) -> None:
    """Lane 0 is cut by the first of two kills, while the call waits for room in a queue."""
    with node(store_name()) as served, served.connect() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view = di_store.Transition()
        table = store.create_table("t", capacity=100, view=view, lanes=2, limiter=di_store.Queue(2), schema=STEP)
        writer = table.writer(lanes=2)
        writer.append(lanes_row(0, (False, True)), next={"obs": np.array([1, 101])})
        writer.flush()
        window = pipe_of(writer).window

        def kill_twice() -> None:
            for _ in range(2):
                until(window.is_under_way, "the call")
                kill(served, writer)
            until(window.is_under_way, "the call")
            store.table("t").sample(2)

        other = threading.Thread(target=kill_twice)
        other.start()
        row, final = {**lanes_row(1), "obs": np.array([1, 102])}, {"obs": np.array([2, 103])}
        writer.append(row, next=final, final=final, timeout=60)
        other.join()
        assert table.sample(1).data["obs"].tolist() == [102]
        assert len(table) == 0
        writer.close()


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


def test_an_interrupt_in_the_first_call_leaves_the_writer_to_its_thread(
    far: di_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = far.create_table("t", capacity=100, schema=ROW).writer()

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._backend, "owned", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append({"n": 0})
    writer.append({"n": 1})
    others: list[BaseException] = []

    def use() -> None:
        try:
            writer.append({"n": 2})
        except di_store.WriterClosed as error:
            others.append(error)

    other = threading.Thread(target=use)
    other.start()
    other.join()
    assert len(others) == 1
    writer.close()
    assert len(far.table("t")) == 1
