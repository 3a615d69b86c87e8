"""What the tests of agents share: a served store, and connections that do what no client of ours does."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cli_run import command
from pains import until

import di_store
from cluster.messages import Sent, framed
from di_store.client.address import TOKEN_ENV, Address
from di_store.client.channel import Channel
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import Hello, Welcome, greet
from di_store.server.server import Agent, Served

TOKEN = "a token of the tests, long enough"


class ServedStore:
    """A store that a `di-store serve` process serves."""

    def __init__(
        self, process: subprocess.Popen[str], address: str, name: str, pid: int, agent: int, metrics: str = ""
    ) -> None:
        self.process = process
        self.address = address
        self.name = name
        self.pid = pid
        self.agent = agent
        self.port = Address.parse(address).port
        self.metrics = metrics

    def connect(self, **options: Any) -> di_store.Store:
        """A client."""
        return di_store.connect(self.address, **{"token": TOKEN, **options})

    def agents(self) -> list[int]:
        """Processes that serve it now: those that have its listening socket and the store, but for the holder.

        A new child of the holder has both for a moment, until it begins its own program.
        """
        holders = {pid for each in di_store.list_stores() if each.name == self.name for pid in each.pids}
        return [pid for pid in listening(self.port) if pid in holders and _is_agent(pid)]

    def answers(self) -> bool:
        """Whether anything listens at its port."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    @contextmanager
    def leaves_nothing(self) -> Iterator[None]:
        """After the block the agent has the threads and descriptors that it had before, and serves."""
        with self.connect() as store:
            store.stats()
        pid = self.agent
        until(lambda: held(pid) == held(pid), "the agent to be at rest")
        before = held(pid)
        yield
        until(lambda: _fits(held(pid), before), f"the agent to have {before} descriptors and threads again")
        with self.connect() as store:
            assert store.get(store.put("it lives")) == "it lives"
        assert self.process.poll() is None
        assert self.agents() == [pid]


@contextmanager
def serving(
    name: str, *options: str, listen: str = "127.0.0.1:0", token: str | None = TOKEN, **environment: str
) -> Iterator[ServedStore]:
    """A store that is served until the block ends, whatever state it is in then. `token` None: the user's own."""
    words = command("serve", name, "--memory", "64MiB", "--listen", listen, "--json", *options)
    given = {key: value for key, value in os.environ.items() if key != TOKEN_ENV}
    given.update(environment if token is None else {TOKEN_ENV: token, **environment})
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, env=given, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    made = ServedStore(process, **json.loads(line))
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()
        for pid in made.agents():  # they go when they see that the holder has gone
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not made.agents(), "the agent to end")


def _is_agent(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return b"di_store.server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _fits(now: tuple[int, int], before: tuple[int, int]) -> bool:
    return now[0] <= before[0] and now[1] <= before[1]


def held(pid: int) -> tuple[int, int]:
    """How many descriptors and threads a process has."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def listening(port: int) -> list[int]:
    """Processes of this user that have the socket that listens at a port of 127.0.0.1 or of all addresses."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    nodes = {f"socket:[{line[9]}]" for line in lines if line[3] == "0A" and line[1].endswith(f":{port:04X}")}
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in nodes for fd in os.listdir(f"/proc/{pid}/fd")):
                found.append(int(pid))
    return found


def hello(**changes: Any) -> Hello:
    """What a client says first."""
    given = {"oldest": 1, "newest": 1, "nonce": secrets.token_bytes(32), "link": bytes(16), "role": "call"}
    return Hello(**{**given, "store": "", "name": "a test", **changes})


def dial(port: int) -> Connection:
    """A connection that has said nothing yet."""
    connection = Connection(socket.create_connection(("127.0.0.1", port), 30))
    connection.most_bytes = 1 << 20
    return connection


def greeted(port: int, token: str = TOKEN, **changes: Any) -> tuple[Connection, Welcome]:
    """A connection after the handshake."""
    connection = dial(port)
    try:
        return connection, greet(connection, token.encode(), hello(**changes))
    except BaseException:
        connection.close()
        raise


class Tap(Connection):
    """Keeps what is sent through it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.sent = b""

    def send(self, kind: Kind, *, meta: bytes = b"", **given: Any) -> None:
        self.sent += framed(Sent(kind, meta))
        super().send(kind, meta=meta, **given)


@contextmanager
def fake_agent(talk: Callable[[Connection], None]) -> Iterator[str]:
    """The address of something that is no agent: it has `talk` with the first client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError, di_store.StoreError):
                connection = Connection(listener.accept()[0])
                try:
                    talk(connection)
                finally:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"di-store://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


@contextmanager
def agent_here(
    store: di_store.Store, *, port: int = 0, token: bytes = TOKEN.encode(), **served: Any
) -> Iterator[Agent]:
    """An agent in a thread of this process. `served`: as `Served` has it."""
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    agent = Agent(Served(store.name, token, "here", **served), listener)
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(30)


def noted_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all calls that this process makes to agents from now on, but for looks whether one is there."""
    calls: list[str] = []
    ask = Channel.ask

    def noted(channel: Channel, method: str, *given: Any, **more: Any) -> Any:
        if method != "hello":
            calls.append(method)
        return ask(channel, method, *given, **more)

    monkeypatch.setattr(Channel, "ask", noted)
    return calls


def port_of(agent: Agent) -> int:
    """Where it listens."""
    return int(agent.address.rpartition(":")[2])


def told(error: pytest.ExceptionInfo[BaseException]) -> str:
    """Its text: one line, that says what to do."""
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(")")
    return text
