"""Stores for the adapters' argument `store=`, and a process that is killed with one."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.nodes import cluster_nodes
from cluster.served import TOKEN, agent_here

import di_store
from di_store import cluster

KINDS = ("store", "name", "options", "connected", "cluster")


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Any]:
    """What ``store=`` takes, of each kind."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    if kind == "options":
        yield {"name": name, "memory": "64MiB", "disk": folder / "tier"}
    elif kind == "cluster":
        with cluster_nodes(name, 1, "--memory", "64MiB") as nodes, cluster.attach(nodes[0].name) as store:
            yield store
    else:
        with di_store.open(name, memory="64MiB") as store:
            if kind == "connected":
                with agent_here(store) as agent:
                    address = f"di-store://{agent.address}/{store.name}"
                    with di_store.connect(address, token=TOKEN) as connected:
                        yield connected
            else:
                yield name if kind == "name" else store


def killed_after_a_checkpoint(
    fill: Callable[[di_store.Store, Callable[[], None]], None], folder: Path, memory: int | str = "64MiB"
) -> Path:
    """Run `fill` in a process that is killed in the middle of it; the checkpoint that it made.

    Args:
        fill: is given a store with a disk tier and a function that checkpoints it, and goes on for ever after it.
        folder: for the tier and the checkpoint.
        memory: of the store.
    """
    context = mp.get_context("fork")
    made = context.Event()

    def run() -> None:
        store = di_store.open(memory=memory, disk=folder / "killed")

        def checkpoint() -> None:
            store.checkpoint(folder / "checkpoint")
            made.set()

        fill(store, checkpoint)

    child = context.Process(target=run, daemon=True)
    child.start()
    assert made.wait(120)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    return folder / "checkpoint"


@contextmanager
def killed_and_unpickled(
    make: Callable[[di_store.Store], Any], add: Callable[[Any, int, int], None], count: int, folder: Path
) -> Iterator[Any]:
    """A buffer whose pickle holds no rows: its process was killed, and its store restored under its name.

    Args:
        make: the buffer in a store.
        add: to a buffer, what has the numbers from the first one to before the second.
        count: of what was added before the checkpoint; the killed process went on behind it.
        folder: for the tiers, the checkpoint and the pickle.
    """

    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        buffer = make(store)
        add(buffer, 0, count)
        (folder / "buffer").write_bytes(pickle.dumps((store.name, pickle.dumps(buffer))))
        checkpoint()
        add(buffer, count, 10**9)

    path = killed_after_a_checkpoint(fill, folder)
    name, data = pickle.loads((folder / "buffer").read_bytes())
    with di_store.restore(path, name, memory="64MiB", disk=folder / "tier"):
        buffer = pickle.loads(data)
        assert buffer.store.name == name
        yield buffer
