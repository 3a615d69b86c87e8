"""One conversation of an agent, without its process: what else is said while a call sends much."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import di_store
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.protocol.values import call_of
from di_store.server.conversation import Conversation
from di_store.server.peer import Peer

VALUE = np.random.default_rng(0).integers(0, 255, 32 << 20, dtype=np.uint8)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with di_store.open(memory="256MiB") as store:
        yield Peer(bytes(16), "test", store._backend.session, trusted=False, parts=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1 << 20, 32 << 20])
def test_no_other_message_is_sent_within_a_payload(peer: Peer, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What agents say of calls that are at work would lie between the pieces, or within one."""
    monkeypatch.setattr("di_store.server.conversation.TELL_WORKING_SECONDS", 0.0)
    ref = peer.store.put(VALUE[:size])
    here, there = map(Connection, socket.socketpair())
    there.most_bytes = here.most_bytes = 1 << 30
    talk = Conversation(here, peer, list, lambda: None)
    ended = threading.Event()

    def tell() -> None:
        while not ended.is_set():
            talk.tell_working()

    def answer() -> None:
        try:
            talk.make(here.receive())
        finally:
            ended.set()

    threads = [threading.Thread(target=answer), threading.Thread(target=tell)]
    meta, body = call_of("copy_payload", "", {"id": bytes(ref), "timeout": 0, "bytes": size}, once=False)
    there.send(Kind.CALL, request=1, meta=meta, body=body)
    for each in threads:
        each.start()
    try:
        while not (message := there.receive()).flags:
            assert message.kind == Kind.WAITING
        found, at = np.zeros(size, np.uint8), 0
        while at < size:
            at += there.receive_piece(found[at:])
        assert there.receive().kind == Kind.ANSWER
        assert np.array_equal(found, VALUE[:size])
    finally:
        there.close()
        for each in threads:
            each.join()
        here.close()
