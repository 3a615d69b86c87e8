"""Draws of clients: made here, sent, and delivered when the client confirms that it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from di_store.protocol.batches import pack_batch
from di_store.protocol.frame import Kind
from di_store.replay.batch import Batch
from di_store.replay.lease import lease_seconds
from di_store.replay.mixture import Mixture
from di_store.replay.sampling import Terms, copied
from di_store.replay.serving import source_of, uses_items_up
from di_store.replay.table import Table
from di_store.server.answers import Reply
from di_store.server.draws import HeldBatch
from di_store.server.peer import Peer
from di_store.server.talk import Talk, said

Target = tuple[str, str]
"""Name and identity of a table: several tables in turn may have had the name."""


def _drawn(peer: Peer, target: Target, mixture: int) -> Table | Mixture:
    return peer.handles.mixture(mixture) if mixture else peer.handles.table(*target)


def _reply(talk: Talk, batch: Batch, draws: int = 0) -> Reply:
    meta, body = pack_batch(batch, draws=draws, told=talk.warned())
    return Kind.ANSWER, meta, body


def _sample(talk: Talk, target: Target, arguments: dict[str, Any]) -> Reply:
    """Draw, and send. Draws that use items up or lease them are delivered by a call of the client, others at once."""
    number, lease = arguments.pop("draws"), arguments.pop("lease", None)
    drawn = _drawn(talk.peer, target, arguments.pop("mixture"))
    n, beta, columns = arguments["n"], arguments["beta"], arguments["columns"]
    if lease is None and not uses_items_up(drawn):
        return _reply(talk, drawn.sample(**arguments))
    terms = Terms(n, arguments["timeout"], arguments["min_n"], arguments["linger"], replace=arguments["replace"])
    terms.short = arguments["min_n"] is None
    _lend(talk.peer, terms, lease)
    source = source_of(drawn, columns)
    source.check(terms)
    source.begin_loading(n)
    draws = source.begin(n)
    draws.draw(terms)
    talk.peer.draws.hold(number, HeldBatch(draws, owner=talk))
    try:
        batch = copied(draws, source.beta() if beta is None else beta, None)
    except BaseException:  # nobody else knows of these draws yet
        talk.peer.draws.let_go(number)
        raise
    return _reply(talk, batch, number)


def _lend(peer: Peer, terms: Terms, lease: Any) -> None:
    """Have the draw make a lease, which the client's session holds. `lease`: its seconds; None: it makes none."""
    terms.lease = lease_seconds(lease)
    if lease is not None:
        terms.lends = peer.leases.of


def _peek(talk: Talk, target: Target, arguments: dict[str, Any]) -> Reply:
    return _reply(talk, talk.peer.handles.table(*target).peek(arguments["keys"], columns=arguments["columns"]))


def _draw(talk: Talk, target: Target, arguments: dict[str, Any]) -> Reply:
    """Make the draws of a loader's batch. Answers with their count and bytes; count 0: not now."""
    number, loader, held = arguments["draws"], arguments["loader"], talk.peer.draws
    own = held.known(loader, arguments["turn"], arguments["ours"])
    source = source_of(_drawn(talk.peer, target, arguments["mixture"]), arguments["columns"])
    source.begin_loading(arguments["n"])
    draws = source.begin(arguments["n"])
    terms = Terms(arguments["n"], arguments["timeout"], replace=arguments["replace"], now=arguments["now"])
    _lend(talk.peer, terms, arguments.get("lease"))
    terms.ours = lambda handle: sum(each.draws.counts().get(handle, 0) for each in own)
    if not draws.draw(terms):
        return said(talk, [0, 0])
    found = [draws.held, draws.least_bytes()]
    held.hold(number, HeldBatch(draws, beta=source.beta(), source=loader))
    return said(talk, found)


def _check_loader(talk: Talk, target: Target, arguments: dict[str, Any]) -> Reply:
    source = source_of(_drawn(talk.peer, target, arguments["mixture"]), arguments["columns"])
    source.check(Terms(arguments["n"], None, replace=arguments["replace"]))
    source.begin_loading(arguments["n"])
    return said(talk, None)


def _gather(talk: Talk, target: Target, arguments: dict[str, Any]) -> Reply:
    """Copy a batch whose draws are held, and send it."""
    held = talk.peer.draws.of(arguments["draws"])
    return _reply(
        talk,
        copied(held.draws, held.beta if arguments["beta"] is None else arguments["beta"], None),
        arguments["draws"],
    )


def _deliver(talk: Talk, target: Target, arguments: dict[str, Any]) -> Reply:
    """Deliver a batch; with `places`, deliver only the draws there and give the others back."""
    talk.peer.draws.deliver(arguments["draws"], arguments.get("places"))
    return said(talk, None)


BATCH_CALLS: dict[str, Callable[[Talk, Target, dict[str, Any]], Reply]] = {
    "sample": _sample,
    "peek": _peek,
    "check_loader": _check_loader,
    "draw": _draw,
    "gather": _gather,
    "deliver": _deliver,
}
