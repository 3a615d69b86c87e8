"""A node that was silent while another one took over its tables: who still has handles of them is told."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import Program, until

import di_store
from cluster.nodes import Etcd, Node, free_ports, node, stopped
from di_store import cluster
from di_store.base.errors import StoreError, TableNotFound
from di_store.client.address import Address
from di_store.cluster.etcd import EtcdDirectory
from di_store.cluster.store import ClusterStore

TABLE: dict[str, Any] = {
    "capacity": 20_000,
    "schema": {"n": di_store.Spec((), "i8")},
    "sampler": di_store.Prioritized(alpha=1.0),
    "lanes": 4,
    "durability": "disk",
}
HELD = """
import sys
import numpy as np
import di_store
from di_store import cluster

store = cluster.attach(sys.argv[1])
table = store.table("replay")
writer, n = table.writer(), 10
steps = store.table("steps").writer()
calls = {
    "step": lambda: steps.append({"n": n}),  # makes no item
    "append": lambda: writer.append({"n": n}),
    "sample": lambda: table.sample(4),
    "update": lambda: table.update_priorities(table.keys()[:1], np.ones(1)),
    "sync": lambda: store.sync(timeout=60),
    "writer": lambda: table.writer(),
    "insert": lambda: table.insert({"n": n}),
    "extend": lambda: table.extend({"n": np.arange(2)}),
    "delete": lambda: table.delete(np.ones(1, np.uint64)),
    "reset": lambda: table.reset(),
    "resize": lambda: table.resize(10_000),
    "configure": lambda: table.configure(limiter=di_store.MinSize(2)),
    "finish": lambda: table.finish(),
    "loader": lambda: next(iter(table.loader(4))),
    "peek": lambda: table.peek(np.ones(1, np.uint64)),
    "keys": lambda: table.keys(),
    "at": lambda: table.at([0]),
    "positions": lambda: table.positions(np.ones(1, np.uint64)),
    "evicted": lambda: table.evicted(),
    "len": lambda: len(table),
    "stats": lambda: table.stats(),
    "export": lambda: table.export("/nowhere/rows.zip"),
}
print("there", flush=True)
for call in sys.stdin:
    try:
        calls[call.strip()]()
        n += 1
        print("done", flush=True)
    except di_store.StoreError as error:
        print(type(error).__name__, error, flush=True)
"""

CALLS = (
    *("step", "append", "sample", "update", "writer", "insert", "extend", "delete", "reset", "resize", "configure"),
    *("finish", "loader", "peek", "keys", "at", "positions", "evicted", "len", "stats", "export"),
)


@dataclass
class Three:
    """Nodes with a disk each: the first has the backup and, without etcd, the directory; the third is the spare one."""

    nodes: list[Node]
    spare: Path

    def take_over(self) -> None:
        """The spare machine, which has nothing, takes the place of the second node."""
        self.nodes[2].lose()
        shutil.rmtree(self.spare)
        self.nodes[2].serve_again("--rejoin", self.nodes[1].name)


@pytest.fixture
def three(directory: str, tmp_path: Path) -> Iterator[Three]:
    places, name = sorted(f"127.0.0.1:{port}" for port in free_ports(3)), f"o-{uuid.uuid4().hex[:12]}"
    folders = [tmp_path / str(at) for at in range(3)]
    with ExitStack() as running:
        options = ["--peers", ",".join(places)]
        if directory == "etcd":
            etcd = Etcd(tmp_path / "etcd", 1)
            running.callback(etcd.end)
            EtcdDirectory(etcd.where).read("k", 60)
            options = ["--join", f"etcd://{etcd.where}/{name}"]
        nodes = [
            running.enter_context(
                node(
                    f"{name}-{at}",
                    *("--memory", "64MiB", "--disk", str(folders[at]), "--disk-capacity", "256MiB"),
                    *("--listen", place, *options),
                )
            )
            for at, place in enumerate(places)
        ]
        yield Three(nodes, folders[2])


def said(program: Program, call: str) -> str:
    """What a call of the program came to."""
    program.say(call)
    return program.line()


def check_told(held: Program) -> None:
    """Every call of the program's table says that another node has the table."""
    until(lambda: said(held, "peek") != "done" and said(held, "step") != "done", "the handles to end")
    for call in CALLS:
        name, answer = "steps" if call == "step" else "replay", said(held, call)
        assert answer.startswith(f"TableNotFound another node of the cluster has table '{name}' now"), (call, answer)
        assert "store.table()" in answer


def make_tables(store: ClusterStore) -> di_store.Table:
    """A table of ten rows, and one whose items take more steps than there will be; both synced."""
    store.create_table("steps", timeout=60, **{**TABLE, "capacity": 10, "view": di_store.Sequence(500)})
    table = store.create_table("replay", timeout=60, **TABLE)
    table.extend({"n": np.arange(10)})
    store.sync(timeout=60, copies=3)
    return table


def is_at(store: ClusterStore, there: Node) -> bool:
    """Whether the cluster's table lies on that node."""
    try:
        table = store.table("replay", timeout=1)
    except StoreError:
        return False
    return Address.parse(there.address).node in repr(table)


def has_ended(table: di_store.Table) -> bool:
    try:
        len(table)
    except TableNotFound as error:
        return "another node" in str(error)
    return False


@pytest.mark.parametrize("directory", ["peers", pytest.param("etcd", marks=pytest.mark.extended)])
def test_a_resumed_node_gives_up_tables_taken_over_by_another(three: Three) -> None:
    """Its programs go on meanwhile, and are told while it is silent; each opens the table where it is."""
    left, lost, spare = three.nodes
    with ExitStack() as opened:
        near = opened.enter_context(cluster.attach(lost.name, timeout=60))
        far = opened.enter_context(cluster.attach(left.name, timeout=60))
        table = make_tables(near)
        distant = far.table("replay", timeout=60)
        held = opened.enter_context(Program(HELD, lost.name))
        assert held.line() == "there"
        assert said(held, "append") == "done"
        with stopped(*lost.pids):
            three.take_over()
            until(lambda: is_at(far, spare), "the table to be the spare node's")
            until(lambda: said(held, "append") != "done", "the writer to be told")
        check_told(held)
        until(lambda: has_ended(table), "this process's handle to end")
        with pytest.raises(TableNotFound, match="another node"):
            distant.sample(4)
        with pytest.raises(TableNotFound, match="another node"):
            distant.insert({"n": 99})
        with di_store.attach(lost.name) as plain:  # what came too late for the other node can still be read
            left_over = plain.table("replay")
            assert 10 in left_over.peek(left_over.keys()).data["n"]
            with pytest.raises(TableNotFound, match="another node"):
                left_over.sample(4)
        moved = near.table("replay", timeout=60)
        assert sorted(moved.peek(moved.keys()).data["n"].tolist()) == list(range(10))
        moved.insert({"n": 10})
        assert len(far.table("replay", timeout=60)) == 11


@pytest.mark.parametrize("directory", ["peers", pytest.param("etcd", marks=pytest.mark.extended)])
def test_programs_of_a_node_that_is_not_served_are_told(three: Three) -> None:
    """Nobody serves the store any more, and no program calls `sync`: its programs ask the directory themselves."""
    left, lost, spare = three.nodes
    with cluster.attach(lost.name, timeout=60) as near, cluster.attach(left.name, timeout=60) as far:
        make_tables(near)
        with Program(HELD, lost.name) as held, Program(HELD, lost.name) as reading:
            assert held.line() == reading.line() == "there"
            for pid in lost.pids:
                os.kill(pid, signal.SIGKILL)
            lost.process.wait(60)
            three.take_over()
            until(lambda: is_at(far, spare), "the table to be the spare node's")
            until(lambda: said(held, "append") != "done", "the writer to be told")
            check_told(held)
            check_told(reading)


@pytest.mark.parametrize("directory", [pytest.param("peers", marks=pytest.mark.extended), "etcd"])
def test_sync_raises_if_another_node_has_the_table(three: Three) -> None:
    """Also where nobody serves the store any more: rows that were written since then are not safe."""
    left, lost, spare = three.nodes
    with cluster.attach(lost.name, timeout=60) as near, cluster.attach(left.name, timeout=60) as far:
        make_tables(near)
        with Program(HELD, lost.name) as held, Program(HELD, lost.name) as other:
            assert held.line() == other.line() == "there"
            for pid in lost.pids:
                os.kill(pid, signal.SIGKILL)
            lost.process.wait(60)
            three.take_over()
            until(lambda: is_at(far, spare), "the table to be the spare node's")
            sync = said(held, "sync")
            assert sync.startswith("TableNotFound another node of the cluster has table 'replay', 'steps' now")
            assert said(other, "append").startswith("TableNotFound")
            assert said(held, "sync") == "done"  # of what else is there
