"""A mixture of tables of a remote store. The agent chooses the tables."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from di_store.base.errors import DrawsLost, StoreError
from di_store.client.arguments import named
from di_store.client.drawing import RemoteSource, sampled
from di_store.client.session import RemoteSession
from di_store.client.table import open_remote
from di_store.replay.batch import Batch, host_array, key_array
from di_store.replay.loader import Loader
from di_store.replay.mixture import Mixture
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout

T = TypeVar("T")


class RemoteMixture(Mixture):
    """Samples from several tables of one remote store. It pickles as address, weights and seed."""

    def __init__(
        self, session: RemoteSession, weights: dict[str, float], columns: list[str] | None, seed: int | None
    ) -> None:
        self._far = session
        self._shares = weights
        self._held_columns = columns
        self._chosen_by = seed
        self._all = [open_remote(session, name, 0) for name in weights]
        self._known: tuple[bytes, bytes] | None = None
        self._number = session.channel.client.next_number()
        weakref.finalize(self, session.channel.client.let_go, self._number)
        self._mixed(Deadline(60))
        session.follow(self, RemoteMixture._close)

    def _close(self, why: StoreError) -> None:
        """The store's handle is closed: the channel refuses all calls, and the agent may forget it."""
        self._far.channel.client.let_go(self._number)

    def _mixed(self, deadline: Deadline) -> int:
        """The number by which the agent knows it. Another agent is told anew, as is one of a child after a fork."""
        channel = self._far.channel
        if self._known != channel.known_as:
            arguments = {
                "number": self._number,
                "weights": self._shares,
                "columns": self._held_columns,
                "seed": self._chosen_by,
                "identities": dict(table.target for table in self._all),
            }
            channel.call("mix", arguments, timeout=deadline, what="mix")
            self._known = channel.known_as
        return self._number

    def _again(self, call: Callable[[int], T], deadline: Deadline) -> T:
        """What `call` returns for the number; if the agent does not know it, it is told once more."""
        try:
            return call(self._mixed(deadline))
        except DrawsLost:
            self._known = None
            return call(self._mixed(deadline))

    @property
    def weights(self) -> dict[str, float]:
        return dict(self._shares)

    def __len__(self) -> int:
        return sum(len(table) for table in self._all)

    def __repr__(self) -> str:
        return f"<Mixture {self._shares!r} of store {self._far.name!r} at {self._far.channel.node}>"

    @property
    def _store_name(self) -> str:
        return self._far.name

    def __reduce__(self) -> tuple[Any, ...]:
        return load_remote_mixture, (self._far.pickled(), self._shares, self._held_columns, self._chosen_by)

    def sample(
        self,
        n: int,
        *,
        timeout: float | None = None,
        min_n: int | None = None,
        linger: float | None = None,
        beta: float | None = None,
        columns: str | Iterable[str] | None = None,
        out: Batch | None = None,
        replace: bool = True,
    ) -> Batch:
        deadline = Deadline(check_timeout(timeout))
        return self._again(
            lambda number: sampled(
                self._far,
                ("", ""),
                number,
                n,
                timeout=deadline,
                min_n=min_n,
                linger=linger,
                beta=beta,
                columns=columns,
                out=out,
                replace=replace,
            ),
            deadline,
        )

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        deadline = Deadline(check_timeout(timeout))
        arguments = {"keys": key_array(keys), "priorities": host_array(priorities)}

        def update(number: int) -> int:
            given, what = {**arguments, "mixture": number, "timeout": deadline.left}, "update_priorities of a mixture"
            return int(self._far.channel.call("update_mixed", given, timeout=deadline, what=what))

        return self._again(update, deadline)

    def loader(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: Any = None,
        columns: str | Iterable[str] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
        replace: bool = True,
    ) -> Loader:
        name = "mixture of " + ", ".join(map(repr, self._shares))
        source = RemoteSource(self._far, ("", ""), self._again, name, named(columns))
        return Loader(self._far, source, batch_size, prefetch, device, pin_memory, beta, drop_last, timeout, replace)


def load_remote_mixture(
    pickled: Any, weights: dict[str, float], columns: list[str] | None, seed: int | None
) -> RemoteMixture:
    """Unpickle a mixture, in the process that loads it."""
    session = RemoteSession.of(pickled)
    try:
        return RemoteMixture(session, weights, columns, seed)
    except BaseException:  # also Ctrl-C: no handle is returned that would end it
        session.close()
        raise
