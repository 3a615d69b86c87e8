"""Weights of a group: one process publishes, and the stores of all member nodes get each version.

The directory lists the members and the publisher. The agents carry the bytes (`di_store.broadcast`), so `latest` reads
the store of its own machine and never waits for another one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from di_store import _core
from di_store.base.errors import NodeUnavailable, OldEpoch, StoreError, Timeout
from di_store.broadcast.record import BroadcastRecord, Known
from di_store.client.channel import Seconds
from di_store.client.session import RemoteSession
from di_store.cluster.at_once import at_once
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import Owner, packed, unpacked
from di_store.cluster.members import check_group, join, members
from di_store.cluster.node import Node
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.objects.access import written
from di_store.objects.weights import Published, Weights, check_own_name
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child
from di_store.runtime.waits import logger
from di_store.session import Session

MEMBERS_SECONDS = 1.0
"""How old a publisher's list of the members may be; and how long it goes on without a directory that did not answer."""
JOINED_SECONDS = 10.0
"""How often a member looks whether the directory knows it, and asks for what it may have missed."""
SOON_SECONDS = 2.0
"""The same, if the directory or the publisher's agent did not answer."""
_NEWEST_SECONDS = 1.0  # a node that does not answer is passed over


class _Claim:
    """The right of this process to publish under a name. Used under the name's lock of `GroupWeights`."""

    def __init__(self, owner: Owner, members: list[Node], joins: int, least: int) -> None:
        self.owner = owner
        self.members = members
        self.joins = joins  # how many had joined before `members` were listed, as the agent counts
        self.joins_heard = joins  # the same, as it last said
        self.least = least  # the first version is above what others have published
        self.listed = time.monotonic()  # when `members` were
        self.away = float("-inf")  # when the directory last did not answer


class _Joining:
    """Makes this node a member of a group and keeps it one; one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = float("-inf")  # when the directory is asked again; infinity while a thread does. Under `_lock`
        self.told = ""  # the publisher whose agent knows that this node follows. Of the thread
        self.owner: Owner | None = None  # who publishes, as the directory last said
        self.done = threading.Event()  # the first time

    def is_due(self) -> bool:
        """Whether the directory is to be asked now, by the caller."""
        with self._lock:
            due = time.monotonic() > self._next
            if due:
                self._next = float("inf")
            return due

    def end(self, well: bool) -> None:
        """Called when the asking thread has ended; `well`: all nodes have answered."""
        with self._lock:
            self._next = time.monotonic() + (JOINED_SECONDS if well else SOON_SECONDS)
        self.done.set()


class GroupWeights:
    """Implements ``publish(group=)`` and ``latest(group=)`` of a `ClusterStore`. Thread-safe."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session
        self._weights = Weights(session)
        self._record = BroadcastRecord(session)  # of the agent of this machine
        self.begin()
        in_child(self, GroupWeights.begin)

    def begin(self) -> None:
        """Set the initial state, also in a forked child, which publishes again: the parent may hold locks."""
        self._publishing: dict[str, threading.Lock] = {}  # by name, one at a time: versions are told in their order
        self._claims: dict[str, _Claim] = {}  # by name, once a version was published; under its lock of `_publishing`
        self._joined: dict[tuple[str, str], _Joining] = {}

    # -- publishing ---------------------------------------------------------------------------------------------

    def publish(self, name: str, tree: Any, keep: int, group: str, deadline: Deadline, durability: str) -> int:
        """Publish here, and have the agent of this machine send it to the members.

        Raises:
            StoreError: another process publishes under this name now. NodeUnavailable: the directory does not answer at
            the first version, or the agent of this machine does not. ValueError: the name belongs to another group.
        """
        check_group(group)
        self._session.writable()
        with self._turn(name, deadline):
            while True:
                claim = self._claim(group, name, deadline)
                version = self._publish(name, tree, keep, claim, deadline.left, durability)
                try:
                    claim.joins_heard = self._spread(name, version, keep, claim, deadline)
                except OldEpoch:  # of processes that begin at the same time, the one whose version comes last goes on
                    if name in self._claims or deadline.left == 0:
                        raise _replaced(name) from None
                    continue
                self._claims[name] = claim
                return version

    @contextlib.contextmanager
    def _turn(self, name: str, deadline: Deadline) -> Iterator[None]:
        """One thread of this process at a time publishes under a name.

        Raises:
            Timeout: another thread still publishes at the deadline.
        """
        lock, rest = self._publishing.setdefault(name, threading.Lock()), deadline.rest()
        if not lock.acquire(timeout=-1.0 if rest is None else rest):
            what = f"publish of {name!r} timed out after {deadline.timeout:g} s"
            raise Timeout(what, "another thread of this process publishes under the name")
        try:
            yield
        finally:
            lock.release()

    def _spread(self, name: str, version: int, keep: int, claim: _Claim, deadline: Deadline) -> int:
        """Have the agent send a version; returns the number of joins so far."""
        arguments = {
            "name": name,
            "version": version,
            "keep": keep,
            "epoch": claim.owner.epoch,
            "members": [each.address for each in claim.members],
            "own": self._cluster.here.address,
            "joins": claim.joins,
        }
        step, what = deadline.another(), f"publish of {name!r}"
        return int(self._agent(step).call("spread", arguments, timeout=step, what=what))

    def check_alone(self, name: Any) -> None:
        """Check that weights of this name may be published without a group.

        Otherwise two nodes could have different values of one version.

        Raises:
            ValueError: this node knows that the weights belong to a group.
        """
        if isinstance(name, str) and self._record.known(name) != Known():
            raise ValueError(f"weights {name!r} belong to a group of nodes: give group=, or publish under another name")

    def _publish(self, name: str, tree: Any, keep: int, claim: _Claim, timeout: float | None, durability: str) -> int:
        if claim.least <= self._session.arena.newest(name) or durability == "disk" or tree is None:
            return self._weights.publish(name, tree, keep, timeout, durability)
        publish = partial(_publish_above, name, tree, keep, claim.least + 1)
        return written(self._session, timeout, f"publish of {name!r}", publish)

    def _claim(self, group: str, name: str, deadline: Deadline) -> _Claim:
        """The right of this process to publish.

        It is checked before each version, because a refused version must not be visible.
        """
        claim, now = self._claims.get(name), time.monotonic()
        if claim is None:
            return self._first_claim(group, name, deadline)
        _check_of_group(name, claim.owner, group)
        if now - claim.away > MEMBERS_SECONDS:
            try:
                self._check(claim, name, deadline)
                if now - claim.listed > MEMBERS_SECONDS:
                    joins, listed = claim.joins_heard, self._members(group, deadline.another(), fresh=True)
                    claim.members, claim.joins, claim.listed = listed, joins, now
            except NodeUnavailable as error:  # the members that are known go on getting versions
                logger.warning("publish of %r: %s", name, error.message)
                claim.away = time.monotonic()
        return claim

    def _check(self, claim: _Claim, name: str, deadline: Deadline) -> None:
        """Raise if another process has taken the name over."""
        look = deadline.another().sooner(LOOK_SECONDS)  # it must not wait for a dead one for long
        stored = self._cluster.directory.read(_owner_key(name), look)
        if stored is None:  # the directory is a new one
            self._cluster.directory.swap(_owner_key(name), None, packed(claim.owner), deadline.another())
        elif unpacked(stored, Owner) != claim.owner:
            raise _replaced(name)

    def _first_claim(self, group: str, name: str, deadline: Deadline) -> _Claim:
        directory = self._cluster.directory
        while True:
            stored = directory.read(_owner_key(name), deadline.another())
            before = None if stored is None else unpacked(stored, Owner)
            if before is not None:
                _check_of_group(name, before, group)
            step, what = deadline.another(), f"publish of {name!r}"
            known = self._agent(step).call("spreading", {"name": name}, timeout=step, what=what)
            epoch = max(known["epoch"], 0 if before is None else before.epoch) + 1
            after = Owner(self._session.uuid, epoch, group)
            if directory.swap(_owner_key(name), stored, packed(after), deadline.another()):
                members = self._members(group, deadline.another(), fresh=True)
                others = [] if before is None else self._owner(before, deadline.another())
                return _Claim(after, members, known["joins"], self._newest_of([*others, *members], name, deadline))

    def _newest_of(self, nodes: list[Node], name: str, deadline: Deadline) -> int:
        """The newest version that any of these nodes has. All are asked at once; silent nodes are skipped."""

        def newest(node: Node) -> int:
            step = deadline.another().sooner(_NEWEST_SECONDS)
            try:
                session = self._cluster.sessions.of(node, step)
                found = session.call("spreading", {"name": name}, timeout=step, what=f"publish of {name!r}")
                return int(found["newest"])
            except StoreError:
                return 0

        every = {each.uuid: each for each in nodes}.values()
        return max(at_once([partial(newest, each) for each in every]), default=0)

    # -- reading ------------------------------------------------------------------------------------------------

    def latest(
        self, name: str, newer_than: int | None, version: int | None, timeout: float | None, group: str
    ) -> Published | None:
        """`Store.latest`, on a node that is a member of the group from now on.

        The first call waits at most a second until the directory knows the membership; later calls only read memory.

        Raises:
            ValueError: the directory knows that the weights of this name go to another group.
        """
        check_group(group)
        check_own_name(name)
        deadline = Deadline.given(timeout)
        self._session.arena.enter()
        joining = self._joined.setdefault((group, name), _Joining())
        while True:
            if joining.is_due():
                threading.Thread(target=self._join, args=(joining, group, name), daemon=True).start()
            joining.done.wait(LOOK_SECONDS)
            if joining.owner is not None:
                _check_of_group(name, joining.owner, group)
            found = self._weights.latest(name, newer_than, version, deadline.at_most(SOON_SECONDS))
            if found is not None or deadline.left == 0:
                return found

    def _join(self, joining: _Joining, group: str, name: str) -> None:
        """Have the directory list this node, the publisher's agent report versions, and our agent fetch the newest."""
        well = False
        try:
            well = self._ask_in(joining, group, name)
        except StoreError as error:  # an actor goes on with what it has
            if not self._session.ended():
                logger.warning("latest(%r, group=%r): %s", name, group, error.message)
        finally:
            joining.end(well)

    def _ask_in(self, joining: _Joining, group: str, name: str) -> bool:
        """Whether this node gets later versions: a later publisher lists it, and the present one was told of it."""
        join(self._cluster, group, LOOK_SECONDS)
        stored = self._cluster.directory.read(_owner_key(name), LOOK_SECONDS)
        joining.owner = None if stored is None else unpacked(stored, Owner)
        if (owner := joining.owner) is None or owner.group != group:
            return True
        nodes = self._owner(owner, LOOK_SECONDS)
        if joining.told != owner.maker and (owner.uuid == self._session.uuid or self._tell(name, owner, nodes)):
            joining.told = owner.maker
        nodes += self._members(group, LOOK_SECONDS)
        sources = {each.uuid: each.address for each in nodes}
        if sources:
            arguments = {"name": name, "sources": list(sources.values())}
            self._agent(LOOK_SECONDS).call("follow", arguments, timeout=LOOK_SECONDS, what=f"latest({name!r})")
        return joining.told == owner.maker

    def _tell(self, name: str, owner: Owner, nodes: list[Node]) -> bool:
        """Tell the publisher's agent that this node follows, because its list of members may be older."""
        arguments = {"name": name, "epoch": owner.epoch, "member": self._cluster.here.address}
        try:
            for node in nodes:
                session = self._cluster.sessions.of(node, LOOK_SECONDS)
                session.call("joins", arguments, timeout=LOOK_SECONDS, what=f"latest({name!r})")
        except StoreError as error:  # others may have the newest version
            logger.info("latest(%r): %s", name, error.message)
            return False
        return bool(nodes)

    # -- nodes --------------------------------------------------------------------------------------------------

    def _members(self, group: str, timeout: Seconds, *, fresh: bool = False) -> list[Node]:
        return members(self._cluster, group, timeout, fresh=fresh)[0]

    def _owner(self, owner: Owner, timeout: Seconds) -> list[Node]:
        node = None if owner.uuid == self._session.uuid else self._cluster.by_uuid(owner.uuid, timeout)
        return [] if node is None else [node]

    def _agent(self, timeout: Seconds) -> RemoteSession:
        return self._cluster.sessions.of(self._cluster.here, timeout)


def _owner_key(name: str) -> str:
    return f"owner/{name}"


def _publish_above(name: str, tree: Any, keep: int, least: int, arena: _core.Arena) -> int:
    """Publish as version `least`, or as the next version if there is one as new."""
    return arena.publish(name, tree, keep, least) or arena.publish(name, tree, keep)


def _check_of_group(name: str, owner: Owner, group: str) -> None:
    """ValueError if weights of this name go to another group."""
    if owner.group != group:
        raise ValueError(
            f"weights {name!r} go to group {owner.group!r} already: publish to group {group!r} under another name"
        )


def _replaced(name: str) -> StoreError:
    return StoreError(
        f"weights {name!r} are published by another process now",
        remedy="only one process publishes under a name; open the store again to take over",
    )
