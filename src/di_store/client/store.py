"""The handle of a store that an agent on another machine serves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from di_store.base import config
from di_store.base.errors import StoreError
from di_store.checkpoint.store.capture import Progress
from di_store.client.arguments import named
from di_store.client.mixture import RemoteMixture
from di_store.client.objects import RemoteObjects
from di_store.client.session import RemoteSession
from di_store.client.table import RemoteTable, create_remote, open_remote
from di_store.client.writer import RemoteWriter
from di_store.objects.draft import Draft
from di_store.objects.refs import Ref, id_of, ids_of, listed, parse_id
from di_store.objects.weights import Published, check_no_group
from di_store.observe.stats import StoreStats
from di_store.policy.limiters import Limiter
from di_store.policy.options import NOT_GIVEN, NotGiven, TableOptions, check_options, check_table_name
from di_store.policy.samplers import Sampler
from di_store.replay.mixture import Shares, flat_shares
from di_store.replay.table import Table
from di_store.replay.tables import seed_of
from di_store.runtime.waits import check_timeout, countdown
from di_store.store.handle import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RemoteStore(Store):
    """A handle of a store on another machine; thread-safe. It pickles as its address. Made by `di_store.connect`."""

    def __init__(self, session: RemoteSession) -> None:
        self._far = session
        self._values = RemoteObjects(session)

    # -- the handle ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._far.name

    @property
    def address(self) -> str:
        """The address where the store is served, as `connect` takes it."""
        return f"{self._far.channel.address}"

    def close(self) -> None:
        self._far.close()

    def __repr__(self) -> str:
        closed = " (closed)" if self._far.ended() else ""
        return f"<Store {self.name!r} at {self._far.channel.node}{closed}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return load_remote_store, (self._far.pickled(),)

    def resize(
        self,
        memory: int | float | str | None = None,
        *,
        disk_capacity: int | str | None = None,
        write_budget: int | str | None = None,
    ) -> None:
        given = {"memory": memory, "disk_capacity": disk_capacity, "write_budget": write_budget}
        self._far.call("resize", given, what="resize", once=True)

    def stats(self) -> StoreStats:
        found: StoreStats = self._far.call("stats", what="stats")
        return found

    def check(self, repair: bool = False) -> list[str]:
        found: list[str] = self._far.call(
            "check", {"repair": config.flag("repair", repair)}, timeout=None, what="check"
        )
        return found

    def sync(self, *, timeout: float | None = 600) -> None:
        seconds = check_timeout(timeout)
        self._far.call("sync", {"timeout": seconds}, timeout=seconds, what="sync")

    def checkpoint(
        self, path: str | os.PathLike[str], *, timeout: float | None = 600, progress: Progress | None = None
    ) -> None:
        raise self._only_there("checkpoint()", "writes to a folder of that machine")

    def _only_there(self, what: str, why: str) -> StoreError:
        return StoreError(
            f"store {self.name!r} is on node {self._far.channel.node}: {what} {why}",
            remedy=f"run it there, with di_store.attach({self.name!r})",
        )

    # -- objects ------------------------------------------------------------------------------------------------

    def put(
        self,
        value: Any,
        *,
        id: str | None = None,
        ttl: float | None = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> Ref:
        raw = None if id is None else parse_id(id)
        return self._values.put_many([value], [raw], ttl, timeout, durability)[0]

    def reserve(
        self, spec: Any, *, id: str | None = None, ttl: float | None = None, timeout: float | None = 60
    ) -> Draft:
        raise self._only_there("reserve()", "gives arrays in its shared memory")

    def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        if copy is not None:
            copy = config.flag("copy", copy)
        return self._values.get(id_of(ref), check_timeout(timeout), copy)

    def put_many(
        self,
        values: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> list[Ref]:
        every = config.listed("values", values, "put_many() a list of values; put() stores one")
        raws: list[bytes | None] = [None] * len(every)
        if ids is not None:
            raws = [parse_id(each) for each in config.listed("ids", ids, "a list of ids, 40 hex characters each")]
        if len(raws) != len(every):
            raise ValueError(f"put_many: {len(raws)} ids for {len(every)} values")
        known = [raw for raw in raws if raw is not None]
        if twice := [raw.hex() for raw in known if known.count(raw) > 1]:
            raise ValueError(f"put_many: id {twice[0]} is given {known.count(bytes.fromhex(twice[0]))} times")
        return self._values.put_many(every, raws, None, timeout, durability) if every else []

    def get_many(self, refs: Iterable[Ref | str], *, timeout: float | None = 0, copy: bool | None = None) -> list[Any]:
        copy = None if copy is None else config.flag("copy", copy)
        left = countdown(check_timeout(timeout))
        return [self._values.get(id_of(ref), left(), copy) for ref in listed(refs)]

    def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        seconds = check_timeout(timeout)
        arguments = {"ids": [id_of(ref) for ref in listed(refs)], "num_returns": num_returns, "timeout": seconds}
        done, pending = self._far.call("wait", arguments, timeout=seconds, what="wait for objects")
        return [Ref(raw) for raw in done], [Ref(raw) for raw in pending]

    def contains(self, ref: Ref | str) -> bool:
        return bool(self._far.call("contains", {"id": id_of(ref)}, what="contains"))

    def delete(self, refs: Ref | str | Iterable[Ref | str]) -> int:
        return int(self._far.call("delete", {"ids": ids_of(refs)}, what="delete", once=True))

    def keys(self, start: Ref | str | None = None, n: int = 1000) -> list[Ref]:
        first = None if start is None else id_of(start)
        return [Ref(raw) for raw in self._far.call("keys", {"start": first, "n": n}, what="keys")]

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        tree: Any,
        *,
        keep: int = 1,
        group: Any = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> int:
        check_no_group(group)
        return self._values.publish(name, tree, keep, timeout, durability)

    def latest(
        self,
        name: str,
        *,
        newer_than: int | None = None,
        version: int | None = None,
        timeout: float | None = 0,
        group: Any = None,
    ) -> Published | None:
        check_no_group(group)
        return self._values.latest(name, newer_than, version, timeout)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        timeout: float | None = 60,
        **options: Unpack[TableOptions],
    ) -> Table:
        check_table_name(name)
        settings = check_options(options, seed_of(self._far.channel.welcome.seed, name))
        return create_remote(self._far, name, settings, config.flag("exist_ok", exist_ok), timeout)

    def import_table(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        capacity: int | NotGiven | None = NOT_GIVEN,
        sampler: Sampler | NotGiven = NOT_GIVEN,
        limiter: Limiter | NotGiven = NOT_GIVEN,
        allow_pickle: bool = False,
        timeout: float | None = 60,
    ) -> Table:
        raise self._only_there("import_table()", "reads a file of that machine")

    def table(self, name: str, timeout: float | None = 0) -> Table:
        return open_remote(self._far, name, timeout)

    def drop_table(self, name: str, *, timeout: float | None = 60) -> None:
        seconds = check_timeout(timeout)
        arguments = {"name": check_table_name(name), "timeout": seconds}
        self._far.call("drop_table", arguments, timeout=seconds, what=f"drop_table({name!r})", once=True)

    def writer(self, tables: Sequence[Table | str], *, lanes: int | None = None, autoreset: Any = None) -> RemoteWriter:
        if isinstance(tables, (str, Table)):
            raise TypeError(f"store.writer() takes a list of tables: write store.writer([{tables!r}])")
        every = config.listed("tables", tables, "a list of tables")
        found = [self.table(each) if isinstance(each, str) else each for each in every]
        if not found:
            raise ValueError("store.writer([]): give at least one table")
        if any(not isinstance(each, Table) for each in found):
            raise TypeError("store.writer() takes a list of tables, or of their names")
        names = [each.name for each in found]
        if len(set(names)) != len(names):
            raise ValueError(f"store.writer() was given a table twice: {names}")
        own = [each for each in found if isinstance(each, RemoteTable) and each.is_of(self._far)]
        if len(own) < len(found):
            raise ValueError(f"tables {[each.name for each in found if each not in own]} belong to another store")
        return RemoteWriter(self._far, own, lanes, autoreset, single=False)

    def mix(
        self, weights: Shares, *, columns: str | Iterable[str] | None = None, seed: int | None = None
    ) -> RemoteMixture:
        shares = flat_shares(self.name, weights)
        number = seed if seed is None else config.count("seed", seed, minimum=0, maximum=2**63 - 1)
        return RemoteMixture(self._far, shares, named(columns), number)


def load_remote_store(pickled: Any) -> RemoteStore:
    """Unpickle a store, in the process that loads it."""
    return RemoteStore(RemoteSession.of(pickled))


def connect(
    address: str,
    *,
    token: str | bytes | None = None,
    tls: Any = None,
    allow_pickle: bool = False,
    timeout: float | None = 10,
) -> Store:
    """A handle of a store on another machine, which an agent (`di-store serve`) serves there.

    It has the methods of `Store`, with three differences. `get` returns arrays in this process's memory. The keys of a
    writer's `Items` are known once the agent has acknowledged the rows; `Writer.flush` waits for that. `checkpoint`,
    `export`, `import_table` and `reserve` only work on the store's own machine. Every call ends at most one second
    after its timeout.

    Args:
        address: ``di-store://host:port/name``, as the agent prints it.
        token: the token that the agent was started with; None: DI_STORE_TOKEN from the environment, or on this machine
            the user's own token.
        tls: None: no encryption. True: TLS with the system's certificate authorities. A path: the certificate of the
            authority.
        allow_pickle: load values that others have pickled into the store. Such values can run any code.
        timeout: seconds to reach the agent; None: no limit.

    Raises:
        NodeUnavailable: nothing answers at the address in time. AccessDenied: the token is wrong, the agent requires
        TLS, or the file of ``tls=`` holds no certificates. StoreNotFound: the agent serves a store of another name.
        LayoutMismatch: the versions are too far apart. ValueError: `address` is no address. OSError: the file of
        ``tls=`` cannot be read.
    """
    seconds = check_timeout(timeout)
    return RemoteStore(RemoteSession.connect(address, token, tls, config.flag("allow_pickle", allow_pickle), seconds))
