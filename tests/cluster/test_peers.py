"""What an agent keeps for a client whose connections have broken, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pains import until

import di_store
from cluster.served import TOKEN, agent_here, greeted, port_of
from di_store.wire import values
from di_store.wire.frame import Kind


def test_a_call_that_is_sent_again_is_made_once() -> None:
    """Its answer was lost with the client's only connection."""
    size, body = values.packed({"value": {"x": 1.0}, "priority": None, "timeout": 10})
    meta = msgspec.msgpack.encode(values.Call("insert", "t", True, None, size))
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        table, answers = store.create_table("t", capacity=9), []
        for number in range(3):
            connection, _ = greeted(port_of(agent), link=b"x" * 16)
            connection.send(Kind.CALL, request=7, meta=meta, body=body)
            until(lambda: len(table) == 1, "the call to be made")
            if number:
                answers.append(values.value_of(connection.receive()).tolist())
            connection.close()
            until(lambda: not connected(agent), "the agent to see the end")
        assert len(table) == 1
        assert answers == [table.keys().tolist()] * 2


def connected(agent: Any) -> list[Any]:
    return [peer for peer in agent._peers.values() if peer.connections]


def test_a_mixture_outlives_a_broken_connection() -> None:
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        store.create_table("t", capacity=9).insert({"x": 1.0})
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            mixture = far.mix({"t": 1})
            for connection in list(agent._connections):
                connection.end()
            until(lambda: not connected(agent), "the agent to see the end")
            assert len(mixture.sample(3)) == 3


@pytest.mark.parametrize("remembered", [False, True])
def test_a_client_that_closes_its_handle_is_forgotten_at_once(remembered: bool) -> None:
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        clients = len(store.stats()["clients"])
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            if remembered:
                far.create_table("t", capacity=9).insert({"x": 1.0})
            far.put(1)
            (peer,) = agent._peers.values()
            assert peer.is_needed() == remembered
        until(lambda: not agent._peers, "the agent to forget it")
        assert len(store.stats()["clients"]) == clients
