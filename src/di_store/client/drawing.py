"""Batches of a remote table or mixture. `sample` is one call; loaders make, copy and deliver draws in separate calls.

Items that are drawn only once must not be lost in transit. So if the delivery of a received batch was interrupted, the
batch stays here: the next call asks the agent for the result of that delivery, by its number.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from di_store.base import config
from di_store.base.errors import DrawsLost, LayoutMismatch, NodeUnavailable, StoreError, Timeout
from di_store.base.tree import name_of
from di_store.client.agent_client import AgentClient, IdempotencyToken
from di_store.client.channel import Channel
from di_store.client.session import RemoteSession
from di_store.protocol.batches import unpack_batch
from di_store.protocol.handshake import LEASES, LEASES_OF_LOADERS
from di_store.replay.batch import Batch
from di_store.replay.handle import TableHandle
from di_store.replay.lease import Lease, Leasing, give_back, holds_all
from di_store.replay.sampling import Stopped, Terms
from di_store.runtime.deadline import Deadline

_CLOSE_SECONDS = 1.0
_CHECK_SECONDS = 60.0
_MOST_KEPT = 8  # batches whose delivery was interrupted, of different calls


class RemoteDrawn(Leasing, Protocol):
    """A table or mixture of a remote store.

    Attributes:
        target: the table's name and identity; "": a mixture.
        places: number of tables of the mixture; 0: a table.
    """

    target: tuple[str, str]
    places: int

    @property
    def session(self) -> RemoteSession:
        """With the agent."""


class _Kept(NamedTuple):
    """A received batch, the number of its draws, and the call that delivers it."""

    batch: Batch
    draws: int
    delivery: IdempotencyToken


def sampled(
    drawn: RemoteDrawn,
    mixture: int,
    terms: Terms,
    beta: float | None,
    columns: str | Iterable[str] | None,
    out: Batch | None,
) -> Batch:
    """`Table.sample` and `Mixture.sample`. `mixture`: the number by which the agent knows it."""
    session, target = drawn.session, drawn.target
    n, deadline = terms.n, terms.deadline or Deadline(terms.timeout)
    arguments = {
        "n": n,
        "min_n": None if terms.short else terms.min_n,
        "linger": terms.linger,
        "beta": beta,
        "columns": None if columns is None else list(config.names("columns", columns)),
        "replace": terms.replace,
        "mixture": mixture,
    }
    if terms.lease is not None:
        arguments["lease"] = terms.lease
        _begin_leasing(session.channel, LEASES_OF_LOADERS if mixture else LEASES)
    what = f"sample of {n} from {'a mixture' if mixture else f'table {target[0]!r}'}"
    channel = session.channel
    while True:
        kept = session.kept.pop(repr((target, arguments)), None) if session.kept else None
        again = kept is not None  # a lease may be over since the interrupted call
        kept = kept or _drawn(drawn, arguments, deadline, what)
        if kept.draws:
            try:
                if not _arrived(session, kept, again, terms.lease or 0.0, deadline, what):
                    continue
            except DrawsLost:  # they were given back: others may get these items
                if deadline.left == 0:
                    text = f"{what} timed out after {deadline.timeout:g} s"
                    raise Timeout(text, "the drawn items were given back", f"node {channel.node}") from None
                continue
            except NodeUnavailable:
                _keep(session, repr((target, arguments)), kept)
                raise
            except BaseException:  # also Ctrl-C: the next call gets what has come
                _keep(session, repr((target, arguments)), kept)
                channel.client.drop_idle()  # the agent gives back what it held for such a connection
                raise
        return kept.batch if out is None else _into(out, kept.batch)


def _begin_leasing(channel: Channel, protocol: int) -> None:
    """Have the agent see from now on that the holder of leases lives.

    Raises:
        LayoutMismatch: the agent is older than such leases, which have come with this protocol.
    """
    if 0 < channel.client.protocol < protocol:
        raise LayoutMismatch(
            f"the agent at {channel.node} is older than such leases of clients",
            remedy="update the agent: di-store serve",
        )
    channel.client.beat()


def _note_lease(batch: Batch, drawn: RemoteDrawn, numbers: dict[int, int]) -> None:
    """Let the batch name its lease. `numbers`: of its draws, by place of their table."""
    if numbers:
        by_place = tuple(numbers.get(place, 0) for place in range(drawn.places))
        batch._lease = drawn, by_place or numbers[0]


def _drawn(drawn: RemoteDrawn, arguments: dict[str, Any], deadline: Deadline, what: str) -> _Kept:
    """A received batch."""
    session, target = drawn.session, drawn.target
    channel = session.channel
    number = channel.client.next_number()
    given = {**arguments, "timeout": deadline.left, "draws": number}
    try:
        message = channel.ask("sample", given, target=target, timeout=deadline, what=what)
        whose = _whose(target)
        batch, draws, numbers = unpack_batch(message.meta, message.body, trusted=channel.allow_pickle, what=whose)
        _note_lease(batch, drawn, numbers)
        return _Kept(batch, draws, channel.client.new_token() if draws else IdempotencyToken(0))
    except NodeUnavailable:
        raise
    except BaseException as error:  # also Ctrl-C: nobody gets the batch, whose draws the agent holds
        _deliver_some(session, number, error, deadline)
        channel.client.drop_idle()  # the agent gives back what it held for such a connection
        raise


def _whose(target: tuple[str, str]) -> str:
    return f"table {target[0]!r}" if target[0] else "the mixture"


def _deliver_some(session: RemoteSession, draws: int, error: BaseException, deadline: Deadline) -> None:
    """Deliver the items of a batch whose values cannot be loaded here; the others are given back.

    Args:
        session: with the agent.
        draws: the agent's number for the draws, if it holds them.
        error: the error from unpacking the batch.
        deadline: of the call.
    """
    if isinstance(error, StoreError) and error.places:
        arguments = {"draws": draws, "places": list(error.places)}
        with contextlib.suppress(StoreError):  # else the agent gives back all of them
            session.channel.call(
                "deliver", arguments, timeout=deadline, what="delivery of values that cannot be loaded"
            )


def _arrived(session: RemoteSession, kept: _Kept, again: bool, seconds: float, deadline: Deadline, what: str) -> bool:
    """Deliver a received batch. False: it has to be drawn again, because its draws were given back.

    Args:
        session: with the agent.
        kept: the batch.
        again: whether an earlier call was interrupted while it delivered the batch.
        seconds: of its lease.
        deadline: of the call.
        what: name of the call, for errors.
    """
    lease = kept.batch.lease
    try:
        session.channel.call("deliver", {"draws": kept.draws}, timeout=deadline, what=what, once=kept.delivery)
    except NodeUnavailable as error:
        if not error.may_be_done:
            raise
        again = True  # the agent died: what it had not delivered, the store gives back
        if lease is None:
            return False
    return not again or lease is None or holds_all(lease, seconds, deadline)  # the dead agent may have delivered some


def _keep(session: RemoteSession, place: str, kept: _Kept) -> None:
    """Keep an interrupted delivery: the next call of this kind continues it."""
    session.kept[place] = kept
    while len(session.kept) > _MOST_KEPT:
        session.channel.client.end_token(session.kept.pop(next(iter(session.kept))).delivery)


def _into(out: Batch, batch: Batch) -> Batch:
    """Copy a batch into the arrays of an older one; a smaller batch fills their front."""

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
    """The source of a loader over a remote table or mixture."""

    arena = None

    def __init__(
        self,
        drawn: RemoteDrawn,
        mixture: Callable[[Callable[[int], Any], Deadline], Any],
        name: str,
        columns: list[str] | None,
    ) -> None:
        """Begin.

        Args:
            drawn: the table or mixture.
            mixture: makes a call with the number by which the agent knows the mixture, 0 for a table.
            name: name for error texts.
            columns: columns to copy; None: all.
        """
        self.drawn = drawn
        self.session = session = drawn.session
        self.target = drawn.target
        self.mixture = mixture
        self.name = name
        self.columns = columns
        self.number = session.channel.client.next_number()
        self.made: weakref.WeakSet[RemoteDraws] = weakref.WeakSet()
        self.waited = 0.0  # seconds that the `next` which takes a batch now has waited for it
        self.silent: Deadline | None = None  # of a draw ahead that the agent did not answer: the same `next` delivers
        self._turns = itertools.count(1)
        weakref.finalize(self, session.channel.client.let_go, self.number)

    @property
    def client(self) -> AgentClient:
        """The name by which the agent knows this process."""
        return self.session.channel.client

    def begin_loading(self, n: int) -> None:
        """As `Source.begin_loading`. From now on this process sends heartbeats to the agent."""
        self.client.beat()

    def end_loading(self) -> None:
        """As `Source.end_loading`. The agent gives back the draws that it holds for this loader."""
        if not self.session.ended():
            self.client.let_go(self.number)
            with contextlib.suppress(StoreError):  # else it does so at the end of the lease
                self.session.channel.call("hello", timeout=_CLOSE_SECONDS, what="closing of a loader")

    def note_loaded(self, ahead: int, waited_seconds: float) -> None:
        """As `Source.note_loaded`. The agent is not told."""
        self.waited = waited_seconds

    def drop_lost(self) -> None:
        """As `Source.drop_lost`. The agent has already done it."""

    def check(self, terms: Terms) -> None:
        """As `DrawSource.check`."""
        arguments = {"n": terms.n, "replace": terms.replace, "columns": self.columns}
        self.call("check_loader", arguments, Deadline(_CHECK_SECONDS if terms.timeout is None else terms.timeout))
        if terms.lease is not None:
            _begin_leasing(self.session.channel, LEASES_OF_LOADERS)

    def call(self, method: str, arguments: dict[str, Any], deadline: Deadline, **options: Any) -> Any:
        """Make a call that names the table or mixture."""

        def made(number: int) -> Any:
            given, what = {**arguments, "mixture": number}, f"loader of {self.name}"
            return self.session.channel.call(method, given, target=self.target, timeout=deadline, what=what, **options)

        return self.mixture(made, deadline)

    def ours(self) -> dict[str, Any]:
        """The part of a call about this loader: its draws, which the agent holds or makes now."""
        numbers = [each.number for each in list(self.made) if each.number]
        return {"loader": self.number, "turn": next(self._turns), "ours": numbers}

    def beta(self) -> float | None:
        """None: the agent uses the sampler's own exponent."""
        return None

    def begin(self, n: int) -> RemoteDraws:
        """The draws of a batch of n, not made yet."""
        draws = RemoteDraws(self, n)
        self.made.add(draws)
        return draws


class WholeBatch:
    """The `Copying` of a batch that is there. Nothing is left to copy."""

    is_whole = True

    def __init__(self, batch: Batch, size: int) -> None:
        self._batch = batch
        self.bytes = size

    def read_ahead(self) -> bool:
        """As `Copying.read_ahead`."""
        return True

    def copy_portion(self) -> None:
        """As `Copying.copy_portion`."""

    def batch(self) -> Batch:
        """As `Copying.batch`."""
        return self._batch


class RemoteDraws:
    """The draws of one batch, which the agent holds.

    Attributes:
        number: the agent's number of these draws, once they were requested; 0: no draws.
        held: number of draws.
    """

    def __init__(self, source: RemoteSource, n: int) -> None:
        self._source = source
        self._n = n
        self.number = 0
        self.held = 0
        self._bytes = 0
        self._timeout: float | None = None
        self._deadline: Deadline | None = None  # of the `next` that waits for them
        self._delivery: IdempotencyToken | None = None
        self._seconds = 0.0  # of its lease
        self._lease: Lease | None = None
        self._stop: Callable[[], None] = _go_on

    def draw(self, terms: Terms) -> bool:
        """As `Draws.draw`."""
        source = self._source
        self.give_back()

        def stop() -> None:
            if terms.stop is not None and terms.stop():
                raise Stopped

        stop()
        self._stop, self._timeout, self._seconds = stop, terms.timeout, terms.lease or 0.0
        deadline = Deadline(0.0 if terms.now else terms.timeout)
        self._deadline = None if terms.now else deadline
        source.silent = None
        self.number = source.client.next_number()
        try:
            while True:
                arguments = {
                    "n": terms.n,
                    "timeout": deadline.left,
                    "replace": terms.replace,
                    "now": terms.now,
                    "columns": source.columns,
                    "draws": self.number,
                    **source.ours(),
                }
                if terms.lease is not None:
                    arguments["lease"] = terms.lease
                try:
                    self.held, self._bytes = source.call("draw", arguments, deadline, stop=stop, once=True)
                    break
                except NodeUnavailable as error:
                    if not error.may_be_done:  # else the agent died: the store gives back what it had drawn
                        raise
        except BaseException as error:  # also Ctrl-C: the agent may hold draws that nobody gets
            source.silent = deadline if terms.now and isinstance(error, (Timeout, NodeUnavailable)) else None
            self.give_back()
            raise
        if not self.held:
            self.number = 0
        return bool(self.held)

    def counts(self) -> dict[TableHandle, int]:
        """As `Draws.counts`, from the agent."""
        return {}

    def least_bytes(self) -> int:
        """As `Draws.least_bytes`."""
        return self._bytes

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> WholeBatch:
        """As `Draws.copy`: receives the batch."""
        channel, source = self._source.session.channel, self._source
        arguments, deadline = {"draws": self.number, "beta": beta}, self._deadline or Deadline(self._timeout)
        what = f"loader of {source.name}"
        message = channel.ask("gather", arguments, target=source.target, timeout=deadline, what=what, stop=self._stop)
        try:
            found = unpack_batch(message.meta, message.body, trusted=channel.allow_pickle, what=source.name)
        except StoreError as error:
            _deliver_some(source.session, self.number, error, deadline)
            raise
        batch, _, numbers = found
        _note_lease(batch, source.drawn, numbers)
        self._lease = batch.lease
        if allocate is not None and isinstance(batch.data, dict):
            batch.data = _placed(batch.data, (), allocate)
        return WholeBatch(batch, message.body.nbytes)

    def deliver(self) -> None:
        """As `Draws.deliver`. After an interrupted call it may be called again, and continues."""
        source = self._source
        deadline, self._deadline = self._deadline or Deadline(self._timeout), None
        again = self._delivery is not None  # a lease may be over since the interrupted call
        if self._delivery is None:
            self._delivery = source.client.new_token()
            deadline.count(source.waited)
        if (silent := source.silent) is not None:
            deadline.go_on_from(silent)
            source.silent = None
        try:
            source.session.channel.call(
                "deliver",
                {"draws": self.number},
                timeout=deadline,
                once=self._delivery,
                what=f"loader of {source.name}",
            )
        except NodeUnavailable as error:
            if not error.may_be_done:
                raise
            again = True  # the agent died: what it had not delivered, the store gives back
            if self._lease is None:
                self.number = 0
                raise DrawsLost(error.message, remedy="") from None
        except DrawsLost:
            self.number = 0
            raise
        lost = again and self._lease is not None and not holds_all(self._lease, self._seconds, deadline)
        self.number = 0
        if lost:
            raise DrawsLost("the agent was killed before it had delivered them", remedy="")

    def deliver_some(self, places: Sequence[int]) -> None:
        """As `Draws.deliver_some`. `copy`, which loads the values, has already done it."""

    def give_back(self) -> None:
        """As `Draws.give_back`. The agent is told soon, or with the next draw."""
        number, self.number, self.held = self.number, 0, 0
        begun, self._delivery = self._delivery, None
        lease, self._lease = self._lease, None
        if begun is not None:
            self._source.client.end_token(begun)
        if number and not self._source.session.ended():
            self._source.client.let_go(number)
            if begun is not None and lease is not None:  # the agent may have delivered them
                give_back(lease, Deadline(_CLOSE_SECONDS))
            else:
                self._source.client.beat_now()


def _go_on() -> None:
    """Wait on."""


def _placed(data: dict[str, Any], path: tuple[str, ...], allocate: Callable[[str, Any, Any], Any]) -> dict[str, Any]:
    """The outputs of fixed size, copied to memory that the loader chose for its device."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            found[name] = _placed(value, (*path, name), allocate)
        elif hasattr(value, "dtype"):
            found[name] = allocate(name_of((*path, name)), value.shape, value.dtype)
            found[name][...] = value
        else:
            found[name] = value
    return found
