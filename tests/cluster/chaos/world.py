"""Three nodes with the processes of a job, and what can be killed of them: in Ray, or served with etcd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import di_store
from cluster.chaos.ledger import Board
from cluster.chaos.roles import play
from cluster.nodes import SERVED_SECONDS, Etcd, Node, free_ports
from cluster.ray_starts import started
from di_store import cluster
from di_store.cluster.store import ClusterStore

PLACES = 3
FIXED = 0
"""The place of the driver, which is not lost."""
PUBLISHES = 1
"""The place of the publisher."""
AWAY_SECONDS = 8.0
"""How long a member of etcd stays away."""
CAST = [(role, place) for place in range(PLACES) for role in ("actor", "learner")] + [("publisher", PUBLISHES)]


class World(ABC):
    """Places have numbers; what is at one changes when its node is lost."""

    kinds: dict[str, float]
    """What is killed, and how often compared with the others."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.down: set[int] = set()
        self.others: dict[str, Callable[[], None]] = {}  # kinds that a test adds to `kinds`, and what they do

    @abstractmethod
    def store(self) -> ClusterStore:
        """The driver's."""

    @abstractmethod
    def far(self) -> di_store.Store:
        """The store of the driver's place through its agent."""

    @abstractmethod
    def name(self, place: int) -> str:
        """Of the store there."""

    @abstractmethod
    def supervisor(self, place: int) -> int:
        """The process that holds the store; 0: none is there now."""

    @abstractmethod
    def victim(self, kind: str, place: int) -> int:
        """The process that this kind of kill is of, if it is one of this world's own."""

    @abstractmethod
    def lose(self, kind: str, place: int) -> None:
        """A node, or what makes it one."""

    @abstractmethod
    def back(self, place: int) -> None:
        """A new node in its place."""

    @abstractmethod
    def begin(self) -> None:
        """Start the job's processes: the tables are there."""

    @abstractmethod
    def tend(self) -> None:
        """Start again what whoever runs such a job would start again."""

    # -- processes ----------------------------------------------------------------------------------------------

    def users(self, place: int) -> tuple[int, ...]:
        """All processes that have the store of a place."""
        name = self.name(place)
        return next((each.pids for each in di_store.list_stores() if each.name == name), ())

    def agent(self, place: int) -> int:
        """The agent that serves; 0: none does now."""
        children, users = children_of(self.supervisor(place)), self.users(place)
        return next((pid for pid in children if pid in users), 0)

    def worker(self, role: str, place: int) -> int:
        """The process that plays a role; 0: none does now."""
        with suppress(OSError, ValueError):
            pid = int((self.board.folder / f"{role}-{place}.pid").read_text())
            if state(pid) not in ("", "Z", "X"):
                return pid
        return 0

    def find(self, kind: str, place: int, role: str) -> int:
        """The process that this kind of kill is of; 0: it is not there now."""
        if kind == "worker":
            return self.worker(role, place)
        return {"agent": self.agent, "supervisor": self.supervisor}.get(kind, lambda _: self.victim(kind, place))(place)

    def is_whole(self, place: int) -> bool:
        """Whether all of it is there, so that a kill of one process leaves others that have the store."""
        return bool(self.supervisor(place) and self.agent(place)) and place not in self.down


def state(pid: int) -> str:
    """The letter of /proc; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def children_of(pid: int) -> list[int]:
    """Of its main thread."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def commands() -> Iterator[tuple[int, list[str]]]:
    """The words of each process that lives."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            yield int(pid), Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def kill(*pids: int) -> None:
    """SIGKILL to those that are there, also to stopped ones."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class EtcdWorld(World):
    """Nodes that `di-store serve` makes, and workers that are started again at once."""

    kinds = {"agent": 4, "supervisor": 2, "worker": 4, "node": 1, "member": 1}  # noqa: RUF012

    def __init__(self, board: Board, folder: Path, name: str, running: ExitStack, memory: str) -> None:
        super().__init__(board)
        self._etcd = Etcd(folder, PLACES)
        running.callback(self._etcd.end)
        running.callback(self._end)
        join = f"etcd://{self._etcd.where}/{name}"
        self._nodes = [
            Node(
                f"{name}-{place}",
                *("--memory", memory, "--listen", f"127.0.0.1:{port}", "--join", join),
                log=board.folder / f"node-{place}.log",
            )
            for place, port in enumerate(free_ports(PLACES))
        ]
        self._workers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._begun, self._member_killed = False, 0.0
        self._store = cluster.attach(self._nodes[FIXED].name, timeout=SERVED_SECONDS)
        running.callback(self._store.close)

    def store(self) -> ClusterStore:
        return self._store

    def far(self) -> di_store.Store:
        return self._nodes[FIXED].connect()

    def name(self, place: int) -> str:
        return self._nodes[place].name

    def supervisor(self, place: int) -> int:
        process = self._nodes[place].process
        return 0 if process.poll() is not None else process.pid

    def victim(self, kind: str, place: int) -> int:
        assert kind == "member"
        if any(each.poll() is not None for each in self._etcd.members):
            return 0  # with one of three nothing goes
        self._member_killed = time.monotonic()
        return self._etcd.members[place].pid

    def is_whole(self, place: int) -> bool:
        """A worker must have the store too, since nobody else does when the supervisor is killed."""
        workers = [pid for (_, at), each in self._workers.items() if at == place for pid in (each.pid,)]
        return super().is_whole(place) and len(set(workers) & set(self.users(place))) > 1

    def lose(self, kind: str, place: int) -> None:
        self.down.add(place)
        for (_, at), process in self._workers.items():
            if at == place:
                process.kill()
                process.wait(SERVED_SECONDS)
        node = self._nodes[place]
        kill(*node.pids, *(set(self.users(place)) - {os.getpid()}))
        node.lose()

    def back(self, place: int) -> None:
        self._nodes[place].restart()
        self.down.discard(place)

    def begin(self) -> None:
        self._begun = True
        self.tend()

    def tend(self) -> None:
        for place, node in enumerate(self._nodes):
            if place not in self.down and node.process.poll() is not None:  # the supervisor was killed: the store lives
                with suppress(ValueError):  # it could not: at the next look
                    node.serve_again()
        for role, place in CAST if self._begun else ():
            known = self._workers.get((role, place))
            if place in self.down or self.board.read().get("ends") or (known is not None and known.poll() is None):
                continue
            words = [sys.executable, "-m", "cluster.chaos.roles", role, str(self.board.folder), str(place)]
            path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
            given = {**os.environ, "DI_STORE_NODE": self._nodes[place].name, "PYTHONPATH": path}
            with open(self.board.folder / f"{role}-{place}.log", "ab") as log:
                self._workers[role, place] = subprocess.Popen(words, env=given, stderr=log)
        if time.monotonic() - self._member_killed > AWAY_SECONDS:
            self._etcd.revive()

    def _end(self) -> None:
        for each in self._workers.values():
            each.kill()
            each.wait(SERVED_SECONDS)
        for node in self._nodes:
            kill(*(node.pids if node.process.poll() is None else ()))
            node.process.wait(SERVED_SECONDS)
            assert node.process.stdout is not None
            node.process.stdout.close()


class RayWorld(World):
    """A Ray cluster on this machine. Ray starts workers again, and the keepers what serves the stores."""

    kinds = {"agent": 4, "supervisor": 2, "keeper": 2, "directory": 1, "worker": 4, "raylet": 0.7, "node": 0.7}  # noqa: RUF012

    def __init__(self, board: Board, running: ExitStack, memory: str) -> None:
        import ray
        from ray.cluster_utils import Cluster

        from di_store.cluster import ray as cluster

        super().__init__(board)
        self._ray, self._cluster = ray, cluster
        self._machines = started(lambda: Cluster(initialize_head=True, head_node_args=_resources(FIXED)))
        running.callback(self._machines.shutdown)
        self._nodes = [self._machines.head_node, *map(self._added, (1, 2))]
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        ray.init(
            address=self._machines.address,
            logging_level="ERROR",
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path, "DI_STORE_DIR": os.environ["DI_STORE_DIR"]}},
        )
        running.callback(ray.shutdown)
        cluster.up(memory=memory, timeout=120)
        running.callback(cluster.down)

    def begin(self) -> None:
        made = self._ray.remote(Player).options
        self._workers = [
            made(num_cpus=0, max_restarts=-1, max_task_retries=-1, resources={f"place{place}": 1}).remote()
            for _, place in CAST
        ]
        for worker, (role, place) in zip(self._workers, CAST, strict=True):
            worker.play.remote(role, str(self.board.folder), place)

    def store(self) -> ClusterStore:
        return self._cluster.store()

    def far(self) -> di_store.Store:
        cluster = self.store().node.cluster
        return di_store.connect(cluster.here.address, token=cluster.sessions.credentials.token, timeout=SERVED_SECONDS)

    def name(self, place: int) -> str:
        return f"ray-{self._nodes[place].node_id[:16]}"

    def supervisor(self, place: int) -> int:
        name = self.name(place)
        return next((pid for pid, words in commands() if "serve" in words and name in words and "sh" not in words), 0)

    def keeper(self, place: int) -> int:
        """The actor that has the store of a place served."""
        users = self.users(place)
        return next((pid for pid, words in commands() if pid in users and "KeeperActor" in words[0]), 0)

    def victim(self, kind: str, place: int) -> int:
        if kind == "keeper":
            return self.keeper(place)
        if kind == "directory":
            return next((pid for pid, words in commands() if "::DirectoryActor" in words[0]), 0)
        if kind == "raylet":
            found = self._nodes[place].all_processes.get("raylet")  # none: the node is away
            return int(found[0].process.pid) if found else 0
        raise AssertionError(kind)

    def is_whole(self, place: int) -> bool:
        return super().is_whole(place) and bool(self.keeper(place))

    def lose(self, kind: str, place: int) -> None:
        self.down.add(place)
        node, users = self._nodes[place], set(self.users(place)) - {os.getpid()}
        if kind == "raylet":  # its workers end with it; what serves the store stays for a minute
            kill(self.victim("raylet", place))
        else:
            kill(*users, *children_of(self.supervisor(place)))
        self._machines.remove_node(node, allow_graceful=False)

    def _added(self, place: int) -> Any:
        return started(lambda: self._machines.add_node(**_resources(place)))

    def back(self, place: int) -> None:
        self._nodes[place] = self._added(place)
        self.down.discard(place)

    def tend(self) -> None:
        """Ray does it."""


class Player:
    """An actor that plays a role."""

    def play(self, role: str, folder: str, place: int) -> None:
        from di_store.cluster import ray as cluster

        play(role, folder, place, lambda: cluster.store(timeout=30))


def _resources(place: int) -> dict[str, Any]:
    return {"num_cpus": 2, "object_store_memory": 80_000_000, "resources": {f"place{place}": 100}}
