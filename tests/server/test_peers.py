"""What an agent keeps for a client whose connections have broken, and for how long."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import pickle
import signal
import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from cluster.served import TOKEN, agent_here, greeted, port_of
from pains import until

import di_store
from di_store.base.errors import DrawsLost
from di_store.client.sessions import Credentials
from di_store.cluster.session_pool import SessionPool
from di_store.protocol import values
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import decoded
from di_store.replay.sampling import Terms, copied
from di_store.replay.serving import source_of
from di_store.server.draws import HeldBatch, HeldDraws


def test_a_repeated_call_is_executed_once() -> None:
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


def insert(request: int, may_repeat: list[int], connection: Connection, timeout: float = 30) -> None:
    """Send an insert that must not be done twice."""
    size, body = values.packed({"value": {"x": 1.0}, "priority": None, "timeout": timeout})
    meta = msgspec.msgpack.encode(values.Call("insert", "t", True, None, size, "", may_repeat))
    connection.send(Kind.CALL, request=request, meta=meta, body=body)


def answer(connection: Connection) -> list[int]:
    """The keys that an insert is answered with."""
    while (message := connection.receive()).kind == Kind.WAITING:
        pass
    found: list[int] = values.value_of(message).tolist()
    return found


def test_a_repeated_call_waits_for_the_running_one() -> None:
    """The connection broke on the client's side only: the agent makes the call, and it comes once more."""
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        table = store.create_table("t", capacity=9, limiter=di_store.Queue(1))
        table.insert({"x": 0.0})
        connections = [greeted(port_of(agent), link=b"x" * 16)[0] for _ in range(2)]
        insert(7, [7], connections[0])
        assert connections[0].receive().kind == Kind.WAITING
        insert(7, [7], connections[1])
        connections[1].until = time.monotonic() + 20
        waiting = ""
        while "over a connection that broke" not in waiting:
            if meta := connections[1].receive().meta:
                waiting = decoded(values.Waiting, meta).reason
        table.sample(1)
        keys = [answer(connection) for connection in connections]
        assert keys == [table.keys().tolist()] * 2
        for connection in connections:
            connection.close()


def test_answers_are_kept_while_they_may_be_requested() -> None:
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        table = store.create_table("t", capacity=1000)
        connection, _ = greeted(port_of(agent), link=b"x" * 16)
        keys = []
        for request in range(1, 301):
            insert(request, list(range(1, request + 1)), connection)
            keys.append(answer(connection))
        for request in (300, 1):
            insert(request, [1, 300], connection)
            assert answer(connection) == keys[request - 1]
        assert len(table) == 300
        insert(301, [1, 301], connection)
        answer(connection)
        (peer,) = agent._peers.values()
        assert len(peer.answers) == 2, "the others will not be asked for"
        connection.close()


def test_a_client_reports_received_answers() -> None:
    with (
        di_store.open(memory="64MiB") as store,
        agent_here(store) as agent,
        di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far,
    ):
        table = far.create_table("t", capacity=1000)
        for n in range(100):
            table.insert({"x": n})
        (peer,) = agent._peers.values()
        assert len(peer.answers) == 1


def test_handles_dropped_by_a_client_are_freed() -> None:
    """Mixtures, followers of keys, and loaders, with the next call."""
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        store.create_table("t", capacity=9, sampler=di_store.Once(1)).extend({"x": np.arange(9)})
        store.create_table("u", capacity=9).extend({"x": np.arange(9)})
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            table, mixture = far.table("t"), far.mix({"u": 1})
            keys, loader = table.evicted(), table.loader(2, prefetch=1)
            next(loader)
            (peer,) = agent._peers.values()
            assert len(peer.handles) == 2
            assert len(peer.draws) == 1
            del mixture, keys, loader
            gc.collect()
            until(lambda: not far.contains("00" * 20) and not len(peer.handles), "the agent to free them")
            until(lambda: not len(peer.draws), "the loader's draws to be given back")


def test_another_store_at_the_address_of_an_old_one_is_told_from_it() -> None:
    """Whatever its name, if the address names none: who knows the old one begins anew, as nodes of a cluster do."""
    pool = SessionPool(Credentials(TOKEN))
    with di_store.open(memory="64MiB") as old, agent_here(old) as agent:
        address, port = f"di-store://{agent.address}", port_of(agent)
        far, named = (di_store.connect(each, token=TOKEN) for each in (address, f"{address}/{old.name}"))
        ref, again = far.put(1), named.put(2)
        assert pool.session(address, 60).channel.welcome.store == old.name
    with di_store.open(memory="64MiB") as new, agent_here(new, port=port):
        assert pool.greeted(address, 60).channel.welcome.store == new.name
        with pytest.raises(di_store.StoreClosed, match=rf"store '{old.name}' at .* was replaced by a new one"):
            far.get(ref)
        with pytest.raises(di_store.StoreNotFound, match=rf"serves store '{new.name}', not '{old.name}'"):
            named.get(again)
        for each in (far, named, pool):
            each.close()


def test_handles_of_one_process_share_one_client() -> None:
    """Those of the same address, token and options; a forked child is another one."""
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        far = di_store.connect(f"di-store://{agent.address}", token=TOKEN)
        os.environ["DI_STORE_TOKEN"] = TOKEN
        try:
            handles = [pickle.loads(pickle.dumps(far)) for _ in range(20)]
        finally:
            del os.environ["DI_STORE_TOKEN"]
        assert [each.put(n) is not None for n, each in enumerate(handles)] == [True] * 20
        assert len(agent._peers) == 1
        trusting = di_store.connect(f"di-store://{agent.address}", token=TOKEN, allow_pickle=True)
        assert len(agent._peers) == 2
        trusting.close()
        far.close()
        with pytest.raises(di_store.StoreClosed):
            far.put(1)
        assert handles[3].get(handles[0].put("others go on")) == "others go on"
        child = mp.get_context("fork").Process(target=_put_and_wait, args=(handles[1],))
        child.start()
        until(lambda: len(agent._peers) == 2, "the child to be known as another client")
        child.kill()
        child.join(60)
        for each in handles:
            each.close()
        until(lambda: not agent._peers, "the agent to forget them")


def test_draws_that_a_loader_does_not_name_are_given_back() -> None:
    """Its call was interrupted: it never heard of them, or gave them up while they were made."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=9, limiter=di_store.Queue(9), schema={"x": di_store.Spec((), "i8")})
        table.extend({"x": np.arange(9)})
        held, source = HeldDraws(), source_of(table, None)

        def drawn() -> HeldBatch:
            draws = source.begin(2)
            draws.draw(Terms(2, 0))
            return HeldBatch(draws, source=1)

        assert held.known(1, 1, [5]) == []
        held.hold(5, drawn())
        assert len(held.known(1, 2, [5, 6])) == 1
        late = drawn()
        assert len(table) == 5
        held.known(1, 4, [7])
        assert len(table) == 7, "the fifth are given back"
        with pytest.raises(DrawsLost):
            held.hold(6, late)
        assert len(table) == 9, "and so are the sixth, which were made too late"
        held.known(1, 3, [6])
        held.hold(7, drawn())
        assert len(held) == 1, "an older word comes late, and changes nothing"
        held.let_go(1)
        assert (len(held), len(table)) == (0, 9)


class Overtaken:
    """Draws whose client was silent for long: just as it delivers them, another thread gives back all that it holds."""

    def __init__(self, held: HeldDraws, draws: Any) -> None:
        self.held, self.draws, self.given_back = held, draws, -1

    def deliver(self) -> None:
        def give_back() -> None:
            self.given_back = self.held.give_back_all()

        thread = threading.Thread(target=give_back)
        thread.start()
        thread.join()
        self.draws.deliver()

    def give_back(self) -> None:
        self.draws.give_back()


def test_draws_are_delivered_or_given_back() -> None:
    """By one of two threads: the other one finds nothing. A delivery that failed leaves them held."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=9, limiter=di_store.Queue(9), schema={"x": di_store.Spec((), "i8")})
        table.extend({"x": np.arange(9)})
        held, draws = HeldDraws(), source_of(table, None).begin(2)
        draws.draw(Terms(2, 0))
        overtaken = Overtaken(held, draws)
        held.hold(5, HeldBatch(overtaken))  # type: ignore[arg-type]
        held.deliver(5)
        assert (overtaken.given_back, len(held), len(table)) == (0, 0, 7)
        with pytest.raises(DrawsLost):
            held.deliver(5)

        lost = source_of(table, None).begin(2)
        lost.draw(Terms(2, 0))
        held.hold(6, HeldBatch(lost))
        found = held.of(6)
        assert held.give_back_all() == 1
        assert len(table) == 7
        for late in (lambda: copied(found.draws, None, None), found.draws.deliver):
            with pytest.raises(DrawsLost, match="given back"):
                late()
        held.hold(7, found)
        with pytest.raises(DrawsLost, match="given back"):
            held.deliver(7)
        assert len(held) == 1, "what could not be delivered is held as before"


def _put_and_wait(store: di_store.Store) -> None:
    store.put(2)
    signal.pause()
