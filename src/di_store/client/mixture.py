"""A mixture of tables of a remote store. The agent chooses the tables."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from di_store.base.dtypes import Array
from di_store.base.errors import DrawsLost, StoreError
from di_store.client.arguments import named
from di_store.client.drawing import RemoteSource, sampled
from di_store.client.session import RemoteSession
from di_store.client.table import RemoteTable, open_remote
from di_store.replay.batch import Batch
from di_store.replay.mixture import Mixture, MixtureBackend
from di_store.replay.sampling import Terms
from di_store.runtime.deadline import Deadline

T = TypeVar("T")


class RemoteMixture(MixtureBackend):
    """A mixture of tables of a store that an agent serves."""

    tables: list[RemoteTable]
    target = "", ""

    def __init__(
        self, session: RemoteSession, weights: dict[str, float], columns: list[str] | None, seed: int | None
    ) -> None:
        self.store = session.name
        self.weights = weights
        self._session = session
        self._held_columns = columns
        self._chosen_by = seed
        self.tables = [open_remote(session, name, Deadline(0)) for name in weights]
        self.places = len(weights)
        self._known: tuple[bytes, bytes] | None = None
        self._number = session.channel.client.next_number()
        weakref.finalize(self, session.channel.client.let_go, self._number)
        self._mixed(Deadline(60))
        session.follow(self, RemoteMixture._close)

    def _close(self, why: StoreError) -> None:
        """Called when the store's handle is closed.

        Then the channel refuses all calls, and the agent may forget the mixture.
        """
        self._session.channel.client.let_go(self._number)

    def _mixed(self, deadline: Deadline) -> int:
        """The number by which the agent knows the mixture.

        A new agent is told of the mixture again, and a forked child tells its agent again.
        """
        channel = self._session.channel
        if self._known != channel.known_as:
            arguments = {
                "number": self._number,
                "weights": self.weights,
                "columns": self._held_columns,
                "seed": self._chosen_by,
                "identities": dict(table.target for table in self.tables),
            }
            channel.call("mix", arguments, timeout=deadline, what="mix")
            self._known = channel.known_as
        return self._number

    def _again(self, call: Callable[[int], T], deadline: Deadline) -> T:
        """The result of `call` for the number.

        If the agent does not know the number, it is told of the mixture once more.
        """
        try:
            return call(self._mixed(deadline))
        except DrawsLost:
            self._known = None
            return call(self._mixed(deadline))

    @property
    def session(self) -> RemoteSession:
        return self._session

    def shown(self) -> str:
        return f"store {self.store!r} at {self._session.channel.node}"

    def pickled(self) -> tuple[Any, ...]:
        return load_remote_mixture, (self._session.pickled(), self.weights, self._held_columns, self._chosen_by)

    def check_open(self) -> None:
        self._session.channel.check_open()

    def sample(self, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None) -> Batch:
        if terms.deadline is None:
            terms.deadline = Deadline(terms.timeout)  # it begins now, whatever else this call has to ask
        return self._again(lambda number: sampled(self, number, terms, beta, columns, out), terms.deadline)

    def source(self, columns: str | Iterable[str] | None) -> RemoteSource:
        name = "mixture of " + ", ".join(map(repr, self.weights))
        return RemoteSource(self, self._again, name, named(columns))

    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int:
        def update(number: int) -> int:
            given = {"keys": keys, "priorities": priorities, "mixture": number, "timeout": deadline.left}
            what = "update_priorities of a mixture"
            return int(self._session.channel.call("update_mixed", given, timeout=deadline, what=what))

        return self._again(update, deadline)


def load_remote_mixture(
    pickled: Any, weights: dict[str, float], columns: list[str] | None, seed: int | None
) -> Mixture:
    """Unpickle a mixture, in the process that loads it."""
    session = RemoteSession.of(pickled)
    try:
        return Mixture(RemoteMixture(session, weights, columns, seed))
    except BaseException:  # also Ctrl-C: no handle is returned that would end it
        session.close()
        raise
