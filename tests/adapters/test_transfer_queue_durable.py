"""TransferQueue with `durability="disk"`: its samples and its controller's state outlive all of its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transfer_queue", reason="runs with make adapters ADAPTER=transfer_queue")

import torch
import transfer_queue as tq
from cluster.nodes import Node, free_ports, node
from omegaconf import OmegaConf
from pains import until
from transfer_queue.controller import DataPartitionStatus, PartitionIndexManager
from transfer_queue_jobs import ROOT, get, kill_everything, put, ray_here

from di_store.adapters.transfer_queue import StorageClient, durable, register
from di_store.adapters.transfer_queue.ids import Ids

PROGRAM = Path(__file__).with_name("transfer_queue_killed.py")
KEYS = [f"sample_{at}" for at in range(4)]


@contextmanager
def program(what: str, settings: dict[str, Any], nodes: list[str], mark: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """The lines of the program, which is killed with all its processes at the end of the block."""
    paths = os.pathsep.join(str(ROOT / each) for each in ("src", "tests", "tests/adapters"))
    environment = {**os.environ, "PYTHONPATH": paths, "DI_STORE_TEST_MARK": mark}
    command = [sys.executable, str(PROGRAM), what, json.dumps(settings), *nodes]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield (tuple(json.loads(line)) for line in running.stdout if line.startswith("[") and line.endswith("\n"))
        finally:
            kill_everything(mark)


class Known:
    """What must be there after a kill, from what the program said before."""

    def __init__(self) -> None:
        self.put: set[int] = set()
        self.taken: set[int] = set()
        self.cleared: set[int] = set()
        self._new: list[tuple[str, list[int]]] = []  # since a state was last saved for sure

    def add(self, what: str, numbers: list[int]) -> None:
        self._new.append((what, numbers))
        if what == "cleared":  # the state was saved before
            for each, those in self._new:
                getattr(self, "cleared" if each == "clearing" else each, set()).update(those)
            self._new.clear()

    def check(self, found: dict[str, list[int]]) -> None:
        keys = set(found["keys"])
        assert found["values"] == found["keys"]
        dropped = {number for what, numbers in self._new for number in numbers if what == "clearing"}
        assert self.put - self.cleared - dropped <= keys
        assert not self.cleared & keys
        assert not self.taken & set(found["taken"])
        assert sum(found["objects"]) == len(keys) + 2  # and the last two states
        self.put &= keys
        self.taken.update(found["taken"])
        self._new.clear()


def killed_and_resumed(
    settings: dict[str, Any], nodes: list[str], rounds: int, restart: Callable[[], None] = lambda: None
) -> None:
    known = Known()
    for turn in range(rounds):
        mark = f"mark-{uuid.uuid4().hex}"
        clears = 0
        with program("work", settings, nodes, mark) as lines:
            for what, numbers in lines:
                known.add(what, numbers)
                clears += what == "cleared"
                if clears == 3 and what == ("put", "taken", "clearing")[turn % 3]:
                    kill_everything(mark)  # what it has said until then comes still
        assert clears > 2, "the program has ended"
        restart()
        with program("look", settings, nodes, mark) as lines:
            found = dict(lines)
        assert "objects" in found, "the program has ended"
        known.check(found)
        restart()


def test_everything_is_killed_and_resumed(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """What was put before the last state stays, under its own key, and is not taken twice."""
    settings = {"memory": "64MiB", "disk": str(tmp_path), "durability": "disk"}
    killed_and_resumed(settings, [], count(2, 12))


def test_two_nodes_and_everything_else_are_killed_and_resumed(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    name, places = f"tq-{uuid.uuid4().hex[:12]}", sorted(f"127.0.0.1:{port}" for port in free_ports(2))
    with ExitStack() as running:
        made: list[Node] = []
        for at, place in enumerate(places):
            options = "--memory", "64MiB", "--disk", str(tmp_path / f"{at}")
            made.append(
                running.enter_context(node(f"{name}-{at}", *options, "--listen", place, "--peers", ",".join(places)))
            )

        def restart() -> None:
            for each in made:
                each.lose()
            for each in made:
                each.serve_again()

        killed_and_resumed({"durability": "disk"}, [each.name for each in made], count(1, 6), restart)


# --- in one program ---------------------------------------------------------------------------------------------------


@contextmanager
def queue(**settings: Any) -> Iterator[None]:
    tq.init(OmegaConf.create({"backend": {"storage_backend": "DiStore", "DiStore": settings}}))
    try:
        yield
    finally:
        tq.close()


@pytest.fixture(scope="module")
def ray_system() -> Iterator[None]:
    register()
    with ray_here():
        yield


def test_a_closed_queue_is_resumed_whole(ray_system: None, tmp_path: Path) -> None:
    """Nothing is lost, not even what came last; another table of the folder is another queue."""
    settings = {"memory": "64MiB", "disk": str(tmp_path), "durability": "disk"}
    with queue(**settings):
        put(KEYS, {"a": torch.arange(12).reshape(4, 3)})
        tq.kv_clear(keys=KEYS[:1], partition_id="train")
        tq.kv_put(key=KEYS[1], partition_id="train", fields={"b": torch.ones(2)}, tag={"score": 0.5})
    with queue(**settings):
        assert set(tq.kv_list()["train"]) == set(KEYS[1:])
        assert tq.kv_list()["train"][KEYS[1]] == {"score": 0.5}
        assert [each.tolist() for each in get(KEYS[1:], ["a"])["a"].unbind()] == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]
        assert get(KEYS[1:2])["b"].unbind()[0].tolist() == [1, 1]
    with queue(**settings, table="other"):
        assert not tq.kv_list()
        put(KEYS[:1], {"a": torch.zeros(1, 3)})
    with queue(**settings):
        assert len(get(KEYS[1:], ["a"])["a"].unbind()) == 3


def test_the_state_is_saved_by_itself(ray_system: None, tmp_path: Path) -> None:
    with queue(memory="64MiB", disk=str(tmp_path), durability="disk"):
        store = tq.get_client().storage_manager.store
        states = StorageClient({"store": store, "table": "samples/controller"})

        def saved() -> int:
            found = []
            for key in ("even", "odd"):
                try:
                    found += states.get([key])
                except KeyError:  # just replaced, or never put
                    pass
            return max((each.number for each in found), default=0)

        for _ in range(3):
            before = saved()
            put(KEYS, {"a": torch.rand(4, 3)})
            tq.kv_put(key=uuid.uuid4().hex, partition_id="train", fields={"a": torch.rand(3)})
            until(lambda before=before: saved() > before, "a new state")


def test_a_durable_queue_needs_a_folder(ray_system: None) -> None:
    with (
        pytest.raises(ValueError, match=r"durability=\"disk\" keeps samples in a folder: .*DiStore\.disk"),
        queue(durability="disk"),
    ):
        pass
    tq.close()
    with pytest.raises(ValueError, match=r"DiStore\.durability='tape': give one of 'memory', 'disk'"):
        StorageClient({"store": "x", "durability": "tape"})


# --- what a state describes -------------------------------------------------------------------------------------------


def test_a_state_loses_what_is_not_in_the_store() -> None:
    """A value that is gone is not ready; a sample without values gives its index back; other values are nobody's."""
    owner, schema = "ab" * 6, {name: {"dtype": torch.int64, "shape": (3,)} for name in ("a", "b")}
    partition, indexes = DataPartitionStatus("train"), PartitionIndexManager()
    indexes.allocate_indexes("train", 6)
    partition.update_production_status([0, 1, 2, 3], ["a", "b"], schema)
    partition.global_indexes.update([4])  # never put
    partition.keys_mapping, partition.revert_keys_mapping = {"x": 2, "y": 3}, {2: "x", 3: "y"}
    partition.consumption_status["train"] = torch.tensor([1, 0, 0, 0], dtype=torch.int8)
    partition.production_status[3] = 0  # it was being cleared
    state = {"partitions": {"train": partition}, "index_manager": dict(vars(indexes)), "sampler": None}
    there = {*Ids(owner, ["a"], [0, 3, 9]), *Ids(owner, ["b"], [0, 1, 3])}
    described = durable.mended(state, owner, there)
    assert there - described == {*Ids(owner, ["a"], [3, 9]), *Ids(owner, ["b"], [3])}
    assert partition.global_indexes == {0, 1}
    assert partition.production_status[:2, :2].tolist() == [[1, 1], [0, 1]]
    assert partition.keys_mapping == {}
    assert partition.consumption_status["train"].tolist()[:2] == [1, 0]
    assert partition.field_metadata["a"].global_indexes == {0}
    assert state["index_manager"]["partition_to_indexes"]["train"] == {0, 1, 5}
    assert sorted(state["index_manager"]["reusable_indexes"]) == [2, 3, 4]
    assert sorted(state["index_manager"]["allocated_indexes"]) == [0, 1, 5]
