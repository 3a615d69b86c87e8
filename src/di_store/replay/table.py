"""The handle of one table: writes to it, reads from it, and changes it while it is in use.

`Table` has the signature, the docstring and the argument checks of each call. Its `TableBackend` knows where the table
is. The calls that a training loop makes thousands of times a second go to the core directly if the table is in this
process's memory (`TableBackend.sample_now` and the like).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from di_store._core import LeaseEnd
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import RowsLost, SchemaMismatch
from di_store.layout.shape import UNLIMITED
from di_store.policy.changes import UNCHANGED, Unchanged
from di_store.policy.combination import MAX_CAPACITY
from di_store.policy.limiters import Limiter, check_limiter
from di_store.policy.samplers import Sampler
from di_store.policy.views import View, answers_of
from di_store.replay.aio_table import AioTable
from di_store.replay.batch import Batch, empty_batch, host_array, key_array, leased_keys
from di_store.replay.exporting import Exported
from di_store.replay.incomplete import IncompleteGroup, check_grouped, listed_incomplete
from di_store.replay.keys import GoneKey
from di_store.replay.laws import DrawOptions, draw_terms, given_options
from di_store.replay.lease import ack_how
from di_store.replay.loader import Loader, LoaderOptions
from di_store.replay.lost import without_lost
from di_store.replay.shown import repr_html
from di_store.replay.stats import TableStats
from di_store.replay.table_backend import AT_ONCE, TableBackend
from di_store.replay.writer import Writer
from di_store.runtime.deadline import Deadline

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MINUTE: float = 60
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_KEY_TYPE = np.dtype(np.uint64)
_ACKNOWLEDGED = LeaseEnd.ACKNOWLEDGED


class Table:
    """A handle of one table, wherever it is; thread-safe.

    It pickles as the names of store and table, and attaches when it is unpickled. For a remote store it also pickles
    the address; in a cluster it can be unpickled on any node.
    """

    def __init__(self, backend: TableBackend) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        """The table's name."""
        return self._backend.name

    @property
    def schema(self) -> dict[str, Any] | None:
        """The columns as a nested dict of `Spec`, as `create_table` takes it; None: no step has declared them yet."""
        schema = self._backend.schema()
        return None if schema is None else schema.specs()

    @property
    def capacity(self) -> int | None:
        """Number of items that the table can hold now; None: as many as fit `max_bytes`.

        Of a table in parts: of all shards that answer.
        """
        return self._backend.capacity()

    @property
    def view(self) -> View:
        """How rows become examples."""
        return self._backend.settings.view

    @property
    def sampler(self) -> Sampler:
        """The sampler with its current exponents."""
        return self._backend.sampler()

    @property
    def aio(self) -> AioTable:
        """`insert`, `extend`, `sample` and `update` for asyncio: ``await table.aio.sample(32)``.

        Raises:
            StoreError: the table is not in this process's memory.
        """
        return AioTable(self._backend, self.update)

    def __len__(self) -> int:
        return self._backend.size()

    def __repr__(self) -> str:
        return f"<Table {self._backend.shown()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._backend.pickled()

    _repr_html_ = repr_html

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """A writer for one thread: a context manager.

        Args:
            lanes: number of streams that one call appends to, usually one per environment: leaves are ``[lanes, …]``.
                None: a single stream, leaves without that axis.
            autoreset: Gymnasium's ``envs.metadata["autoreset_mode"]``. In next-step mode the row after the end of an
                episode is not stored; its observation becomes the final observation of that episode, unless one was
                given. In same-step mode, pass ``final=infos.get("final_obs")``. None: the program resets its
                environments.

        Raises:
            SchemaMismatch: `Transition`, `Sequence` and `Episode` need to know how episodes end, but the columns have
            ``done``, ``dones``, ``terminal`` or ``is_last`` instead of ``terminated`` and ``truncated``. If none of
            these columns exists, a warning is shown once.
        """
        return Writer(self._backend.writer(lanes, autoreset))

    def insert(self, value: Any, *, priority: float | None = None, timeout: float | None = None) -> Array:
        """Insert one item without a stream. Returns its key, uint64[1]; no key for a refused answer (`Group.unique`).

        Args:
            value: depends on the view. Step: the row. Opaque: any value. Sequence, Episode: leaves ``[time, …]``.
                Transition: a finished transition, with ``next_<obs>`` and ``discount``.
            priority: a number; None: the table's `initial_priority`.
            timeout: seconds to wait for the limiter, for room, and for inserts of other threads; None: no limit.

        Raises:
            Timeout, StoreFull, SchemaMismatch: nothing was written. EndOfData: the table is finished.
        """
        backend = self._backend
        try:
            if (key := backend.inserter.put(value, priority, timeout)) is not None:
                return key
        except SchemaMismatch:
            pass  # nothing was written; the call below says what is wrong
        return backend.insert(value, priority, Deadline.given(timeout))

    def extend(self, batch: Any, *, priority: Any = None, timeout: float | None = None) -> Array:
        """Insert n items without a stream. Returns their keys, uint64[n], in order; refused answers have no key.

        Args:
            batch: as in `insert`, with a leading axis of items, ``[n, …]``; Opaque: a list of any values.
            priority: one number, or one for each item; None: the table's `initial_priority`.
            timeout: as in `insert`.

        Raises:
            ValueError: there are no items, or more than the capacity. Others as in `insert`.
        """
        return self._backend.extend(batch, priority, Deadline.given(timeout))

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int | None = None,
        *,
        timeout: float | None = None,
        min_n: int | None = None,
        beta: float | None = None,
        columns: str | Iterable[str] | None = None,
        out: Batch | None = None,
        replace: bool = True,
        lease: float | None = None,
        **options: Unpack[DrawOptions],
    ) -> Batch:
        """Draw n items. If the limiter does not allow all of them yet, the call waits. If it raises, it drew none.

        Args:
            n: number of examples; may be more than the limiter allows at once. With `budget`, at most this number.
            timeout: seconds to wait. None: no limit, but `Timeout` after 60 s with no open writer, lease or new item.
            min_n: return early with at least this many, once `linger` seconds pass without a further draw. None: n, or
                what a `Pace` lets pass.
            linger: seconds; None: the rest of `timeout`.
            beta: exponent of the importance weights; None: the sampler's.
            columns: outputs to copy; None: all.
            out: a batch of n examples to overwrite and return; if fewer are drawn, a new one over its arrays' front.
            replace: whether a batch may hold an item more than once. False: each draw chooses among the items that the
                batch does not hold yet, as numpy's ``Generator.choice(replace=False)``. `Fifo` and `Lifo` then give the
                next n items, heaps the n best. Takes up to 1.5 times as long. `probabilities` are of a draw from all.
            lease: seconds from the return of this call, in which nobody else draws or evicts the items. `ack` ends
                this; otherwise they are drawn again, before others. None: the items count as done at once.
            keys: the items to draw, uint64[m], in place of `n` picks of the sampler.
            probabilities: of each of `keys`, for the importance weights; None: these are ones.
            budget: ``("tokens", 65_536)`` draws as many items as have this sum of sizes by a column (`Batch.split`).

        Raises:
            Timeout: not enough items in time. ObjectNotFound: fewer than `min_n` of `keys` can be drawn. EndOfData:
            the table is finished, and nothing is left. CapacityError: the batch fits no memory, or its first item no
            budget. StoreFull: not what is free. ValueError: a wrong argument; with replace=False also n above capacity,
            or sampler=Once(). AccessDenied, CorruptData, StoreError: values (`error.keys`) of an `Opaque` table cannot
            be loaded; only these count as drawn.
        """
        backend, found = self._backend, None
        now = min_n is None and columns is None and out is None and not (options and given_options(options))
        now = now and (timeout is None or (type(timeout) in (float, int) and timeout >= 0))
        if now and type(n) is int and 0 < n <= AT_ONCE and (replace is True or (replace is False and backend.repeats)):
            if beta is None and (native := backend.prioritized) is not None:
                beta = native.beta
            if beta is None or (type(beta) is float and 0 <= beta < math.inf):
                try:
                    if lease is None:
                        found = (backend.sample_now or backend.first_sample)(n, beta, None, not replace)
                    else:
                        found = backend.lease_now(n, beta, lease, not replace)
                except RowsLost:
                    pass  # the call below draws again, and removes their items
            if type(found) is tuple:
                return Batch(*found)
            if type(found) is Batch:
                return found
        terms, beta = draw_terms(backend, n, timeout, min_n, beta, out, replace, lease, options)
        return backend.sample(found, terms, beta, columns, out)

    def peek(self, keys: Any, *, columns: str | Iterable[str] | None = None) -> Batch:
        """The batch that `sample` would return for these items, in `keys` order. Items that are gone have `live` False.

        The call never waits for the limiter or for items, and counts no samples: `times_sampled` does not change. If
        the table has no columns yet, all items are gone and `data` is empty.

        Args:
            keys: uint64[n].
            columns: outputs to copy; None: all.
        """
        # Few frames of Python: beside a training, which empties the caches in between, each takes microseconds.
        handle = self._backend.handle
        exact = type(keys) is np.ndarray and keys.dtype is _KEY_TYPE and keys.ndim == 1
        wanted = keys if exact else key_array(keys)
        if handle is None:
            return self._backend.peek(wanted, columns)
        if handle.peek is None and handle.read_plan() is None:
            return empty_batch(wanted)
        peek = handle.peek or handle.reader().peek
        which = None if columns is None else handle.which(columns)
        beta = None if (native := self._backend.prioritized) is None else native.beta
        found = without_lost(handle.arena, peek, wanted, beta, which)
        return handle.batch(found) if handle.special else Batch(*found)

    def keys(self, start: int = 0, n: int | None = None, *, timeout: float | None = 60) -> Array:
        """Keys of up to `n` items, oldest first, after skipping the `start` oldest: uint64[m].

        Args:
            start: how many items to skip.
            n: the most keys to return; None: all.
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.
        """
        first = config.count("start", start, minimum=0)
        most = UNLIMITED if n is None else config.count("n", n, minimum=0)
        return self._backend.keys(first, most, Deadline.given(timeout))

    def at(self, positions: Any, *, timeout: float | None = 60) -> Array:
        """Keys of the items at these positions in insertion order: uint64[n].

        0 is the oldest item in the table, -1 the newest. A lookup takes about 50 ns. If items left out of order, if the
        table was resized, or for more than 4,096 positions, the call lists all keys instead.

        Args:
            positions: n whole numbers.
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.

        Raises:
            ValueError: a position is outside the table. TypeError: positions are not whole numbers.
        """
        return self._backend.at(positions, Deadline.given(timeout))

    def positions(self, keys: Any, *, timeout: float | None = 60) -> Array:
        """Positions of items in insertion order, the reverse of `at`: int64[n]; -1: not in the table.

        Args:
            keys: uint64[n].
            timeout: as in `at`.
        """
        return self._backend.positions(key_array(keys), Deadline.given(timeout))

    def evicted(self, *, timeout: float | None = 60) -> Iterator[GoneKey]:
        """An iterator over the keys of items that leave the table from now on, and why: ``key.reason``.

        A loop over the iterator yields the new keys since the last loop, and ends; a later loop continues. The first
        call makes the table keep its newest 65,536 such keys, in 512 KiB. A group counts as the key of its first
        answer, even if the group leaves before it is complete. The reasons: `GoneKey`.

        Args:
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.

        Raises:
            StoreError: the loop missed keys: too many, or a process died while removing items. The next loop continues.
        """
        return self._backend.evicted(Deadline.given(timeout))

    def incomplete(self, *, timeout: float | None = 60) -> list[IncompleteGroup]:
        """Groups that cannot be drawn yet, oldest first. Only for tables with the view `Group`.

        Raises:
            ValueError: the table has another view.
        """
        view = check_grouped(self.name, self.view)
        return listed_incomplete(view, self._backend.incomplete(Deadline.given(timeout)))

    def ack(self, leased: Any, *, counts: bool = True, timeout: float | None = 60) -> int:
        """Acknowledge leased items: their work is done, as if they had been drawn without a lease.

        Args:
            leased: a batch, or its `Batch.lease`: leases that have ended by now count nothing, and a later lease of the
                same item stays. Or keys, uint64[n], which mean the lease that each item has now, whoever holds it.
            counts: False: their work was for nothing, because it became stale or a filter dropped it. The items are
                done, but the limiter no longer counts their draws: others may be drawn in their place.
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.

        Returns: How many leases it ended. 512 items are acknowledged at a time; a kill in between leaves the others.

        Raises:
            ValueError: the batch was drawn without ``lease=``; or `counts` is False and the table a queue or stack.
        """
        how = _ACKNOWLEDGED if counts is True else ack_how(counts)
        if type(leased) is Batch and timeout is _MINUTE and how is _ACKNOWLEDGED and self._backend.ack_now is not None:
            return self._backend.ack_now(*leased_keys(leased), how, 60.0)
        return self._backend.end_leases(*leased_keys(leased), how, Deadline.given(timeout))

    def give_back(self, leased: Any, *, timeout: float | None = 60) -> int:
        """Undo the draws of leased items, which are drawn next, before others. Arguments and result as in `ack`."""
        return self._backend.end_leases(*leased_keys(leased), LeaseEnd.RETURNED, Deadline.given(timeout))

    def update(
        self, keys: Any, values: Any, *, row: int | None = 0, ack: bool = False, timeout: float | None = 60
    ) -> int:
        """Write late columns of items' rows. Returns how many of the items were in the table.

        All tables of a stream share its rows, late values included. Items of any of these tables can be sampled once
        their late values are written. A reader sees the old values of a row or the new ones, never a mixture of two
        updates of one column. Costs about 0.3 µs and the copy per item.

        Args:
            keys: uint64[n], from a batch or from `append`.
            values: nested dict of late columns, ``[n, …]``; numpy or torch on any device.
            row: number of the step in the item, from 0; negative: from its end. None: all steps; leaves are ``[n, time,
                …]``, and an item with fewer steps takes the first values.
            ack: acknowledge the items too, as `ack` does, with each 64 items' values in one step. `keys` may then be a
                batch or its lease.
            timeout: seconds to wait if a stopped process holds a lock of a table of the stream; None: no limit.

        Raises:
            SchemaMismatch: a column is not declared with ``Spec(late=True)``, or a value does not fit it; nothing was
            written. ValueError: an item lacks that row.
        """
        number = None
        if ack is not False and config.flag("ack", ack):
            keys, number = leased_keys(keys)
        elif (handle := self._backend.handle) is not None:
            try:
                if (there := handle.write_late(keys, values, row, timeout)) is not None:
                    return there
            except SchemaMismatch:
                pass  # nothing was written; the call below says what is wrong
        return self._backend.update(key_array(keys), values, row, Deadline.given(timeout), number)

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        """Set priorities. Returns how many of the items were live. If a key is repeated, its last priority is set.

        Args:
            keys: uint64[n], from a batch.
            priorities: n numbers, numpy or torch on any device.
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.

        Raises:
            ValueError: a priority is NaN, infinite, negative, or its power alpha is outside the range that the sampler
            can sum (`Prioritized`); or there are not n priorities. Nothing was changed.
        """
        if type(priorities) is not np.ndarray or priorities.dtype not in _FLOATS:
            priorities = host_array(priorities)
        if type(keys) is not np.ndarray or keys.dtype != np.uint64:
            keys = key_array(keys)
        if timeout is _MINUTE and (update := self._backend.update_now) is not None:
            return update(keys, priorities, 60.0)
        return self._backend.update_priorities(keys, priorities, Deadline.given(timeout))

    def delete(self, keys: Any, *, timeout: float | None = 60) -> int:
        """Remove items by key, uint64[n]. Returns how many of them were in the table."""
        return self._backend.delete(key_array(keys), Deadline.given(timeout))

    # -- changing -----------------------------------------------------------------------------------------------

    def reset(self, *, timeout: float | None = 60) -> None:
        """Remove all items and set all counts to 0. A finished table accepts inserts again.

        Batches that are being drawn can still be delivered, but do not count. `max_priority` keeps its value.
        """
        self._backend.reset(Deadline.given(timeout))

    def resize(self, capacity: int, *, timeout: float | None = 60) -> None:
        """Change the capacity while the table is in use. If it shrinks, the remover chooses the items to evict.

        Raises:
            CapacityError: less than the limiter needs, or more than the store has memory for; nothing was changed.
        """
        most = MAX_CAPACITY // answers_of(self.view)
        wanted = config.count("capacity", capacity, minimum=1, maximum=most, why="a table holds an item")
        self._backend.resize(wanted, Deadline.given(timeout))

    def configure(
        self,
        *,
        limiter: Limiter | None = None,
        alpha: float | None = None,
        beta: float | Unchanged | None = UNCHANGED,
        max_staleness: int | Unchanged | None = UNCHANGED,
        timeout: float | None = 60,
    ) -> None:
        """Change settings while the table is in use. Arguments that are not given keep their setting.

        A new limiter starts counting as if `min_size` of the present items had just been inserted. So a full table
        continues at once, in the middle of the band of `SamplesPerInsert`. A queue still counts the items that wait in
        it, and a `Pace` the draws that are ahead.

        Args:
            limiter: of the same kind: a queue stays a queue, a `Pace` one of the same weights.
            alpha: exponent of priorities.
            beta: exponent of the importance weights; None: weights are 1.
            max_staleness: in versions of the weights; None: no limit.
            timeout: seconds to wait if a stopped process holds the table's lock; None: no limit.

        Raises:
            ValueError: the change contradicts the table's other settings; nothing was changed.
        """
        given = None if limiter is None else check_limiter(limiter)
        changes = {"limiter": given, "alpha": alpha, "beta": beta, "max_staleness": max_staleness}
        self._backend.configure(changes, Deadline.given(timeout))

    def finish(self, *, timeout: float | None = 60) -> None:
        """Declare that no more inserts will come. Inserts then raise `EndOfData`, until `reset`.

        Once nothing is left to draw, `sample` raises `EndOfData` and loaders stop. This happens if draws use items up
        (`max_times_sampled`, a queue, `Once` with a last epoch); then the limiter no longer makes draws wait. Other
        tables can be sampled until they are empty. Before `EndOfData`, `sample` waits for other processes' draws that
        may be given back, and for items that lack only late columns.
        """
        self._backend.finish(Deadline.given(timeout))

    def stats(self) -> TableStats:
        """Counts, bytes and the limiter's state.

        `bytes_stored`: bytes of the table's chunks. `bytes_logical`: bytes of its items if each item had its own copy
        of everything that a batch shows of it. Ragged columns are measured on up to 16,384 rows of evenly spread items,
        which takes some milliseconds. This and the sums of priorities (`mass`) take the table's lock. If another
        process holds it for more than 20 ms, the remaining rows are left out, and `mass` is None.
        """
        return self._backend.stats()

    def loader(self, batch_size: int, **options: Unpack[LoaderOptions]) -> Loader:
        """An iterator over batches that are drawn ahead and copied by a background thread. All options have defaults.

        Args:
            batch_size: examples per batch.
            prefetch: batches drawn ahead, as far as the table gives them without waiting, at most 1,024; default 2. 0:
                no thread.
            device: torch device for `data` and `weights`, which are ready on the current stream; default None: numpy
                arrays.
            pin_memory: put the buffers in page-locked memory; default False.
            beta: a number, or a function from a batch's number (from 0) to it; default None: the sampler's.
            columns: outputs to copy; default None: all.
            drop_last: leave out a last batch of fewer than `batch_size` examples; default False.
            timeout: seconds that drawing one batch may take; default None: no limit.
            replace: whether a batch may hold an item more than once, as in `sample`; default True.
            lease: as in `sample`, for each batch. The seconds begin when `next` returns the batch, not while it is
                drawn ahead. Call `ack` before the next `next`; default None: no lease.

        Raises:
            ImportError: `device` or `pin_memory` needs torch. ValueError: an argument is wrong, or there is no such
            device. CapacityError: the batch does not fit in memory.
        """
        source = self._backend.source(options.get("columns"), options.get("timeout"))
        return Loader(self._backend, source, batch_size, options)

    def export(self, path: str | os.PathLike[str], *, timeout: float | None = 60) -> Exported:
        """Write the table to a file that `Store.import_table` reads. The table may be in use.

        The file, a zip of NumPy arrays, holds the settings and the items that are there when the call begins, each row
        once. Items that leave, or are lost on disk, before they are read are skipped. Priorities, counts and late
        values are of the moment of reading. The file is written as ``<path>.part`` and then replaces `path`;
        `StoreError` if another export is doing that. Takes time in proportion to items and rows, and memory of 150
        bytes per item plus 64 MiB or one row.
        """
        return self._backend.export(path, Deadline.given(timeout))


def backend_of(table: Table) -> TableBackend:
    """The table's backend."""
    return table._backend
