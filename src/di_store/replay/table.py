"""One table: writing to it, reading from it, changing it while it is in use."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, StoreError, TableNotFound
from di_store.lowering.reserve import check_room
from di_store.lowering.shape import UNLIMITED, native_changes, slots_for
from di_store.policy.changes import UNCHANGED, Unchanged, check_changes
from di_store.policy.combination import MAX_CAPACITY
from di_store.policy.limiters import Limiter
from di_store.policy.options import check_table_name
from di_store.policy.samplers import Prioritized
from di_store.replay.batch import Batch, empty_batch, host_array, key_array
from di_store.replay.handle import Size, TableHandle, held_reserve
from di_store.replay.inserter import Inserter
from di_store.replay.loader import LEARNER_ROLE, Loader
from di_store.replay.sampling import TableSource, read_batch
from di_store.replay.stats import TableStats, table_stats
from di_store.replay.writer import Writer
from di_store.runtime.chores import run_ahead
from di_store.runtime.waits import Missing, check_timeout, lock_seconds, until
from di_store.session import Session, loaded

_MINUTE = 60
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_AT_ONCE = 65_536
"""Of a larger batch it is looked first whether any memory could hold it."""


def _resized(handle: TableHandle, capacity: int, seconds: float, now: dict[str, Any]) -> Size:
    """The size of a table for so many items; `CapacityError` where there is no room for them."""
    schema, slots, reserve = handle.schema, int(now["slots"]), held_reserve(now)
    if schema is not None:
        needed = handle.needs_resized(schema, capacity, now)
        slots_held = needed.meta_bytes if capacity <= slots - 1024 else 0
        check_room(handle.name, needed, handle.arena.available(seconds), int(now["reserve_bytes"]) + slots_held)
        reserve = needed.reserve
    return capacity, max(slots_for(capacity), slots), reserve


class Table:
    """A handle of one table; thread-safe. Pickles as the names of store and table, and attaches when loaded."""

    def __init__(self, session: Session, native: _core.Table) -> None:
        handle = TableHandle(session.arena, native, session.versions)
        self._session = session
        self._name = handle.name
        # Another thread may close the store: a call reads this field once, and keeps the handle until its end.
        self._handle: TableHandle | None = handle
        self._inserter = Inserter(handle)
        self._beta_default = isinstance(handle.settings.sampler, Prioritized)
        self._sample: Callable[[int, float | None, list[int] | None], Any] = self._first_sample
        self._closed: StoreError | None = None
        session.follow(self, Table._end_with)

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    def __len__(self) -> int:
        return int(self._open().native.size())

    def __repr__(self) -> str:
        return f"<Table {self.name!r} of store {self._session.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # mutant: pickled-table-of-another-store
        return load_table, (self._session.name, self._name, self._session.readonly)

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """A writer for one thread: a context manager.

        Args:
            lanes: streams that are appended to together, leaves ``[lanes, …]``; None: one, leaves as they are.
            autoreset: Gymnasium's ``envs.metadata["autoreset_mode"]``. Next-step mode drops a lane's row after an ended
                one; its observation is the final one of the episode before it, where no other was given. Same-step mode
                takes ``final=infos.get("final_obs")``. None: the program resets by itself.

        Raises:
            SchemaMismatch: `Transition`, `Sequence` and `Episode` need to know how episodes end, and the declared
                columns have ``done``, ``dones``, ``terminal`` or ``is_last`` in place of ``terminated`` and
                ``truncated``. Without any of these there is one warning.
        """
        return Writer(self._session, [self._writable()], lanes, autoreset, single=True)

    def insert(self, value: Any, *, priority: float | None = None, timeout: float | None = None) -> Array:
        """One item without a stream; its key, uint64[1].

        Args:
            value: Step: the row. Opaque: any value. Sequence, Episode: leaves ``[time, …]``. Transition: a finished
                one, with ``next_<obs>`` and ``discount``.
            priority: None: the table's `initial_priority`.
            timeout: seconds to wait for the limiter, for room, and for inserts of other threads; None: no limit.

        Raises:
            Timeout, StoreFull, SchemaMismatch: nothing was written. EndOfData: the table is finished.
        """
        self._writable()
        return self._inserter.insert(value, priority, timeout)

    def extend(self, batch: Any, *, priority: Any = None, timeout: float | None = None) -> Array:
        """Several items without a stream, leaves ``[n, …]`` as `insert`; their keys, uint64[n], in that order.

        Args:
            batch: one entry of the leading axis is one item; Opaque: any values.
            priority: one number, or one for each item; None: the table's `initial_priority`.
            timeout: as `insert`.

        Raises:
            ValueError: more items than capacity. Else as `insert`.
        """
        self._writable()
        return self._inserter.insert(batch, priority, timeout, one=False)

    # -- reading ------------------------------------------------------------------------------------------------

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
    ) -> Batch:
        """Draw n items, as the limiter lets them go.

        Args:
            n: examples; it may exceed what the limiter lets through at once.
            timeout: seconds to wait for them; None: no limit, unless nobody writes for a minute.
            min_n: return when that many are there and `linger` seconds brought no more.
            linger: default the rest of `timeout`.
            beta: exponent of the importance weights; None: the sampler's.
            columns: copy only these outputs.
            out: a batch of n examples, which is overwritten and returned; where fewer are drawn, the result is over the
                front of its arrays.

        Raises:
            Timeout: what was drawn is given back. EndOfData: finished, and nothing is left.
        """
        handle = self._handle
        now = min_n is None and columns is None and out is None and type(n) is int and 0 < n <= _AT_ONCE
        if now and handle is not None and (timeout is None or (type(timeout) in (float, int) and timeout >= 0)):
            if beta is None and self._beta_default and self._closed is None:
                beta = handle.native.beta
            plain = beta is None or (type(beta) is float and 0 <= beta < math.inf)
            found = self._sample(n, beta, None) if plain else None
            if type(found) is tuple:
                return handle.batch(found) if handle.special else Batch(*found)
        else:
            found = None
        handle = self._writable()
        return read_batch(handle, found, n, timeout, min_n, linger, self._beta(handle, beta), columns, out)

    def _first_sample(self, n: int, beta: float | None, which: list[int] | None) -> Any:
        """The first call finds the core's reader; None while the table has no columns."""
        handle = self._writable()
        if handle.schema is None:
            return None
        handle.arena.set_role(LEARNER_ROLE)
        run_ahead(handle.arena)
        sample = self._sample = handle.reader().sample
        if self._closed is not None:  # by another thread, meanwhile
            self._sample = self._refuse
        return sample(n, beta, which)

    def _beta(self, handle: TableHandle, beta: Any) -> float | None:
        if beta is None:
            return handle.native.beta if self._beta_default else None
        return config.real("beta", beta, why="it is the exponent of the importance weights")

    def peek(self, keys: Any, *, columns: str | Iterable[str] | None = None) -> Batch:
        """What `sample` would return for these items, in this order; gone ones have `live` False.

        It waits for nothing and counts nothing: `times_sampled` is what it was. A table without columns yet has no
        items, and its batch no data.
        """
        handle = self._open()
        wanted = key_array(keys)
        if handle.read_plan() is None:
            return empty_batch(wanted)
        which = handle.which(columns)
        return handle.batch(handle.reader().peek(wanted, self._beta(handle, None), which))

    def keys(self, start: int = 0, n: int | None = None, *, timeout: float | None = 60) -> Array:
        """Keys of up to `n` items, oldest first, the `start` oldest left out: uint64."""
        first = config.count("start", start, minimum=0)
        most = UNLIMITED if n is None else config.count("n", n, minimum=0)
        return self._open().native.keys(first, most, lock_seconds(timeout))

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        """Set priorities; how many of the items were live. Of repeated keys the last counts.

        Args:
            keys: uint64[n], as a batch has them.
            priorities: n numbers, numpy or torch of any device.
            timeout: seconds to wait where a stopped process holds the table up; None: no limit.

        Raises:
            ValueError: NaN, infinite or negative ones, those whose power alpha no sampler can sum (`Prioritized`), or
                another number of them; nothing was changed.
        """
        if type(priorities) is not np.ndarray or priorities.dtype not in _FLOATS:
            priorities = host_array(priorities)
        if type(keys) is not np.ndarray or keys.dtype != np.uint64:
            keys = key_array(keys)
        return self._writable().native.update(keys, priorities, 60.0 if timeout is _MINUTE else lock_seconds(timeout))

    def delete(self, keys: Any, *, timeout: float | None = 60) -> int:
        """Remove items; how many were there."""
        return self._writable().native.remove(key_array(keys), lock_seconds(timeout))

    # -- changing -----------------------------------------------------------------------------------------------

    def reset(self, *, timeout: float | None = 60) -> None:
        """Remove all items; all counts start again, and the table takes inserts again after `finish`.

        Draws that nobody has received yet are still handed out, and count nowhere. The largest priority stays.
        """
        self._writable().native.reset(lock_seconds(timeout))

    def resize(self, capacity: int, *, timeout: float | None = 60) -> None:
        """Change the number of items while the table is in use; a smaller one evicts by the remover.

        Raises:
            CapacityError: below what the limiter needs, or beyond the store's memory; nothing was changed.
        """
        handle = self._writable()
        settings = handle.settings
        wanted = config.count("capacity", capacity, minimum=1, maximum=MAX_CAPACITY, why="a table holds an item")
        seconds = lock_seconds(timeout)
        stats = handle.native.stats()
        least = int(stats["limiter"]["max_diff"]) if settings.queued else int(stats["limiter"]["min_size"])
        # mutant: resize-below-what-the-limiter-needs
        if wanted < least:
            raise CapacityError(
                f"capacity={wanted} is below the {least} items that the limiter of table {self.name!r} needs",
                remedy="change it first with table.configure(limiter=)",
            )
        handle.resize(partial(_resized, handle, wanted, seconds), seconds)

    def configure(
        self,
        *,
        limiter: Limiter | None = None,
        alpha: float | None = None,
        beta: float | Unchanged | None = UNCHANGED,
        max_staleness: int | Unchanged | None = UNCHANGED,
        timeout: float | None = 60,
    ) -> None:
        """Change settings while the table is in use; a changed limiter starts its counts again.

        Its counts then begin as if `min_size` of the items there had just been inserted: a full table continues at
        once, in the middle of the band of `SamplesPerInsert`. A queue continues to count what waits in it.

        Args:
            limiter: another of the same kind of table: a queue stays a queue.
            alpha: exponent on priorities.
            beta: exponent of the importance weights; None: weights 1.
            max_staleness: versions; None: no limit.
            timeout: seconds to wait where a stopped process holds the table up; None: no limit.

        Raises:
            ValueError: it contradicts the table's other settings; nothing was changed.
        """
        handle = self._writable()
        capacity = int(handle.native.stats()["capacity"])
        changes = check_changes(
            handle.settings, capacity, limiter=limiter, alpha=alpha, beta=beta, max_staleness=max_staleness
        )
        handle.native.configure(*native_changes(changes), lock_seconds(timeout))

    def finish(self, *, timeout: float | None = 60) -> None:
        """No more inserts will come: `sample` returns what remains, then raises `EndOfData`; loaders stop.

        Before `EndOfData` it waits for draws that others hold undelivered, as long as its `timeout` allows: they may
        come back. Where draws use items up (`max_times_sampled`, a queue, `Once` with a last epoch) the limiter holds
        nothing back any more.
        """
        self._writable().native.finish(lock_seconds(timeout))

    def stats(self) -> TableStats:
        """Counts, bytes and the limiter's state, read without locks.

        ``bytes_stored`` is what the table's chunks take. ``bytes_logical`` is what its items would take if each held
        its own copy of all that a batch shows of it. Ragged values count with their own lengths: all of them in tables
        whose items span up to 16,384 rows, beyond that by the mean of as many rows, of items that lie evenly among all.
        That look takes some milliseconds and the table's lock now and then; while another process holds the table up,
        the ragged values that were not seen within 20 ms do not count.
        """
        handle = self._open()
        handle.warn_evicted()
        return table_stats(handle)

    def loader(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: float | Callable[[int], float | None] | None = None,
        columns: str | Iterable[str] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
    ) -> Loader:
        """An iterator over batches that a background thread draws ahead.

        Args:
            batch_size: examples per batch.
            prefetch: batches drawn ahead; 0: none, each is drawn when it is asked for.
            device: `data` and `weights` become torch tensors there, ready on the current stream.
            pin_memory: the buffers lie in page-locked memory.
            beta: a number, or a function of the batch's number; None: the sampler's.
            columns: copy only these outputs.
            drop_last: leave out a smaller last batch.
            timeout: seconds that one batch may take; None: no limit.
        """
        source = TableSource(self._writable(), columns)
        return Loader(self._session, source, batch_size, prefetch, device, pin_memory, beta, drop_last, timeout)

    # -- handles ------------------------------------------------------------------------------------------------

    def _open(self) -> TableHandle:
        handle = self._handle
        if handle is None:
            assert self._closed is not None
            raise copy.copy(self._closed)
        return handle

    def _writable(self) -> TableHandle:
        handle = self._handle
        if handle is None:
            return self._open()
        if self._session.readonly:
            self._session.check_writable()
        return handle

    def _end_with(self, why: StoreError) -> None:
        """The store's handle is closed: later calls raise `why`, and so do those that wait."""
        handle = self._handle
        if handle is None:
            return
        self._closed = self._closed or why
        handle.closed = self._closed
        self._sample = self._refuse
        self._inserter.end_with(self._closed)
        self._handle = None  # the mapping goes with the last handle: drop the core's part

    def _refuse(self, *_: Any) -> NoReturn:
        assert self._closed is not None
        raise copy.copy(self._closed)


def open_table(session: Session, name: str, timeout: float | None) -> Table:
    """The table of that name, which somebody may still have to create.

    Raises:
        TableNotFound: it was not there within `timeout` seconds.
    """
    arena, seconds = session.arena, check_timeout(timeout)
    native = arena.table(check_table_name(name))
    if native is None:
        native = until(lambda: session.arena, seconds, f"table {name!r}", partial(_look, session.name, name))
    return Table(session, native)


def _look(store: str, name: str, arena: _core.Arena) -> _core.Table | Missing[_core.Table]:
    seen = arena.room_seq()
    if (native := arena.table(name)) is not None:
        return native
    missing = TableNotFound(f"store {store!r} has no table {name!r}")
    return Missing(arena.wait_table, seen, "nobody has created it yet", error=missing)


def load_table(store: str, name: str, readonly: bool) -> Table:
    """A table that was pickled, in the process that loads it."""
    return loaded(lambda session: open_table(session, name, 0), store, readonly)
