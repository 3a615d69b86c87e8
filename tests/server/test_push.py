"""Sessions and threads of an agent that copies objects ahead: none is lost, and none outlives it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from cluster.served import TOKEN, agent_here
from pains import until

import di_store
from di_store.base.errors import StoreClosed
from di_store.client.session import RemoteSession
from di_store.server.push import ObjectPush

NAMES = {"di-store ahead", "di-store copy"}


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name in NAMES]


def test_two_threads_that_connect_share_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    made, meet, connect = list[RemoteSession](), threading.Barrier(2), RemoteSession.connect

    def connect_both(*arguments: Any) -> RemoteSession:
        session = connect(*arguments)
        made.append(session)
        meet.wait(30)
        return session

    with di_store.open(memory="64MiB") as store, di_store.open(memory="64MiB") as other, agent_here(other) as agent:
        push, address = (
            ObjectPush(store._backend.session, TOKEN.encode(), None, False),
            f"di-store://{agent.address}/{other.name}",
        )
        monkeypatch.setattr(RemoteSession, "connect", connect_both)
        got = list[RemoteSession]()
        both = [threading.Thread(target=lambda: got.append(push._source(address, 30))) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert got[0] is got[1]
        assert [each.ended() for each in made].count(False) == 1
        monkeypatch.undo()
        assert push._source(address, 30) is got[0]
        push.stop()
        assert all(each.ended() for each in made)
        with pytest.raises(StoreClosed):
            push._source(address, 30)


def test_copying_threads_end_with_the_agent() -> None:
    assert not threads()
    with di_store.open(memory="64MiB") as store, di_store.open(memory="64MiB") as other, agent_here(other) as far:
        ref = store.put(b"x" * 100_000)
        with agent_here(store) as agent:
            source, member = (f"di-store://{each.address}" for each in (agent, far))
            agent._push.send(ref.raw, [member], source)
            until(lambda: other.contains(ref), "the copy")
            assert threads()
        until(lambda: len(threads()) <= 2, "the threads of the agent that told")
    until(lambda: not threads(), "the threads of the one that copied")
