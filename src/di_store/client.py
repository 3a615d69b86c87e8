"""`Client`: the interface of the original DI-store, for code that was written against it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from di_store.base.config import count
from di_store.base.errors import ObjectExists, ObjectNotFound, StoreFull, Timeout, shown
from di_store.base.sizes import budget_bytes, parse_size
from di_store.columns.schema import Spec
from di_store.objects.refs import Ref
from di_store.opening import open as open_store
from di_store.policy.samplers import Fifo
from di_store.store import Store

_DELETED = "client/deleted"
"""Table of the ids of objects that clients deleted and that are still there, oldest first."""
_MOST_DELETED, _BYTES_PER_DELETED = 65_536, 4_096
_FREED_AT_ONCE = 64


class Client:
    """What `di_store.Client` of the original DI-store (2021, Plasma, etcd) offers, over a store of this machine.

    Clients with the same configuration share a store, in any process. No server is needed: the store is there as long
    as one of them, or `di-store hold NAME`, has it open. DI-engine uses this class if it runs with ``DI_STORE=on``.

    Args:
        conf_path: path of the original's YAML file, or a mapping with its content. Read from it: `node_trackers`, whose
            first `rpc_host` and `rpc_port` name the store; `plasma_memory_byte` of `storage_servers`, at most half of
            the machine's memory. A mapping `store` in it may give `name`, `memory` (bytes, "4GiB" or a share), and
            `keep_deleted`, the number of deleted objects that stay, at least 0.
        hostname: whose entry of `storage_servers` counts; None: $DI_STORE_NODE_NAME, or this machine's name.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it names no store.
    """

    def __init__(self, conf_path: str | os.PathLike[str] | Mapping[str, Any], hostname: str | None = None) -> None:
        self.conf_path = conf_path if isinstance(conf_path, Mapping) else os.fspath(conf_path)
        self.hostname = hostname or os.getenv("DI_STORE_NODE_NAME") or socket.gethostname()
        config = _read(self.conf_path)
        own = _own(config)
        memory = _memory(config, self.hostname, own.get("memory"))
        self._store: Store = open_store(own.get("name") or _name(config), memory=memory)
        usual = min(_MOST_DELETED, memory // _BYTES_PER_DELETED)
        self._keep = count("keep_deleted", own.get("keep_deleted", usual), minimum=0)
        self._seen: dict[bytes, None] = {}  # ids that are in the table already
        if self._keep > 0:
            schema = {"id": Spec((20,), np.uint8)}
            self._deleted = self._store.create_table(
                _DELETED, capacity=self._keep, schema=schema, sampler=Fifo(), exist_ok=True
            )

    def __repr__(self) -> str:
        return f"<Client of store {self._store.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        path = self.conf_path if isinstance(self.conf_path, Mapping) else os.path.abspath(self.conf_path)
        return Client, (path, self.hostname)

    def register_group(self, group: str | Iterable[str]) -> None:
        """Join a group, to whose nodes objects are sent ahead. Has no effect here: all clients share one memory."""
        _names("group", group)

    def put(
        self,
        data: Any,
        object_id: str | None = None,
        prefetch_hostname: str | Iterable[str] | None = None,
        prefetch_group: str | Iterable[str] | None = None,
    ) -> str:
        """Store a value, once for all readers. Returns its id, 40 hex characters.

        If there is no room, deleted objects are freed, the oldest first.

        Args:
            data: as `Store.put`.
            object_id: 40 hex characters; None: a new id.
            prefetch_hostname: nodes to which it is sent ahead; no effect on one machine.
            prefetch_group: groups to which it is sent ahead; no effect on one machine.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room within a minute. CapacityError: it can never fit.
        """
        _names("prefetch_hostname", prefetch_hostname)
        _names("prefetch_group", prefetch_group)
        while True:
            try:
                return self._store.put(data, id=object_id, timeout=0).id
            except ObjectExists:
                if object_id is None or not self._forget(Ref.parse(object_id)):
                    raise
            except StoreFull:
                if not self._free(_FREED_AT_ONCE):
                    break
            except Timeout:  # a lock is held
                break
        return self._store.put(data, id=object_id).id

    def get(self, object_id_hex: str, src_node: str | None = None, via_rpc: bool = False) -> Any:
        """The value of an object; None: there is none. Arrays are read-only and are not copied.

        Args:
            object_id_hex: as `put` returned it.
            src_node: node to get it from; no effect on one machine.
            via_rpc: how to get it; no effect on one machine.
        """
        try:
            return self._store.get(object_id_hex)
        except ObjectNotFound:
            return None

    def delete(self, object_id_hex_list: str | Iterable[str]) -> None:
        """Say that objects are no longer needed. They can still be read until their room is needed.

        DI-engine deletes every object that it has read, and reads it again when its replay buffer draws it again.

        Args:
            object_id_hex_list: one id or several; those that do not exist are left out.
        """
        ids = [object_id_hex_list] if isinstance(object_id_hex_list, str) else list(object_id_hex_list)
        refs = [Ref.parse(each) for each in ids]
        if self._keep <= 0:
            self._store.delete(refs)
            return
        new = [ref.raw for ref in refs if ref.raw not in self._seen and self._store.contains(ref)]
        for raw in dict.fromkeys(new):
            if (more := len(self._deleted) + 1 - self._keep) > 0:
                self._free(more)
            self._deleted.insert({"id": np.frombuffer(raw, np.uint8)})
            self._seen[raw] = None
        while len(self._seen) > self._keep:
            del self._seen[next(iter(self._seen))]

    def _forget(self, ref: Ref) -> bool:
        """Free an object now; False: nobody deleted it."""
        if self._keep <= 0:
            return False
        keys = self._deleted.keys(n=self._keep)
        same = (self._deleted.peek(keys).data["id"] == np.frombuffer(ref.raw, np.uint8)).all(axis=1)
        self._seen.pop(ref.raw, None)
        return self._deleted.delete(keys[same]) > 0 and self._store.delete(ref) > 0

    def _free(self, number: int) -> int:
        """Free the objects that were deleted first. Returns how many entries of the table that took."""
        if self._keep <= 0:
            return 0
        keys = self._deleted.keys(n=number)
        if len(keys):
            ids = self._deleted.peek(keys).data["id"]  # zeros where another client was faster
            self._store.delete([Ref(each.tobytes()) for each in ids])
            self._deleted.delete(keys)
        return len(keys)


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
        raise ValueError(f"di_store.Client: the configuration is {shown(source)}, and no mapping")
    return source


def _own(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that the original does not know."""
    own = config.get("store") or {}
    known = {"name", "memory", "keep_deleted"}
    if not isinstance(own, Mapping) or not known.issuperset(own):
        raise ValueError(f"di_store.Client: store={shown(own)} in the configuration: it may have {sorted(known)}")
    return own


def _name(config: Mapping[str, Any]) -> str:
    """The store's name, the same for all who would have talked to one node tracker."""
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
        raise ValueError(f"di_store.Client: {section}={shown(found)} in the configuration is no list of mappings")
    return found


def _names(option: str, names: str | Iterable[str] | None) -> None:
    """TypeError unless these are names."""
    if names is None or isinstance(names, str):
        return
    if not isinstance(names, Iterable) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{option}={shown(names)}: give a name or a list of names")
