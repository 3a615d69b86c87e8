"""Draws of clients: made here, sent, and delivered when the client says that it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from di_store.agent.peer import Peer
from di_store.agent.talk import Reply, Talk
from di_store.replay.batch import Batch
from di_store.replay.mixture import Mixture
from di_store.replay.sampling import Terms, copied
from di_store.replay.serving import source_of, uses_items_up
from di_store.replay.table import Table
from di_store.wire.batches import pack_batch
from di_store.wire.frame import Kind
from di_store.wire.values import answer_of


def _drawn(peer: Peer, target: str, mixture: int) -> Table | Mixture:
    return peer.mixture(mixture) if mixture else peer.table(target)


def _reply(talk: Talk, batch: Batch, draws: int = 0) -> Reply:
    meta, body = pack_batch(batch, draws=draws, told=talk.warned())
    return Kind.ANSWER, meta, body


def _sample(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    """Draw, and send. Where draws use items up they are delivered by a call of the client, else at once."""
    drawn = _drawn(talk.peer, target, arguments.pop("mixture", 0))
    n, beta, columns = arguments["n"], arguments["beta"], arguments["columns"]
    if isinstance(drawn, Mixture) or not uses_items_up(drawn):
        return _reply(talk, drawn.sample(**arguments))
    source = source_of(drawn, columns)
    source.check_replace(n, arguments["replace"])
    source.begin_loading(n)
    draws = source.begin(n)
    terms = Terms(n, arguments["timeout"], arguments["min_n"], arguments["linger"], replace=arguments["replace"])
    draws.draw(terms)
    number = talk.peer.hold(draws, talk, None)
    try:
        batch = copied(draws, source.beta() if beta is None else beta, None)
    except BaseException:
        talk.peer.give_back(number)
        raise
    return _reply(talk, batch, number)


def _peek(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    return _reply(talk, talk.peer.table(target).peek(arguments["keys"], columns=arguments["columns"]))


def _draw(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    """Make the draws of a loader's batch. Answers with their number and count; number 0: not now."""
    source = source_of(_drawn(talk.peer, target, arguments["mixture"]), arguments["columns"])
    source.begin_loading(arguments["n"])
    draws = source.begin(arguments["n"])
    terms = Terms(arguments["n"], arguments["timeout"], replace=arguments["replace"], now=arguments["now"])
    own = [held for number in arguments["ours"] if (held := talk.peer.draws.get(number)) is not None]
    terms.ours = lambda handle: sum(held.draws.counts().get(handle, 0) for held in own)
    made = draws.draw(terms)
    found = [talk.peer.hold(draws, None, source.beta()), draws.held, draws.least_bytes()] if made else [0, 0, 0]
    return (Kind.ANSWER, *answer_of(found, talk.warned()))


def _check_loader(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    source = source_of(_drawn(talk.peer, target, arguments["mixture"]), arguments["columns"])
    source.check_replace(arguments["n"], arguments["replace"])
    source.begin_loading(arguments["n"])
    return _done(talk)


def _gather(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    """Copy a batch whose draws are held, and send it."""
    held = talk.peer.held(arguments["draws"])
    return _reply(
        talk,
        copied(held.draws, held.beta if arguments["beta"] is None else arguments["beta"], None),
        arguments["draws"],
    )


def _deliver(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    number = arguments["draws"]
    talk.peer.held(number).draws.deliver()
    talk.peer.draws.pop(number, None)
    return _done(talk)


def _give_back(talk: Talk, target: str, arguments: dict[str, Any]) -> Reply:
    talk.peer.give_back(arguments["draws"])
    return _done(talk)


def _done(talk: Talk) -> Reply:
    return (Kind.ANSWER, *answer_of(None, talk.warned()))


BATCH_CALLS: dict[str, Callable[[Talk, str, dict[str, Any]], Reply]] = {
    "sample": _sample,
    "peek": _peek,
    "check_loader": _check_loader,
    "draw": _draw,
    "gather": _gather,
    "deliver": _deliver,
    "give_back": _give_back,
}
