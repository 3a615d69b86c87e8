"""`TrajectoryDataset`: the items of a table as an iterator, one by one or in batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import di_store
from di_store.adapters.reverb import nest, served
from di_store.adapters.reverb.client import Client
from di_store.adapters.reverb.errors import DeadlineExceededError
from di_store.adapters.reverb.forms import Array
from di_store.adapters.reverb.reverb_types import ReplaySample, SampleInfo, TensorSpec

_INFO = SampleInfo(
    TensorSpec((), np.dtype(np.uint64)),
    TensorSpec((), np.dtype(np.float64)),
    TensorSpec((), np.dtype(np.int64)),
    TensorSpec((), np.dtype(np.float64)),
    TensorSpec((), np.dtype(np.int32)),
)


class Dataset:
    """An iterator that can be restarted, with the methods of `tf.data.Dataset` that programs with Reverb use."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The same as iterating."""
        return iter(self)

    def prefetch(self, buffer_size: int) -> Dataset:
        """The same dataset: its items are already in this machine's memory."""
        return self

    def take(self, count: int) -> Dataset:
        """The first `count` elements; below 0: all."""
        return self if count < 0 else Dataset(lambda: itertools.islice(self, count))

    def repeat(self, count: int | None = None) -> Dataset:
        """The elements `count` times, each time drawn again; None, or below 0: without end."""
        times = () if count is None or count < 0 else (count,)
        return Dataset(lambda: itertools.chain.from_iterable(itertools.repeat(self, *times)))

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """The elements in random order: each is drawn from `buffer_size` elements that are held.

        Args:
            buffer_size: number of elements.
            seed: seed of the draws; None: a new seed each time.
            reshuffle_each_iteration: whether each iteration has an order of its own; None: yes.
        """
        _check_positive("buffer_size", buffer_size, False)
        source = np.random.default_rng(seed)
        same = int(source.integers(2**63)) if reshuffle_each_iteration is False else None

        def made() -> Iterator[Any]:
            draws = source if same is None else np.random.default_rng(same)
            held: list[Any] = []
            for each in self:
                if len(held) < buffer_size:
                    held.append(each)
                    continue
                place = int(draws.integers(buffer_size))
                found, held[place] = held[place], each
                yield found
            draws.shuffle(held)
            yield from held

        return Dataset(made)

    def map(self, map_func: Callable[..., Any], **options: Any) -> Dataset:
        """Each element replaced by ``map_func(element)``; of a `ReplaySample` it gets the fields `info` and `data`."""
        return Dataset(lambda: (map_func(*each) if type(each) is ReplaySample else map_func(each) for each in self))

    def batch(self, batch_size: int, drop_remainder: bool = False, **options: Any) -> Dataset:
        """Elements stacked, leaves ``[batch_size, …]``."""

        def made() -> Iterator[Any]:
            elements = iter(self)
            while held := list(itertools.islice(elements, batch_size)):
                if len(held) == batch_size or not drop_remainder:
                    yield _stacked(held)

        return Dataset(made)


def _stacked(elements: list[Any]) -> Any:
    leaves = zip(*map(nest.flatten, elements), strict=True)
    return nest.unflatten_as(elements[0], [np.stack(column) for column in leaves])


class TrajectoryDataset(Dataset):
    """The items of a table, as `ReplaySample`.

    Args:
        server_address: as for `Client`.
        table: name of the table.
        dtypes: types of the columns, in the nesting wanted for `data`.
        shapes: shapes of the columns, nested in the same way.
        max_in_flight_samples_per_worker: number of items to draw ahead if the limiter allows it; with `batch`, none.
        num_workers_per_iterator: has no effect.
        max_samples_per_stream: has no effect.
        rate_limiter_timeout_ms: the iterator ends if no item came for this long; -1: it waits.
        max_samples: the iterator ends after this many items; -1: never.

    Raises:
        ValueError: an argument is wrong.
    """

    def __init__(
        self,
        server_address: served.Address,
        table: str,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        super().__init__(self._items)
        _check_positive("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, False)
        _check_positive("num_workers_per_iterator", num_workers_per_iterator, True)
        _check_positive("max_samples_per_stream", max_samples_per_stream, True)
        _check_positive("max_samples", max_samples, True)
        if rate_limiter_timeout_ms < -1:
            raise ValueError(f"rate_limiter_timeout_ms ({rate_limiter_timeout_ms}) must be an integer >= -1")
        self._specs = _specs(dtypes, shapes)
        self._flat: list[TensorSpec] = nest.flatten(self._specs)
        self._address, self._name = served.checked(server_address), served.text(table)
        self._ahead = max_in_flight_samples_per_worker
        self._timeout = None if rate_limiter_timeout_ms < 0 else rate_limiter_timeout_ms / 1_000
        self._most = None if max_samples < 0 else max_samples
        self._checked: set[tuple[Any, ...]] = set()

    @classmethod
    def from_table_signature(
        cls,
        server_address: served.Address,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        max_samples: int = -1,
    ) -> TrajectoryDataset:
        """A dataset with types and shapes of the table's signature.

        Raises:
            ValueError: there is no such table, or it has no signature. DeadlineExceededError: there is no server.
        """
        info = Client(server_address).server_info(get_signature_timeout_secs)
        if table not in info:
            raise ValueError(
                f"Server at {server_address} does not contain any table named {table}. Found: "
                f"{', '.join(sorted(info))}."
            )
        signature = info[table].signature
        if not signature:
            raise ValueError(f"Table {table} at {server_address} does not have a signature.")
        return cls(
            server_address,
            table,
            nest.map_structure(lambda spec: spec.dtype, signature),
            nest.map_structure(lambda spec: spec, signature),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )

    @property
    def element_spec(self) -> ReplaySample:
        """`TensorSpec` of all leaves."""
        return ReplaySample(_INFO, self._specs)

    def batch(self, batch_size: int, drop_remainder: bool = False, **options: Any) -> Dataset:
        """Batches: leaves ``[batch_size, …]``, drawn together. Arrays may be strided views of one buffer."""
        _check_positive("batch_size", batch_size, False)
        return Dataset(lambda: self._batches(batch_size, drop_remainder))

    def _draws(self, count: int, whole: bool) -> Iterator[tuple[served.ServedTable, di_store.Batch]]:
        """Draws of up to `count` items; `whole`: of no less, but after a timeout the remaining items."""
        source = served.connect(self._address, None).table(self._name)
        left, timeout, rest = self._most, self._timeout, False
        while left is None or left > 0:
            now = count if whole else source.few(count)
            now = now if left is None else min(now, left)
            try:
                batch = source.draw(now, timeout, now if whole and not rest else 1)
            except DeadlineExceededError:
                if rest or not whole:
                    return
                timeout, rest = 0.0, True
                continue
            left = None if left is None else left - len(batch)
            yield source, batch
            if rest:
                return

    def _items(self) -> Iterator[ReplaySample]:
        specs = self._specs
        for source, batch in self._draws(self._ahead, False):
            size = np.int64(batch.table_size)
            for place, data in enumerate(source.items(batch)):
                self._check(data, 0)
                key, probability, priority = batch.keys[place], batch.probabilities[place], batch.priorities[place]
                info = SampleInfo(key, probability, size, priority, batch.times_sampled[place])
                yield ReplaySample(info, nest.unflatten_as(specs, data))

    def _batches(self, size: int, drop_remainder: bool) -> Iterator[ReplaySample]:
        specs = self._specs
        for source, batch in self._draws(size, True):
            count = len(batch)
            if count < size and drop_remainder:
                return
            columns = source.columns(batch)
            if columns is None:
                columns = [np.stack(column) for column in zip(*source.items(batch), strict=True)]
            self._check(columns, 1)
            sizes = np.full(count, batch.table_size, np.int64)
            info = SampleInfo(batch.keys, batch.probabilities, sizes, batch.priorities, batch.times_sampled)
            yield ReplaySample(info, nest.unflatten_as(specs, columns))

    def _check(self, data: list[Array], skip: int) -> None:
        """Check columns against the types and shapes, once for each form; `skip`: axes in front of an item's."""
        key = (skip, *[(column.dtype, column.shape[skip:]) for column in data])
        if key in self._checked:
            return
        if len(data) != len(self._flat):
            raise ValueError(f"items of table {self._name!r} have {len(data)} columns, not {len(self._flat)}")
        for spec, column in zip(self._flat, data, strict=True):
            if not spec.matches(column.shape[skip:], column.dtype):
                raise ValueError(
                    f"items of table {self._name!r} have a column {TensorSpec(column.shape[skip:], column.dtype)} "
                    f"where dtypes= and shapes= have {spec}"
                )
        self._checked.add(key)


def _specs(dtypes: Any, shapes: Any) -> Any:
    """The nested specs. Lists in `dtypes` become tuples; a list of sizes in `shapes` is a shape."""
    if nest.is_leaf(dtypes):
        shape = shapes.shape if isinstance(shapes, TensorSpec) else shapes
        return TensorSpec(shape, dtypes)
    wanted = nest.parts(dtypes)
    if nest.is_leaf(shapes) or len(nest.parts(shapes)) != len(wanted):
        raise ValueError(f"dtypes and shapes have different structures: {dtypes} and {shapes}")
    given = dict(nest.parts(shapes))
    if set(given) != {key for key, _ in wanted}:
        raise ValueError(f"dtypes and shapes have different structures: {dtypes} and {shapes}")
    found = [_specs(part, given[key]) for key, part in wanted]
    return tuple(found) if isinstance(dtypes, list) else nest.rebuilt(dtypes, found)


def _check_positive(name: str, value: int, or_minus_one: bool) -> None:
    if value < 1 and not (or_minus_one and value == -1):
        raise ValueError(f"{name} ({value}) must be a positive integer{' or -1' if or_minus_one else ''}")
