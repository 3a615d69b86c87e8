"""The connection of a remote writer, whose threads use it in turn: the same code with messages made up here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from di_store.client.writer_calls import Outgoing
from di_store.client.writer_connection import WriterConnection
from di_store.protocol.connection import Connection, Message
from di_store.protocol.frame import Kind


class Messages:
    """Numbered messages to send; nothing is received, and no other connection is made."""

    def __init__(self, *numbers: int) -> None:
        self.left = list(numbers)

    def open(self, tick: Callable[[], None]) -> Connection | None:
        return None

    def next_message(self) -> Outgoing | None:
        return Outgoing(Kind.APPEND, self.left.pop(0), b"", []) if self.left else None

    def take(self, message: Message) -> None:
        raise AssertionError("nothing is received")

    def lost(self, error: Exception) -> None:
        pass


@pytest.fixture
def connection() -> Iterator[Connection]:
    ours, other = socket.socketpair()
    with ours, other:
        yield Connection(ours)


def shared(connection: Connection, messages: Messages) -> WriterConnection:
    """A writer's connection, without its own thread."""
    made = WriterConnection(SimpleNamespace(release=Connection.close), messages)  # type: ignore[arg-type]
    made._connection = connection
    return made


@pytest.mark.parametrize("what", ["is_ready", "send"])
def test_a_descriptor_is_not_closed_under_the_thread_that_uses_it(
    what: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number may be that of another socket at once, from which the thread would read."""
    used, go_on = threading.Event(), threading.Event()
    whole = getattr(connection, what)

    def slow(*given: Any, **more: Any) -> Any:
        used.set()
        assert go_on.wait(60)
        return whole(*given, **more)

    monkeypatch.setattr(connection, what, slow)
    both = shared(connection, Messages(1))
    use: Callable[[], object] = both.pump if what == "send" else lambda: both.read(60, None)
    other = threading.Thread(target=use, daemon=True)
    other.start()
    assert used.wait(60)
    for end in (both.tear, lambda: both.close(RuntimeError("closed"))):
        end()
        assert both.step()
        assert connection.fileno() != -1
    go_on.set()
    other.join()
    assert not both.step()
    assert connection.fileno() == -1


def test_a_signal_handler_sends_nothing_before_the_message_that_was_chosen(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between a message's choice and its sending, and has the turn of the interrupted thread."""
    sent: list[int] = []
    messages = Messages(1, 2)
    both, chosen = shared(connection, messages), messages.next_message

    def interrupted() -> Outgoing | None:
        found = chosen()
        if len(messages.left) == 1:
            assert both.is_inside()
            both.pump()
        return found

    monkeypatch.setattr(messages, "next_message", interrupted)
    monkeypatch.setattr(connection, "send", lambda kind, request, meta, body: sent.append(request))
    both.pump()
    assert sent == [1, 2]
    assert not both.is_inside()
