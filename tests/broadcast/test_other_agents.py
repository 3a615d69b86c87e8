"""Short calls of other agents end soon, whatever the agents do."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from cluster.served import TOKEN, agent_here, fake_agent, port_of

import di_store
from di_store.base.errors import NodeUnavailable, Timeout
from di_store.broadcast import other_agents
from di_store.broadcast.other_agents import OtherAgents
from di_store.client.sessions import Credentials
from di_store.protocol.connection import Connection, Disconnected
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import Welcome, answer

HOURS = 10_000.0


@pytest.fixture
def agents() -> OtherAgents:
    return OtherAgents(Credentials(TOKEN))


def greeted(then: Callable[[Connection, int], None]) -> Callable[[Connection], None]:
    """What an agent does that lets its client in, and then gets a call of this number."""

    def talk(connection: Connection) -> None:
        _, mac = answer(connection, TOKEN.encode(), "")
        welcome = Welcome(mac, "", "", "", bytes(16), 0, False, False)
        connection.send(Kind.WELCOME, meta=msgspec.msgpack.encode(welcome))
        connection.most_bytes = 1 << 20
        then(connection, connection.receive().request)

    return talk


def test_a_call_ends_at_once_where_nothing_listens(agents: OtherAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_agents, "ANSWER_SECONDS", HOURS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"di-store://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(NodeUnavailable):
        agents.ask(address, "newest", {"name": "w"})
    agents.close()


def test_a_call_ends_where_the_agent_only_says_that_it_works(
    agents: OtherAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_agents, "ANSWER_SECONDS", 1.0)

    def work(connection: Connection, request: int) -> None:
        pace = threading.Event()
        with suppress(Disconnected):
            while True:
                connection.send(Kind.WAITING, request=request)
                pace.wait(0.1)

    with fake_agent(greeted(work)) as address, pytest.raises((NodeUnavailable, Timeout)):
        agents.ask(address, "newest", {"name": "w"})
    agents.close()


def test_the_next_agent_answers_the_first_call(agents: OtherAgents) -> None:
    """The connection that is kept from the call before is of no use: another one is made within the same call."""
    with di_store.open(memory="64MiB") as store:
        with agent_here(store) as first:
            port = port_of(first)
            address = f"di-store://127.0.0.1:{port}/{store.name}"
            assert agents.ask(address, "newest", {"name": "w"}) is None
        with agent_here(store, port=port):
            assert agents.ask(address, "newest", {"name": "w"}) is None
        agents.close()


def test_a_store_that_was_replaced_is_called_at_the_second_try(agents: OtherAgents) -> None:
    name = f"t-{os.getpid()}-replaced"
    with di_store.open(name, memory="64MiB") as store, agent_here(store) as first:
        port = port_of(first)
        address = f"di-store://127.0.0.1:{port}/{name}"
        agents.ask(address, "newest", {"name": "w"})
    with di_store.open(name, memory="64MiB") as store, agent_here(store, port=port):
        with pytest.raises(di_store.StoreClosed):
            agents.ask(address, "newest", {"name": "w"})
        assert agents.ask(address, "newest", {"name": "w"}) is None
    agents.close()
