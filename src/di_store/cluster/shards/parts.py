"""The shards of one table, and this process's knowledge of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from di_store.base.errors import NodeUnavailable, StoreClosed, StoreError, Timeout
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.cluster.shards.division import MASS
from di_store.cluster.shards.probabilities import Probabilities, by_node
from di_store.cluster.shards.routing import chosen
from di_store.cluster.shards.shard import Shard, ShardReports
from di_store.policy.settings import Settings
from di_store.replay.handle import TableHandle
from di_store.replay.local_table import LocalTable
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import logger
from di_store.session import Session

T = TypeVar("T")

LOSSES = (NodeUnavailable, StoreClosed, Timeout)
"""What calls of a shard on another node raise if that node is gone, was restarted, or is stopped."""


class Parts:
    """The shards of one table. Thread-safe.

    Attributes:
        session: session of the store on this machine.
        name: name of the table.
        settings: settings of the whole table.
        by_mass: whether draws are made over all shards.
        shards: shards in the order of their numbers and of the directory's entry.
        answers: answers of the shards.
    """

    def __init__(
        self, session: Session, name: str, settings: Settings, draw: str, here: str, shards: list[Shard]
    ) -> None:
        """Begin.

        Args:
            session: session of the store on this machine; the handle ends with it.
            name: name of the table.
            settings: settings of the whole table.
            draw: "local" or "mass".
            here: uuid of this machine's node.
            shards: all shards.
        """
        self.session = session
        self.name = name
        self.settings = settings
        self.by_mass = draw == MASS
        self.shards = shards
        self.answers = ShardReports(shards)
        self.key = secrets.token_bytes(8)  # tells this handle's inserts from others'
        self._here = here

    @property
    def min_size(self) -> int:
        """The number of items for which draws wait, as the table was made."""
        return self.settings.limiter.bounds.min_size

    def check_open(self) -> None:
        """Raise `StoreClosed` if the store's own handle was closed."""
        self.session.arena.enter()

    def is_lost(self, shard: Shard, error: StoreError, deadline: Deadline) -> bool:
        """Whether a call failed because the shard is lost or does not answer; notes this.

        Args:
            shard: the shard that was called.
            error: the error of the call.
            deadline: deadline of the shard's step of the call. If the time left is too short to find out, the shard
                does not count as lost, and a later call may find out.

        Raises:
            StoreClosed: the store's own handle was closed.
        """
        self.check_open()
        if not isinstance(error, LOSSES) or shard.is_near:
            return False
        self.answers.forget()
        unreachable = isinstance(error, NodeUnavailable) and not error.may_be_done
        if not (unreachable and deadline.silence >= LOOK_SECONDS):  # else the call itself was as long a look
            said = self.answers.newest(0.0, deadline)
            if said[shard.number] is not None or not self.answers.is_silent(shard):
                return False
        self.answers.note_silent(shard, error)
        return True

    def live(self) -> list[Shard]:
        """The shards that answered the last time; all shards if none did."""
        return [each for each in self.shards if not self.answers.is_silent(each)] or self.shards

    def route(self, key: bytes) -> Shard:
        """The shard for a key, among the shards that answer."""
        live = {shard.uuid: shard for shard in self.live()}
        return live[chosen(key, live)]

    def own(self) -> Shard:
        """The shard that this process draws from: its node's own, or else the shard to which the node's uuid routes.

        If another node's shard stops answering, the next shard replaces it.
        """
        near = next((shard for shard in self.shards if shard.uuid == self._here), None)
        return near or self.route(bytes.fromhex(self._here))

    def near_handle(self) -> TableHandle | None:
        """The shard on this machine."""
        near = next((shard for shard in self.shards if shard.is_near), None)
        table = None if near is None else near.table(0)
        return table.writable() if isinstance(table, LocalTable) else None

    def probabilities_here(self, deadline: Deadline | None = None) -> Probabilities:
        """The probabilities of draws from one node's own shard. `deadline`: as in `ShardReports.last`."""
        return by_node(self.answers.last(deadline))

    def each(self, deadline: Deadline, call: Callable[[TableBackend, Deadline], T]) -> list[T]:
        """The results of a call for every shard. All shards are called, even if one of them raises.

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
        self, shard: Shard, deadline: Deadline, what: str, call: Callable[[TableBackend, Deadline], T], default: T
    ) -> T:
        """The result of a call that may be made twice; `default` for a shard whose items were lost with its node.

        A shard that has been silent for a short time is first asked whether it answers, and only then gets the whole
        timeout.
        """
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
        """Continue without a shard whose items were lost with its node. `deadline`: as in `is_lost`.

        Raises:
            `error`: the call failed for another reason.
        """
        silent = self.answers.is_silent(shard)
        if not self.is_lost(shard, error, deadline):
            raise error
        if not silent:
            logger.warning(
                "%s of table %r leaves out the shard on node %s: %s", what, self.name, shard.uuid[:12], error
            )
