"""Leases of clients on other machines: the client's session holds them, whatever becomes of its agent."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node
from cluster.served import TOKEN, agent_here, port_of
from leasing import LONG, keys_of, leased, take
from pains import until
from warm import WARM

import di_store
from di_store.base.errors import LayoutMismatch
from di_store.client.channel import Channel
from di_store.protocol.connection import Disconnected
from di_store.server import server

pytestmark = pytest.mark.filterwarnings("ignore:.*was restarted:RuntimeWarning")


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"leases-{os.getpid()}") as made:
        yield made


@pytest.fixture
def table(far: di_store.Store) -> Iterator[di_store.Table]:
    """Of ten numbers, each to be done once."""
    made = far.create_table("t", capacity=20, sampler=di_store.Fifo(), max_times_sampled=1)
    made.extend({"n": np.arange(10)})
    yield made
    far.drop_table("t")


def test_leases_outlive_agents(served: Node, near: di_store.Store, table: di_store.Table) -> None:
    """Also those of a batch that another client acknowledges."""
    batch, other = take(table, 3), take(table, 2)
    for _ in range(2):
        served.kill_agent()
        assert batch.lease is not None
        assert batch.lease.extend(LONG) == 3
        assert leased(near.table("t")) == 5
    assert (table.ack(batch), table.ack(batch)) == (3, 0)
    assert near.table("t").ack(other.lease) == 2
    assert take(table, 5).data["n"].tolist() == [5, 6, 7, 8, 9]
    assert near.check() == []


def test_who_holds_an_item_is_said(near: di_store.Store, table: di_store.Table, served: Node) -> None:
    batch = take(table, 2)
    ((who, items),) = table.stats()["leased"]["holders"].items()
    assert items == 2
    assert who.startswith("client ")
    assert who.endswith(f" of pid {served.agent}")
    with pytest.raises(di_store.Timeout, match="10 items are leased"):
        take(table, 9, timeout=0)
    table.ack(batch)


@pytest.mark.parametrize("answered", [False, True])
def test_an_agent_dies_while_a_batch_is_delivered(
    served: Node, near: di_store.Store, table: di_store.Table, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Before the call, or before its answer: each item is leased once, for a batch that the program gets."""
    ask, answer, deliveries = Channel.ask, Channel._answer, []

    def asks(self: Channel, method: str, *rest: Any, **options: Any) -> Any:
        if method == "deliver":
            deliveries.append(self)
            if not answered and len(deliveries) == 1:
                served.kill_agent()
        return ask(self, method, *rest, **options)

    def answers(self: Channel, *rest: Any) -> Any:
        found = answer(self, *rest)
        if answered and len(deliveries) == 1:
            deliveries.append(self)
            served.kill_agent()
            raise Disconnected("the agent was killed")
        return found

    monkeypatch.setattr(Channel, "ask", asks)
    monkeypatch.setattr(Channel, "_answer", answers)
    batch = take(table, 4)
    assert len(deliveries) == 2
    assert batch.data["n"].tolist() == [0, 1, 2, 3]
    assert leased(near.table("t")) == 4
    assert table.ack(batch) == 4


def test_what_a_client_held_comes_first_once_it_has_closed(served: Node, table: di_store.Table) -> None:
    with served.connect() as same:  # the session is the process's, with all its handles
        kept = take(same.table("t"), 1)
    assert table.ack(kept) == 1
    ours, theirs = WARM.Pipe()
    child: Any = WARM.Process(target=_hold, args=(served.address, None, theirs, "close"))
    child.start()
    assert ours.recv() == [1, 2, 3]
    assert leased(table) == 3
    ours.send("go on")
    child.join(60)
    until(lambda: leased(table) == 0, "the session to end")
    assert take(table, 3).data["n"].tolist() == [1, 2, 3]


def _hold(address: str, token: str | None, pipe: Any, end: str) -> None:
    with di_store.connect(address, token=token) as store:
        batch = take(store.table("t"), 3)
        pipe.send(batch.data["n"].tolist())
        if end == "close":
            pipe.recv()
            return
        os.kill(os.getpid(), signal.SIGKILL if end == "die" else signal.SIGSTOP)
        pipe.send(store.table("t").ack(batch))


@pytest.mark.parametrize("end", ["die", "stop"])
def test_a_client_that_is_silent_for_long_has_no_leases(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """It was killed, or comes back too late. A client that only waits keeps its own."""
    monkeypatch.setattr(server, "LEASE_SECONDS", 5.0)
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        table = store.create_table("t", capacity=20, sampler=di_store.Fifo(), max_times_sampled=1)
        table.extend({"n": np.arange(10)})
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            mine = take(far.table("t"), 2)
            ours, theirs = mp.get_context("fork").Pipe()
            child = mp.get_context("fork").Process(
                target=_hold, args=(f"di-store://{agent.address}", TOKEN, theirs, end)
            )
            child.start()
            assert ours.recv() == [2, 3, 4]
            until(lambda: leased(table) == 2, "the leases of the silent client to end")
            late = take(table, 3)
            assert late.data["n"].tolist() == [2, 3, 4]
            if end == "stop":
                os.kill(child.pid or 0, signal.SIGCONT)
                assert ours.recv() == 0, "too late"
            child.join(60)
            assert far.table("t").ack(mine) == 2
        assert table.ack(late) == 3
        until(lambda: not agent._peers, "the agent to forget all clients")
        assert store.check() == []


def test_leases_outlive_a_broken_connection() -> None:
    """Also where nothing else makes the agent remember the client: it has only taken over its leases."""
    with di_store.open(memory="64MiB") as store:
        store.create_table("t", capacity=20, max_times_sampled=1).extend({"n": np.arange(10)})
        with agent_here(store) as agent:
            port = port_of(agent)
            far = di_store.connect(f"di-store://{agent.address}", token=TOKEN)
            batch = take(far.table("t"), 3)
        with far, agent_here(store, port=port) as agent:
            assert batch.lease is not None
            assert batch.lease.extend(LONG) == 3
            (peer,) = agent._peers.values()
            for connection in list(agent._connections):
                connection.end()
            until(lambda: not peer.connections, "the agent to see the end")
            assert far.table("t").ack(batch) == 3
            assert list(agent._peers.values()) == [peer]


def test_a_forked_child_holds_nothing_of_its_parent(table: di_store.Table) -> None:
    batch = take(table, 2)

    def child() -> None:
        assert table.ack(batch.keys[:1]) == 1
        take(table, 1)
        table._backend.session.close()  # type: ignore[attr-defined]

    process = mp.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert take(table, 1).data["n"].tolist() == [2], "the child's, which has closed its session"
    assert table.ack(batch) == 1


def test_a_lease_pickles(served: Node, table: di_store.Table, near: di_store.Store) -> None:
    batch, other = take(table, 3), take(near.table("t"), 3)
    again = pickle.loads(pickle.dumps(batch.lease))
    assert (again.number, again.keys.tolist()) == (batch.lease.number, batch.keys.tolist())  # type: ignore[union-attr]
    assert (again.extend(LONG), table.ack(again), table.give_back(other)) == (3, 3, 3)
    again._table.session.close()
    assert keys_of(take(table, 3)) == keys_of(other)


def test_an_older_agent_is_named(table: di_store.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    client = table._backend.session.channel.client  # type: ignore[attr-defined]
    monkeypatch.setattr(client, "protocol", 2)
    with pytest.raises(LayoutMismatch, match="update the agent"):
        take(table, 1)
    assert len(table.sample(1)) == 1


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("ack", {"keys": "x", "number": 1}),
        ("ack", {"keys": [1], "number": -1}),
        ("ack", {"keys": [1], "number": 2**64}),
        ("give_back", {"keys": [1], "number": None}),
        ("extend_lease", {"keys": [1], "number": 1, "seconds": float("nan")}),
        ("sample", {"n": 1, "lease": -1}),
        ("sample", {"n": 1, "lease": "long"}),
        ("sample", {"n": 1, "lease": 1, "mixture": 7}),
    ],
)
def test_odd_messages_are_refused(table: di_store.Table, call: str, given: dict[str, Any]) -> None:
    """Of a client that is not ours; its connection goes on."""
    draw = {"draws": 9_999, "mixture": 0, "min_n": None, "linger": None, "beta": None, "columns": None, "replace": True}
    arguments = {**(draw if call == "sample" else {}), "timeout": 1.0, **given}
    backend: Any = table._backend
    with pytest.raises((ValueError, TypeError, di_store.StoreError)):
        backend.session.channel.call(call, arguments, target=backend.target)
    assert leased(table) == 0
    assert table.ack(take(table, 1)) == 1
