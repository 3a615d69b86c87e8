"""`Client`: inserts items into the tables of a server, and draws them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from di_store.adapters.reverb import nest, served
from di_store.adapters.reverb.forms import TEXTS, ItemForm, told
from di_store.adapters.reverb.history import as_array
from di_store.adapters.reverb.reverb_types import (
    CallStats,
    RateLimiterInfo,
    ReplaySample,
    SampleInfo,
    SelectorOptions,
    TableInfo,
)
from di_store.adapters.reverb.table_spec import TableSpec
from di_store.adapters.reverb.trajectory_writer import TrajectoryWriter
from di_store.adapters.reverb.writer import Writer


class Client:
    """Inserts and draws items. Any number of processes and threads may each have a client.

    Args:
        server_address: ``localhost:port``, the name of the server's store, or the store itself: a connected store, or
            one of a cluster. The server may start later: calls wait for it.
    """

    def __init__(self, server_address: served.Address) -> None:
        self._server_address = served.checked(server_address)
        self._service: tuple[int, served.Service] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._server_address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    @property
    def server_address(self) -> served.Address:
        """The address as it was given."""
        return self._server_address

    def _connect(self, timeout: float | None = None) -> served.Service:
        """The server's tables. After an error because the server was stopped, calls wait for another one."""
        known = self._service
        if known is not None and known[0] == os.getpid():
            if known[1].stopped:
                self._service = None
                raise served.stopped_error()
            return known[1]
        service = served.connect(self._server_address, timeout)
        self._service = os.getpid(), service
        return service

    # -- writing ------------------------------------------------------------------------------------------------

    def insert(self, data: Any, priorities: dict[str, float]) -> None:
        """Insert an item of one step into each table of `priorities`. The call waits for the tables' limiters."""
        if not priorities:
            raise ValueError("priorities must contain at least one item")
        service = self._connect()
        tables = [service.table(name) for name in priorities]
        arrays = [as_array(leaf)[None] for leaf in nest.flatten(data)]
        if any(array.dtype == object for array in arrays):
            row = {"form": np.uint64(TEXTS), "item": told(arrays)}
        else:
            form: ItemForm = tables[0].declare([(array.dtype, array.shape) for array in arrays])
            row = {"form": form.key, "item": form.pack(arrays)}
        for table, priority in zip(tables, priorities.values(), strict=True):
            table.insert(row, priority, None)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """A writer whose items are the newest steps.

        Args:
            max_sequence_length: number of steps that it keeps.
            delta_encoded: has no effect, as nothing is compressed.
            chunk_length: as `delta_encoded`.
            max_in_flight_items: how many items may wait for limiters before `create_item` waits; None: no limit.
        """
        if max_sequence_length < 1:
            raise ValueError(f"max_sequence_length ({max_sequence_length}) must be a positive integer")
        if chunk_length is not None and not 1 <= chunk_length <= max_sequence_length:
            raise ValueError(
                f"chunk_length ({chunk_length}) must be a positive integer le to max_sequence_length "
                f"({max_sequence_length})"
            )
        if max_in_flight_items is not None and max_in_flight_items < 1:
            raise ValueError(f"max_in_flight_items ({max_in_flight_items}) must be a positive integer")
        return Writer(self._connect, max_sequence_length, max_in_flight_items or 1_000_000)

    def trajectory_writer(self, num_keep_alive_refs: int, *, validate_items: bool = True) -> TrajectoryWriter:
        """A writer whose items are any windows of the newest steps.

        Args:
            num_keep_alive_refs: number of steps that it keeps, and so the longest span of an item.
            validate_items: whether items are checked against the signatures of tables.
        """
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs ({num_keep_alive_refs}) must be a positive integer")
        return TrajectoryWriter(self._connect, num_keep_alive_refs, validate_items)

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """Draw items one after the other. Each draw waits until the limiter allows it.

        Args:
            table: name of the table.
            num_samples: number of items.
            emit_timesteps: return each item as a list of its steps; False: as one `ReplaySample`.
            unpack_as_table_signature: nest `data` as in the table's signature; False: a list of columns.
        """
        source = self._connect().table(table)
        signature = source.spec.signature if unpack_as_table_signature else None
        left, most = num_samples, 1 if source.spec.max_times_sampled > 0 else served.AT_ONCE
        while left > 0:
            batch = source.draw(min(left, source.few(most)), least=1)
            left -= len(batch)
            infos = zip(
                batch.keys.tolist(),
                batch.probabilities.tolist(),
                [batch.table_size] * len(batch),
                batch.priorities.tolist(),
                batch.times_sampled.tolist(),
                strict=True,
            )
            for info, data in zip(infos, source.items(batch), strict=True):
                yield _sample(SampleInfo._make(info), data, signature, emit_timesteps)

    # -- tables -------------------------------------------------------------------------------------------------

    def mutate_priorities(
        self, table: str, updates: dict[int, float] | None = None, deletes: list[int] | None = None
    ) -> None:
        """Set priorities, then remove items. Keys of items that are gone are ignored."""
        self._connect().table(table).update(updates or {}, [] if deletes is None else list(deletes))

    def reset(self, table: str) -> None:
        """Remove all items of a table. Its limiter starts counting again."""
        self._connect().table(table).reset()

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """Settings and counts of all tables, by name.

        Raises:
            DeadlineExceededError: there is no server within `timeout` seconds.
        """
        service = self._connect(timeout)
        return {name: table_info(table.spec, table) for name, table in service.tables.items()}

    def checkpoint(self) -> str:
        """Not supported in this version."""
        raise NotImplementedError("this version of Di-store does not support Reverb checkpoints")


def table_info(spec: TableSpec, table: served.ServedTable | None) -> TableInfo:
    """Settings and counts of a table; None: no server serves it yet."""
    inserts, samples, size = (0, 0, 0) if table is None else table.counts()
    limiter = spec.rate_limiter
    return TableInfo(
        name=spec.name,
        sampler_options=SelectorOptions(spec.sampler),
        remover_options=SelectorOptions(spec.remover),
        max_size=spec.max_size,
        max_times_sampled=spec.max_times_sampled,
        rate_limiter_info=RateLimiterInfo(
            limiter.samples_per_insert,
            limiter.min_size_to_sample,
            limiter.min_diff,
            limiter.max_diff,
            CallStats(inserts),
            CallStats(samples),
        ),
        signature=spec.signature if spec.given is None else spec.given,
        current_size=size,
        unique=(lambda: 0) if table is None else table.unique,
    )


def _sample(info: SampleInfo, data: list[Any], signature: Any, emit_timesteps: bool) -> Any:
    if not emit_timesteps:
        return ReplaySample(info, data if signature is None else nest.unflatten_as(signature, data))
    if any(column.ndim == 0 for column in data) or len({len(column) for column in data}) != 1:
        raise ValueError("Can't split non timestep trajectory into timesteps.")
    steps = []
    for place in range(len(data[0])):
        step = [np.asarray(column[place], column.dtype) for column in data]
        steps.append(ReplaySample(info, step if signature is None else nest.unflatten_as(signature, step)))
    return steps
