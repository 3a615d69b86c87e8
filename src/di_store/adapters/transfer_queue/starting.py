"""`register`, and the process that `transfer_queue.init()` starts to hold the store."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import ray
from omegaconf import OmegaConf
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.clients.base import StorageClientFactory
from transfer_queue.storage.managers.base import StorageManagerFactory

import di_store
from di_store.adapters.transfer_queue.client import StorageClient
from di_store.adapters.transfer_queue.manager import StorageManager
from di_store.adapters.transfer_queue.settings import BACKEND, CLIENT, settings


def register() -> None:
    """Register the backend `DiStore` with TransferQueue in this process.

    Call it before `transfer_queue.init()`. Ray processes that get their configuration from there need no call.
    """
    StorageBootstrapProvider.register_provider(BACKEND)(start)
    StorageManagerFactory.register(BACKEND)(StorageManager)
    StorageClientFactory.register(CLIENT)(StorageClient)


class _Registration:
    """An entry of the configuration: it registers the backend in each process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, ()

    def __repr__(self) -> str:
        return "registers DiStore"


def _registered() -> _Registration:
    register()
    return _Registration()


@ray.remote(num_cpus=0)
class Keeper:
    """Holds the store, so that it lives as long as TransferQueue does."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._store = di_store.open(**options)

    def ready(self) -> str:
        """The name of the store, which now exists."""
        return self._store.name


def start(conf: Any) -> dict[str, Any]:
    """Create or open the store, and write into the configuration how other processes reach it.

    `transfer_queue.init()` calls this in the one process that starts TransferQueue.
    """
    given = settings(conf.backend.get(BACKEND))
    store = given.get("store")
    made = {**given, "client_name": CLIENT, "registration": _Registration()}
    resources = {}
    if not isinstance(store, di_store.Store) or type(store) is di_store.Store:
        resources["keeper"], made["name"] = _kept(store, given)
        made["store"] = None
    conf.backend[BACKEND] = OmegaConf.create(made, flags={"allow_objects": True})
    return resources


def _kept(store: Any, given: dict[str, Any]) -> tuple[Any, str]:
    """An actor that holds a store of this machine, and the store's name."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) > 1:
        raise ValueError(
            f"backend.storage_backend: DiStore keeps samples in the memory of one machine, and this Ray cluster has "
            f"{len(nodes)} nodes: give a store that all of them reach, backend.DiStore.store, or use another backend"
        )
    actor: Any = Keeper
    keeper = actor.remote(_own_options(given) if store is None else _options(store))
    try:
        return keeper, ray.get(keeper.ready.remote())
    except ray.exceptions.RayActorError as error:
        raise RuntimeError(f"backend.DiStore: the store could not be created: {_reason(error)}") from error


def _own_options(given: dict[str, Any]) -> dict[str, Any]:
    """`di_store.open`'s options for a store of TransferQueue's own."""
    name = given.get("name") or f"transfer-queue-{secrets.token_hex(4)}"
    if any(each.name == name for each in di_store.list_stores()):
        raise ValueError(
            f"backend.DiStore.name: a store named {name!r} exists already; leave out the name for a new one, or "
            "give it as backend.DiStore.store"
        )
    options = {option: given[option] for option in ("disk", "disk_capacity") if given.get(option) is not None}
    return {"name": name, "mode": "x", "memory": given.get("memory", "25%"), **options}


def _options(store: Any) -> dict[str, Any]:
    """The same for a store that was given."""
    if isinstance(store, di_store.Store):
        return {"name": store.name}
    if isinstance(store, str):
        return {"name": store}
    if isinstance(store, Mapping):
        return {"name": f"transfer-queue-{secrets.token_hex(4)}", **store}
    raise TypeError(
        f"backend.DiStore.store is a {type(store).__name__}: give a store, its name, or a dict of di_store.open's "
        "options"
    )


def _reason(error: BaseException) -> str:
    """The last line of the error from an actor's constructor."""
    lines = str(error.__cause__ or error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
