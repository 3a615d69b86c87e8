"""The calls by which weights travel from agent to agent: see `di_store.broadcast`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from di_store.base.errors import StoreError
from di_store.broadcast.chains import CALLS, Chains
from di_store.protocol.frame import Kind
from di_store.protocol.values import answer_of
from di_store.server.answers import Reply
from di_store.server.talk import Talk


def _call(method: str, talk: Talk, arguments: Any) -> Reply:
    return (Kind.ANSWER, *answer_of(CALLS[method](_chains(talk), **arguments), talk.warned()))


def _pull(talk: Talk, arguments: Any) -> Reply:
    word = _chains(talk).pull(talk.take_over(), talk.peer.link, **arguments)
    return (Kind.ANSWER, *answer_of(word, talk.warned()))


def _chains(talk: Talk) -> Chains:
    if talk.peer.chains is None:
        raise StoreError("this agent does not serve groups", remedy="di-store serve")
    return talk.peer.chains


SPREAD_CALLS: dict[str, Callable[[Talk, Any], Reply]] = {
    **{method: partial(_call, method) for method in CALLS},
    "pull": _pull,
}
