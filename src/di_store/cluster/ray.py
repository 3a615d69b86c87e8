"""Di-store on every node of a Ray cluster: ``from di_store.cluster import ray as cluster``.

`up` has a store served on each node, including nodes that join later. `store` gives a task or actor the store of its
own node. Ray lists the nodes, and restarts failed actors. Rows, objects and weights never go through Ray.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from di_store.base import config
from di_store.base.errors import NodeUnavailable, StoreError
from di_store.base.sizes import budget_bytes
from di_store.client.channel import Seconds
from di_store.cluster.directory import unavailable
from di_store.cluster.directory_entries import Entries
from di_store.cluster.joining import LOADERS, joined
from di_store.cluster.node import Node
from di_store.cluster.own_stores import OwnStores
from di_store.cluster.ray_actors import ACTOR, NAMESPACE, DirectoryActor, Plan
from di_store.cluster.store import ClusterStore
from di_store.runtime.deadline import GRACE_SECONDS, Deadline
from di_store.runtime.waits import check_timeout
from di_store.server.engine import BULK_KINDS, OWN
from di_store.server.membership import Membership
from di_store.session import Session

OLDEST = (2, 40)
_FAULTS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)
"""Errors in code, which no wait mends. If an actor's method raises one, the error that Ray raises has its type too."""
THREADS = 64
"""Calls that the directory's actor makes at once: some wait."""


def up(
    *,
    memory: int | float | str = "30%",
    disk: str | None = None,
    disk_capacity: str | None = None,
    allow_pickle: bool = True,
    bulk: str = OWN,
    timeout: float | None = 60,
) -> list[Node]:
    """Serve a store on every node of this Ray cluster, including nodes that join later. A second call does nothing.

    Call it once, after `ray.init`. Agents listen at the address that Ray uses, without TLS, like Ray's own traffic.
    They require a token that only processes of this Ray cluster get. `up` takes no ``--rejoin``: docs/backups.md says
    how to restore the tables of a lost node.

    Args:
        memory: memory of each store, as in `di_store.open`.
        disk: folder on each node for data that exceeds memory.
        disk_capacity: limit on the bytes of the files in it.
        allow_pickle: load values that tasks of other nodes have pickled, as Ray does.
        bulk: transport of large objects from other nodes: "tcp", or "rdma" by an engine (docs/machines.md).
        timeout: seconds to wait until all present nodes are served; None: no limit.

    Returns:
        The nodes that are served.

    Raises:
        NodeUnavailable: not all nodes are served in time; the missing ones are served later. StoreError: Ray is too
        old, or `ray.init` was not called.
    """
    _check_ray()
    deadline = Deadline.given(timeout)
    budget_bytes(memory)  # so that what is no size is refused here, and not on each node
    options = ["--memory", str(memory)]
    options += [] if disk is None else ["--disk", disk]
    options += [] if disk_capacity is None else ["--disk-capacity", disk_capacity]
    options += ["--allow-pickle"] if allow_pickle else []
    options += ["--bulk", config.choice("bulk", bulk, BULK_KINDS)]
    plan = Plan(secrets.token_hex(8), secrets.token_hex(32), tuple(options))
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(DirectoryActor).options(
        name=ACTOR,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=THREADS,
        num_cpus=0,
        scheduling_strategy=here,
    )
    return _all_served(RayDirectory(actor.remote(plan)), deadline)


def _all_served(directory: RayDirectory, deadline: Deadline) -> list[Node]:
    """The present nodes, once all are served."""
    while True:
        alive = {each["NodeID"] for each in ray.nodes() if each["Alive"]}
        served = directory.by_ray_id(deadline.left)
        if not (missing := alive - served.keys()):
            return list(served.values())
        if not deadline.pause():
            raise NodeUnavailable(
                f"{len(missing)} of {len(alive)} nodes serve no store after {deadline.timeout:g} s",
                remedy="the logs of KeeperActor in Ray's session folder say why; timeout= waits longer",
            )


def store(*, timeout: float | None = 30) -> ClusterStore:
    """The store of the node that this task, actor or driver runs on. One handle per process.

    Args:
        timeout: seconds to wait until the node is served; None: no limit.

    Raises:
        NodeUnavailable: `up` was not called, or the node is not served in time.
    """
    _check_ray()
    context = ray.get_runtime_context()
    key = os.getpid(), context.gcs_address, context.get_node_id()
    return _own.get(key, check_timeout(timeout), _attached, alone=True)  # others are of a Ray cluster before


def down(*, timeout: float | None = 60) -> None:
    """End all stores of this Ray cluster, with all their contents.

    Args:
        timeout: seconds to wait for the nodes; None: no limit.

    Raises:
        NodeUnavailable: some nodes did not confirm in time that they have ended. They still end; a second call waits
        for them.
    """
    _check_ray()
    given = check_timeout(timeout)
    _own.clear()
    try:
        actor = ray.get_actor(ACTOR, namespace=NAMESPACE)
    except ValueError:
        return
    late = _call(actor.stop, None if given is None else given + GRACE_SECONDS, given)
    if late:
        raise NodeUnavailable(
            f"{late} nodes have not ended their stores after {timeout} s",
            remedy="they keep trying; call down() again to wait for them before up()",
        )
    ray.kill(actor)


class RayDirectory:
    """The directory's actor, as a `Directory`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def by_ray_id(self, timeout: Seconds, *, whole: bool = False) -> dict[str, Node]:
        """The nodes that are served, by Ray's id. `whole`: wait a few seconds at first for all nodes that Ray knows."""
        found: dict[str, Node] = _call(self._actor.nodes, timeout, whole)
        return found

    def plan(self, timeout: Seconds) -> Plan:
        """How nodes are served."""
        found: Plan = _call(self._actor.plan, timeout)
        return found

    def nodes(self, timeout: Seconds) -> list[Node]:
        """As `Directory.nodes`."""
        return list(self.by_ray_id(timeout, whole=True).values())

    def missing(self, nodes: list[Node]) -> list[str]:
        """As `Directory.missing`: a node is listed until it is lost."""
        return []

    def read(self, key: str, timeout: Seconds) -> bytes | None:
        """As `Directory.read`."""
        found: bytes | None = _call(self._actor.read, timeout, key)
        return found

    def listed(self, prefix: str, timeout: Seconds) -> Entries:
        """As `Directory.listed`."""
        found: Entries = _call(self._actor.listed, timeout, prefix)
        return found

    def swap(self, key: str, old: bytes | None, new: bytes | None, timeout: Seconds) -> bool:
        """As `Directory.swap`. If an actor changed the entry without answering, the call recognises its own bytes."""
        deadline, lost = Deadline.of(timeout), list[str]()
        done = bool(_call(self._actor.swap, deadline, key, old, new, lost=lost))
        return done or (bool(lost) and self.read(key, deadline) == new)

    def close(self) -> None:
        """As `Directory.close`; does nothing."""


_own: OwnStores[tuple[int, str, str]] = OwnStores()
"""The stores of this process: by process, Ray cluster and node."""


def _call(method: Any, timeout: Seconds, *arguments: Any, lost: list[str] | None = None) -> Any:
    """A call of the directory's actor; repeated while Ray restarts the actor.

    `lost` gets a text for each attempt that failed.
    """
    deadline = Deadline.of(timeout)
    while True:
        seconds, rest = deadline.left, deadline.rest()
        if seconds is not None and rest is not None:  # no more after the deadline: others of the call may follow
            seconds = max(seconds, min(rest, GRACE_SECONDS))
        try:
            return ray.get(method.remote(*arguments), timeout=seconds)
        except ActorUnavailableError as error:  # also what it has done may be lost with it
            if not deadline.pause():
                raise unavailable(str(error).splitlines()[0]) from None
            if lost is not None:
                lost.append(type(error).__name__)
        except _FAULTS:  # of this program, or of the actor's
            raise
        except Exception as error:  # Ray raises its own errors, and bare ones if it was restarted meanwhile
            raise unavailable(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def _attached(timeout: float | None) -> ClusterStore:
    deadline = Deadline(timeout)
    node_id = ray.get_runtime_context().get_node_id()
    while True:
        try:
            directory = RayDirectory(ray.get_actor(ACTOR, namespace=NAMESPACE))
            plan = directory.plan(deadline.left)
            if node_id in directory.by_ray_id(deadline.left):
                return joined(Session.attach(plan.store_of(node_id)), plan.token, directory)
            why = f"node {node_id[:12]} is not served yet"
        except ValueError:
            why = "no store is served in this Ray cluster"
        if not deadline.pause():
            raise NodeUnavailable(why, remedy="call di_store.cluster.ray.up() once; timeout= waits longer")


def _loaded(membership: Membership) -> ClusterStore:
    """The store that handles from elsewhere in the cluster are loaded into."""
    return store()


LOADERS["ray"] = _loaded


def _check_ray() -> None:
    version = tuple(int(each) for each in ray.__version__.split(".")[:2])
    if version < OLDEST:
        raise StoreError(
            f"Ray {ray.__version__} is too old for di_store.cluster.ray", remedy="pip install -U 'ray>=2.40'"
        )
    if not ray.is_initialized():
        raise StoreError("Ray is not started in this process", remedy="call ray.init() first")
