"""The tables of a server, seen from any process: an item of a Reverb table is a row of a Di-store table.

A server is a store. Its description (`TableSpec` of each table) is published in it, so that clients find it. The
process that inserts the first item of a table creates it in the store, since the item's size tells how much memory the
table may need.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.adapters.reverb import item_selectors
from di_store.adapters.reverb.errors import DeadlineExceededError, ReverbError
from di_store.adapters.reverb.forms import Array, ItemForm, ItemForms, Kind
from di_store.adapters.reverb.table_spec import TableSpec, described, specs_of
from di_store.adapters.stores import StoreLike, given_store
from di_store.cluster.store import ClusterStore

Address: TypeAlias = "str | di_store.Store"
"""What names a server: ``localhost:port``, the name of its store, or its store itself, such as one of
`di_store.connect`."""

_DESCRIPTION = "reverb"
_LOOK_SECONDS = 0.02
_SPARE = 4
"""A table without fixed item sizes gets memory for items that are this many times as large as the first one."""
_LEAST_BYTES = 64 << 20
_LANES_ON_DISK = 8
"""Lanes of a table in a store with a disk: few, because each lane keeps the rows being written in memory."""
_MOST_ITEMS = 1 << 28  # that a table can hold
AT_ONCE = 64
"""The most items that are drawn ahead while items are handed out one by one; fewer if they are large."""
_AHEAD_BYTES = 2 << 20
_GONE = (di_store.StoreClosed, di_store.TableNotFound)


class Service:
    """A store that holds the tables of one server, in this process.

    Args:
        store: the store of the tables.
        specs: settings of the tables, by name.
        version: number of the description that clients find.
    """

    def __init__(self, store: di_store.Store, specs: dict[str, TableSpec], version: int) -> None:
        self.store, self.specs = store, specs
        self.forms = ItemForms(store)
        self.stopped = False
        self._own_version = self._version = version
        self._looked = time.monotonic()
        self.tables = {name: ServedTable(self, spec) for name, spec in specs.items()}

    def table(self, name: str) -> ServedTable:
        """One of the tables.

        Raises:
            ValueError: there is no table of that name.
        """
        found = self.tables.get(name)
        if found is None:
            raise ValueError(f'Could not find table "{name}". The following tables exist: {", ".join(self.tables)}.')
        return found

    @property
    def address(self) -> Address:
        """The address for clients: the name of a store on this machine alone, otherwise the store itself."""
        return self.store.name if type(self.store) is di_store.Store else self.store

    def check(self) -> None:
        """Notice that the server was stopped, by any process. Looks only now and then, as every call checks this.

        Raises:
            ReverbError: it was stopped.
        """
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            newer = self.store.latest(_DESCRIPTION, newer_than=self._version, **_group(self.store))
        except di_store.StoreClosed:
            raise self.ended() from None
        if newer is not None and newer.value is None:
            raise self.ended()
        if newer is not None:  # another server has come
            self._version = newer.version

    def ended(self) -> ReverbError:
        """Note that the server was stopped. Returns the error for the call."""
        self.leave()
        return stopped_error()

    def leave(self) -> None:
        """Stop using this store, because the server was stopped."""
        self.stopped = True
        with _lock:
            if _services.get(self.address, (0, None))[1] is self:
                del _services[self.address]

    def stop(self, own: bool) -> None:
        """End the serving. Clients of all processes then raise `ReverbError`.

        `own`: whether the store is the server's own: then it goes, with the tables.
        """
        self.leave()
        with contextlib.suppress(di_store.StoreClosed):  # the program has closed it already
            now = _published(self.store, 0)
            if now is not None and now.version == self._own_version:  # else another server serves its tables there
                _publish(self.store, None)
            for name in self.specs if own else ():
                with contextlib.suppress(di_store.TableNotFound):  # no item ever came
                    self.store.drop_table(name)
        if own:
            self.store.close()


class ServedTable:
    """One table. Several threads may use it."""

    def __init__(self, service: Service, spec: TableSpec) -> None:
        self.spec, self._service = spec, service
        self._table: di_store.Table | None = None
        self._item_bytes = _AHEAD_BYTES  # of the items drawn last

    # -- the table in the store ---------------------------------------------------------------------------------

    def opened(self) -> di_store.Table | None:
        """The table in the store; None: no item was inserted yet."""
        self._service.check()
        if self._table is None:
            try:
                self._table = self._service.store.table(self.spec.name)
            except di_store.TableNotFound:
                self._check_served()
            except di_store.StoreClosed:
                raise self._service.ended() from None
        return self._table

    def _check_served(self) -> None:
        published = _published(self._service.store, 0)
        if published is None or published.value is None:
            raise self._service.ended()

    def _made(self, item_bytes: int) -> di_store.Table:
        """The table, created if there is none."""
        found = self.opened()
        if found is None:
            try:
                found = self._create(item_bytes)
            except di_store.TableExists:  # another process was faster
                found = self._service.store.table(self.spec.name, timeout=60)
            self._table = found
        return found

    def _create(self, item_bytes: int) -> di_store.Table:
        spec, store = self.spec, self._service.store
        fixed = spec.item_bytes
        each = (item_bytes if fixed is None else max(fixed, item_bytes)) + 64
        share, in_memory = self._shares()
        wanted = each * (spec.max_size + 1) * (_SPARE if fixed is None else 2) + min(_LEAST_BYTES, in_memory // 4)
        settings: dict[str, Any] = {
            "schema": {"form": di_store.Spec((), np.uint64), "item": di_store.Spec((None,), np.uint8)},
            "sampler": item_selectors.sampler(spec.sampler),
            "remover": item_selectors.remover(spec.remover),
            "limiter": spec.rate_limiter.limiter(spec.queue, spec.max_size),
            "max_times_sampled": max(0, spec.max_times_sampled),
        }
        if store.stats()["disk"] is not None:
            settings["lanes"] = _LANES_ON_DISK
        capacity = min(spec.max_size, _MOST_ITEMS)
        try:
            return store.create_table(spec.name, capacity=capacity, max_bytes=min(wanted, share), **settings)
        except di_store.CapacityError:
            if spec.queue is not None:
                raise
        # More items than memory can hold, as max_size is often just a large number: as many as there is room for.
        return store.create_table(spec.name, capacity=None, max_bytes=share * 3 // 4, **settings)

    def _shares(self) -> tuple[int, int]:
        """Bytes that the table may take in all, and in memory: an equal share for each table not created yet."""
        stats = self._service.store.stats()
        memory = free = stats["free"] - stats["reserved"]
        if (disk := stats["disk"]) is not None:
            free = max(free, disk["capacity"] - disk["live"] - stats["reserved"])
        coming = max(1, len(self._service.specs.keys() - stats["tables"].keys()))
        return max(1 << 20, int(free * 0.9) // coming), max(1 << 20, int(memory * 0.9) // coming)

    # -- items --------------------------------------------------------------------------------------------------

    def insert(self, row: dict[str, Any], priority: float, timeout: float | None) -> bool:
        """Insert an item. Returns whether the insert passed within `timeout` seconds (None: no limit).

        Args:
            row: ``form`` and ``item``.
            priority: priority of the item.
            timeout: seconds to wait for the limiter.
        """
        self._service.check()
        table = self._table
        if table is None:
            table = self._made(len(row["item"]))
        while True:
            try:
                table.insert(row, priority=priority, timeout=timeout)
                return True
            except di_store.Timeout:  # also without a timeout, if no learner is left
                if timeout is not None:
                    return False
            except _GONE:
                raise self._service.ended() from None

    def declare(self, kinds: Sequence[Kind]) -> ItemForm:
        """The form of items with columns of these types and shapes."""
        try:
            return self._service.forms.declare(kinds)
        except di_store.StoreClosed:
            raise self._service.ended() from None

    def draw(self, count: int, timeout: float | None = None, least: int | None = None) -> di_store.Batch:
        """Draw items.

        Args:
            count: at most this many.
            timeout: seconds; None: no limit.
            least: return once this many are drawn and no more can be drawn at once; None: `count`.

        Raises:
            DeadlineExceededError: fewer items could be drawn within `timeout`; all draws were given back.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        linger = None if least is None else 0
        while (table := self.opened()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceededError(f"table {self.spec.name!r} had no item for {timeout} s")
            time.sleep(_LOOK_SECONDS)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return table.sample(count, timeout=left, min_n=least, linger=linger)
            except di_store.Timeout as error:
                if deadline is not None and time.monotonic() >= deadline:
                    raise DeadlineExceededError(str(error)) from None
            except _GONE:
                raise self._service.ended() from None

    def columns(self, batch: di_store.Batch) -> list[Array] | None:
        """The columns ``[n, …]`` of a batch, as views; None: its items have different forms."""
        numbers, items = batch.data["form"], batch.data["item"]
        first = int(numbers[0])
        if first == 0 or not (len(numbers) == 1 or bool((numbers == numbers[0]).all())):
            return None
        form = self._service.forms.find(first)
        if items.values.size != len(numbers) * form.total:
            raise di_store.CorruptData(f"an item has another number of bytes than its form, {form.total}")
        return form.many(items.values, len(numbers))

    def items(self, batch: di_store.Batch) -> list[list[Array]]:
        """The columns of each item of a batch, as views."""
        items = batch.data["item"]
        self._item_bytes = items.values.size // len(batch)
        return self._service.forms.items(batch.data["form"], items.values, items.offsets)

    def few(self, count: int) -> int:
        """`count`, or less if `count` items are too large."""
        return max(1, min(count, _AHEAD_BYTES // max(1, self._item_bytes)))

    def update(self, updates: dict[int, float], deletes: list[int]) -> None:
        """Set priorities and remove items. Keys of items that are gone are ignored."""
        table = self.opened()
        if table is None:
            return
        try:
            if updates:
                keys = np.fromiter(updates, np.uint64, len(updates))
                table.update_priorities(keys, np.fromiter(updates.values(), np.float64, len(updates)))
            if deletes:
                table.delete(np.array(deletes, np.uint64))
        except _GONE:
            raise self._service.ended() from None

    def reset(self) -> None:
        """Remove all items, and let the limiter start counting again."""
        table = self.opened()
        if table is not None:
            try:
                table.reset()
            except _GONE:
                raise self._service.ended() from None

    # -- figures ------------------------------------------------------------------------------------------------

    def counts(self) -> tuple[int, int, int]:
        """Inserts and draws that the limiter counted, and the number of items."""
        table = self.opened()
        if table is None:
            return 0, 0, 0
        try:
            stats = table.stats()
        except _GONE:
            raise self._service.ended() from None
        if not stats["live"]:
            raise self._service.ended()
        return stats["limiter"]["inserts"], stats["limiter"]["samples"], stats["size"]

    def unique(self) -> int:
        """How many of the items in the table were drawn."""
        table = self.opened()
        if table is None:
            return 0
        return int((table.peek(table.keys(), columns="form").times_sampled > 0).sum())


# --- opening ---------------------------------------------------------------------------------------------------------

_services: dict[Address, tuple[int, Service]] = {}  # with the process that opened it
_lock = threading.RLock()
_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "[::1]", "[::]", "")


def checked(address: Any) -> Address:
    """An address: a store, or text, which may be TensorFlow's.

    Raises:
        ValueError: the address is on another machine.
    """
    if isinstance(address, di_store.Store):
        return address
    found = text(address)
    store_name(found)
    return found


def text(value: Any) -> str:
    """A string, also from a TensorFlow constant."""
    found = value.numpy() if hasattr(value, "numpy") else value
    return found.decode() if isinstance(found, bytes) else str(found)


def store_name(address: str) -> str:
    """The name of the store behind an address: ``host:port`` of this machine, or the store's name itself.

    Raises:
        ValueError: the address is on another machine.
    """
    found = re.fullmatch(r"(.*):(\d+)", address)
    if found is None:
        return address
    host = found[1]
    if host not in _HOSTS and host not in (name := socket.gethostname(), name.partition(".")[0]):
        raise ValueError(
            f"address {address!r}: the tables lie in the memory of the server's machine; on another machine give the "
            "store as address: Client(di_store.connect(...))"
        )
    return f"reverb-{found[2]}"


def serve(specs: dict[str, TableSpec], port: int | None, memory: Any) -> tuple[Service, int]:
    """Make a store with these tables. Returns it and its port.

    Raises:
        ReverbError: another server has that port.
    """
    while True:
        number = 20_000 + secrets.randbelow(40_000) if port is None else port
        try:
            store = di_store.open(f"reverb-{number}", memory=memory, mode="x")
            break
        except di_store.StoreError as error:
            if "exists already" not in str(error):
                raise
            if port is not None:
                raise ReverbError(f"port {port} is taken: {error}") from None
    return _served(store, specs), number


def serve_in(specs: dict[str, TableSpec], given: StoreLike) -> Service:
    """Serve tables in a given store. Tables that it already holds keep their items.

    Raises:
        ValueError: the store has a table of one of these names that no Reverb server made.
    """
    store = given_store(given)
    assert store is not None
    for name in specs:
        try:
            schema = store.table(name).schema
        except di_store.TableNotFound:
            continue
        if schema is None or set(schema) != {"form", "item"}:
            raise ValueError(
                f"table {name!r} of the store was not made by a Reverb server: give the table another name"
            )
    return _served(store, specs)


def _served(store: di_store.Store, specs: dict[str, TableSpec]) -> Service:
    service = Service(store, specs, _publish(store, specs))
    with _lock:
        _services[service.address] = os.getpid(), service
    return service


def _publish(store: di_store.Store, specs: dict[str, TableSpec] | None) -> int:
    """Let clients find the tables; None: the server was stopped. Returns the version of this description."""
    return store.publish(_DESCRIPTION, None if specs is None else described(specs), **_group(store))


def _published(store: di_store.Store, timeout: float | None) -> di_store.Published | None:
    """What `_publish` published."""
    return store.latest(_DESCRIPTION, timeout=timeout, **_group(store))


def _group(store: di_store.Store) -> dict[str, Any]:
    """In a cluster all nodes on which servers and clients run get the description."""
    return {"group": _DESCRIPTION} if isinstance(store, ClusterStore) else {}


def connect(address: Address, timeout: float | None) -> Service:
    """The service behind an address. Waits until there is a server.

    Raises:
        DeadlineExceededError: there was no server within `timeout` seconds.
    """
    known = address if isinstance(address, di_store.Store) else store_name(address)
    with _lock:
        pid, service = _services.get(known, (0, None))
    if service is not None and pid == os.getpid():
        return service
    deadline = None if timeout is None else time.monotonic() + timeout

    def left() -> float | None:
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    try:
        store = di_store.attach(known, timeout=left()) if isinstance(known, str) else known
    except di_store.StoreNotFound as error:
        raise DeadlineExceededError(f"no server at {address} within {timeout} s: {error}") from None
    published = _published(store, left())
    if published is None:
        raise DeadlineExceededError(f"no server at {address} within {timeout} s: its store has no tables")
    if published.value is None:
        raise stopped_error()
    service = Service(store, specs_of(published.value), published.version)
    if not isinstance(known, str):  # the client's own handle, which lives as long as it does
        return service
    with _lock:
        mine = _services.get(known)
        if mine is not None and mine[0] == os.getpid():
            return mine[1]
        _services[known] = os.getpid(), service
    return service


def stopped_error() -> ReverbError:
    """The error of calls to a server that was stopped."""
    return ReverbError("the server was stopped")
