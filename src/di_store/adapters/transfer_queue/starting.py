"""`register`, and the process that `transfer_queue.init()` starts to hold the store."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import ray
from omegaconf import OmegaConf
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.clients.base import StorageClientFactory
from transfer_queue.storage.managers.base import StorageManagerFactory

import di_store
from di_store.adapters.transfer_queue import keeping
from di_store.adapters.transfer_queue.client import StorageClient
from di_store.adapters.transfer_queue.durable import SavedController
from di_store.adapters.transfer_queue.manager import StorageManager
from di_store.adapters.transfer_queue.settings import BACKEND, CLIENT, TABLE, durability, settings
from di_store.cluster.store import ClusterStore


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
    """Holds the store, so that it lives as long as TransferQueue does.

    Args:
        store: a store that all processes reach, or options of `di_store.open`.
        info: of a durable queue: where its controller is reached, on this machine.
        table: of a durable queue: the name of its samples.
    """

    def __init__(self, store: di_store.Store | dict[str, Any], info: Any = None, table: str = TABLE) -> None:
        self._store = store if isinstance(store, di_store.Store) else di_store.open(**store)
        self._controller = None if info is None else SavedController(self._store, table, info)

    def ready(self) -> str:
        """The name of the store, which now exists."""
        return self._store.name

    def save(self) -> None:
        """As `SavedController.save`."""
        if self._controller is not None:
            self._controller.save()

    def forget(self) -> None:
        """As `SavedController.forget`."""
        if self._controller is not None:
            self._controller.forget()

    def end(self) -> None:
        """Save a last time, and close this handle of the store."""
        if self._controller is not None:
            self._controller.end()
        self._store.close()


def start(conf: Any) -> dict[str, Any]:
    """Create or open the store, and write into the configuration how other processes reach it.

    `transfer_queue.init()` calls this in the one process that starts TransferQueue. The samples of a durable queue, and
    the controller's state, are those that the store has on its disk.
    """
    given = settings(conf.backend.get(BACKEND))
    store, durable = given.get("store"), durability(given) == "disk"
    made = {**given, "client_name": CLIENT, "registration": _Registration()}
    resources = {}
    shared = isinstance(store, di_store.Store) and (store.address is not None or isinstance(store, ClusterStore))
    if not shared:
        _check_alone()
        store, made["store"] = _own_options(given) if store is None else _options(store), None
    if durable:
        keeper = f"di-store-{secrets.token_hex(8)}"
        info = conf.controller.zmq_info
        options = {**keeping.options(keeper), **_beside(info)}
        actor, name = _kept(options, store, info, given.get("table") or TABLE)
        keeping.hold(keeper, actor)
        made["keeper"] = keeper
    elif not shared:
        resources["keeper"], name = _kept({}, store)
    if not shared:
        made["name"] = name
    conf.backend[BACKEND] = OmegaConf.create(made, flags={"allow_objects": True})
    return resources


def _check_alone() -> None:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) > 1:
        raise ValueError(
            f"backend.storage_backend: DiStore keeps samples in the memory of one machine, and this Ray cluster has "
            f"{len(nodes)} nodes: give a store that all of them reach, backend.DiStore.store, such as "
            "di_store.cluster.ray.store() after up(), or use another backend"
        )


def _kept(options: dict[str, Any], *arguments: Any) -> tuple[Any, str]:
    """An actor that holds a store, and the store's name. `arguments`: those of `Keeper`."""
    actor: Any = Keeper
    keeper = actor.options(**options).remote(*arguments)
    try:
        return keeper, ray.get(keeper.ready.remote())
    except ray.exceptions.RayActorError as error:
        raise RuntimeError(f"backend.DiStore: the store could not be created: {_reason(error)}") from error


def _beside(info: Any) -> dict[str, Any]:
    """Options of an actor that runs on the controller's machine."""
    there = [each["NodeID"] for each in ray.nodes() if each["Alive"] and each["NodeManagerAddress"] == info.ip]
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(there[0], soft=False)} if there else {}


def _own_options(given: dict[str, Any]) -> dict[str, Any]:
    """`di_store.open`'s options for a store of TransferQueue's own."""
    name = given.get("name") or f"transfer-queue-{secrets.token_hex(4)}"
    if any(each.name == name for each in di_store.list_stores()):
        raise ValueError(
            f"backend.DiStore.name: a store named {name!r} exists already; leave out the name for a new one, or "
            "give it as backend.DiStore.store"
        )
    options = {option: given[option] for option in ("disk", "disk_capacity") if given.get(option) is not None}
    if durability(given) == "memory":
        options["mode"] = "x"
    elif "disk" not in options:
        raise ValueError('backend.DiStore.durability="disk" keeps samples in a folder: give it as backend.DiStore.disk')
    return {"name": name, "memory": given.get("memory", "25%"), **options}


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
