"""Deadlines of calls to an agent: silence ends them, and what still flows goes on."""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node
from cluster.served import TOKEN, agent_here, port_of
from pains import stop, until

import di_store
from di_store.base.errors import DrawsLost
from di_store.client import pipe
from di_store.client.channel import Channel
from di_store.client.store import RemoteStore
from di_store.client.waiting import CallWait
from di_store.protocol.connection import TICK_SECONDS, Connection, Disconnected
from di_store.runtime.deadline import Deadline
from di_store.server import batches, conversation

LONG_SECONDS = 10.0
"""Of a call with a timeout of 0.3 s: the deadline and one second, with room for a busy machine."""
GRACE = 3.0
"""Seconds that a call has behind its deadline in tests of what puts its end off: a busy machine answers late."""


@pytest.fixture(scope="module")
def running() -> Iterator[Node]:
    with node(f"d-{uuid.uuid4().hex[:12]}") as made:
        yield made


@pytest.fixture
def served(running: Node) -> Iterator[Node]:
    """One node for all tests; its agent goes on when one of them fails."""
    yield running
    for pid in running.agents():
        os.kill(pid, signal.SIGCONT)
    with running.connect() as last:
        for name in last.stats()["tables"]:
            last.drop_table(name)


@contextmanager
def dribble(port: int, slow: threading.Event) -> Iterator[int]:
    """A port that leads to another one. Once `slow` is set, what comes back comes in quarters, one each 1.2 s.

    So much is gathered before that each has whole records of TLS: of a part of one the receiver sees nothing.
    """
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pass_on(source: socket.socket, to: socket.socket, slows: bool) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 20):
                    if late := slows and slow.is_set():
                        ended.wait(0.2)
                        with suppress(BlockingIOError):
                            data += source.recv(1 << 20, socket.MSG_DONTWAIT)
                    part = -(-len(data) // 4) if late else len(data)
                    for at in range(0, len(data), part):
                        if late and at:
                            ended.wait(0.4 * GRACE)
                        to.sendall(data[at : at + part])

        def accept() -> None:
            with suppress(OSError):
                while True:
                    here = listener.accept()[0]
                    there = socket.create_connection(("127.0.0.1", port))
                    for each in ((here, there, False), (there, here, True)):
                        threading.Thread(target=pass_on, args=each, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        ended.set()


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_deadline_does_not_cut_off_a_running_transfer(
    tls: bool, authorities: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline of 0 ends the wait for items, and not that for the bytes of a batch that was drawn."""
    monkeypatch.setattr("di_store.runtime.deadline.GRACE_SECONDS", GRACE)
    context, path = None, None
    if tls:
        context, path = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authorities[0].path
        context.load_cert_chain(*authorities[0].sign("flows"))
    with di_store.open(memory="64MiB") as store, agent_here(store, tls=context) as agent:
        store.create_table("t", capacity=100).extend({"x": np.zeros((100, 1 << 16), np.uint8)})
        slow = threading.Event()
        with (
            dribble(port_of(agent), slow) as port,
            di_store.connect(f"di-store://127.0.0.1:{port}", token=TOKEN, tls=path) as far,
        ):
            table = far.table("t")
            assert len(table.sample(8, timeout=0)) == 8
            slow.set()
            assert len(table.sample(8, timeout=0)) == 8


def test_a_batch_that_the_agent_is_copying_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing flows until it is copied: the agent says that it is at work."""
    copied, never = batches.copied, threading.Event()

    def slowly(*given: Any) -> di_store.Batch:
        never.wait(1.5 * GRACE)
        return copied(*given)

    monkeypatch.setattr("di_store.runtime.deadline.GRACE_SECONDS", GRACE)
    monkeypatch.setattr(batches, "copied", slowly)
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        store.create_table("t", capacity=100, sampler=di_store.Once(1)).extend({"x": np.arange(100)})
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            assert len(far.table("t").sample(8, timeout=0)) == 8


def test_a_call_that_is_sent_again_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks while the agent waits for items: its successor must not wait as long again."""
    given, never = list[float](), threading.Event()
    sample = conversation.BATCH_CALLS["sample"]

    def breaks(talk: Any, target: Any, arguments: Any) -> Any:
        given.append(arguments["timeout"])
        if len(given) == 1:
            never.wait(0.5)
            raise Disconnected("the agent is killed")
        return sample(talk, target, arguments)

    monkeypatch.setitem(conversation.BATCH_CALLS, "sample", breaks)
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        store.create_table("t", capacity=100).extend({"x": np.arange(100)})
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            assert len(far.table("t").sample(8, timeout=20)) == 8
    first, second = given
    assert second <= first - 0.5


def test_an_agent_that_began_late_holds_no_call_beyond_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was stopped before: by its clock there is time left, and it says that the call waits."""
    sample = conversation.BATCH_CALLS["sample"]

    def late(talk: Any, target: Any, arguments: Any) -> Any:
        return sample(talk, target, {**arguments, "timeout": arguments["timeout"] + 60})

    monkeypatch.setitem(conversation.BATCH_CALLS, "sample", late)
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        store.create_table("t", capacity=100, limiter=di_store.MinSize(50)).extend({"x": np.arange(10)})
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            began = time.monotonic()
            with pytest.raises(di_store.Timeout, match="timed out") as told:
                far.table("t").sample(8, timeout=0.3)
            assert time.monotonic() - began < LONG_SECONDS
            assert "50" in str(told.value), "what the agent waits for"


def test_only_running_transfers_extend_a_deadline() -> None:
    """A message that is not whole, and an agent at work; not each word of one that was stopped and has begun late."""
    deadline = Deadline(3.0)
    deadline.grace = 60.0
    waiting = CallWait("node", lambda: None, deadline, "sample", None)
    deadline.count(3.6)
    end = deadline.began + 3.0 + deadline.grace
    here, there = socket.socketpair()
    connection = Connection(here)
    waiting.on(connection)
    waiting.sent()
    there.send(b"x")  # so that no look waits for it
    waiting.tick()
    waiting.heard()
    waiting.waits_for("0 of 50 items are there")
    assert deadline.end == end
    waiting.heard()
    waiting.works()
    assert end < deadline.end == flowing_end(deadline), "it has begun to copy"
    waiting.heard()
    assert deadline.end == flowing_end(deadline), "the next step has a second too"
    connection._sent_at = time.monotonic()
    waiting.tick()
    assert deadline.flowed == connection.moved, "a part of a message came"
    connection.close()
    there.close()


def flowing_end(deadline: Deadline) -> float:
    """Of a call whose bytes flow."""
    return deadline.flowed + deadline.grace


def test_a_wait_ends_at_its_deadline_between_two_checks() -> None:
    """Calls look twice a second whether they are over; the last look is at the end."""
    here, there = socket.socketpair()
    connection = Connection(here)
    try:
        assert not connection.is_silent_until(time.monotonic() + 60), "there will be another look"
        assert connection.is_silent_until(time.monotonic() + 0.1)
        there.send(b"x")
        assert not connection.is_silent_until(time.monotonic() + 0.1)
        assert connection.is_silent_until(time.monotonic() - 1)
    finally:
        connection.close()
        there.close()


def test_a_read_that_ends_before_the_next_tick_is_checked() -> None:
    """If the call ends before that."""

    def end() -> None:
        raise Disconnected("it is over")

    took = []
    for _ in range(10):
        here, there = socket.socketpair()
        connection = Connection(here)
        began = time.monotonic()
        connection.ticking, connection.look_at = end, began + TICK_SECONDS / 10
        with pytest.raises(Disconnected, match="it is over"):
            connection.receive()
        took.append(time.monotonic() - began)
        connection.close()
        there.close()
    assert min(took) < TICK_SECONDS, "it was over earlier"


def test_a_call_without_a_connection_has_no_grace() -> None:
    """The second behind the deadline is for an answer that is on its way."""
    deadline = Deadline(3.0)
    assert not deadline.is_hopeless(0.0)
    deadline.count(3.1)
    assert deadline.is_hopeless(0.0)
    assert not deadline.over()
    short = Deadline(0.0)
    assert not short.is_hopeless(0.0), "the agent is being started anew"


@pytest.mark.parametrize("method", ["draw", pytest.param("gather", marks=pytest.mark.extended), "deliver"])
def test_a_loader_ends_its_wait_for_a_silent_agent(served: Node, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step it is at. What was drawn is not lost: the agent goes on, and so does the loader."""
    ask, agent = Channel.ask, served.agent

    def asks(self: Channel, called: str, *rest: Any, **options: Any) -> Any:
        if called == method and not stopped:
            stopped.append(agent)
            stop(agent)
        return ask(self, called, *rest, **options)

    stopped: list[int] = []
    with served.connect() as far:
        table = far.create_table("t", capacity=9, limiter=di_store.Queue(9), schema={"n": di_store.Spec((), "i8")})
        table.extend({"n": np.arange(6)})
        with table.loader(3, prefetch=0, timeout=0.3) as loader:
            monkeypatch.setattr(Channel, "ask", asks)
            began = time.monotonic()
            with pytest.raises(di_store.Timeout, match="timed out"):
                next(loader)
            assert time.monotonic() - began < LONG_SECONDS
            os.kill(agent, signal.SIGCONT)
            found: list[int] = []
            while len(found) < 6:
                with suppress(di_store.Timeout):
                    found += next(loader).data["n"].tolist()
            assert sorted(found) == list(range(6))


def test_a_loader_that_draws_ahead_has_one_deadline_for_next(served: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is ready: neither the draw of a later one nor its own delivery is answered."""
    ask = Channel.ask

    def asks(self: Channel, called: str, *rest: Any, **options: Any) -> Any:
        began.setdefault(called, options["timeout"].began)
        return ask(self, called, *rest, **options)

    began: dict[str, float] = {}
    with served.connect() as far:
        table = far.create_table("t", capacity=99, limiter=di_store.Queue(99), schema={"n": di_store.Spec((), "i8")})
        table.extend({"n": np.arange(6)})
        with table.loader(3, prefetch=1, timeout=1) as loader:
            assert next(loader).data["n"].tolist() == [0, 1, 2]
            until(lambda: loader._prefetch._queue[0].done, "the batch ahead to come")
            agent = served.agent
            stop(agent)
            monkeypatch.setattr(Channel, "ask", asks)
            with pytest.raises(di_store.Timeout, match="timed out"):
                next(loader)
            monkeypatch.undo()
            os.kill(agent, signal.SIGCONT)
            assert began["deliver"] == began["draw"]
            assert next(loader).data["n"].tolist() == [3, 4, 5]


def test_a_restarted_call_keeps_its_deadline(served: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that are given back before the client has them, again and again."""
    ask = Channel.ask

    def asks(self: Channel, called: str, *rest: Any, **options: Any) -> Any:
        if called == "deliver":
            self.client.drop_idle()
            raise DrawsLost("the agent no longer holds these draws", remedy="")
        return ask(self, called, *rest, **options)

    with served.connect() as far:
        table = far.create_table("t", capacity=9, limiter=di_store.Queue(9), schema={"n": di_store.Spec((), "i8")})
        table.extend({"n": np.arange(6)})
        monkeypatch.setattr(Channel, "ask", asks)
        began = time.monotonic()
        with pytest.raises(di_store.Timeout):
            table.sample(3, timeout=0.3)
        assert time.monotonic() - began < LONG_SECONDS


def test_latest_warns_once_for_each_silence(served: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "di_store")
    with served.connect() as far:
        far.publish("w", 1)
        for silence in (1, 2):
            stop(served.agent)
            for _ in range(2):
                assert far.latest("w", timeout=0) is None
            os.kill(served.agent, signal.SIGCONT)
            assert len([each for each in caplog.records if "latest('w')" in each.getMessage()]) == silence
            assert far.latest("w", timeout=30) is not None


def test_dropped_writers_share_one_second_at_the_end(served: Node) -> None:
    """Those of an agent that does not answer, however many there are."""
    with served.connect() as store:
        table = store.create_table("t", capacity=1_000, schema={"n": di_store.Spec((), "i8")})
        writers = [table.writer() for _ in range(40)]
        for each in writers:
            each.append({"n": 0})
            each.flush()
        agent = served.agent
        stop(agent)
        for each in writers:
            each.append({"n": 1})
        writers.clear()
        del each
        assert isinstance(store._backend, RemoteStore)
        channel = store._backend.session.channel
        assert len([each for each in pipe._open if each._leaves and each._channel is channel]) == 40
        began = time.monotonic()
        pipe.settle(channel, 0.3)
        assert time.monotonic() - began < LONG_SECONDS
        os.kill(agent, signal.SIGCONT)


def test_addresses_of_a_host_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them answers. Of a name that has one behind a firewall, the next one is tried in time."""
    with ExitStack() as full, di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        silent = []
        for _ in range(12):
            listener = full.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            silent.append((socket.AF_INET, socket.SOCK_STREAM, 0, "", listener.getsockname()))
            for _ in range(4):  # until no more is taken
                one = full.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
        found = list(silent)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        began = time.monotonic()
        with pytest.raises(di_store.StoreError):
            di_store.connect("di-store://some.host:1", token=TOKEN, timeout=1)
        assert time.monotonic() - began < LONG_SECONDS
        found[1:] = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port_of(agent)))]
        with di_store.connect("di-store://some.host:1", token=TOKEN, timeout=60) as far:
            assert far.get(far.put(1)) == 1
