"""Drawing a batch that is not there at once: hold what the limiter lets go, wait for the rest, or give it all back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from di_store import _core
from di_store._core import LEDGER_ENTRY_BYTES
from di_store.base import config
from di_store.base.errors import CapacityError, EndOfData, Timeout
from di_store.base.sizes import format_size, machine_bytes
from di_store.replay.batch import Batch, check_out
from di_store.replay.handle import TableHandle
from di_store.replay.stream import version_column
from di_store.runtime.waits import SLICE_SECONDS, SampleWait, check_timeout


class Undelivered(Exception):
    """A finished table waits for draws of others. A caller that holds draws must give them back, or both could wait."""

    def __init__(self, handle: TableHandle, seen: int, reason: str, holder: int | None) -> None:
        super().__init__(reason)
        self.handle = handle
        self.seen = seen
        self.reason = reason
        self.holder = holder


class Stopped(Exception):
    """A loader is being closed: its thread stops waiting."""


_DRAW_BYTES = 128
"""What a draw takes of this process's memory beside its example."""


def check_n(n: Any, option: str = "n") -> int:
    """`n` as a number of examples."""
    return config.count(option, n, minimum=1, why="a batch holds at least one example")


def check_fits(arena: _core.Arena, n: int, example_bytes: int = 0) -> None:
    """Refuse a batch that no memory could hold, before anything is drawn or allocated.

    Raises:
        CapacityError: more draws than the store's memory can count, or more bytes than the machine has.
    """
    if n * LEDGER_ENTRY_BYTES > arena.budget:
        raise CapacityError(
            f"n={n} draws take {LEDGER_ENTRY_BYTES} bytes each of the store's memory of {format_size(arena.budget)}",
            remedy="sample fewer at once, or raise memory= with store.resize(memory=)",
        )
    needed = n * (example_bytes + _DRAW_BYTES)
    if needed > machine_bytes():
        raise CapacityError(
            f"n={n} examples are a batch of {format_size(needed)}, and this machine has {format_size(machine_bytes())}",
            remedy="sample fewer at once, or only some columns=",
        )


def read_batch(
    handle: TableHandle,
    draws: _core.Draws | None,
    n: Any,
    timeout: Any,
    min_n: Any,
    linger: Any,
    beta: float | None,
    columns: str | Iterable[str] | None,
    out: Batch | None,
) -> Batch:
    """`Table.sample`, when there is more to it than one call of the core."""
    n = check_n(n)
    if out is not None:
        check_out(out, n)
    terms = Terms(n, timeout, min_n, linger)
    check_fits(handle.arena, n)
    with terms:
        await_columns(handle, terms)
    reader = handle.reader()
    which = handle.which(columns)
    check_fits(handle.arena, n, handle.bytes_of(which))
    if draws is None:
        draws = reader.begin()
    try:
        with terms:
            held = collect(handle, reader, draws, terms)
        parts = reader.finish(draws, beta, which, _given(out, held), True)
    except BaseException:
        reader.give_back(draws)
        raise
    batch = handle.batch(parts)
    return batch if out is None or held < n else out.become(batch)


def _given(out: Batch | None, held: int) -> Any:
    """The arrays to write into, as many examples as there are."""
    if out is None:
        return None
    return out.data if held == len(out) else out.front(held)


class Terms:
    """How long a draw may take and when it may end early. As a context manager, the end of its waits."""

    def __init__(
        self,
        n: int,
        timeout: Any,
        min_n: Any = None,
        linger: Any = None,
        stop: Callable[[], bool] | None = None,
        ours: Callable[[TableHandle], int] | None = None,
    ) -> None:
        self.n = n
        self.timeout = check_timeout(timeout)
        self.min_n = n if min_n is None else config.count("min_n", min_n, minimum=1)
        if self.min_n > n:
            raise ValueError(f"min_n={self.min_n} is above n={n}: it is the least that sample may return")
        self.linger = check_timeout(linger, "linger")
        self.stop = stop
        self.ours = ours or (lambda _: 0)  # draws of a table in batches drawn ahead: they do not come back
        self.holding = False  # whether the caller holds draws of other tables meanwhile
        self.wait: SampleWait | None = None

    def __enter__(self) -> Terms:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.wait is not None:
            self.wait.end()

    def patience(self, held: int, newest: float) -> float:
        """Seconds to wait before the next look; not above zero where `held` draws are enough by now.

        Args:
            held: draws that are there.
            newest: when the last of them came.
        """
        if held < self.min_n:
            return SLICE_SECONDS
        left = self.wait.left if self.wait is not None else self.timeout
        if left is not None and left <= 0:
            return 0.0
        return SLICE_SECONDS if self.linger is None else self.linger - (time.monotonic() - newest)

    def pause(
        self,
        handle: TableHandle,
        seen: int,
        reason: str,
        at_most: float = SLICE_SECONDS,
        holder: int | None = None,
    ) -> None:
        """Wait one slice for items; raises `Timeout`, or `Stopped`."""
        if self.stop is not None and self.stop():
            raise Stopped
        handle.check_open()
        if self.wait is None:
            what = f"sample of {self.n} from table {handle.name!r}"
            self.wait = SampleWait(handle.arena, self.timeout, what)
        self.wait.check_attended(handle.native, reason)
        self.wait.pause(handle.native.wait_items, seen, reason, at_most=at_most, table=handle.native, holder=holder)


def await_columns(handle: TableHandle, terms: Terms) -> None:
    """Wait until somebody wrote a first step, and so declared the columns.

    Raises:
        Timeout: nobody did. EndOfData: the table was finished before.
    """
    while True:
        seen = handle.native.items_seq()
        if handle.schema is not None:
            return
        stats = handle.native.stats()
        if stats["finished"]:
            raise EndOfData(f"table {handle.name!r} was finished before anything was written")
        reason = stats["sample_blocked"] or "nothing was written yet"
        terms.pause(handle, seen, f"{reason}; the first step is still to declare the columns")


def collect(handle: TableHandle, reader: _core.Reader, draws: _core.Draws, terms: Terms) -> int:
    """Draw until all are there, or as many as the terms are content with; how many.

    Raises:
        Timeout: not enough in time. EndOfData: the table is finished and gives nothing more. The draws are still held.
    """
    native = handle.native
    held, newest = draws.count, time.monotonic()
    while True:
        seen, finished = native.items_seq(), native.finished
        count = reader.draw(draws, terms.n)
        if count > held:
            held, newest = count, time.monotonic()
        if held >= terms.n:
            return held
        if finished:  # read before the draw: whatever was inserted before finish() has been offered
            if held:
                return held
            others = _undelivered(reader, draws, handle, terms)
            if native.items_seq() != seen:  # some came back meanwhile
                continue
            if others is None:
                raise EndOfData(f"table {handle.name!r} is finished and gives no more: {draws.why}")
            reason = f"finished; {others.reason}"
            if terms.holding:
                raise Undelivered(handle, seen, reason, others.holder)
            terms.pause(handle, seen, reason, holder=others.holder)
            continue
        at_most = terms.patience(held, newest)
        if at_most <= 0:
            return held
        reason = f"{held} of {terms.n} drawn; {draws.why}" if held else draws.why
        if native.stats()["stale_dropped"]:
            reason += _unversioned(handle)
        try:
            terms.pause(handle, seen, reason, at_most, draws.holder)
        except Timeout:
            if held >= terms.min_n:
                return held
            raise


def _unversioned(handle: TableHandle) -> str:
    """For the reason of a wait: which version items have where no column tells it."""
    schema = handle.schema
    if schema is None or version_column(schema) is not None:
        return ""
    return (
        "; without a column 'version' an item has the version that its writing process had last got from "
        f"store.latest({handle.settings.weights!r}) at its oldest row, and -1, which is "
        "soon stale, where it had never called that"
    )


class _Others(NamedTuple):
    """Why a finished table may still give more."""

    reason: str
    holder: int | None


def _undelivered(reader: _core.Reader, draws: _core.Draws, handle: TableHandle, terms: Terms) -> _Others | None:
    """Draws of others that may still come back; None: there are none."""
    found = reader.undelivered(draws)
    if found is None:
        return _Others("its lock is held up", None)
    count = found.count - terms.ours(
        handle
    )  # read after the count: they only become fewer, so none of another process is missed
    if count <= 0:
        return None
    return _Others(f"{count} draws are not delivered yet and may come back, held by {found.who}", found.holder)


class Drawn:
    """A batch that was drawn ahead and not handed out yet."""

    def __init__(
        self, parts: Any, counts: dict[TableHandle, int], deliver: Callable[[], None], give_back: Callable[[], None]
    ) -> None:
        self.parts = parts
        self.counts = counts  # draws by table
        self.deliver = deliver
        self.give_back = give_back


class TableSource:
    """Where a loader over one table takes its batches from."""

    def __init__(self, handle: TableHandle, columns: str | Iterable[str] | None) -> None:
        self.handle = handle
        self._columns = columns
        self.name = f"table {handle.name!r}"
        self.arena = handle.arena
        if handle.schema is not None:
            handle.which(columns)  # refuses unknown names now

    def beta(self) -> float | None:
        """The sampler's exponent of the importance weights, as it is now."""
        return self.handle.beta()

    def draw(self, terms: Terms, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Drawn:
        """Draw and copy a batch without delivering it.

        Args:
            terms: how long it may take.
            beta: of the weights.
            allocate: makes the array of an output from its name, shape and dtype; None: the core's pool.
        """
        handle = self.handle
        with terms:
            await_columns(handle, terms)
        reader, which = handle.reader(), handle.which(self._columns)
        check_fits(self.arena, terms.n, handle.bytes_of(which))
        draws = reader.begin()
        try:
            with terms:
                held = collect(handle, reader, draws, terms)
            out = None if allocate is None else handle.allocate(held, which, allocate)
            parts = reader.finish(draws, beta, which, out, False)
        except BaseException:
            reader.give_back(draws)
            raise
        return Drawn(
            handle.batch(parts), {handle: held}, lambda: reader.deliver(draws), lambda: reader.give_back(draws)
        )
