"""The part of a conversation for calls with answers of their own form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.protocol.values import answer_of
from di_store.server.answers import Reply
from di_store.server.peer import Peer


class Talk(Protocol):
    """The conversation (`Conversation`)."""

    connection: Connection
    peer: Peer
    warned: Callable[[], list[str]]

    def go_on(self) -> Connection:
        """Tell the client to send the data that it announced; returns the connection to read them from."""

    def take_over(self) -> Connection:
        """The connection, for a call that reports its own progress. No other thread sends before the call's answer."""


def said(talk: Talk, value: Any) -> Reply:
    """The answer to a call that has returned a value."""
    return (Kind.ANSWER, *answer_of(value, talk.warned()))
