"""The actors of a cluster in Ray: the directory, and on each node a keeper that has its store served.

Ray places and restarts them. No data pass through them. The directory's entries are derived: after a restart it gets
them from the keepers, each of which knows the entries of its node's own tables.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from di_store.base.errors import NodeUnavailable, StoreError
from di_store.client.address import TOKEN_ENV, Address
from di_store.cluster.directory import TableEntry, unpacked
from di_store.cluster.directory_entries import Entries, own_entries
from di_store.cluster.node import Node
from di_store.runtime.background import look_again
from di_store.server.membership import Membership, membership_of
from di_store.session import Session

NAMESPACE, ACTOR = "di_store", "directory"
"""Namespace and name of the directory's actor: each Ray cluster has at most one actor of that name."""
LOOK_SECONDS = 1.0
"""How often the directory looks for nodes, and a keeper checks its store."""
READY_SECONDS = 60.0
"""How long a restarted directory waits for what the nodes keep, before entries can be changed. Nodes whose
raylet is gone are not waited for."""
SILENT_SECONDS = 10.0
"""A node whose keeper has been silent for this time is not listed."""


class Plan(msgspec.Struct, frozen=True):
    """How each node has its store served, from the arguments of `up`.

    Attributes:
        cluster: name of the cluster, 16 hex characters.
        token: token that agents and clients know.
        options: options of `di-store serve`.
    """

    cluster: str
    token: str
    options: tuple[str, ...]

    def store_of(self, node_id: str) -> str:
        """The name of a node's store."""
        return f"ray-{node_id[:16]}"


class DirectoryActor:
    """The directory: one actor, on the node where `up` was called. Thread-safe; everything changes under `_lock`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lock = threading.Condition()
        self._entries: Entries = {}
        self._dropped: set[str] = set()  # keys that were taken out, and are not there again
        self._nodes: dict[str, tuple[Node, float]] = {}  # by Ray's id: what its keeper said last, and when
        self._expected: set[str] | None = None  # Ray's ids of the nodes whose raylets listen; None: not known yet
        self._ready = False  # whether every expected node has said what it keeps
        self._began = time.monotonic()
        self._keepers: dict[str, Any] = {}
        self._anchors: dict[str, Any] = {}
        self._stopped = threading.Event()
        given = self._look, self._stopped, LOOK_SECONDS, "the directory keeps trying after"
        threading.Thread(target=look_again, args=given, daemon=True).start()

    def plan(self) -> Plan:
        """How nodes are served."""
        return self._plan

    def report(self, node_id: str, node: Node, kept: Entries) -> None:
        """Take a keeper's report that its store is served, with its node's entries of its own tables."""
        with self._lock:
            if node_id not in self._nodes:  # its first report to this actor
                # What the node said before it heard of a drop, or while it was away, brings nothing back.
                news = {key: entry for key, entry in kept.items() if key not in self._dropped}
                self._entries = {**news, **self._entries}
            self._nodes[node_id] = node, time.monotonic()
            self._lock.notify_all()

    def nodes(self, whole: bool) -> dict[str, Node]:
        """The served nodes, by Ray's id. `whole`: wait for all nodes that Ray knows, as entries do."""
        with self._lock:
            if whole:
                self._await_words()
            return self._served()

    def read(self, key: str) -> bytes | None:
        """As `Directory.read`."""
        with self._lock:
            self._await_words()
            return self._entries.get(key)

    def listed(self, prefix: str) -> Entries:
        """As `Directory.listed`."""
        with self._lock:
            self._await_words()
            return {key: entry for key, entry in self._entries.items() if key.startswith(prefix)}

    def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        """As `Directory.swap`."""
        with self._lock:
            self._await_words()
            if self._entries.get(key) != old:
                return False
            if new is None:
                self._entries.pop(key, None)
                self._dropped.add(key)
            else:
                self._entries[key] = new
                self._dropped.discard(key)
            return True

    def stop(self, timeout: float | None) -> int:
        """Have all keepers stop serving.

        Returns the number of keepers that have not stopped in time; they continue stopping.
        """
        self._stopped.set()
        alive = _raylets()
        with self._lock:
            keepers, anchors = list(self._keepers.items()), list(self._anchors.values())
        ending = [each.stop.remote() for node_id, each in keepers if node_id in alive]
        _, late = ray.wait(ending, num_returns=len(ending), timeout=timeout) if ending else ([], [])
        if not late:  # one that is killed meanwhile would leave its store to nobody
            for each in (*(keeper for _, keeper in keepers), *anchors):
                ray.kill(each)
        return len(late)

    # -- under the lock, but for the thread's own ---------------------------------------------------------------

    def _served(self) -> dict[str, Node]:
        latest = time.monotonic() - SILENT_SECONDS
        return {node_id: node for node_id, (node, heard) in self._nodes.items() if heard > latest}

    def _await_words(self) -> None:
        """Wait until every node of the cluster has reported its entries: otherwise a name could be given twice."""
        while not self._ready:
            told = self._expected is not None and self._expected <= self._nodes.keys()
            if told or time.monotonic() - self._began > READY_SECONDS:
                self._ready = True
            else:
                self._lock.wait(LOOK_SECONDS / 10)

    def _look(self) -> None:
        """Have a keeper on each node, and an anchor on each that has a shard."""
        raylets = _raylets()
        alive = raylets.keys()
        if not self._ready:  # Ray lists a node for a while after its raylet was killed
            listening = {each for each, address in raylets.items() if _listens(address)}
            with self._lock:
                self._expected = listening
                self._lock.notify_all()
        with self._lock:
            for gone in self._nodes.keys() - alive:
                del self._nodes[gone]
            owners = {
                uuid for key, entry in self._entries.items() if key.startswith("table/") for uuid in _shards(entry)
            }
            shards = {node_id for node_id, (node, _) in self._nodes.items() if node.uuid in owners}
        for node_id in alive - self._keepers.keys():
            self._keepers[node_id] = _on(node_id, KeeperActor, 0.0, self._plan)
        for node_id in self._keepers.keys() - alive:
            del self._keepers[node_id]
        # An autoscaler removes a node without work; one that has rows must stay.
        for node_id in (shards & alive) - self._anchors.keys():
            self._anchors[node_id] = _on(node_id, AnchorActor, 0.001)
        for node_id in self._anchors.keys() - (shards & alive):
            ray.kill(self._anchors.pop(node_id))


class AnchorActor:
    """Takes a thousandth of a CPU, so that an autoscaler keeps the node."""


class KeeperActor:
    """Has the store of its node served, and reports that to the directory."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._directory = ray.get_actor(ACTOR, namespace=NAMESPACE)
        context = ray.get_runtime_context()
        self._node_id: str = context.get_node_id()
        self._name = plan.store_of(self._node_id)
        self._host: str = ray.util.get_node_ip_address()
        self._session: Session | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # one look at a time, and none after `stop`
        given = self._look, self._stopped, LOOK_SECONDS, "the keeper keeps trying after"
        threading.Thread(target=look_again, args=given, daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        self._stopped.set()
        with self._lock:
            if self._session is not None:
                self._session.close()
            subprocess.run(
                [sys.executable, "-m", "di_store", "rm", self._name, "--force"], capture_output=True, check=False
            )

    def _look(self) -> None:
        """Have the store served, and tell the directory."""
        with self._lock:
            if not self._stopped.is_set():
                self._look_alone()

    def _look_alone(self) -> None:
        if self._session is None:
            with suppress(StoreError):
                self._session = Session.attach(self._name)
        session = self._session
        membership = None if session is None else membership_of(session)
        if session is None or membership is None or not _listens(Address.parse(membership.address)):
            self._serve(membership)
            session = self._session = self._session or Session.attach(self._name)
            membership = membership_of(session)
        if membership is None:
            raise NodeUnavailable(f"store {self._name!r} is served, but not as a node of this cluster")
        node = Node(session.uuid, self._host, membership.address)
        ray.get(self._directory.report.remote(self._node_id, node, own_entries(session)), timeout=5)

    def _serve(self, before: Membership | None) -> None:
        """Start the supervisor.

        The holder outlives this actor: the store ends with the holder, or a minute after the raylet.
        """
        if before is not None:  # the same port, so that clients find it again
            with suppress(StoreError):  # something else has it by now
                self._start(Address.parse(before.address).port)
                return
        self._start(0)

    def _start(self, port: int) -> None:
        command = [sys.executable, "-m", "di_store", "serve", self._name, "--listen", f"{self._host}:{port}", "--json"]
        command += ["--join", f"ray://{self._plan.cluster}", "--while-pid", str(os.getppid()), "--plaintext"]
        command += self._plan.options
        # Through a shell that ends at once: a worker of Ray that ends kills its children, but not theirs.
        process = subprocess.Popen(
            ["sh", "-c", '"$@" &', "sh", *command],
            env={**os.environ, TOKEN_ENV: self._plan.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout as said:
            process.wait()
            if not said.readline():
                raise StoreError(f"the store of node {self._host} cannot be served; its worker's log says why")


def _raylets() -> dict[str, Address]:
    """The addresses of the raylets of nodes that are alive for Ray, by Ray's id."""
    return {
        each["NodeID"]: Address(each["NodeManagerAddress"], each["NodeManagerPort"], "")
        for each in ray.nodes()
        if each["Alive"]
    }


def _shards(entry: bytes) -> tuple[str, ...]:
    with suppress(StoreError):
        return unpacked(entry, TableEntry).shards
    return ()


def _listens(address: Address) -> bool:
    """Whether the port is open. A store's supervisor keeps its port open, even while it restarts the agent."""
    with suppress(OSError), socket.create_connection((address.host, address.port), 5):
        return True
    return False


def _on(node_id: str, cls: Callable[..., Any], cpus: float, *arguments: Any) -> Any:
    """An actor that runs only on this node."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    made = ray.remote(cls).options(num_cpus=cpus, max_restarts=-1, max_task_retries=-1, scheduling_strategy=where)
    return made.remote(*arguments)
