"""Pain 19: two nodes on one machine. What one has on disk is read from the other; a stopped one stops nobody else.

Its speeds are measured by benchmarks, and its million frames by `test_frames.py`.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_values import Bomb
from pains import stop

import di_store
from cluster.nodes import Node, free_ports, node
from di_store.base.errors import AccessDenied, NodeUnavailable, Timeout
from di_store.cli.serve import serve
from di_store.client.address import Address
from di_store.cluster.store import ClusterStore

PART = np.arange(4_000_000, dtype=np.uint8)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Two with 64 MiB of memory and 512 MiB of disk each, in folders of their own."""
    places, folder = [f"127.0.0.1:{port}" for port in free_ports(2)], tmp_path_factory.mktemp("disks")
    name = f"p-{uuid.uuid4().hex[:12]}"
    with ExitStack() as running:
        yield [
            running.enter_context(
                node(
                    f"{name}-{at}",
                    *("--memory", "64MiB", "--disk", str(folder / str(at)), "--disk-capacity", "512MiB"),
                    *("--listen", place, "--peers", ",".join(places)),
                )
            )
            for at, place in enumerate(places)
        ]


def test_rows_on_another_nodes_disk_are_read(stores: list[ClusterStore]) -> None:
    """160 MB in a store of 64 MiB: all of it is read from the other one, which has no more room."""
    here, there = stores
    refs = [there.put(PART + number) for number in range(40)]
    assert there.stats()["committed"] <= 64 << 20
    for number, ref in enumerate(refs):
        assert (here.get(ref, timeout=60) == PART + number).all()


def test_calls_on_a_stopped_node_name_it_in_time(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Calls on it name it, within their timeout and a second (bound: ten times that); the other one goes on."""
    here, there = stores
    far = there.create_table("far", capacity=100, schema={"n": di_store.Spec((), "i8")}, lanes=8)
    near = here.create_table("near", capacity=100, schema={"n": di_store.Spec((), "i8")}, lanes=8)
    far.extend({"n": np.arange(10)})
    remote, ref = here.table("far"), there.put(PART)
    stopped = [nodes[1].process.pid, *nodes[1].agents()]
    for pid in stopped:
        stop(pid)
    try:
        where = nodes[1].address.split("/")[2]
        calls: list[Callable[[], Any]] = [
            lambda: remote.sample(1, timeout=1),
            lambda: remote.insert({"n": 1}, timeout=1),
            lambda: here.get(ref, timeout=1),
            lambda: remote.keys(timeout=1),
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises((Timeout, NodeUnavailable), match=where):
                call()
            assert time.monotonic() - began < 20
        near.extend({"n": np.arange(10)})
        assert len(near.sample(4)) == 4
        assert here.get(here.put(1)) == 1
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert len(remote.sample(4, timeout=60)) == 4
    assert (here.get(ref, timeout=60) == PART).all()


def test_pickles_of_another_node_are_not_run(stores: list[ClusterStore], tmp_path: Path) -> None:
    here, there = stores
    ref = there.put({"a": Bomb(tmp_path / "ran")})
    with pytest.raises(AccessDenied, match="another machine"):
        here.get(ref)
    assert not (tmp_path / "ran").exists()


def test_the_default_address_is_loopback() -> None:
    """Without `--listen` nobody else can connect."""
    option = next(each for each in serve.params if each.name == "listen")
    assert Address.parse(f"di-store://{option.default}").is_loopback
