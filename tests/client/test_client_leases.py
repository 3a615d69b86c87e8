"""Leases of clients on other machines: the client's session holds them, whatever becomes of its agent."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node
from cluster.served import TOKEN, agent_here, port_of
from leasing import LONG, PATIENCE, keys_of, leased, take
from pains import until
from warm import WARM

import di_store
from di_store.base.errors import LayoutMismatch, NodeUnavailable
from di_store.client.channel import Channel
from di_store.protocol.connection import Disconnected
from di_store.protocol.handshake import NEWEST, Hello
from di_store.replay.serving import handle_of
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


HOW = ["table", "loader", "mixture", "mixture with min_n", "loader of a mixture"]
"""Who draws: see `drawn`."""


def drawn(far: di_store.Store, how: str) -> tuple[di_store.Batch, Any]:
    """A leased batch of four items of table "t", and its table or mixture."""
    whole: Any = far.table("t")
    if "mixture" in how:
        far.create_table("other", capacity=1, schema={"n": di_store.Spec((), "i8")}, exist_ok=True)
        whole = far.mix({"t": 1, "other": 0})
    if "loader" in how:
        return next(whole.loader(4, prefetch=0, lease=LONG, timeout=PATIENCE)), whole
    some = {"min_n": 1} if "min_n" in how else {}
    return whole.sample(4, lease=LONG, timeout=PATIENCE, **some), whole


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("answered", ["not", "wholly", "in part"])
def test_an_agent_dies_while_a_batch_is_delivered(
    served: Node,
    far: di_store.Store,
    near: di_store.Store,
    table: di_store.Table,
    monkeypatch: Any,
    answered: str,
    how: str,
) -> None:
    """Before the call, or before its answer: each item is leased once, for a batch that the program gets."""
    ask, answer, deliveries, keys = Channel.ask, Channel._answer, [], table.keys(0, 10)

    def asks(self: Channel, method: str, *rest: Any, **options: Any) -> Any:
        if method == "deliver":
            deliveries.append(self)
            if answered == "not" and len(deliveries) == 1:
                served.kill_agent()
        return ask(self, method, *rest, **options)

    def answers(self: Channel, *rest: Any) -> Any:
        found = answer(self, *rest)
        if answered != "not" and len(deliveries) == 1:
            deliveries.append(self)
            served.kill_agent()
            if answered == "in part":
                assert near.table("t").give_back(keys[:1]) == 1
            raise Disconnected("the agent was killed")
        return found

    monkeypatch.setattr(Channel, "ask", asks)
    monkeypatch.setattr(Channel, "_answer", answers)
    batch, whole = drawn(far, how)
    assert len(deliveries) == (3 if answered == "in part" else 2)
    assert batch.data["n"].tolist() == [0, 1, 2, 3]
    assert leased(near.table("t")) == 4
    assert whole.ack(batch) == 4


def test_batches_ahead_end_with_their_agent(served: Node, near: di_store.Store, table: di_store.Table) -> None:
    """And are drawn again; what was handed out stays leased."""
    with table.loader(3, prefetch=2, lease=LONG, timeout=PATIENCE) as loader:
        first = next(loader)
        assert leased(near.table("t")) == 9
        served.kill_agent()
        until(lambda: near.check() == [] and leased(near.table("t")) == 3, "the batches ahead to come back")
        second = next(loader)
        assert second.data["n"].tolist() == [3, 4, 5]
        assert leased(near.table("t")) == 9
        assert table.ack(first) == 3
    assert leased(near.table("t")) == 3
    assert table.give_back(second) == 3
    assert take(table, 7).data["n"].tolist() == list(range(3, 10))


def test_each_item_is_acknowledged_once_though_agents_are_killed(
    served: Node, far: di_store.Store, near: di_store.Store
) -> None:
    """While the loader has batches ahead, and while leases are acknowledged."""
    table = far.create_table("many", capacity=300, limiter=di_store.Queue(300))
    table.extend({"n": np.arange(300)})
    table.finish()
    done: Counter[int] = Counter()
    with table.loader(4, prefetch=3, lease=LONG, timeout=PATIENCE) as loader:
        for number, batch in enumerate(loader):
            if number % 20 == 10:
                served.kill_agent()
            done.update(batch.data["n"].tolist())
            while True:
                try:
                    table.ack(batch)
                    break
                except NodeUnavailable:
                    pass  # perhaps it was done
    assert done == dict.fromkeys(range(300), 1)
    assert (len(near.table("many")), leased(near.table("many"))) == (0, 0)
    assert near.check() == []
    far.drop_table("many")


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
        loader = store.table("t").loader(3, prefetch=int(end == "die ahead"), lease=LONG)
        batch = next(loader)
        pipe.send(batch.data["n"].tolist())
        if end == "close":
            pipe.recv()
            return
        os.kill(os.getpid(), signal.SIGSTOP if end == "stop" else signal.SIGKILL)
        pipe.send(store.table("t").ack(batch))


@pytest.mark.parametrize("end", ["die", "die ahead", "stop"])
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


def test_connections_of_a_new_client_may_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one does not take the leases from the draws of the first."""
    hello = Hello(1, NEWEST, bytes(32), bytes(range(16)), "call", "", "client")
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        table, attach, marks = handle_of(store.create_table("t", capacity=9)), agent._attach, []

        def attach_late(*given: Any) -> Any:
            if not marks:
                marks.append(None)
                marks[0] = agent._join(hello).leases.of(table)
            return attach(*given)

        monkeypatch.setattr(agent, "_attach", attach_late)
        agent._join(hello)
        assert table.native.owns_session(*marks[0])


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


@pytest.mark.parametrize("how", HOW)
def test_an_older_agent_is_named(far: di_store.Store, table: di_store.Table, monkeypatch: Any, how: str) -> None:
    client = table._backend.session.channel.client  # type: ignore[attr-defined]
    monkeypatch.setattr(client, "protocol", 2 if how == "table" else 4)
    with pytest.raises(LayoutMismatch, match="update the agent"):
        drawn(far, how)
    assert leased(table) == 0
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
        ("draw", {"n": 1, "lease": -1, "loader": 7, "turn": 1, "ours": [], "now": True}),
    ],
)
def test_odd_messages_are_refused(table: di_store.Table, call: str, given: dict[str, Any]) -> None:
    """Of a client that is not ours; its connection goes on."""
    draw = {"draws": 9_999, "mixture": 0, "min_n": None, "linger": None, "beta": None, "columns": None, "replace": True}
    arguments = {**(draw if call in ("sample", "draw") else {}), "timeout": 1.0, **given}
    backend: Any = table._backend
    with pytest.raises((ValueError, TypeError, di_store.StoreError)):
        backend.session.channel.call(call, arguments, target=backend.target)
    assert leased(table) == 0
    assert table.ack(take(table, 1)) == 1
