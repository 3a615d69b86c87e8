"""Measures Reverb: inserts by writer and client, sampling through its client and its dataset, priority updates.

Environment: ``bench/peers/reverb.txt``. From the repository root: ``python -m bench.peers.reverb_bench --seconds 2``.

The server is in this process, the learner's. That is faster than a process of its own, since Reverb then reads the
table directly, without gRPC. The writer is another process. The figures of a learner outside the server's process are
printed too ("…, other process"). Tables are full before anything is measured.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb  # type: ignore[import-not-found,unused-ignore]
import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

from bench.kit import apart
from bench.measure import ELEMENTS, Element, Script, arguments

FLUSH_EVERY = 32
ITEM_TABLE, LIST_TABLE = "items", "lists"


def table(name: str, capacity: int) -> Any:
    """A prioritized table that removes the oldest first, as in the other systems here."""
    return reverb.Table(
        name,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=capacity,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


class Writer:
    """A trajectory writer whose items are single steps."""

    def __init__(self, writer: Any, element: Element) -> None:
        self.writer = writer
        self.step = element.step()
        self.count = 0

    def append(self) -> None:
        """Append a step and its item. Flushes every FLUSH_EVERY steps, so that inserts are done, not only queued."""
        self.writer.append(self.step)
        last = {name: self.writer.history[name][-1:] for name in self.step}
        self.writer.create_item(ITEM_TABLE, 1.0, last)
        self.count += 1
        if self.count % FLUSH_EVERY == 0:
            self.writer.flush()


def write(address: str, element: Element, script: Script) -> None:
    """In the writer's process: fill the table, then measure appends and client inserts."""
    client = reverb.Client(address)
    with client.trajectory_writer(num_keep_alive_refs=1) as opened:
        writer = Writer(opened, element)
        while writer.count < element.capacity:
            writer.append()
        opened.flush()
        script.take(element.name, "append", writer.append)
        opened.flush()
    leaves = list(element.step().values())
    script.take(element.name, "insert", lambda: client.insert(leaves, {LIST_TABLE: 1.0}))


class Learner:
    """Draws batches through the dataset, the fast way to read from Reverb, and updates priorities."""

    def __init__(self, address: str, element: Element) -> None:
        self.client = reverb.Client(address)
        self.element = element
        step = element.step()
        dataset = reverb.TrajectoryDataset(
            address,
            ITEM_TABLE,
            dtypes={name: tf.as_dtype(np.asarray(leaf).dtype) for name, leaf in step.items()},
            shapes={name: tf.TensorShape([1, *np.asarray(leaf).shape]) for name, leaf in step.items()},
            max_in_flight_samples_per_worker=2 * element.batch,
        )
        self.batches = dataset.batch(element.batch, drop_remainder=True).prefetch(2).as_numpy_iterator()
        self.batch: Any = next(self.batches)

    def sample(self) -> None:
        self.batch = next(self.batches)

    def update(self) -> None:
        self.client.mutate_priorities(ITEM_TABLE, updates={int(key): 1.5 for key in self.batch.info.key})

    def one_by_one(self) -> None:
        """Draw a batch through the client, without the dataset."""
        for _ in self.client.sample(ITEM_TABLE, self.element.batch, emit_timesteps=False):
            pass


def learn(address: str, element: Element, script: Script, suffix: str = "") -> None:
    """Measure a learner, in this process; `suffix`: added to the metrics' names."""
    learner = Learner(address, element)
    script.take(element.name, "sample" + suffix, learner.sample, element.batch)
    script.take(element.name, "sample, client" + suffix, learner.one_by_one, element.batch)
    script.take(element.name, "update" + suffix, learner.update, element.batch)


def run(element: Element, script: Script) -> None:
    """Measure one element, on a new server."""
    server = reverb.Server(
        tables=[table(ITEM_TABLE, element.capacity), table(LIST_TABLE, max(1, element.capacity // 10))]
    )
    address = f"localhost:{server.port}"
    apart(write, address, element, script)
    learn(address, element, script)
    if script.wants(element.name, "other process"):
        apart(learn, address, element, script, ", other process")
    server.stop()


def main() -> None:
    args = arguments("Reverb", loads=("56KB,2KB,2.8MB", "which elements"))
    script = Script("reverb", args.seconds, args.repeats, args.only)
    for name in args.loads.split(","):
        run(ELEMENTS[name], script)


if __name__ == "__main__":
    main()
