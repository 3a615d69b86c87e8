"""Stores of a real Ray cluster of three nodes on this machine: what is killed comes back, and no rows are lost."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray
from cli_run import command
from pains import until
from ray.cluster_utils import Cluster

import di_store
from cluster.nodes import stopped
from cluster.ray_starts import started
from di_store.base.errors import NodeUnavailable, StoreError, TableExists, TableNotFound
from di_store.client.table import RemoteTable
from di_store.cluster import ray as cluster
from di_store.cluster import ray_actors
from di_store.cluster.ray_actors import ACTOR, NAMESPACE
from di_store.cluster.store import ClusterStore
from di_store.replay.local_table import LocalTable

pytestmark = pytest.mark.extended
SCHEMA = {"x": di_store.Spec((4,), "float32"), "n": di_store.Spec((), "int64")}
TABLE: dict[str, Any] = {"capacity": 10_000, "schema": SCHEMA, "lanes": 64}
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def machines() -> Iterator[Cluster]:
    made = started(lambda: Cluster(initialize_head=True, head_node_args=NODE))
    for name in ("node0", "node1"):
        started(partial(made.add_node, resources={name: 100}, **NODE))
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(
        address=made.address,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "DI_STORE_DIR": os.environ["DI_STORE_DIR"]}},
    )
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def served(machines: Cluster) -> Iterator[ClusterStore]:
    nodes = cluster.up(memory="128MiB", timeout=600)
    assert len(nodes) == 3
    assert {each.uuid for each in cluster.up(timeout=600)} == {each.uuid for each in nodes}
    yield cluster.store(timeout=300)
    cluster.down(timeout=600)
    until(lambda: not [each for each in di_store.list_stores() if each.name.startswith("ray-")], "all to be gone")


@pytest.fixture
def store(served: ClusterStore) -> Iterator[ClusterStore]:
    yield served
    for name in list(served.stats()["tables"]):
        served.drop_table(name)


@ray.remote(num_cpus=0.1, max_restarts=-1)
class Actor:
    """Writes rows, and reads what others have put."""

    def pid(self) -> int:
        return os.getpid()

    def name(self) -> str:
        return cluster.store(timeout=300).name

    def write(self, table: di_store.Table, first: int, count: int) -> str:
        with table.writer() as writer:
            for number in range(first, first + count):
                writer.append({"x": np.zeros(4, np.float32), "n": np.int64(number)})
        return type(table._backend).__name__

    def read(self, store: ClusterStore, refs: list[di_store.Ref]) -> list[Any]:
        assert store is cluster.store()
        return [store.get(each, timeout=600) for each in refs]

    def make(self, name: str) -> di_store.Table:
        return cluster.store(timeout=300).create_table(name, **TABLE)

    def put(self, value: Any) -> di_store.Ref:
        return cluster.store(timeout=300).put(value)


def actor(at: int) -> Any:
    """One on a node that is not the driver's."""
    return Actor.options(resources={f"node{at}": 1}).remote()  # type: ignore[attr-defined]


def numbers(table: di_store.Table) -> list[int]:
    return sorted(table.peek(table.keys()).data["n"].tolist())


ALONE = """
import ray
from di_store.cluster import ray as cluster
for version in (ray.__version__, "2.9.1"):
    ray.__version__ = version
    try:
        cluster.up()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_missing_prerequisites_are_named(machines: Cluster) -> None:
    """No ray.init, an old Ray, no `up`: each says what to do."""
    child = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, check=True)
    assert "StoreError Ray is not started in this process (call ray.init() first)" in child.stdout
    assert "StoreError Ray 2.9.1 is too old" in child.stdout
    with pytest.raises(NodeUnavailable, match=r"call di_store.cluster.ray.up\(\) once"):
        cluster.store(timeout=0.2)
    cluster.down()


@ray.remote(num_cpus=0)
class Faulty:
    """An actor of a program with a fault."""

    def nodes(self) -> None:
        raise TypeError("a fault of the actor")


def test_a_program_error_is_not_reported_as_a_lost_node(machines: Cluster) -> None:
    directory = cluster.RayDirectory(Faulty.remote())  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="a fault of the actor"):
        cluster._call(directory._actor.nodes, 60)
    with pytest.raises(TypeError, match="too many positional arguments"):
        directory.by_ray_id(60)
    with pytest.raises(AttributeError):
        directory.plan(60)


def test_repeated_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """And again when one has succeeded meanwhile."""
    turns = iter([OSError("one"), OSError("two"), None, KeyError("three"), OSError("four")])
    stopped = threading.Event()

    def look() -> None:
        error = next(turns, stopped)
        if isinstance(error, Exception):
            raise error
        if error is stopped:
            stopped.set()

    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(ray_actors, "LOOK_SECONDS", 0.001)
        ray_actors.look_again(look, stopped, ray_actors.LOOK_SECONDS, "the keeper keeps trying after")
    told = [each.getMessage() for each in caplog.records]
    assert told == ["the keeper keeps trying after OSError: one", "the keeper keeps trying after KeyError: 'three'"]


def test_handles_pass_through_tasks_and_actors(store: ClusterStore) -> None:
    """Tables, refs and stores go to actors of any node and back."""
    one, two = actor(0), actor(1)
    table = store.create_table("t", **TABLE)
    kinds = ray.get([one.write.remote(table, 0, 50), two.write.remote(table, 50, 50)])
    assert kinds == ["RemoteTable"] * 2
    assert numbers(table) == list(range(100))
    large = np.arange(300_000)
    refs = [store.put(large), ray.get(two.put.remote({"a": "b"})), store.put(TypeError)]
    found = ray.get(one.read.remote(store, refs))
    assert (found[0] == large).all()
    assert found[1:] == [{"a": "b"}, TypeError]
    assert store.get(refs[1], timeout=600) == {"a": "b"}
    other = ray.get(one.make.remote("other"))
    assert isinstance(other._backend, RemoteTable)
    ray.get([two.write.remote(other, 0, 5), one.write.remote(other, 5, 5)])
    assert numbers(store.table("other")) == list(range(10))
    assert type(pickle.loads(pickle.dumps(table))._backend) is LocalTable
    store.drop_table("other")
    assert len({store.name, *ray.get([one.name.remote(), two.name.remote()])}) == 3


def test_a_killed_directory_is_rebuilt(store: ClusterStore) -> None:
    """It is started anew, and knows the tables of all nodes."""
    one = actor(0)
    ray.get(one.make.remote("far"))
    near = store.create_table("near", **TABLE)
    for restart in range(2):
        ray.kill(ray.get_actor(ACTOR, namespace=NAMESPACE), no_restart=False)
        near.extend({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
        assert store.table("far", timeout=60).name == "far"
        ray.kill(ray.get_actor(ACTOR, namespace=NAMESPACE), no_restart=False)
        with pytest.raises(TableExists):
            store.create_table("far", timeout=60, **TABLE)
        assert len(store.table("near")) == 2 * (restart + 1)
    store.drop_table("far")
    with pytest.raises(TableNotFound):
        ray.get(one.read.remote(store, [])) or store.table("far")


def test_a_restarted_directory_waits_for_slow_nodes(store: ClusterStore) -> None:
    """A directory that was started anew gives no name that the node may have."""
    one = actor(0)
    ray.get(one.make.remote("far"))
    keeper = keeper_of(ray.get(one.name.remote()))
    with stopped(keeper, raylet_of(keeper)):  # the raylet would start another keeper
        directory = ray.get_actor(ACTOR, namespace=NAMESPACE)
        pid = ray.get(directory.__ray_call__.remote(lambda _: os.getpid()))
        ray.kill(directory, no_restart=False)
        until(lambda: commands().get(pid, [""]) == [""], "the directory to end")  # until then it answers
        with pytest.raises(NodeUnavailable):
            store.create_table("far", timeout=25, **TABLE)
    with pytest.raises(TableExists):
        store.create_table("far", timeout=300, **TABLE)
    store.drop_table("far")


def test_rows_survive_killed_agents_supervisors_and_keepers(store: ClusterStore) -> None:
    """Rows that are there stay: somebody has the store as long as its node lives."""
    one = actor(0)
    table = ray.get(one.make.remote("far"))
    ray.get(one.write.remote(table, 0, 10))
    name = ray.get(one.name.remote())
    for turn, kill in enumerate((agent_of, supervisor_of, keeper_of, supervisor_of)):
        os.kill(kill(name), signal.SIGKILL)
        until(lambda: _served(store), "all to be served again")
        with store.table("far", timeout=60).writer() as writer:
            writer.append({"x": np.zeros(4, np.float32), "n": np.int64(10 + turn)}, timeout=60)
        assert numbers(store.table("far")) == list(range(11 + turn))
    store.drop_table("far")


def _served(store: ClusterStore) -> bool:
    return all(_answers(each.address) for each in store.nodes()) and len(store.nodes()) == 3


def _answers(address: str) -> bool:
    plan = ray.get(ray.get_actor(ACTOR, namespace=NAMESPACE).plan.remote())
    try:
        with di_store.connect(address, token=plan.token, timeout=5) as found:
            return found.stats() is not None
    except StoreError:
        return False


def commands() -> dict[int, list[str]]:
    """The words of each process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                found[int(pid)] = file.read().split("\0")
        except OSError:
            continue
    return found


def supervisor_of(name: str) -> int:
    return next(pid for pid, words in commands().items() if "serve" in words and name in words)


def agent_of(name: str) -> int:
    with open(f"/proc/{supervisor_of(name)}/task/{supervisor_of(name)}/children") as file:
        children = {int(each) for each in file.read().split()}
    pids = next(each.pids for each in di_store.list_stores() if each.name == name)
    return next(pid for pid in pids if pid in children)


def keeper_of(name: str) -> int:
    every, pids = commands(), next(each.pids for each in di_store.list_stores() if each.name == name)
    return next(pid for pid in pids if "ray::KeeperActor" in every[pid][0])


def raylet_of(worker: int) -> int:
    with open(f"/proc/{worker}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def test_a_new_node_is_served_and_a_dead_one_removed(machines: Cluster, store: ClusterStore) -> None:
    """It is served soon; when its raylet is killed, it is listed no more, and the others go on."""
    table = store.create_table("t", **TABLE)
    node = started(partial(machines.add_node, resources={"later": 100}, **NODE))
    began = time.monotonic()
    late = Actor.options(resources={"later": 1}).remote()  # type: ignore[attr-defined]
    assert ray.get(late.write.remote(table, 0, 10)) == "RemoteTable"
    assert time.monotonic() - began < 50
    assert len(store.nodes()) == 4
    name = ray.get(late.name.remote())
    machines.remove_node(node, allow_graceful=False)
    subprocess.run(command("rm", name, "--force"), check=True, capture_output=True)  # as if its machine were gone
    until(lambda: len(store.nodes()) == 3, "the node to be listed no more")
    assert numbers(table) == list(range(10))
    assert store.create_table("u", **TABLE).name == "u"


def test_down_and_up_makes_new_stores(served: ClusterStore) -> None:
    """Who had a store before gets the new one; a size that is none is refused here, and nothing is the worse for it."""
    one = actor(0)
    before = served.name, ray.get(one.name.remote())
    ref = served.put("old")
    with stopped(keeper_of(before[1])):
        with pytest.raises(NodeUnavailable, match="nodes have not ended their stores"):
            cluster.down(timeout=0.5)
        assert any(each.name == before[1] for each in di_store.list_stores())
    cluster.down(timeout=600)  # waits for what the first call has begun
    assert not [each for each in di_store.list_stores() if each.name in before]
    with pytest.raises(ValueError, match="banana"):
        cluster.up(memory="banana")
    with pytest.raises(ValueError, match=r"bulk='banana': .*'rdma'"):
        cluster.up(bulk="banana")
    cluster.up(memory="96MiB", bulk="mooncake-tcp", timeout=600)
    store = cluster.store(timeout=300)
    for name in before:  # what the agent was told is what the command was given
        words = commands()[supervisor_of(name)]
        assert words[words.index("--bulk") + 1] == "mooncake-tcp"
    assert store is not served
    assert (store.name, ray.get(one.name.remote())) == before
    assert not store.contains(ref)
    assert store.get(ray.get(one.put.remote("new")), timeout=600) == "new"
