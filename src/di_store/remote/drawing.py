"""Batches of a remote table or mixture: one call for `sample`; for loaders the draws are made, copied and delivered."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from di_store.base import config
from di_store.base.errors import DrawsLost, NodeUnavailable
from di_store.remote.session import RemoteSession
from di_store.replay.batch import Batch, check_out
from di_store.replay.handle import TableHandle
from di_store.replay.sampling import Stopped, Terms, check_n
from di_store.runtime.waits import check_timeout
from di_store.wire.batches import unpack_batch


def sampled(
    session: RemoteSession,
    table: str,
    mixture: int,
    n: Any,
    *,
    timeout: Any,
    min_n: Any,
    linger: Any,
    beta: Any,
    columns: str | Iterable[str] | None,
    out: Batch | None,
    replace: Any,
) -> Batch:
    """`Table.sample` and `Mixture.sample`."""
    n, seconds = check_n(n), check_timeout(timeout)
    if out is not None:
        check_out(out, n)
    terms = Terms(n, seconds, min_n, linger, replace=config.flag("replace", replace))
    if beta is not None:
        beta = config.real("beta", beta, why="it is the exponent of the importance weights")
    arguments = {
        "n": n,
        "timeout": seconds,
        "min_n": min_n,
        "linger": terms.linger,
        "beta": beta,
        "columns": None if columns is None else list(config.names("columns", columns)),
        "replace": terms.replace,
        "mixture": mixture,
    }
    what = f"sample of {n} from {'a mixture' if mixture else f'table {table!r}'}"
    while True:
        message = session.link.ask("sample", arguments, target=table, timeout=terms.timeout, what=what)
        try:
            batch, draws = unpack_batch(message.meta, message.body, trusted=session.link.allow_pickle)
            if draws:
                session.link.call("deliver", {"draws": draws}, what=what, once=True)
        except DrawsLost:
            continue  # they were given back: others may get these items
        except NodeUnavailable as error:
            if error.may_be_done:  # the agent died: what it had not delivered, the store gives back
                continue
            raise
        except BaseException:
            session.link.drop_idle()  # the agent gives back what it held for such a connection
            raise
        return batch if out is None else _into(out, batch)


def _into(out: Batch, batch: Batch) -> Batch:
    """Copy a batch into the arrays of an older one; one that is smaller, into their front."""

    def copy(old: Any, new: Any) -> Any:
        if isinstance(old, dict):
            return {name: copy(old[name], value) if name in old else value for name, value in new.items()}
        if hasattr(old, "shape") and getattr(new, "shape", None) == old.shape and old.dtype == new.dtype:
            old[...] = new
            return old
        return new

    whole = len(batch) == len(out)
    data = batch.data
    if isinstance(data, dict):
        data = copy(out.data if whole else out.front(len(batch)), data)
    if not whole:
        batch.data = data
        return batch
    out.become(batch)
    out.data = data
    return out


class RemoteSource:
    """What a loader over a remote table or mixture draws from."""

    arena = None

    def __init__(
        self,
        session: RemoteSession,
        table: str,
        mixture: Callable[[Callable[[int], Any]], Any],
        name: str,
        columns: list[str] | None,
    ) -> None:
        """Begin.

        Args:
            session: with the agent.
            table: its name; "": it is a mixture.
            mixture: makes a call with the number by which the agent knows the mixture, 0 for a table.
            name: for error texts.
            columns: to copy; None: all.
        """
        self.session = session
        self.table = table
        self.mixture = mixture
        self.name = name
        self.columns = columns
        self.made: weakref.WeakSet[RemoteDraws] = weakref.WeakSet()

    def begin_loading(self, n: int) -> None:
        """As `Source.begin_loading`: from now on the agent hears that this process lives."""
        self.session.link.beat()

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """As `Source.note_loaded`: the agent is not told."""

    def drop_lost(self) -> None:
        """As `Source.drop_lost`: the agent has done it."""

    def check_replace(self, n: int, replace: bool) -> None:
        """As `Source.check_replace`."""
        arguments = {"n": n, "replace": replace, "columns": self.columns}
        self.call("check_loader", arguments)

    def call(self, method: str, arguments: dict[str, Any], **options: Any) -> Any:
        """A call that names the table or mixture."""

        def made(number: int) -> Any:
            given = {**arguments, "mixture": number}
            return self.session.link.call(method, given, target=self.table, what=f"loader of {self.name}", **options)

        return self.mixture(made)

    def beta(self) -> float | None:
        """None: the agent takes the sampler's own."""
        return None

    def begin(self, n: int) -> RemoteDraws:
        """The draws of a batch of n, not made yet."""
        draws = RemoteDraws(self, n)
        self.made.add(draws)
        return draws


class RemoteDraws:
    """The draws of one batch, which the agent holds."""

    def __init__(self, source: RemoteSource, n: int) -> None:
        self._source = source
        self._n = n
        self.number = 0
        self.held = 0
        self._bytes = 0

    def draw(self, terms: Terms) -> bool:
        """As `Draws.draw`."""
        source = self._source
        self.give_back()

        def stop() -> None:
            if terms.stop is not None and terms.stop():
                raise Stopped

        stop()
        arguments = {
            "n": terms.n,
            "timeout": terms.timeout,
            "replace": terms.replace,
            "now": terms.now,
            "columns": source.columns,
            "ours": [each.number for each in list(source.made) if each.number],
        }
        timeout = 0.0 if terms.now else terms.timeout
        while True:
            try:
                found = source.call("draw", arguments, timeout=timeout, stop=stop, once=True)
                break
            except NodeUnavailable as error:
                if not error.may_be_done:  # else the agent died: the store gives back what it had drawn
                    raise
        self.number, self.held, self._bytes = found
        return bool(self.number)

    def counts(self) -> dict[TableHandle, int]:
        """As `Draws.counts`: the agent knows."""
        return {}

    def least_bytes(self) -> int:
        """As `Draws.least_bytes`."""
        return self._bytes

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> _Received:
        """As `Draws.copy`: receives the batch."""
        source = self._source
        arguments = {"draws": self.number, "beta": beta}
        message = source.session.link.ask("gather", arguments, target=source.table, what=f"loader of {source.name}")
        return _Received(
            unpack_batch(message.meta, message.body, trusted=source.session.link.allow_pickle)[0],
            message.body.nbytes,
            allocate,
        )

    def deliver(self) -> None:
        """As `Draws.deliver`."""
        number, self.number = self.number, 0
        try:
            self._source.session.link.call(
                "deliver", {"draws": number}, once=True, what=f"loader of {self._source.name}"
            )
        except NodeUnavailable as error:
            if error.may_be_done:  # what the dead agent had not delivered, the store gives back
                raise DrawsLost(error.message, remedy="") from None
            raise

    def give_back(self) -> None:
        """As `Draws.give_back`."""
        number, self.number, self.held = self.number, 0, 0
        if number and not self._source.session.ended():
            self._source.session.link.call("give_back", {"draws": number}, timeout=5.0, what="closing of a loader")


class _Received:
    """`Copying` of a batch that has come."""

    is_whole = True

    def __init__(self, batch: Batch, size: int, allocate: Callable[[str, Any, Any], Any] | None) -> None:
        self._batch = batch
        self.bytes = size
        if allocate is not None and isinstance(batch.data, dict):
            batch.data = _placed(batch.data, (), allocate)

    def read_ahead(self) -> bool:
        """Nothing is left to read."""
        return True

    def copy_portion(self) -> None:
        """Nothing is left to copy."""

    def batch(self) -> Batch:
        """The batch."""
        return self._batch


def _placed(data: dict[str, Any], path: tuple[str, ...], allocate: Callable[[str, Any, Any], Any]) -> dict[str, Any]:
    """The outputs of fixed size in memory that the loader chose, for its device."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            found[name] = _placed(value, (*path, name), allocate)
        elif hasattr(value, "dtype"):
            found[name] = allocate("/".join((*path, name)), value.shape, value.dtype)
            found[name][...] = value
        else:
            found[name] = value
    return found
