"""The agent's calls for the weights of its group: calls of its own machine and of other agents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from di_store.base import config
from di_store.base.errors import ObjectNotFound, OldEpoch, StoreError
from di_store.broadcast.chain import Chain, LocalState
from di_store.broadcast.note import check_addresses, note_of
from di_store.broadcast.other_agents import OtherAgents
from di_store.broadcast.pulling import pull
from di_store.broadcast.record import BroadcastRecord, Known
from di_store.broadcast.serving import serve
from di_store.broadcast.telling import Telling
from di_store.objects.weights import check_own_name
from di_store.protocol.connection import Connection
from di_store.runtime.waits import logger
from di_store.session import Session

_MOST = 2**62


class Chains:
    """All names of one agent. Thread-safe."""

    def __init__(self, session: Session, agents: OtherAgents, own: str) -> None:
        """Set the state; starts no thread.

        Args:
            session: session of the agent; all chains end with it.
            agents: the other agents of the group.
            own: address of this agent, as others reach it.
        """
        self._local = LocalState(session, BroadcastRecord(session), agents, own)
        self._lock = threading.Lock()
        self._chains: dict[str, tuple[Chain, Telling]] = {}  # grows under _lock; never shrinks

    def start(self) -> None:
        """Continue the previous agent's work in a thread, which may have to wait for a lock of the store."""
        threading.Thread(target=self._take_up, name="di-store spread", daemon=True).start()

    def _take_up(self) -> None:
        try:
            for name, known in self._local.record.read().items():
                if known.own and known.told:
                    self._of(name)[1].tell(known.told, known.own, first=True)
                if known.chain:
                    self._ask(name)
        except (StoreError, RuntimeError) as error:
            if not self._local.stopped.is_set():
                logger.warning("the agent cannot read which weights it has to send and to fetch: %s", error)

    def stop(self) -> None:
        """End all threads, soon."""
        self._local.stopped.set()
        with self._lock:
            every = list(self._chains.values())
        for chain, telling in every:
            telling.wake()
            with chain.changed:
                chain.changed.notify_all()

    def _of(self, name: str) -> tuple[Chain, Telling]:
        with self._lock:
            found = self._chains.get(name)
            if found is None:
                chain = Chain(self._local, name)
                found = self._chains[name] = chain, Telling(chain)
            return found

    def _ask(self, name: str) -> None:
        chain = self._of(name)[0]
        chain.ask()
        chain.begin(pull)

    # -- calls of this machine ----------------------------------------------------------------------------------

    def spread(
        self, name: Any, version: Any, keep: Any, epoch: Any, members: Any, own: Any = None, joins: Any = None
    ) -> int:
        """Send a version that was published here to all members. Returns at once: how many have joined so far.

        Args:
            name: name of the weights.
            version: a version in the store; a newer one is sent in its place.
            keep: number of newest versions that stay readable at the members.
            epoch: epoch of this publisher. A later publisher of the name has a higher one.
            members: addresses of the other nodes, in the order of the chain. Empty: nothing is sent any more.
            own: address of this node; None: as `di-store serve` printed it.
            joins: number of joins, from the last call or `spreading`, before `members` were listed. Nodes that have
                joined since are told too. None: only the nodes in the list.

        Raises:
            OldEpoch: a later publisher is known here. ObjectNotFound: there is no such version. StoreFull: no room for
            the state that this agent's successor needs. ValueError, TypeError: other arguments.
        """
        check_own_name(name)
        number, kept = _count("version", version, 1), _count("keep", keep, 1)
        era = _count("epoch", epoch, 0)
        address = self._local.own if own is None else check_addresses([own])[0]
        others = [each for each in dict.fromkeys(check_addresses(members)) if each != address]
        listed = _MOST if joins is None else _count("joins", joins, 0)
        newest = self._local.session.arena.newest(name)
        if newest < number:
            raise ObjectNotFound(
                f"version {number} of weights {name!r} is not here; the newest is {max(newest, 0)}",
                remedy="publish it in this machine's store first",
            )

        def change(known: Known) -> Known:
            if era < known.epoch:
                raise OldEpoch(
                    f"weights {name!r}: the publisher has epoch {era}, but epoch {known.epoch} is already known here"
                )
            return Known(era, kept, [], 0, others, address, known.joined_since(listed), known.joins)

        known = self._local.record.update(name, change)
        chain, telling = self._of(name)
        chain.raise_epoch(era)
        telling.tell(known.told, address)
        return known.joins

    def joins(self, name: Any, epoch: Any, member: Any) -> None:
        """For the publisher's agent: a node follows a name from now on. The node itself asks for earlier versions.

        Args:
            name: name of the weights.
            epoch: epoch of the publisher that the node knows. The node has joined before a later publisher listed the
                members.
            member: address of the node.

        Raises:
            StoreFull: no room for the state that this agent's successor needs. ValueError, TypeError: other arguments.
        """
        check_own_name(name)
        era, address = _count("epoch", epoch, 0), check_addresses([member])[0]

        def change(known: Known) -> Known:
            if era < known.epoch:
                return known
            joined = [*(each for each in known.joined if each != address), address]
            return msgspec.structs.replace(known, joined=joined, joins=known.joins + 1)

        known = self._local.record.update(name, change)
        if known.own and known.epoch == era:  # else its members are told once this epoch has a version here
            self._of(name)[1].add(address)

    def follow(self, name: Any, sources: Any) -> None:
        """Get the newest version of a name from nodes that may have it. Returns at once. Later notes bring the rest.

        Args:
            name: name of the weights.
            sources: addresses, the publisher first if it is known; the node pulls from the last ones first. Empty:
                forget them.

        Raises:
            StoreFull: no room for the state that this agent's successor needs. ValueError, TypeError: other arguments.
        """
        check_own_name(name)
        chain = [each for each in dict.fromkeys(check_addresses(sources)) if each != self._local.own]

        def change(known: Known) -> Known:
            return msgspec.structs.replace(known, chain=chain, place=len(chain))

        self._local.record.update(name, change)
        if chain:
            self._ask(name)

    def spreading(self, name: Any) -> dict[str, Any]:
        """How far a name has spread: for people, and for the process that chooses the publisher.

        Returns: `newest` version here, `epoch`, `members`, the number of joins (`joins`), the members that have not
            taken the newest version (`missing`), `stale` (a member knows a later publisher); of the transfer into this
            node `version`, `have` bytes, `source`, and the `wanted` version after it; `asks` (the sources have not
            answered); bytes `sent` and `received` by this agent.
        """
        check_own_name(name)
        chain, telling = self._of(name)
        known = self._local.record.known(name)
        return {
            "newest": max(0, self._local.session.arena.newest(name)),
            "epoch": known.epoch,
            "members": known.told,
            "joins": known.joins,
            "missing": telling.missing,
            "stale": telling.stale,
            **chain.status(),
        }

    # -- calls of other agents ----------------------------------------------------------------------------------

    def note(self, note: Any) -> str:
        """Take a note from a publisher's agent. Returns "have", or "taken" if the version is now fetched.

        Raises:
            OldEpoch: a later publisher is known. StoreFull: no room for the state that this agent's successor needs.
        """
        found = note_of(note)
        chain, telling = self._of(found.name)
        known = self._local.record.known(found.name)
        word = chain.accept(found)
        if known.own and known.epoch < found.epoch:
            telling.tell([], known.own)  # this node was the publisher
        chain.begin(pull)
        return word

    def newest(self, name: Any) -> Any:
        """The note of the newest version that is known here, packed; None if there is none."""
        check_own_name(name)
        found = self._of(name)[0].newest()
        return None if found is None else found.packed()

    def pull(self, connection: Connection, child: bytes, name: Any, **asked: Any) -> str:
        """Serve a child, as `serving.serve`."""
        check_own_name(name)
        return serve(self._of(name)[0], connection, child, asked)


def _count(option: str, value: Any, least: int) -> int:
    return config.count(option, value, minimum=least, maximum=_MOST)


CALLS: dict[str, Callable[..., Any]] = {
    "spread": Chains.spread,
    "follow": Chains.follow,
    "joins": Chains.joins,
    "spreading": Chains.spreading,
    "note": Chains.note,
    "newest": Chains.newest,
}
"""Calls that an agent answers with a value, by name."""
