"""Sessions and threads of an agent that copies objects ahead: none is lost, and none outlives it."""

from __future__ import annotations

import threading

import pytest
from cluster.served import TOKEN, agent_here
from pains import until

import di_store
from di_store.base.errors import StoreClosed
from di_store.broadcast.other_agents import OtherAgents
from di_store.client.session import RemoteSession
from di_store.client.sessions import Credentials

NAMES = ("di-store ahead", "di-store copy")


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith(NAMES)]


def test_two_threads_that_connect_share_one_session() -> None:
    meet = threading.Barrier(2)
    with di_store.open(memory="64MiB") as other, agent_here(other) as agent:
        agents, address = OtherAgents(Credentials(TOKEN)), f"di-store://{agent.address}/{other.name}"
        got = list[RemoteSession]()

        def connect() -> None:
            meet.wait(30)
            session = agents.at(address)
            session.meet(30)
            got.append(session)

        both = [threading.Thread(target=connect) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert got[0] is got[1] is agents.at(address)
        assert not got[0].ended()
        agents.close()
        assert got[0].ended()
        with pytest.raises(StoreClosed):
            agents.at(address)


def test_copying_threads_end_with_the_agent() -> None:
    assert not threads()
    with di_store.open(memory="64MiB") as store, di_store.open(memory="64MiB") as other, agent_here(other) as far:
        ref = store.put(b"x" * 100_000)
        with agent_here(store) as agent:
            source, member = (f"di-store://{each.address}" for each in (agent, far))
            agent._parts.push.send(ref.raw, [member], source)
            until(lambda: other.contains(ref), "the copy")
            assert threads()
        until(lambda: len(threads()) <= 2, "the threads of the agent that told")
    until(lambda: not threads(), "the threads of the one that copied")
