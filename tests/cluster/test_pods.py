"""A node in a pod with little memory: what it cannot hold is refused in time, and the kernel kills nobody."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from crash.test_cgroup import Group, _own_folder

import di_store
from cluster.nodes import Node, node
from di_store.base.errors import CapacityError, StoreFull

MIB = 1 << 20
LIMIT = 320 * MIB
"""Of the pod: a node's processes take 75 MiB of it."""


@contextmanager
def pod(name: str, memory: str) -> Iterator[tuple[Node, Group | None]]:
    """A node in a cgroup of its own; where this user may not make one, the store's own limit stands in."""
    _, home = _own_folder()
    try:
        group = Group(LIMIT)
    except OSError:
        with node(name, "--memory", str(LIMIT // 2)) as made:
            yield made, None
        return
    with_us = group.path / "cgroup.procs"
    with_us.write_text(str(os.getpid()))  # children begin where their parent is
    try:
        running = node(name, "--memory", memory)
        made = running.__enter__()
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield made, group
    finally:
        running.__exit__(None, None, None)
        group.close()


@pytest.mark.parametrize("memory", ["50%", "3GiB"])
def test_a_pod_with_little_memory_refuses_objects(store_name: Callable[[], str], memory: str) -> None:
    """Also if its store was promised more than the pod has: objects are refused, and tables go on with fewer rows."""
    with pod(store_name(), memory) as (served, group), served.connect() as store:
        pids = served.pids
        refs = []
        with pytest.raises((StoreFull, CapacityError), match="memory"):
            for number in range(2 * LIMIT // MIB):
                refs.append(store.put(np.full(MIB, number % 256, np.uint8), timeout=0.2))
        assert 64 < len(refs) < LIMIT // MIB
        assert all((store.get(ref) == number % 256).all() for number, ref in enumerate(refs))
        store.delete(refs)
        rows = store.create_table("rows", capacity=48, schema={"x": di_store.Spec((MIB,), np.uint8)}, lanes=1)
        with rows.writer() as writer:
            for number in range(4 * LIMIT // MIB):
                writer.append({"x": np.full(MIB, number % 256, np.uint8)})
            writer.flush(timeout=60)
        batch = rows.sample(32)
        assert (batch.data["x"] == batch.data["x"][:, :1]).all()
        assert store.publish("w", np.zeros(16 * MIB, np.uint8)) == 1
        assert store.check() == []
        assert served.pids == pids
        assert group is None or group.killed() == 0
