"""Values by key, each an object of the store."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue.storage as tq_storage
from transfer_queue.storage.clients.base import StorageKVClient

import di_store
from di_store.adapters.stores import given_store
from di_store.adapters.transfer_queue import keeping
from di_store.adapters.transfer_queue.forms import LEAVES, StoredForms, form, value_of
from di_store.adapters.transfer_queue.ids import QueueIds, key_at
from di_store.adapters.transfer_queue.settings import TABLE, durability, settings
from di_store.cluster.store import ClusterStore, stores_of

_ATTACH_SECONDS = 10.0
_REWRITE_SECONDS = 1.0
"""How long a read waits for an object that is not there: a writer that replaces one deletes the old one first."""
_REWRITES = 100
"""Times that a put deletes what another process put at the same key in the meantime."""
_NOT_FOUND: type[KeyError] = getattr(tq_storage, "StorageKeyNotFoundError", KeyError)


class StorageClient(StorageKVClient):  # type: ignore[misc]
    """Values by key, each an object of the store.

    Args:
        config: the section `backend.DiStore` as `transfer_queue.init()` completes it: `name` of TransferQueue's own
            store, or a given `store`, see `adapters.stores.StoreLike`; `table`, the name of the samples in that store
            ("samples"); `timeout`, the seconds that a put waits for room (60); `durability`, as of `Store.put`.

    Raises:
        di_store.StoreNotFound: the store is gone.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        given = settings(config)
        self._timeout = given.get("timeout", 60)
        self._durability = durability(given)
        self._keeper: str | None = given.get("keeper")
        self._given = given.get("store") is not None
        self._store = given_store(given.get("store")) or _own_store(given.get("name"))
        self._owner = QueueIds(given.get("table") or TABLE)
        self._spread = isinstance(self._store, ClusterStore)

    @property
    def owner(self) -> str:
        """The common prefix of the ids of all its objects."""
        return self._owner.digits

    def put(self, keys: list[str], values: list[Any]) -> None:
        """Store values. Values under the same keys are replaced.

        Raises:
            di_store.StoreFull: no room within the timeout.
        """
        forms = values if type(values) is StoredForms else [form(value) for value in values]
        if len(keys) != len(forms):
            raise ValueError(f"{len(keys)} keys for {len(forms)} values")
        ids = self._owner.ids(keys)
        if len(set(ids)) != len(ids):
            last = dict(zip(ids, forms, strict=True))
            ids, forms = list(last), list(last.values())
        if self._spread:  # another node may have the same ids, and would not refuse them
            self._store.delete(ids)
        for _ in range(_REWRITES):
            try:
                self._store.put_many(forms, ids=ids, durability=self._durability, timeout=self._timeout)
                return
            except di_store.ObjectExists:
                self._store.delete(ids)
            except di_store.StoreFull as error:
                raise di_store.StoreFull(
                    error.message,
                    remedy="clear samples, or raise backend.DiStore.memory in TransferQueue's configuration, or the "
                    "memory of the store that was given",
                ) from None
        raise RuntimeError(f"put: another process keeps writing to the same keys, such as {key_at(keys, 0)!r}")

    def get(
        self, keys: list[str], shapes: Any = None, dtypes: Any = None, custom_backend_meta: Any = None
    ) -> list[Any]:
        """The values of these keys: tensors and others, all of them the caller's own copies.

        Raises:
            StorageKeyNotFoundError (0.1.10: KeyError): nothing is stored under a key.
        """
        return [value_of(each) for each in self.forms(keys)]

    def forms(self, keys: list[str]) -> list[Any]:
        """The stored forms of these keys. Bare arrays lie in the store: read them, and drop them soon."""
        ids = self._owner.ids(keys)
        try:
            found = self._store.get_many(ids, timeout=_REWRITE_SECONDS)
            shared = [at for at, each in enumerate(found) if type(each) is not np.ndarray and type(each) not in LEAVES]
            if shared:  # containers may hold arrays that lie in the store
                own = self._store.get_many([ids[at] for at in shared], timeout=_REWRITE_SECONDS, copy=True)
                for at, each in zip(shared, own, strict=True):
                    found[at] = each
            return found
        except di_store.ObjectNotFound:
            missing = [at for at, each in enumerate(ids) if not self._store.contains(each)]
            raise _NOT_FOUND(
                f"{len(missing) or 'some'} of {len(keys)} values are not in the store {self._store.name!r}, such as "
                f"{key_at(keys, missing[0] if missing else 0)!r} (index@field): never put, or cleared"
            ) from None

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Delete the values of these keys. Missing keys are no error.

        The controller has marked their samples already. With durability, it is saved before they go.
        """
        if self._keeper:
            keeping.save(self._keeper)
        self._store.delete(self._owner.ids(keys))

    def stored(self) -> set[str]:
        """The ids of all values, on all nodes."""
        stores = stores_of(self._store) if isinstance(self._store, ClusterStore) else [self._store]
        return {ref.id for store in stores for refs in self._owner.pages(store) for ref in refs}

    def delete(self, ids: Iterable[str]) -> None:
        """Delete values by their ids."""
        self._store.delete(ids)

    def save(self, path: Path) -> None:
        """Write all samples to a folder. Samples that are cleared meanwhile may be left out.

        Raises:
            ValueError: the samples lie on several nodes of a cluster.
        """
        self._check_alone("save_checkpoint")
        skipped = len(self.owner)
        number = 0
        for refs in self._owner.pages(self._store):
            found = {}
            for ref in refs:
                with contextlib.suppress(di_store.ObjectNotFound):
                    found[ref.id[skipped:]] = self._store.get(ref)
            di_store.save(path / f"{number:06}", (True, found))
            number += 1
        di_store.save(path / f"{number:06}", (False, {}))

    def load(self, path: Path) -> None:
        """Replace the samples with those that `save` wrote. Other objects of the store stay.

        Raises:
            ValueError: the samples lie on several nodes of a cluster.
        """
        self._check_alone("load_checkpoint")
        if self._keeper:  # no state describes what is there in the meantime
            keeping.forget(self._keeper)
        for refs in self._owner.pages(self._store):
            self._store.delete(refs)
        for number in itertools.count():
            more, found = di_store.load(path / f"{number:06}")
            if not more:
                return
            for rest, value in found.items():  # one by one: together they may be more than memory holds
                self._store.put(value, id=self.owner + rest, durability=self._durability, timeout=self._timeout)

    def _check_alone(self, call: str) -> None:
        if isinstance(self._store, ClusterStore) and len(nodes := self._store.nodes()) > 1:
            raise ValueError(
                f"{call}: the samples lie on {len(nodes)} nodes of a cluster: save_checkpoint(include_storage=False) "
                "leaves them there"
            )

    def close(self) -> None:
        """Close this process's handle of TransferQueue's own store. A given store stays open.

        In the process that called `transfer_queue.init()`, this ends the keeper of a durable queue.
        """
        if self._keeper:
            keeping.end(self._keeper)
        if not self._given:
            self._store.close()

    @property
    def store(self) -> di_store.Store:
        """The store of the samples. The samples are objects: there is no table."""
        return self._store


def _own_store(name: Any) -> di_store.Store:
    """The store that TransferQueue has made for itself."""
    if not name:
        raise ValueError("backend.DiStore has no name: transfer_queue.init() creates the store and writes its name")
    try:
        return di_store.attach(name, timeout=_ATTACH_SECONDS)
    except di_store.StoreNotFound:
        raise di_store.StoreNotFound(
            f"TransferQueue's store {name!r} is gone, with its samples: no process holds it any more",
            remedy="call transfer_queue.close() and init() to start again",
        ) from None
