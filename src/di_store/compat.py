"""`Client`: the interface of the original DI-store, for code that was written against it."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import NoneType
from typing import Any

import numpy as np

from di_store.base.config import count, texts
from di_store.base.errors import (
    NodeUnavailable,
    ObjectExists,
    ObjectNotFound,
    StoreError,
    StoreFull,
    StoreNotFound,
    TableNotFound,
    Timeout,
    shown,
)
from di_store.base.sizes import budget_bytes, parse_size
from di_store.cluster.joining import node_here
from di_store.cluster.store import ClusterStore
from di_store.columns.schema import Spec
from di_store.objects.refs import Ref
from di_store.policy.samplers import Fifo
from di_store.replay.table import Table
from di_store.runtime.background import look_again
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import CALL_SECONDS, Wait, logger
from di_store.store.handle import Store
from di_store.store.opening import attach
from di_store.store.opening import open as open_store

_DELETED = "client/deleted"
"""Table of the ids of objects that clients deleted and that are still there, oldest first."""
_MOST_DELETED, _BYTES_PER_DELETED = 65_536, 4_096
_FREED_AT_ONCE = 64
_ID_BYTES, _HOME_BYTES = 20, 6
_AGAIN_SECONDS = 1.0
"""How often a `put` that waits for room looks for deleted objects, and a node that did not answer is asked again."""
_NODE_SECONDS = 100.0  # the original's client waits as long for its storage server


class Client:
    """The interface of `di_store.Client` of the original DI-store (2021, Plasma, etcd), over a store of this machine.

    Clients with the same configuration share a store, in any process. No server is needed: the store exists as long as
    one of them, or `di-store hold NAME`, has it open. DI-engine uses this class if it runs with ``DI_STORE=on``.

    If the store is a node of a cluster, the client also finds objects that clients of other nodes put. The store is a
    node if the process is in a Ray cluster that has stores, if $DI_STORE_NODE names a node, or with `cluster: true`.

    Args:
        conf_path: path of the original's YAML file, or a mapping with its content. The client reads two entries: the
            first `rpc_host` and `rpc_port` of `node_trackers`, which name the store; and `plasma_memory_byte` of
            `storage_servers`, at most half of the machine's memory. A mapping `store` in it may give `name`; `memory`
            (bytes, "4GiB" or a share); `keep_deleted`, the number of deleted objects that stay, at least 0; and
            `cluster`. True takes the only node on this machine, and waits for it up to 100 s; false takes none. A node
            keeps the memory that it is served with.
        hostname: the machine whose entry of `storage_servers` counts; None: $DI_STORE_NODE_NAME, or this machine's
            name.

    Raises:
        FileNotFoundError: there is no such file. ValueError: the configuration names no store, or several match.
        StoreNotFound: `cluster` is true, and this machine is no node in time. Other errors as in
        `di_store.cluster.attach`.
    """

    def __init__(self, conf_path: str | os.PathLike[str] | Mapping[str, Any], hostname: str | None = None) -> None:
        self.conf_path = conf_path if isinstance(conf_path, Mapping) else os.fspath(conf_path)
        self.hostname = hostname or os.getenv("DI_STORE_NODE_NAME") or socket.gethostname()
        config = _read(self.conf_path)
        own = _own(config)
        keep = own.get("keep_deleted")
        self._keep_deleted = None if keep is None else count("keep_deleted", keep, minimum=0)
        self._cluster = _node(config, own)
        self._store: Store = self._cluster or open_store(
            own.get("name") or _name(config), memory=_memory(config, self.hostname, own.get("memory"))
        )
        own_tables = self._store if self._cluster is None else attach(self._store.name)  # of this node, not the cluster
        self._deleted = _Deleted(self._store, own_tables, self._keep_deleted)
        self._elsewhere: dict[bytes, _Deleted] = {}  # by the first bytes of ids: of other nodes
        self._undone: deque[Ref] = deque(maxlen=_MOST_DELETED)  # of nodes that did not answer
        self._deleting: threading.Thread | None = None  # that deletes these

    def __repr__(self) -> str:
        return f"<Client of store {self._store.name!r}{' of a cluster' if self._cluster else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        path = self.conf_path if isinstance(self.conf_path, Mapping) else os.path.abspath(self.conf_path)
        return Client, (path, self.hostname)

    def register_group(self, group: str | Iterable[str]) -> None:
        """Make this node a member of groups: objects that are put for them are copied here before they are read.

        Without a cluster this has no effect: all clients share one memory.

        Raises:
            NodeUnavailable: the cluster's directory does not answer. ValueError: `group` is no name of a group.
        """
        for each in texts("group", group):
            if self._cluster is not None:
                self._cluster.join(each)

    def put(
        self,
        data: Any,
        object_id: str | None = None,
        prefetch_hostname: str | Iterable[str] | None = None,
        prefetch_group: str | Iterable[str] | None = None,
    ) -> str:
        """Store a value once for all readers of this machine. Returns its id, 40 hex characters.

        If there is no room, deleted objects are freed, oldest first. The call does not wait for copies to other nodes.
        The log says once if a node does not answer or a group has no members.

        Args:
            data: as in `Store.put`.
            object_id: 40 hex characters; None: a new id, which names the node where the object lies. Objects with ids
                that programs choose are not sent ahead, and other nodes ask all nodes for them.
            prefetch_hostname: nodes that get a copy, by the name of the machine or the store, or ``host:port``; no
                effect without a cluster.
            prefetch_group: groups whose members get a copy; no effect without a cluster.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room within a minute. CapacityError: the value can never fit.
        """
        hosts, groups = texts("prefetch_hostname", prefetch_hostname), texts("prefetch_group", prefetch_group)
        ref = self._put(data, object_id)
        if self._cluster is not None and (hosts or groups):
            self._cluster.send_ahead(ref, group=groups, node=hosts)
        return ref.id

    def _put(self, data: Any, object_id: str | None) -> Ref:
        """Put it, and free what was deleted, also by others while this waits for room."""
        seconds = 0.0
        wait: Wait | None = None
        while True:
            try:
                return self._store.put(data, id=object_id, timeout=seconds)
            except ObjectExists:
                if object_id is None or not self._deleted.forget(Ref.parse(object_id)):
                    raise
            except (StoreFull, Timeout) as error:
                if type(error) is StoreFull and self._deleted.free(_FREED_AT_ONCE):
                    continue
                wait = wait or Wait(None, CALL_SECONDS, "put")
                if wait.left <= 0:
                    raise
                seconds = min(_AGAIN_SECONDS, wait.left)
                wait.sleep(0, error.message)  # a line in the log, if this is long

    def get(self, object_id_hex: str, src_node: str | None = None, via_rpc: bool = False) -> Any:
        """The value of an object, from any node; None: no such object. Arrays are read-only and are not copied.

        Args:
            object_id_hex: the id that `put` returned.
            src_node: no effect: the id names the node.
            via_rpc: no effect.

        Raises:
            NodeUnavailable: the node of the object does not answer, or is lost.
        """
        try:
            return self._store.get(object_id_hex)
        except ObjectNotFound:
            return None

    def delete(self, object_id_hex_list: str | Iterable[str]) -> None:
        """Declare that objects are no longer needed. They can still be read until their store needs the room.

        DI-engine deletes every object after reading it, but reads it again when its replay buffer draws it again. With
        `keep_deleted: 0`, objects are freed at once here and where they were put. Other nodes that have a copy may read
        it for another 50 s.

        Args:
            object_id_hex_list: one id or several; ids that do not exist are ignored. Objects of a node that does not
                answer are deleted when it answers, if this client is still there.
        """
        ids = [object_id_hex_list] if isinstance(object_id_hex_list, str) else list(object_id_hex_list)
        refs = [Ref.parse(each) for each in ids]
        if self._cluster is None:
            self._deleted.add(refs)
            return
        for home, those in _by_home(refs).items():
            if (why := self._delete_at(self._cluster, home, those)) is not None:
                logger.warning("%d objects are deleted when their node answers: %s", len(those), why.message)
        if self._undone and (self._deleting is None or not self._deleting.is_alive()):
            failed = "objects of other nodes were not deleted:"
            given = partial(_delete_undone, weakref.ref(self)), threading.Event(), _AGAIN_SECONDS, failed
            self._deleting = threading.Thread(target=look_again, args=given, name="di-store delete", daemon=True)
            self._deleting.start()

    def _delete_at(self, cluster: ClusterStore, home: bytes, refs: list[Ref]) -> StoreError | None:
        """Delete objects that were put on one node. Objects whose ids name no node are freed at once.

        Returns why that has to be done later; None: it is done.
        """
        try:
            store = None if self._keep_deleted == 0 else cluster.store_of(refs[0])
            if store is None:
                cluster.delete(refs)
            elif store is cluster:
                self._deleted.add(refs)
            else:
                known = self._elsewhere.get(home) or _Deleted(store, store, self._keep_deleted)
                self._elsewhere[home] = known
                known.add(refs)
        except (NodeUnavailable, Timeout) as error:
            self._undone.extend(refs)
            return error
        return None

    def _delete_undone(self) -> bool:
        """Delete the objects whose nodes answer by now. Returns whether no others are left for a later call."""
        refs: list[Ref] = []
        with suppress(IndexError):
            while True:
                refs.append(self._undone.popleft())
        for home, those in _by_home(refs).items():
            try:
                if self._cluster is not None:
                    self._delete_at(self._cluster, home, those)
            except StoreError as error:
                logger.warning("%d objects of another node were not deleted: %s", len(those), error.message)
        if not self._undone:
            self._deleting = None  # a call that adds to them from now on starts another thread
        return not self._undone


def _delete_undone(reference: weakref.ref[Client]) -> bool:
    """Returns whether this is over: nothing is left, or nobody has the client."""
    client = reference()
    return client is None or client._delete_undone()


class _Deleted:
    """The objects of one store that were deleted and still exist, oldest first."""

    def __init__(self, store: Store, tables: Store, keep: int | None) -> None:
        """Begin.

        Args:
            store: how the objects are reached.
            tables: the same store, for its own tables.
            keep: number of objects that may stay; None: as many as memory allows, or the number that the first client
                computed.
        """
        self._store = store
        self._keep = min(_MOST_DELETED, tables.stats()["budget"] // _BYTES_PER_DELETED) if keep is None else keep
        self._seen: OrderedDict[bytes, None] = OrderedDict()  # ids that are in the table already
        if self._keep > 0:
            self._table = _table(tables, self._keep, exact=keep is not None)
            self._keep = self._table.capacity or self._keep

    def add(self, refs: list[Ref]) -> None:
        """Note that these objects are no longer needed."""
        if self._keep <= 0:
            self._store.delete(refs)
            return
        new = [ref.raw for ref in refs if ref.raw not in self._seen and self._store.contains(ref)]
        for raw in dict.fromkeys(new):
            if (more := len(self._table) + 1 - self._keep) > 0:
                self.free(more)
            self._table.insert({"id": np.frombuffer(raw, np.uint8)})
            self._seen[raw] = None
        while len(self._seen) > self._keep:
            with suppress(KeyError):  # another thread was faster
                self._seen.popitem(last=False)

    def forget(self, ref: Ref) -> bool:
        """Free an object now; False: nobody deleted it."""
        if self._keep <= 0:
            return False
        keys = self._table.keys(n=self._keep)
        same = (self._table.peek(keys).data["id"] == np.frombuffer(ref.raw, np.uint8)).all(axis=1)
        self._seen.pop(ref.raw, None)
        return self._table.delete(keys[same]) > 0 and self._store.delete(ref) > 0

    def free(self, number: int) -> int:
        """Free the objects that were deleted first. Returns how many entries of the table that took."""
        if self._keep <= 0:
            return 0
        keys = self._table.keys(n=number)
        if len(keys):
            ids = self._table.peek(keys).data["id"]  # zeros where another client was faster
            self._store.delete([Ref(each.tobytes()) for each in ids])
            self._table.delete(keys)
        return len(keys)


def _table(store: Store, capacity: int, *, exact: bool) -> Table:
    """The table of deleted objects; `exact`: with this capacity; otherwise an existing table will do."""
    try:
        if not exact:
            return store.table(_DELETED)
    except TableNotFound:
        pass
    schema = {"id": Spec((_ID_BYTES,), np.uint8)}
    return store.create_table(_DELETED, capacity=capacity, schema=schema, sampler=Fifo(), exist_ok=True)


def _by_home(refs: list[Ref]) -> dict[bytes, list[Ref]]:
    """The refs, by the bytes of their ids that name their node."""
    found: dict[bytes, list[Ref]] = {}
    for ref in refs:
        found.setdefault(ref.raw[:_HOME_BYTES], []).append(ref)
    return found


def _node(config: Mapping[str, Any], own: Mapping[str, Any]) -> ClusterStore | None:
    """The store of this machine as a node of a cluster; None: it is no node, or the configuration wants no node."""
    wanted = own.get("cluster")
    if wanted is False:
        return None
    deadline = Deadline(_NODE_SECONDS if wanted else 0)
    while (found := _found(config, own)) is None and deadline.pause():
        pass
    if found is None and wanted:
        raise StoreNotFound(
            f"di_store.Client: no store on this machine is a node of a cluster after {_NODE_SECONDS:.0f} s",
            remedy="`di-store serve NAME --peers A,B,C` makes one; without `cluster: true` a store of its own is made",
        )
    return found


def _found(config: Mapping[str, Any], own: Mapping[str, Any]) -> ClusterStore | None:
    """The node that is meant. An unnamed node, perhaps another job's, is not taken unless `cluster` is true."""
    if own.get("name"):
        return node_here(own["name"])
    given = node_here()
    if given is None and _list(config, "node_trackers"):
        given = node_here(_name(config))
    return node_here(only=True) if given is None and own.get("cluster") else given


def _read(source: Any) -> Mapping[str, Any]:
    """The configuration."""
    if not isinstance(source, Mapping):
        if not os.path.exists(source):
            raise FileNotFoundError(
                f"di_store.Client: there is no file {source!r}: give the original DI-store's YAML file (DI-engine: "
                "$DI_STORE_CONFIG_PATH), or one with the line `store: {name: NAME, memory: 4GiB}`"
            )
        try:
            import yaml
        except ImportError as error:
            raise ImportError("di_store.Client reads YAML: pip install pyyaml, or give it a dict") from error
        with open(source) as file:
            source = yaml.safe_load(file)
    if not isinstance(source, Mapping):
        raise ValueError(f"di_store.Client: the configuration is not a mapping but {shown(source)}")
    return source


def _own(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that the original does not know."""
    own = config.get("store") or {}
    known = {"name", "memory", "keep_deleted", "cluster"}
    if not isinstance(own, Mapping) or not known.issuperset(own):
        raise ValueError(f"di_store.Client: store={shown(own)} in the configuration: its options are {sorted(known)}")
    if not isinstance(own.get("cluster"), (bool, NoneType)):
        raise ValueError(f"di_store.Client: store.cluster={shown(own['cluster'])}: give true or false, or leave it out")
    return own


def _name(config: Mapping[str, Any]) -> str:
    """The store's name, the same for all clients of one node tracker."""
    trackers = _list(config, "node_trackers") or [{}]
    host, port = trackers[0].get("rpc_host"), trackers[0].get("rpc_port")
    if host is None or port is None:
        raise ValueError(
            "di_store.Client: the configuration names no store: it needs node_trackers with rpc_host and rpc_port, or "
            "`store: {name: NAME}`"
        )
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"client-{host}-{port}")[:100]


def _memory(config: Mapping[str, Any], hostname: str, given: Any) -> int:
    """Bytes of the store."""
    if given is not None:
        return budget_bytes(given)
    half = budget_bytes("50%")
    servers = _list(config, "storage_servers")
    for wanted in (hostname, "*"):
        for server in servers:
            if server.get("hostname") == wanted and (size := server.get("plasma_memory_byte")):
                return min(parse_size(size), half)
    return budget_bytes("25%")


def _list(config: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    found = config.get(section) or []
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ValueError(f"di_store.Client: {section}={shown(found)} in the configuration is not a list of mappings")
    return found
