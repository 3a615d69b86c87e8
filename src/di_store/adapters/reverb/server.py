"""`Table` and `Server`."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import di_store
from di_store.adapters.reverb import item_selectors, rate_limiters, served
from di_store.adapters.reverb.client import Client, table_info
from di_store.adapters.reverb.item_selectors import Selector
from di_store.adapters.reverb.rate_limiters import RateLimiter
from di_store.adapters.reverb.reverb_types import TableInfo, to_signature
from di_store.adapters.reverb.table_spec import TableSpec
from di_store.adapters.stores import StoreLike


class Table:
    """The settings of a table, and the table itself once a `Server` serves it.

    Args:
        name: name of the table.
        sampler: chooses the item to draw.
        remover: chooses the item to evict from a full table; any selector but `Prioritized`.
        max_size: number of items.
        rate_limiter: makes inserts and draws wait.
        max_times_sampled: number of draws after which an item leaves; below 1: no limit.
        extensions: none is supported.
        signature: nested structure of anything with `shape` and `dtype`: the columns of an item.

    Raises:
        ValueError: no name, no size, or a signature without shapes and types.
    """

    def __init__(
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[Any] = (),
        signature: Any = None,
    ) -> None:
        if not name:
            raise ValueError("name must be nonempty")
        if max_size <= 0:
            raise ValueError(f"max_size ({max_size}) must be a positive integer")
        if extensions:
            raise ValueError("extensions are not supported: give the table none")
        plain = to_signature(signature)
        limit = int(max_times_sampled)
        self.spec = TableSpec(str(name), sampler, remover, int(max_size), limit, rate_limiter, plain, signature)
        self._served: served.ServedTable | None = None

    @classmethod
    def queue(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """A table that gives each item once, oldest first; inserts wait while `max_size` items are there."""
        selector, limiter = item_selectors.Fifo(), rate_limiters.Queue(max_size)
        return cls(name, selector, selector, max_size, limiter, 1, extensions, signature)

    @classmethod
    def stack(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """A table that gives each item once, newest first; inserts wait while `max_size` items are there."""
        selector, limiter = item_selectors.Lifo(), rate_limiters.Stack(max_size)
        return cls(name, selector, selector, max_size, limiter, 1, extensions, signature)

    @property
    def table(self) -> di_store.Table | None:
        """The table in the store; None: no server serves it, or it has had no item yet."""
        return None if self._served is None else self._served.opened()

    @property
    def name(self) -> str:
        """The name."""
        return self.spec.name

    @property
    def info(self) -> TableInfo:
        """Settings and counts."""
        return table_info(self.spec, self._served)

    def can_sample(self, num_samples: int) -> bool:
        """Whether the limiter would allow this many draws now."""
        return self.spec.rate_limiter.can_sample(*self._counts(), num_samples)

    def can_insert(self, num_inserts: int) -> bool:
        """Whether the limiter would allow this many inserts now."""
        return self.spec.rate_limiter.can_insert(*self._counts(), num_inserts)

    def _counts(self) -> tuple[int, int, int]:
        return (0, 0, 0) if self._served is None else self._served.counts()

    def replace(self, **changes: Any) -> Table:
        """An empty table with the same settings, except for the given ones."""
        spec = self.spec
        settings = {
            "name": spec.name,
            "sampler": spec.sampler,
            "remover": spec.remover,
            "max_size": spec.max_size,
            "rate_limiter": spec.rate_limiter,
            "max_times_sampled": spec.max_times_sampled,
            "signature": spec.given,
        }
        return Table(**settings | {name: value for name, value in changes.items() if value is not None})

    def serve(self, table: served.ServedTable) -> None:
        """Show the counts of this table from now on."""
        self._served = table

    def __repr__(self) -> str:
        spec = self.spec
        return (
            f"Table(sampler={spec.sampler}, remover={spec.remover}, max_size={spec.max_size}, "
            f"max_times_sampled={spec.max_times_sampled}, name={spec.name}, rate_limiter={spec.rate_limiter!r})"
        )


class Server:
    """Tables in shared memory. Clients in any process of this machine reach them by the port.

    Nothing listens on that port: it is a part of the name of the store that holds the tables. A table lives until
    `stop`, or until no process has the store open.

    Args:
        tables: at least one table.
        port: None: a free number.
        checkpointer: none is supported.
        memory: limit on the memory of the tables, as in `di_store.open`; only without `store`.
        store: the store of the tables, see `adapters.stores.StoreLike`; None: a store of its own. Tables that the store
            already holds keep their items, and stay when the server stops. Clients reach the server by the store's
            name, or by the store itself if it is a connected store or one of a cluster. A later server in the same
            store takes its place.

    Raises:
        ValueError: no table, two of the same name, or a port together with a store. ReverbError: another server has
        that port.
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: Any = None,
        *,
        memory: int | float | str = "75%",
        store: StoreLike = None,
    ) -> None:
        if not tables:
            raise ValueError("At least one table must be provided")
        names = Counter(table.name for table in tables)
        if duplicates := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"Multiple items in tables have the same name: {', '.join(duplicates)}")
        if checkpointer is not None:
            raise ValueError("checkpointer: this version of Di-store does not support Reverb checkpoints")
        for table in tables:
            item_selectors.remover(table.spec.remover)
        specs = {table.name: table.spec for table in tables}
        self._port: int | None = None
        if store is None:
            self._service, self._port = served.serve(specs, port, memory)
        elif port is not None:
            raise ValueError(
                f"port={port}: leave port= out, since clients reach a server in a given store by the store's name"
            )
        else:
            self._service = served.serve_in(specs, store)
        self._pid = os.getpid()
        self._stopped = threading.Event()
        for table in tables:
            table.serve(self._service.tables[table.name])

    def __del__(self) -> None:
        if hasattr(self, "_stopped") and self._pid == os.getpid():
            self.stop()

    def __repr__(self) -> str:
        return f"Server(tables=[{', '.join(self._service.tables)}], port={self._port})"

    @property
    def port(self) -> int | None:
        """The number in the clients' address, ``localhost:port``; None: clients use the store's address."""
        return self._port

    @property
    def store(self) -> Any:
        """The Di-store store that holds the tables."""
        return self._service.store

    def stop(self) -> None:
        """Stop serving: calls of clients in all processes raise `ReverbError`.

        The tables are removed with the server's own store. In a given store they are kept, with their items, and
        `store` can be used as before. A call that already waits there, for items or for room, continues to wait, also
        for the items of a later server; ``server.store.drop_table(name)`` ends it with `ReverbError`.
        """
        if not self._stopped.is_set():
            self._stopped.set()
            self._service.stop(own=self._port is not None)

    def wait(self) -> None:
        """Wait until `stop` is called.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        self._stopped.wait()

    def localhost_client(self) -> Client:
        """A client of this server."""
        return Client(self._service.address if self._port is None else f"localhost:{self._port}")

    @property
    def in_process_client(self) -> Client:
        """The same as `localhost_client`: no client of this machine uses a network."""
        return self.localhost_client()
