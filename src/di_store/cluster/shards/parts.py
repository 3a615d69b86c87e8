"""The shards of one table, and the knowledge about them in this process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from di_store import _core
from di_store.base.errors import NodeUnavailable, StoreClosed, StoreError, Timeout
from di_store.cluster.links import LOOK_SECONDS
from di_store.cluster.shards.chances import Chances, by_node
from di_store.cluster.shards.division import MASS
from di_store.cluster.shards.routing import chosen
from di_store.cluster.shards.shard import Answers, Shard
from di_store.policy.settings import Settings
from di_store.remote.table import RemoteTable, remote_source
from di_store.remote.waiting import Deadline
from di_store.replay.ahead import Source
from di_store.replay.serving import source_of
from di_store.replay.table import Table
from di_store.runtime.waits import logger
from di_store.session import Session

T = TypeVar("T")

LOSSES = (NodeUnavailable, StoreClosed, Timeout)
"""What calls of a shard on another node raise if that node is gone, was started anew, or is stopped."""


class Parts:
    """Thread-safe.

    Attributes:
        session: of the store on this machine.
        name: of the table.
        settings: of the whole.
        by_mass: whether draws are made over all shards.
        shards: in the order of their numbers, which is that of the directory's word.
        answers: of the shards.
    """

    def __init__(
        self, session: Session, name: str, settings: Settings, draw: str, here: str, shards: list[Shard]
    ) -> None:
        """Begin.

        Args:
            session: of the store on this machine; the handle ends with it.
            name: of the table.
            settings: of the whole.
            draw: "local" or "mass".
            here: uuid of this machine's node.
            shards: all of them.
        """
        self.session = session
        self.name = name
        self.settings = settings
        self.by_mass = draw == MASS
        self.shards = shards
        self.answers = Answers(shards)
        self.key = secrets.token_bytes(8)  # tells this handle's inserts from others'
        self._here = here

    def check_open(self) -> None:
        """Raise `StoreClosed` if the store's own handle was closed."""
        self.session.arena.enter()

    def is_lost(self, shard: Shard, error: StoreError, deadline: Deadline) -> bool:
        """Whether a call has failed because the shard is gone, or does not answer. It is noted if so.

        Args:
            shard: of the call.
            error: that it has raised.
            deadline: of the shard's step of the call. If what is left does not suffice to find out, the shard is not
                lost, and a later call may know.

        Raises:
            StoreClosed: the store's own handle was closed.
        """
        self.check_open()
        if not isinstance(error, LOSSES) or shard.is_near:
            return False
        self.answers.forget()
        unreachable = isinstance(error, NodeUnavailable) and not error.may_be_done
        if not (unreachable and deadline.silence >= LOOK_SECONDS):  # else the call itself was as long a look
            # mutant: a-late-call-asks-for-another-second
            said = self.answers.newest(0.0, deadline)
            if said[shard.number] is not None or not self.answers.is_silent(shard):
                return False
        self.answers.note_silent(shard, error)
        return True

    def live(self) -> list[Shard]:
        """Those that answered the last time; all, if none did."""
        return [each for each in self.shards if not self.answers.is_silent(each)] or self.shards

    def route(self, key: bytes) -> Shard:
        """The shard for a key, among those that answer."""
        live = {shard.uuid: shard for shard in self.live()}
        return live[chosen(key, live)]

    def own(self) -> Shard:
        """The one that this process draws from: its node's, or if that has none the one that the node's uuid routes to.

        Of the latter kind another one, once it does not answer.
        """
        near = next((shard for shard in self.shards if shard.uuid == self._here), None)
        return near or self.route(bytes.fromhex(self._here))

    def near_arena(self) -> _core.Arena | None:
        """Of the shard on this machine."""
        near = next((shard for shard in self.shards if shard.is_near), None)
        return None if near is None else source_of(near.table(0), ()).arena

    def chances_here(self, deadline: Deadline | None = None) -> Chances:
        """Those of draws from one node's own shard. `deadline`: as in `Answers.last`."""
        return by_node(self.answers.last(deadline))

    def each(self, deadline: Deadline, call: Callable[[Table, Any], T]) -> list[T]:
        """What a call returns for every shard; all are called, whatever one of them raises.

        Raises:
            The first error.
        """
        found: list[T] = []
        failed: BaseException | None = None
        for shard, step in deadline.steps(sorted(self.shards, key=self.answers.is_silent)):
            try:
                found.append(shard.call(step, call))
            except (StoreError, ValueError, TypeError) as error:
                failed = failed or error
        self.answers.forget()
        if failed is not None:
            raise failed
        return found

    def call_or_skip(
        self, shard: Shard, deadline: Deadline, what: str, call: Callable[[Table, Any], T], default: T
    ) -> T:
        """What a call returns that may be made twice; `default` of a shard whose items are gone with its node.

        One that does not answer for a look is asked whether it is there, and only then given all the time.
        """
        # mutant: a-shard-that-falls-silent-is-waited-for
        left = deadline if shard.is_near else deadline.sooner(LOOK_SECONDS)
        while True:
            try:
                return shard.call(left, call)
            except StoreError as error:
                later = left is not deadline and isinstance(error, LOSSES) and deadline.left != 0
                try:
                    self.skip_lost(shard, error, what, deadline)
                    return default
                except LOSSES:
                    if not later:
                        raise
            left = deadline

    def skip_lost(self, shard: Shard, error: StoreError, what: str, deadline: Deadline) -> None:
        """Go on without a shard whose items are gone with its node. `deadline`: as in `is_lost`.

        Raises:
            `error`: that is not why it failed.
        """
        silent = self.answers.is_silent(shard)
        if not self.is_lost(shard, error, deadline):
            raise error
        if not silent:
            logger.warning(
                "%s of table %r leaves out the shard on node %s: %s", what, self.name, shard.uuid[:12], error
            )


def shard_source(table: Table, columns: object) -> Source:
    """What a loader over one shard draws from."""
    if isinstance(table, RemoteTable):
        return remote_source(table, columns)
    return source_of(table, columns)  # type: ignore[arg-type]
