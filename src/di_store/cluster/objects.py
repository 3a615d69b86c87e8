"""Objects of a cluster: each lies on the node where it was put, and for a while also on nodes that read it.

A store that reads an object of another store keeps a copy under the same id (`di_store.client.copying`). If several
readers want it at once, one copies it, and the others wait until it is sealed.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import traceback
from functools import partial
from typing import Any, TypeVar

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import (
    CapacityError,
    NodeUnavailable,
    ObjectExists,
    ObjectNotFound,
    StoreClosed,
    StoreError,
    StoreFull,
    Timeout,
)
from di_store.client.bulk import ENGINE_BYTES, what
from di_store.client.channel import Seconds
from di_store.client.copying import SLOWEST_BYTES, head_of, make_copy
from di_store.client.objects import RemoteObjects
from di_store.client.session import RemoteSession
from di_store.cluster.at_once import at_once
from di_store.cluster.cluster import Cluster
from di_store.cluster.deletion import Deletion
from di_store.cluster.node import Node
from di_store.cluster.node_objects import COPIES_MARK, NodeObjects, mark_of
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.objects.access import Objects
from di_store.objects.refs import Ref
from di_store.runtime import waits
from di_store.runtime.deadline import LEAST_SECONDS, PAUSE_SECONDS, Deadline
from di_store.session import Session

T = TypeVar("T")

PATIENCE_SECONDS = 5.0
"""How long a reader waits for another one's copy at most, in addition to the time that its bytes may take."""
AGENT_SECONDS = 1.0
"""How long the agent of this machine may take to say that it is there; without it a process copies itself."""
_UNDO_SECONDS = 2.0  # that each node has to forget what could not be put everywhere
_UNDO_WAIT_SECONDS = 0.1  # how long the call waits for that after its deadline; it goes on in a thread
_SEARCH_SECONDS = 0.5  # that nodes have after the deadline to say whether they have a copy, when the home is away
_SLICE_SECONDS = 1.0  # how long a reader waits for another one's copy before it looks whether that one has died
_RETURN_SECONDS = 5.0  # how long `copies` waits for nodes that do not answer now


class ClusterObjects:
    """Implements the calls of a `ClusterStore` that concern objects. Thread-safe: it holds nothing that changes."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session
        self._here = Objects(session)
        self._nodes = NodeObjects(cluster)

    def _deletion(self) -> Deletion:
        return Deletion(self._cluster, self._session, self._nodes, self.get)

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, raw: bytes, timeout: Seconds, copy: bool | None) -> Any:
        """`Store.get` of an object that is not here, or not yet.

        Raises:
            ObjectNotFound: no node had the object in time. NodeUnavailable: its node does not answer.
        """
        deadline = Deadline.of(timeout)
        home = self._cluster.home_of(raw, deadline.left)
        if home is None:
            return self._searched(raw, deadline, copy)
        if home.uuid == self._session.uuid:
            return self._here.get(raw, deadline.left, copy)
        others = [each for each in self._cluster.last_seen() if each != home]
        soon = deadline.left is not None and deadline.left < LOOK_SECONDS
        # In a call without time, a home that is silent for a quarter of the grace is asked again after the others.
        again, search = soon and bool(others), LEAST_SECONDS if others else 0.0
        try:
            return self._from(home, raw, deadline.step(4 if again else 1, after=search, least=LEAST_SECONDS), copy)
        except (NodeUnavailable, Timeout) as error:
            _clear_frames(error)
            if not soon:
                others = [each for each in self._cluster.others() if each != home]
            rest = deadline.step(1, after=LEAST_SECONDS, least=LEAST_SECONDS).rest()
            look = _SEARCH_SECONDS if rest is None else min(rest, _SEARCH_SECONDS)
            other = self._holder(raw, others, look)
            if other is None and not again:
                raise
        return self._from(other or home, raw, deadline.another(), copy)

    def get_many(self, raws: list[bytes], deadline: Deadline, copy: bool | None) -> list[Any]:
        """`Store.get_many`: several objects under one deadline."""
        found: dict[bytes, Any] = {}
        chosen: list[bytes] = []  # not here, and their ids do not name their nodes
        arena = self._session.arena
        for raw in raws:
            if arena.contains(raw, waits.CALL_SECONDS):
                with contextlib.suppress(ObjectNotFound, StoreFull, Timeout):
                    found[raw] = arena.get(raw, copy)
            elif self._cluster.home_seen(raw) is None:
                chosen.append(raw)
        if len(chosen) > 1:
            found.update(self._present(chosen, deadline, copy))
        return [found[raw] if raw in found else self.get(raw, deadline.another(), copy) for raw in raws]

    def _present(self, raws: list[bytes], deadline: Deadline, copy: bool | None) -> dict[bytes, Any]:
        """The values of those of these objects that other nodes have now. All nodes are asked at once."""
        step = Deadline(waits.CALL_SECONDS) if deadline.left is None else deadline.another()
        others: list[Node] = []
        with contextlib.suppress(NodeUnavailable):  # then those that were seen are asked
            others = self._cluster.others()

        def ask(node: Node) -> dict[bytes, Any]:
            with contextlib.suppress(NodeUnavailable, Timeout), self._cluster.sessions.calling(node, step) as session:
                return dict(RemoteObjects(session).present(raws, step, copy))
            return {}

        found: dict[bytes, Any] = {}
        for each in at_once([partial(ask, node) for node in others or self._cluster.last_seen()], step.rest()):
            found.update(each)
            if len(found) == len(raws):  # a silent node is not waited for
                break
        return found

    def _searched(self, raw: bytes, deadline: Deadline, copy: bool | None) -> Any:
        """An object whose id does not name its node. It is not copied: a copy could not be told from the original."""
        with waits.Wait(self._session.arena, deadline.left, what(raw)) as wait:
            while True:
                if self._session.arena.contains(raw, waits.CALL_SECONDS):
                    return self._here.get(raw, deadline.left, copy)
                others = self._cluster.others()  # the directory may take a second
                rest = deadline.another().rest()
                look = LOOK_SECONDS if rest is None else min(rest, LOOK_SECONDS)
                if (node := self._holder(raw, others, look)) is not None:
                    step = deadline.another()
                    with self._cluster.sessions.calling(node, step, what(raw)) as session:
                        return RemoteObjects(session).get(raw, step, copy)
                if deadline.left == 0:
                    raise ObjectNotFound(f"no node of the cluster that answers has object {raw.hex()}")
                arena, reason = self._session.arena, "no node has it yet"
                wait.sleep(PAUSE_SECONDS, reason, arena.wait_sealed, arena.sealed_seq())

    def _holder(self, raw: bytes, nodes: list[Node], seconds: float = LOOK_SECONDS) -> Node | None:
        """One of these nodes that has the object now. Nodes that are silent for this long are skipped."""

        def ask(node: Node) -> Node | None:
            with contextlib.suppress(StoreError):
                return node if self._nodes.has(node, raw, 0) else None
            return None

        found = at_once([partial(ask, node) for node in nodes], seconds)
        return next((node for node in found if node is not None), None)

    def _from(self, node: Node, raw: bytes, deadline: Deadline, copy: bool | None) -> Any:
        """Copy the object from a node into this store, and read it here."""
        with self._cluster.sessions.calling(node, deadline, what(raw)) as session:
            return self._copied_from(session, raw, deadline, copy)

    def _copied_from(self, session: RemoteSession, raw: bytes, deadline: Deadline, copy: bool | None) -> Any:
        until: float | None = None  # when another one's copy is not waited for any more
        while True:
            head, total = head_of(session, raw, deadline)
            if self._session.readonly:
                return RemoteObjects(session).get(raw, deadline, copy)
            try:
                return self._copied(session, raw, head, total, deadline, copy)
            except (StoreFull, CapacityError):  # no room for a copy: read it into this process
                return RemoteObjects(session).get(raw, deadline, copy)
            except ObjectExists:  # another process copies it, or has
                if until is None:
                    until = time.monotonic() + _patience(total, deadline.left)
                try:
                    return self._here.get(raw, min(_SLICE_SECONDS, max(until - time.monotonic(), 0.0)), copy)
                except ObjectNotFound:
                    # It has died, or goes on, which does not count as waiting for the object; or it is stopped.
                    deadline.flowed = time.monotonic()
                    if time.monotonic() >= until:
                        return RemoteObjects(session).get(raw, deadline, copy)

    def _copied(
        self,
        session: RemoteSession,
        raw: bytes,
        head: Array,
        total: int,
        deadline: Deadline,
        copy: bool | None,
    ) -> Any:
        if len(head) < total:
            by_agent = self._cluster.engine and total >= ENGINE_BYTES
            if not (by_agent and self._copied_by_agent(session, raw, deadline)):
                make_copy(self._session, session, raw, head, total, deadline)
            return self._session.arena.get(raw, copy)
        with contextlib.suppress(StoreFull, CapacityError, ObjectExists):
            make_copy(self._session, session, raw, head, total, deadline)
        return _core.read_block(head, copy, foreign=not session.channel.allow_pickle)

    def _copied_by_agent(self, far: RemoteSession, raw: bytes, deadline: Deadline) -> bool:
        """Have the agent of this machine, which has an engine, copy the object.

        False: the agent does not copy it, or is unreachable.
        """
        try:
            own = self._cluster.sessions.greeted(self._cluster.here.address, deadline.at_most(AGENT_SECONDS))
        except (NodeUnavailable, StoreClosed, Timeout):
            return False
        arguments = {"id": raw, "source": str(far.channel.address), "timeout": deadline.left}
        try:  # not repeated: an agent that dies of it is not to be killed again
            return bool(own.call("copy_here", arguments, timeout=deadline, what=what(raw), once=True))
        except (NodeUnavailable, StoreClosed):
            return False

    # -- the other calls ----------------------------------------------------------------------------------------

    def contains(self, raw: bytes) -> bool:
        """`Store.contains`, here and where the object was put; if that node does not answer, on any other node.

        Raises:
            NodeUnavailable, Timeout: the node where it was put does not answer, and no other node has it.
        """
        home = self._cluster.home_of(raw, sure=True)
        if home is None or home.uuid == self._session.uuid:
            found = self._is_there(raw, waits.CALL_SECONDS)
            if home is None and not found and (silent := self._cluster.missing()):
                raise NodeUnavailable(f"contains: {', '.join(silent)} does not answer, and may have the object")
            return found
        if self._session.arena.contains(raw, waits.CALL_SECONDS):
            return True
        try:
            return self._nodes.patiently(home, partial(self._nodes.has, home, raw))
        except (NodeUnavailable, Timeout):
            if self._holder(raw, self._others_than(home)) is not None:
                return True
            if self._nodes.is_replaced(home):
                return False
            raise

    def _is_there(self, raw: bytes, timeout: Seconds) -> bool:
        """Whether the object is here or on the node where it was put; if this node is not known, on any node."""
        if self._session.arena.contains(raw, waits.CALL_SECONDS):
            return True
        home = self._cluster.home_of(raw)
        if home is None:
            return self._holder(raw, self._cluster.others()) is not None
        return home.uuid != self._session.uuid and self._nodes.has(home, raw, timeout)

    def _others_than(self, home: Node) -> list[Node]:
        """The other nodes of the list that was just read, without the one that does not answer."""
        return [each for each in self._cluster.last_seen() if each.uuid != home.uuid]

    def wait(self, pending: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        """`Store.wait`, if some of the objects may lie elsewhere. Objects on a silent node do not count as present."""
        deadline = Deadline(timeout)
        if all(ref.raw.startswith(self._session.arena.home) for ref in pending):
            return self._here.wait(pending, num_returns, timeout)
        there: set[Ref] = set()
        with waits.Wait(self._session.arena, timeout, f"wait for {num_returns} of {len(pending)} objects") as wait:
            while True:
                there.update(self._there([ref for ref in pending if ref not in there], num_returns - len(there)))
                if len(there) >= num_returns or deadline.left == 0:
                    done = dict.fromkeys([ref for ref in pending if ref in there][:num_returns])
                    return list(done), [ref for ref in pending if ref not in done]
                arena, reason = self._session.arena, f"{len(there)} of them are there"
                wait.sleep(PAUSE_SECONDS, reason, arena.wait_sealed, arena.sealed_seq())

    def _there(self, refs: list[Ref], wanted: int) -> set[Ref]:
        """Which of these objects are here or on other nodes.

        Other nodes are asked only if fewer than `wanted` objects are here: the nodes where objects were put, or all
        nodes for chosen ids. They are asked at once, and objects on a silent node do not count as present.
        """
        found = {ref for ref in refs if self._session.arena.contains(ref.raw, waits.CALL_SECONDS)}
        if len(found) >= wanted:
            return found
        looked = Deadline(0)
        asked = _places_of(self._cluster, [ref for ref in refs if ref not in found])
        asking = looked.another()

        def ask(node: Node, those: list[Ref]) -> None:
            with contextlib.suppress(StoreError):
                for ref in those:
                    if asking.late():
                        return
                    if ref not in found and self._nodes.has(node, ref.raw, asking.another()):
                        found.add(ref)

        list(at_once([partial(ask, *each) for each in asked.values()], asking.rest()))
        return set(found)

    def keys(self, start: Ref | None, n: int) -> list[Ref]:
        """`Store.keys`, for objects that were put here, without copies."""
        found: list[Ref] = []
        while len(found) < n and (page := self._here.keys(start, n)):
            start = page[-1]
            found += [ref for ref in page if not (self._cluster.is_elsewhere(ref.raw) or ref.raw[6:12] == COPIES_MARK)]
        return found[:n] if n else self._here.keys(start, n)

    def delete(self, raws: list[bytes]) -> int:
        """`Store.delete`: here, on the nodes where objects were put, and on the nodes of their `copies`.

        Other copies end with their lease.

        Raises:
            NodeUnavailable: some nodes were not reached; all others have deleted their objects.
        """
        return self._deletion().run(raws)

    def _enough(self, wanted: int, timeout: float | None) -> list[Node]:
        """The other nodes, after a wait of `_RETURN_SECONDS` if too few of the known ones answer."""
        deadline, returning, fresh = Deadline(timeout), Deadline(_RETURN_SECONDS), False
        while True:
            failed: NodeUnavailable | None = None
            try:
                others = self._cluster.others(fresh=fresh)
            except NodeUnavailable as error:  # those that were seen may be there all the same
                others, failed = self._cluster.last_seen(), error
            if len(others) >= wanted:
                return others
            over = deadline.left == 0
            if failed is None and (wanted >= self._cluster.count_seen() or (fresh and over) or returning.left == 0):
                return others
            if failed is not None and over:
                raise failed
            if fresh:
                deadline.pause()
            fresh = True

    def put_copies(self, ref: Ref, value: Any, copies: int, ttl: float, timeout: float | None) -> None:
        """Put the value of an object that is here on other nodes too, so that `copies` nodes have it.

        Raises:
            CapacityError: the cluster has fewer nodes. NodeUnavailable, StoreFull: one of them cannot take the copy.
        """
        deadline = Deadline(timeout)
        others = ranked(self._enough(copies - 1, deadline.left), ref.raw)
        if len(others) < copies - 1:
            raise CapacityError(
                f"copies={copies}, but only {len(others) + 1} nodes of the cluster answer",
                remedy="lower copies=, or serve the store on more nodes",
            )
        nodes = others[: copies - 1]
        marked = ref.raw.startswith(self._session.arena.home)  # else `delete` asks all nodes
        if marked:  # first, so that what was put can be found whatever happens
            self._here.put([node.uuid for node in nodes], mark_of(ref.raw), ttl, deadline.left, "memory")
        try:
            for node in nodes:
                step = deadline.another()
                with self._cluster.sessions.calling(node, step) as session:
                    RemoteObjects(session).put_many([value], [ref.raw], ttl, step, "memory")
        except BaseException:  # also Ctrl-C: all copies are put, or none
            if marked:
                self._undo_copies(ref.raw)
            raise

    def _undo_copies(self, raw: bytes) -> None:
        """Delete the copies in a thread. Waits for it only as long as it takes if all nodes answer."""

        def undo() -> None:
            with contextlib.suppress(StoreError):
                self._deletion().copies_of(raw, _UNDO_SECONDS)

        undoing = threading.Thread(target=undo, name="di-store undo", daemon=True)
        undoing.start()
        undoing.join(_UNDO_WAIT_SECONDS)


def _places_of(cluster: Cluster, refs: list[Ref]) -> dict[str, tuple[Node, list[Ref]]]:
    """By uuid: the other nodes that may have these objects, and which ones.

    These are their homes; for chosen ids, all nodes.
    """
    places: dict[str, tuple[Node, list[Ref]]] = {}
    others: list[Node] = []
    if any(cluster.home_seen(ref.raw) is None for ref in refs):
        with contextlib.suppress(NodeUnavailable):  # then those that were seen are asked
            others = cluster.others()
        others = others or cluster.last_seen()
    for ref in refs:
        home = cluster.home_seen(ref.raw)
        for node in others if home is None else [home]:
            if node.uuid != cluster.here.uuid:
                places.setdefault(node.uuid, (node, []))[1].append(ref)
    return places


def _patience(total: int, left: float | None) -> float:
    """The time that a reader waits for another reader's copy of this many bytes before it reads them itself.

    The copying process may be stopped, so the time is at most half of the seconds `left`, and the time that the bytes
    may take.
    """
    return (PATIENCE_SECONDS if left is None else min(PATIENCE_SECONDS, left / 2)) + total / SLOWEST_BYTES


def _clear_frames(error: BaseException) -> None:
    """Free the unsealed copy of a failed attempt: the next attempt would wait for it as for another process's copy."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__context__


def ranked(nodes: list[Node], raw: bytes) -> list[Node]:
    """The nodes in the order in which they get copies of an object: the same everywhere (rendezvous hashing)."""
    return sorted(nodes, key=lambda node: hashlib.blake2b(bytes.fromhex(node.uuid) + raw, digest_size=8).digest())
