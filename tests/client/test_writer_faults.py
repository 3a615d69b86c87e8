"""Remote writers beside errors, signal handlers, forks, killed agents and timeouts that come at an odd moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from cluster.nodes import Node, node, stop, stopped
from pains import Program, until

import di_store
from client.pipes import STEP, pipe_of
from di_store.client.waiting import CallWait
from di_store.client.writer import RemoteWriter
from di_store.protocol.connection import Disconnected, Message
from di_store.protocol.frame import Kind

ROW = {"n": di_store.Spec((), "i8")}


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


def tear(writer: di_store.Writer) -> None:
    """End the connection, and wait until there is another one."""
    shared = pipe_of(writer)._connection
    before = shared._connection
    shared.tear()
    until(lambda: shared.is_open() and shared._connection is not before, "a connection")


def break_before_acknowledgement(writer: di_store.Writer, when: threading.Event, patch: pytest.MonkeyPatch) -> None:
    """Let the connection break, once `when` is set, in place of the next acknowledgement."""
    pipe = pipe_of(writer)
    take = pipe.take

    def breaks(message: Message) -> None:
        if message.kind == Kind.ACKNOWLEDGE:
            assert when.wait(60)
            patch.undo()
            raise Disconnected("the connection breaks")
        take(message)

    patch.setattr(pipe, "take", breaks)


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


def test_rows_after_one_that_failed_are_not_written_over_another_connection(
    far: di_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks before the failure is known here."""
    table = far.create_table("t", capacity=100, view=di_store.Transition(), schema=STEP)
    rest = {"reward": 0.0, "terminated": False, "truncated": False}
    writer, written = table.writer(), threading.Event()
    writer.append({"obs": 0, **rest}, next={"obs": 1})
    writer.flush()
    break_before_acknowledgement(writer, written, monkeypatch)
    writer.append({"obs": 99, **rest}, next={"obs": 100})  # not the row that the last one said
    for n in (1, 2):
        writer.append({"obs": n, **rest}, next={"obs": n + 1})
    written.set()
    with pytest.raises(ValueError, match="obs"):
        writer.flush()
    writer.append({"obs": 1, **rest}, next={"obs": 2})
    writer.close()
    assert table.peek(table.keys()).data["obs"].tolist() == [0, 1]


def test_calls_that_a_killed_agent_has_made_are_not_sent_again(
    store_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acknowledgement does not arrive: the next agent knows of the row from shared memory."""
    with node(store_name()) as served, served.connect() as store, di_store.attach(served.name) as near:
        writer, killed = store.create_table("t", capacity=100, schema=ROW).writer(), threading.Event()
        writer.append({"n": 0})
        writer.flush()
        table = near.table("t")
        break_before_acknowledgement(writer, killed, monkeypatch)
        made = [writer.append({"n": n}) for n in range(1, 4)]
        until(lambda: len(table) == 2, "the row")
        served.kill_agent()
        killed.set()
        writer.flush()
        assert [len(each.keys) for each in made] == [0, 1, 1]
        assert table.peek(table.keys()).data["n"].tolist() == [0, 1, 2, 3]
        writer.close()


def test_rows_that_are_sent_again_carry_the_version_of_the_weights(store_name: Callable[[], str]) -> None:
    """The next agent hears of it before it gets the rows."""
    with node(store_name()) as served, served.connect() as store:
        table = store.create_table("t", capacity=100, weights="w", schema=ROW)
        store.publish("w", {"x": 1})
        assert store.latest("w") is not None
        with table.writer() as writer:
            writer.append({"n": 0})
            writer.flush()
            stop(served.agent)
            for n in (1, 2):
                writer.append({"n": n})
            served.kill_agent()
            writer.flush()
        batch = table.peek(table.keys())
        assert batch.data["n"].tolist() == [0, 1, 2]
        assert batch.versions.tolist() == [1, 1, 1]


def test_a_call_over_another_connection_has_the_time_that_is_left(
    far: di_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent must not write what is given up here: it ends the call before."""
    _, writer, made = full(far)
    pipe, given = pipe_of(writer), list[float]()
    ask = pipe.window.ask

    def asked(call: Any, arguments: Any, timeout: Any) -> None:
        given.append(timeout)
        ask(call, arguments, timeout)

    monkeypatch.setattr(pipe.window, "ask", asked)
    far.table("t").sample(1)  # room for the call that waits
    assert len(made.keys) == 1

    def breaks() -> None:
        for _ in range(2):
            until(pipe.window.is_under_way, "the call")
            tear(writer)
        until(pipe.window.is_under_way, "the call")
        far.table("t").sample(1)

    other = threading.Thread(target=breaks)
    other.start()
    writer.append({"n": 3}, timeout=60)
    other.join()
    first, second, third = given
    assert 60 >= first > second > third
    writer.close()


def test_the_end_of_a_writer_is_no_error_of_close(far: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own thread takes the answer just before `close` looks whether the writer has ended."""
    writer, tick = far.create_table("t", capacity=100, schema=ROW).writer(), CallWait.tick
    shared = pipe_of(writer)._connection

    def late(waiting: CallWait) -> None:
        until(lambda: shared.ended is not None, "the answer")
        tick(waiting)

    monkeypatch.setattr(CallWait, "tick", late)
    writer.close()


def test_an_interrupted_close_raises_the_interrupt(far: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the failure of a row before."""
    writer = far.create_table("t", capacity=100, schema=ROW).writer()
    pipe = pipe_of(writer)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipe, "make", interrupted)
    pipe.window.failure = ValueError("an earlier row")
    with pytest.raises(KeyboardInterrupt):
        writer.close()


def test_an_interrupt_while_a_writer_is_made_leaves_no_connection(
    far: di_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, made = far.create_table("t", capacity=100, schema=ROW), list[Any]()

    def interrupted(of: Any) -> Any:
        made.append(of.session.channel)
        raise KeyboardInterrupt

    monkeypatch.setattr("di_store.client.writer._episodes_of", interrupted)
    with suppress(KeyboardInterrupt):
        table.writer()
    until(lambda: made and not made[0]._busy, "the connection to be closed")


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
made, told, first = writer.append({"n": 2}), threading.Event(), threading.Lock()
shared, main = writer._backend._pipe._connection, threading.get_ident()

def handler(*_):
    if shared._reader == main and first.acquire(blocking=False):  # another signal may interrupt this one
        told.set()
        for call in (lambda: made.keys, lambda: store.get(ref)):
            try:
                print(call(), flush=True)
            except di_store.StoreError as error:
                print(error.message, flush=True)

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


LEFT = """
import sys, weakref

weakref.finalize(sys, print)  # some module used it before, so its turn at the end comes after those of di_store
import di_store
from di_store.client import pipe

leave = pipe.WriterPipe.leave

def told(left, why):
    print("left", flush=True)
    leave(left, why)

pipe.WriterPipe.leave = told
pipe.settle.__defaults__ = (1000.0,)  # how long the end waits for writers that were dropped
store = di_store.connect(sys.argv[1])
writer = store.table("t").writer()
print("open", flush=True)
input()
for n in range(100):
    writer.append({"n": n})
weakref.finalize(sys, print, "too late", flush=True)
"""


def test_rows_of_a_writer_that_was_not_closed_are_written_at_the_end(far: di_store.Store, served: Node) -> None:
    """Those that are not sent yet, because the agent has not acknowledged earlier ones."""
    table = far.create_table("t", capacity=200, schema=ROW)
    with Program(LEFT, served.address) as program:
        assert program.line() == "open"
        with stopped(served.agent):
            program.say()
            assert program.line() == "left"
        program.finish()
    assert table.peek(table.keys()).data["n"].tolist() == list(range(100))


FORKED = """
import os, signal, sys
import di_store

store = di_store.connect(sys.argv[1])
writer = store.table("t").writer()
made = writer.append({"n": 2})
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
signal.alarm(60)
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
    for _ in range(30):
        tear(writer)
    assert [table.sample(1).data["n"].item() for _ in range(3)] == [0, 1, 2]
    assert len(made.keys) == 1
    writer.close()


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
