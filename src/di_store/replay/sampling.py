"""Draws a batch that is not available at once.

The call makes and holds the draws that the limiter allows. Then it waits for the others, or gives all of them back.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from di_store import _core
from di_store._core import LEDGER_ENTRY_BYTES
from di_store.base import config
from di_store.base.errors import CapacityError, EndOfData, RowsLost, Timeout
from di_store.base.sizes import format_size, machine_bytes
from di_store.policy.samplers import Once, Prioritized
from di_store.policy.views import Group, answers_of
from di_store.replay.batch import Batch, check_out
from di_store.replay.handle import TableHandle
from di_store.replay.lost import drop_lost
from di_store.replay.stream import version_column
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import SampleWait, Steps, check_timeout, run


class Undelivered(Exception):
    """A finished table waits for undelivered draws of other processes, while the caller holds draws of other tables.

    The caller must give its draws back before it waits, or two processes could wait for each other.
    """

    def __init__(self, handle: TableHandle, seen: int, reason: str, holder: int | None) -> None:
        super().__init__(reason)
        self.handle = handle
        self.seen = seen
        self.reason = reason
        self.holder = holder


class Stopped(Exception):
    """Ends a wait of a loader's thread: the loader is being closed."""


_DRAW_BYTES = 128
"""Memory of this process that a draw takes in addition to its example."""


def check_n(n: Any, option: str = "n") -> int:
    """`n` as an int of at least 1; raises like `config.count`."""
    return config.count(option, n, minimum=1, why="a batch holds at least one example")


def check_fits(arena: _core.Arena, n: int, example_bytes: int = 0) -> None:
    """Refuse a batch that cannot fit in memory, before anything is drawn or allocated.

    Raises:
        CapacityError: the ledger entries of n draws exceed the store's memory, or the batch exceeds the machine's.
    """
    if n * LEDGER_ENTRY_BYTES > arena.budget:
        raise CapacityError(
            f"n={n} draws of {LEDGER_ENTRY_BYTES} bytes each do not fit the store's memory of "
            f"{format_size(arena.budget)}",
            remedy="sample fewer at once, or raise memory= with store.resize(memory=)",
        )
    needed = n * (example_bytes + _DRAW_BYTES)
    if needed > machine_bytes():
        raise CapacityError(
            f"n={n} examples are a batch of {format_size(needed)}, and this machine has {format_size(machine_bytes())}",
            remedy="sample fewer at once, or only some columns=",
        )


def beta_of(handle: TableHandle, beta: Any) -> float | None:
    """The exponent of a draw's importance weights: the given one, else the sampler's; None: the sampler has none."""
    if beta is None:
        return handle.native.beta if isinstance(handle.settings.sampler, Prioritized) else None
    return config.real("beta", beta, why="it is the exponent of the importance weights")


def check_replace(handle: TableHandle, n: int, replace: Any) -> None:
    """Check `replace`, and whether the table can give n different items.

    Raises:
        ValueError: the table cannot, or its sampler is `Once`. TypeError: `replace` is no bool.
    """
    if config.flag("replace", replace):
        return
    settings = handle.settings
    if isinstance(settings.sampler, Once):
        raise ValueError(
            f"replace=False with sampler={settings.sampler!r}: it draws every item once an epoch by itself; leave "
            "replace out"
        )
    capacity = handle.native.capacity
    if not settings.max_times_sampled and n > capacity:
        raise ValueError(f"replace=False: n={n} is above the capacity of {capacity}, and each item comes once")


def reading_batch(
    handle: TableHandle,
    draws: _core.Draws | None,
    terms: Terms,
    beta: float | None,
    columns: str | Iterable[str] | None,
    out: Batch | None,
) -> Steps[Batch]:
    """`Table.sample`, if one call of the core is not enough: waiting, `min_n`, `columns` or `out`.

    `draws`: draws that a first attempt has made, or None.
    """
    n, law = terms.n, terms.law
    if out is not None:
        check_out(out, n)
    check_fits(handle.arena, n * answers_of(handle.settings.view))
    if handle.schema is None:
        with terms:
            yield from awaiting_columns(handle, terms)
    reader = handle.reader()
    which = handle.which(columns)
    check_fits(handle.arena, n, handle.bytes_of(which))
    if law is not None and columns is None and out is None:
        with contextlib.suppress(RowsLost):  # the draws below remove their items
            if (parts := law.at_once(handle, terms, beta)) is not None:
                return handle.batch(parts)
    while True:
        draws = draws or terms.begin(handle)
        if law is not None:
            law.begin(draws)
        try:
            with terms:
                held = yield from collecting(handle, reader, draws, terms)
            terms.lease_number = draws.lease
            batch = handle.batch(reader.finish(draws, beta, which, _given(out, held), not handle.opaque), draws)
            if handle.opaque:  # delivered once its values are loaded
                reader.deliver(draws)
            return batch if out is None or held < n else out.become(batch)
        except RowsLost:
            reader.give_back(draws)
            draws = None
            drop_lost(handle.arena)
        except BaseException:  # also Ctrl-C, or a task's end: nobody gets the batch
            reader.give_back(draws)
            raise


def sample_at_once(handle: TableHandle) -> Callable[[int, float | None, list[int] | None, bool], Any]:
    """The first attempt of `Table.sample`: returns the parts of a batch, a batch, or the draws if they are too few."""
    reader = handle.reader()
    if not handle.special:
        return reader.sample
    if not (handle.opaque and handle.settings.uses_items_up):
        return partial(_sampled, handle, reader)

    def sample(n: int, beta: float | None, which: list[int] | None, distinct: bool) -> Batch | _core.Draws:
        draws = reader.begin(distinct)
        if reader.draw(draws, n) < n:
            return draws
        batch = handle.batch(reader.finish(draws, beta, which, None, False), draws)
        reader.deliver(draws)
        return batch

    return sample


def _sampled(
    handle: TableHandle, reader: _core.Reader, n: int, beta: float | None, which: list[int] | None, distinct: bool
) -> Batch | _core.Draws:
    """A batch with ragged columns or Python values."""
    found = reader.sample(n, beta, which, distinct)
    return handle.batch(found) if isinstance(found, tuple) else found


def _given(out: Batch | None, held: int) -> Any:
    """The arrays of `out` to write `held` examples into."""
    if out is None:
        return None
    return out.data if held == len(out) else out.front(held)


class Law(Protocol):
    """What a draw takes, if it is not the sampler's next n picks."""

    @property
    def exact(self) -> bool:
        """Whether a finished table may not give fewer than `min_n`."""

    def at_once(self, handle: TableHandle, terms: Terms, beta: float | None) -> tuple[Any, ...] | None:
        """The parts of the batch of all outputs; None: not possible in one step, and nothing was drawn."""

    def begin(self, draws: _core.Draws) -> None:
        """Before the first draw into this set."""

    def draw(self, handle: TableHandle, draws: _core.Draws, terms: Terms) -> bool:
        """Draw what is possible now. Whether the batch is whole."""


class Terms:
    """The terms of a draw: the number of examples, whether items may repeat, the deadline, and when fewer suffice.

    As a context manager, it ends the wait that `pausing` began.
    """

    def __init__(
        self,
        n: int,
        timeout: Any,
        min_n: Any = None,
        linger: Any = None,
        stop: Callable[[], bool] | None = None,
        ours: Callable[[TableHandle], int] | None = None,
        replace: bool = True,
        now: bool = False,
        lease: float | None = None,
    ) -> None:
        self.n = n
        self.replace = replace
        self.lease = lease  # seconds for which the items are held for this batch
        self.lease_number = 0  # of the draw with the lease
        self.lends: Callable[[TableHandle], tuple[int, int]] | None = None  # of an agent: whose session holds the lease
        self.law: Law | None = None
        self.now = now  # wait for nothing
        self.short = False  # return fewer rather than hold draws, which count, until a Pace has room for all
        self.deadline = timeout if isinstance(timeout, Deadline) else None  # of a step of a longer call
        self.timeout = check_timeout(timeout) if self.deadline is None else self.deadline.left
        self.min_n = n if min_n is None else config.count("min_n", min_n, minimum=1)
        if self.min_n > n:
            raise ValueError(f"min_n={self.min_n} is above n={n}: it is the least that sample may return")
        self.linger = check_timeout(linger, "linger")
        self.stop = stop
        # A table's draws in this loader's ready batches. They will be delivered, so nobody needs to wait for them.
        self.ours = ours or (lambda _: 0)
        self.holding = False  # whether the caller holds draws of other tables
        self.wait: SampleWait | None = None

    def __enter__(self) -> Terms:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.wait is not None:
            self.wait.end()

    def begin(self, handle: TableHandle) -> _core.Draws:
        """A set for draws of the table by these terms."""
        session = None if self.lends is None else self.lends(handle)
        return handle.reader().begin(not self.replace, self.lease, session)

    def patience(self, held: int, newest: float) -> float:
        """Seconds to wait before the next attempt; 0 or less: return the `held` draws now.

        Args:
            held: number of draws made so far.
            newest: time of the last draw, `time.monotonic()`.
        """
        if self.now:
            return 0.0
        if held < self.min_n:
            return math.inf
        left = self.wait.left if self.wait is not None else self.timeout
        if left is not None and left <= 0:
            return 0.0
        return math.inf if self.linger is None else self.linger - (time.monotonic() - newest)

    def pausing(
        self,
        handle: TableHandle,
        seen: int,
        reason: str,
        at_most: float = math.inf,
        holder: int | None = None,
    ) -> Steps[None]:
        """Wait for a change of the table, at most `at_most` seconds.

        Args:
            handle: handle of the table.
            seen: the table's sequence number of items before the last attempt: a later change ends the wait at once.
            reason: why the draw waits, for errors and logs.
            at_most: seconds.
            holder: client slot of the process that blocks the draw, if known.

        Raises:
            Timeout: the draw's time is over. Stopped: the loader is closed. StoreClosed: the table's handle is closed.
        """
        if self.stop is not None and self.stop():
            raise Stopped
        handle.check_open()
        if self.wait is None:
            what = f"sample of {self.n} from table {handle.name!r}"
            self.wait = SampleWait(handle.arena, self.timeout, what)
        self.wait.check_attended(handle.native, reason)
        native = handle.native
        at_most = min(at_most, native.group_due_seconds)
        return self.wait.pausing(native.wait_items, seen, reason, at_most=at_most, table=native, holder=holder)


def await_columns(handle: TableHandle, terms: Terms) -> None:
    """As `awaiting_columns`, in this thread."""
    run(awaiting_columns(handle, terms))


def awaiting_columns(handle: TableHandle, terms: Terms) -> Steps[None]:
    """Wait until a process has written a first step, which declares the columns.

    Raises:
        Timeout: no process did in time. EndOfData: the table was finished before that.
    """
    while True:
        seen = handle.native.items_seq()
        if handle.schema is not None:
            return
        stats = handle.native.stats()
        if stats["finished"]:
            raise EndOfData(f"table {handle.name!r} was finished before anything was written")
        reason = stats["sample_blocked"] or "nothing was written yet"
        yield from terms.pausing(handle, seen, f"{reason}; it waits for the first step, which declares the columns")


def collect(handle: TableHandle, reader: _core.Reader, draws: _core.Draws, terms: Terms) -> int:
    """As `collecting`, in this thread."""
    return run(collecting(handle, reader, draws, terms))


def collecting(handle: TableHandle, reader: _core.Reader, draws: _core.Draws, terms: Terms) -> Steps[int]:
    """Draw until there are n, or fewer if the terms (`min_n`, `linger`, `now`) or a finished table allow it.

    Returns the number of draws.

    Raises:
        Timeout: not enough in time. EndOfData: the table is finished and has nothing left. Undelivered: see its class.
        After each of these errors the caller still holds the draws made so far.
    """
    native = handle.native
    held, newest = draws.count, time.monotonic()
    while True:
        seen, finished = native.items_seq(), native.finished
        late = finished and _late(handle)  # read before the draw too: what becomes complete meanwhile may be drawn
        law = terms.law
        whole = reader.draw(draws, terms.n) >= terms.n if law is None else law.draw(handle, draws, terms)
        if draws.count > held:
            held, newest = draws.count, time.monotonic()
        if whole:
            return held
        if draws.paced_out and held and terms.short:
            return held
        if finished and not draws.paced_out:  # read before the draw, which chose from all inserted before finish()
            if held >= (terms.min_n if law is not None and law.exact else 1):
                return held
            others = _undelivered(reader, draws, handle, terms)
            if native.items_seq() != seen:  # draws were given back, or delivered, since: draw again
                continue
            if others is None and not late:
                raise EndOfData(f"table {handle.name!r} is finished and gives no more: {draws.why}")
            if terms.now:
                return held
            others = others or _Others(draws.why, None)
            reason = f"finished; {others.reason}"
            if terms.holding:
                raise Undelivered(handle, seen, reason, others.holder)
            yield from terms.pausing(handle, seen, reason, holder=others.holder)
            continue
        at_most = terms.patience(held, newest)
        if at_most <= 0:
            return held
        reason = f"{held} of {terms.n} drawn; {draws.why}" if held else draws.why
        if native.stats()["stale_dropped"]:
            reason += _unversioned(handle)
        try:
            yield from terms.pausing(handle, seen, reason, at_most, draws.holder)
        except Timeout:
            if held >= terms.min_n:
                return held
            raise


def _unversioned(handle: TableHandle) -> str:
    """Text for the reason of a wait: the version that items have if there is no column `version`; else ""."""
    schema = handle.schema
    if schema is None or version_column(schema) is not None:
        return ""
    return (
        "; without a column 'version', an item has the version that its process last fetched with "
        f"store.latest({handle.settings.weights!r}) before it wrote the item's oldest row, or -1 if it "
        "fetched none"
    )


def _late(handle: TableHandle) -> int:
    """The number of items that may still come: those that lack only late columns, and groups that will be short."""
    stats: dict[str, Any] = handle.native.stats()
    view = handle.settings.view
    return int(stats["gathered" if isinstance(view, Group) and not view.short else "waiting"])


class _Others(NamedTuple):
    """The reason why a finished table may still have items to draw, and the process that holds them."""

    reason: str
    holder: int | None


def _undelivered(reader: _core.Reader, draws: _core.Draws, handle: TableHandle, terms: Terms) -> _Others | None:
    """Undelivered draws of other processes, which may still be given back; None: no such draws."""
    found = reader.undelivered(draws)
    if found is None:
        return _Others("another process holds its lock", None)
    # ours() is read after the count. It only falls meanwhile, so no draw of another process is overlooked.
    count = found.count - terms.ours(handle)
    if count <= 0:
        return None
    what = "not delivered yet, or leased, and" if handle.native.stats()["leased"] else "not delivered yet and"
    return _Others(f"{count} draws are {what} may come back, held by {found.who}", found.holder)


class Copying(Protocol):
    """A batch that is copied in steps: first the rows in memory, then one portion at a time of the rows on disk."""

    @property
    def is_whole(self) -> bool:
        """Whether everything is copied."""

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""

    def read_ahead(self) -> bool:
        """Begin to read rows on disk, as many as may be read at once. Returns whether all of them are copied."""

    def copy_portion(self) -> object:
        """Copy a portion of the rows on disk; waits for the disk."""

    def batch(self) -> Batch:
        """The batch; call this once, when it is complete."""


class Draws(Protocol):
    """The draws of one batch: not made yet, or all made and neither delivered nor given back."""

    @property
    def held(self) -> int:
        """Number of draws."""

    def draw(self, terms: Terms) -> bool:
        """Make all draws; False: not possible now (`terms.now`). In this case, and after an error, it holds no draws.

        Raises:
            Timeout, EndOfData, Stopped: as `collect`.
        """

    def counts(self) -> dict[TableHandle, int]:
        """Number of held draws by table."""

    def least_bytes(self) -> int:
        """Bytes of the batch, without its ragged outputs."""

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Copying:
        """Copy the rows in memory into a batch.

        Args:
            beta: exponent of the importance weights.
            allocate: makes the array of an output from its name, shape and dtype; None: the core's pool.
        """

    def deliver(self) -> None:
        """Note that the caller has the batch."""

    def deliver_some(self, places: Sequence[int]) -> None:
        """Deliver the draws at these places of the batch, and give the others back."""

    def give_back(self) -> None:
        """Give the draws back, as if they had never been made. A second call does nothing."""


def copied(draws: Draws, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Batch:
    """The batch of draws that were made; waits for the disk. Arguments as in `Draws.copy`."""
    copying = draws.copy(beta, allocate)
    while not copying.is_whole:
        copying.copy_portion()
    return copying.batch()
