"""A store that an agent on another machine serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from di_store.base import config
from di_store.base.errors import StoreFull
from di_store.base.lacks import Lack, Lacks
from di_store.client.mixture import RemoteMixture
from di_store.client.objects import RemoteObjects
from di_store.client.session import RemoteSession
from di_store.client.table import RemoteTable, create_remote, open_remote
from di_store.client.writer import RemoteWriter
from di_store.objects.refs import Ref
from di_store.objects.weights import Published
from di_store.observe.stats import StoreStats
from di_store.policy.settings import Settings
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout
from di_store.store.backend import ALONE, Place, StoreBackend
from di_store.store.handle import Store


def _at_its_agent(*_: Any) -> NoReturn:
    """Replaces those calls of the core that never wait: here they send a message."""
    raise StoreFull("it is elsewhere")


class RemoteStore(StoreBackend):
    """A store on another machine, as this process reaches it."""

    put_now = staticmethod(_at_its_agent)
    get_now = staticmethod(_at_its_agent)

    def __init__(self, session: RemoteSession) -> None:
        self.session = session
        self.lacks = {**ALONE, **_only_there(session.name)}
        self._values = RemoteObjects(session)

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def seed(self) -> int:
        return self.session.channel.welcome.seed

    @property
    def address(self) -> str:
        return f"{self.session.channel.address}"

    def shown(self) -> str:
        return f"{self.name!r} at {self.session.channel.node}"

    def ended(self) -> bool:
        return self.session.ended()

    def where(self) -> str:
        return f"is on node {self.session.channel.node}"

    def pickled(self) -> tuple[Any, ...]:
        return load_remote_store, (self.session.pickled(),)

    def close(self) -> None:
        self.session.close()

    # -- the store ----------------------------------------------------------------------------------------------

    def resize(self, memory: Any, disk_capacity: Any, write_budget: Any) -> None:
        given = {"memory": memory, "disk_capacity": disk_capacity, "write_budget": write_budget}
        self.session.call("resize", given, what="resize", once=True)

    def stats(self) -> StoreStats:
        found: StoreStats = self.session.call("stats", what="stats")
        return found

    def check(self, repair: bool) -> list[str]:
        found: list[str] = self.session.call("check", {"repair": repair}, timeout=None, what="check")
        return found

    def sync(self, copies: int | None, deadline: Deadline) -> None:
        self.session.call("sync", {"timeout": deadline.left}, timeout=deadline, what="sync")

    # -- objects ------------------------------------------------------------------------------------------------

    def put(self, value: Any, raw: bytes | None, ttl: float, durability: str, copies: int, deadline: Deadline) -> Ref:
        return self._values.put_many([value], [raw], ttl, deadline, durability)[0]

    def get(self, raw: bytes, copy: bool | None, deadline: Deadline) -> Any:
        return self._values.get(raw, deadline, copy)

    def put_many(
        self, values: Sequence[Any], raws: Sequence[bytes | None], durability: str, deadline: Deadline
    ) -> list[Ref]:
        return self._values.put_many(values, raws, 0.0, deadline, durability) if values else []

    def get_many(self, raws: list[bytes], copy: bool | None, deadline: Deadline) -> list[Any]:
        found = dict(self._values.present(raws, deadline.another(), copy)) if len(raws) > 1 else {}
        return [found[raw] if raw in found else self._values.get(raw, deadline.left, copy) for raw in raws]

    def wait(self, refs: list[Ref], num_returns: int, deadline: Deadline) -> tuple[list[Ref], list[Ref]]:
        arguments = {"ids": [ref.raw for ref in refs], "num_returns": num_returns, "timeout": deadline.left}
        done, pending = self.session.call("wait", arguments, timeout=deadline, what="wait for objects")
        return [Ref(raw) for raw in done], [Ref(raw) for raw in pending]

    def contains(self, raw: bytes) -> bool:
        return bool(self.session.call("contains", {"id": raw}, what="contains"))

    def delete(self, raws: list[bytes]) -> int:
        return int(self.session.call("delete", {"ids": raws}, what="delete", once=True))

    def keys(self, start: Ref | None, n: int) -> list[Ref]:
        first = None if start is None else start.raw
        return [Ref(raw) for raw in self.session.call("keys", {"start": first, "n": n}, what="keys")]

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(self, name: str, tree: Any, keep: int, group: Any, durability: str, deadline: Deadline) -> int:
        return self._values.publish(name, tree, keep, deadline, durability)

    def latest(
        self, name: str, newer_than: int | None, version: int | None, group: Any, deadline: Deadline
    ) -> Published | None:
        return self._values.latest(name, newer_than, version, deadline)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self, name: str, settings: Settings, place: Place, exist_ok: bool, deadline: Deadline
    ) -> RemoteTable:
        return create_remote(self.session, name, settings, exist_ok, deadline)

    def table(self, name: str, deadline: Deadline) -> RemoteTable:
        return open_remote(self.session, name, deadline)

    def drop_table(self, name: str, deadline: Deadline) -> None:
        arguments = {"name": name, "timeout": deadline.left}
        self.session.call("drop_table", arguments, timeout=deadline, what=f"drop_table({name!r})", once=True)

    def writer(self, tables: list[TableBackend], lanes: int | None, autoreset: Any) -> RemoteWriter:
        own = [each for each in tables if isinstance(each, RemoteTable) and each.is_of(self.session)]
        if len(own) < len(tables):
            raise ValueError(f"tables {[each.name for each in tables if each not in own]} belong to another store")
        return RemoteWriter(self.session, own, lanes, autoreset, single=False)

    def mix(self, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None) -> RemoteMixture:
        return RemoteMixture(self.session, weights, None if columns is None else list(columns), seed)


def _only_there(name: str) -> Lacks:
    """The calls that need the machine of the store."""
    remedy = f"run it there, with di_store.attach({name!r})"
    return {
        "checkpoint": Lack("writes to a folder of that machine", remedy),
        "reserve": Lack("gives arrays in its shared memory", remedy),
        "import_table": Lack("reads a file of that machine", remedy),
    }


def load_remote_store(pickled: Any) -> Store:
    """Unpickle a store, in the process that loads it."""
    return Store(RemoteStore(RemoteSession.of(pickled)))


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
    session = RemoteSession.connect(address, token, tls, config.flag("allow_pickle", allow_pickle), seconds)
    return Store(RemoteStore(session))
