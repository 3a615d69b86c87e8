"""Two loads of papers over two nodes, at the rates of `box_ram` in the list of workloads.

From the repository root, against a release build: ``PYTHONPATH=build/release:. python tools/two_nodes.py apex impala``.
Both nodes are `di-store serve` processes of this machine. The learner is on the first, the writers on the second. Exits
with 1 if a rate is not reached.

* ``apex`` (P1): two writers insert 1,250 transitions of 56 KB a second with priorities; the learner draws 973 a second
  in batches of 512, gives them new priorities, and publishes 13.2 MB of weights a second to 8 actors of the other node.
* ``impala`` (P4): two writers insert 78 trajectories of 2.1 MB a second into a queue; the learner takes batches of 32.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from bench.kit import Worker
from di_store import Prioritized, Queue, Spec, Timeout, cluster

WRITERS, PULLERS = 2, 8
APEX_INSERTS, APEX_SAMPLES, APEX_BATCH, APEX_ITEMS = 1_250.0, 973.0, 512, 35_000
IMPALA_INSERTS, IMPALA_BATCH, IMPALA_QUEUE = 78.0, 32, 64
WEIGHTS = 13_200_076
REACHED = 0.98
"""Share of a rate that counts as reached: the last turn of a loop is cut."""

Schema = dict[str, Spec]
APEX: Schema = {
    "obs": Spec((4, 84, 84), np.uint8),
    "next_obs": Spec((4, 84, 84), np.uint8),
    "action": Spec((1,), np.int32),
    "reward": Spec((1,), np.float32),
    "discount": Spec((1,), np.float32),
}
IMPALA: Schema = {
    "frame": Spec((101, 72, 96, 3), np.uint8),
    "action": Spec((101,), np.int32),
    "reward": Spec((101,), np.float32),
    "done": Spec((101,), np.bool_),
    "policy_logits": Spec((101, 9), np.float32),
    "baseline": Spec((101,), np.float32),
    "core_state": Spec((2, 256), np.float32),
}


class Rate:
    """Holds a loop to a rate; one that is late does not catch up more than a second."""

    def __init__(self, per_second: float, seconds: float) -> None:
        self._gap = 1 / per_second
        self._next = time.monotonic()
        self._until = self._next + seconds
        self.count = 0

    def goes_on(self) -> bool:
        """Wait for the next turn. False: the time is over."""
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(self._next + self._gap, now - 1)
        if time.monotonic() >= self._until:
            return False
        self.count += 1
        return True


def element(schema: Schema) -> dict[str, Any]:
    """One of random bytes."""
    data = np.random.default_rng(0)
    return {
        name: data.integers(0, 2, each.shape).astype(each.dtype)
        if each.dtype != np.uint8
        else data.integers(0, 255, each.shape, np.uint8)
        for name, each in schema.items()
    }


def write(pipe: Any, node: str, load: str, seconds: float) -> None:
    """In a process of its own: insert at a share of the rate; sends how many there were, and the seconds."""
    schema, rate, step = (APEX, APEX_INSERTS, 50) if load == "apex" else (IMPALA, IMPALA_INSERTS, 1)
    given = {name: np.stack([value] * step) for name, value in element(schema).items()}
    with cluster.attach(node) as store:
        table = store.table(load, timeout=60)
        priorities = np.random.default_rng(1).random(step)
        pipe.send(None)
        pipe.recv()
        turns, began = Rate(rate / WRITERS / step, seconds), time.monotonic()
        while turns.goes_on():
            table.extend(given, priority=priorities if load == "apex" else None, timeout=60)
        pipe.send((turns.count * step, time.monotonic() - began))


def pull(pipe: Any, node: str, load: str, seconds: float) -> None:
    """In a process of its own: an actor that reads each version; sends how many, and how old each was at most."""
    with cluster.attach(node) as store:
        store.latest("weights", group="actors")
        pipe.send(None)
        pipe.recv()
        until, seen, ages = time.monotonic() + seconds, 0, []
        while time.monotonic() < until:
            found = store.latest("weights", newer_than=seen, timeout=1, group="actors")
            if found is not None:
                seen = found.version
                ages.append(time.monotonic() - float(found.value["at"]))
        pipe.send((len(ages), max(ages, default=float("nan"))))


def apex(store: Any, seconds: float) -> dict[str, tuple[float, float]]:
    """The learner: what it reached of each rate."""
    table, weights = store.table("apex"), np.zeros(WEIGHTS, np.uint8)
    turns, began, due = Rate(APEX_SAMPLES / APEX_BATCH, seconds), time.monotonic(), time.monotonic()
    versions = 0
    with table.loader(APEX_BATCH, prefetch=4, timeout=60) as loader:
        while turns.goes_on():
            batch = next(loader)
            table.update_priorities(batch.keys, np.abs(np.random.default_rng(versions).normal(size=APEX_BATCH)))
            if time.monotonic() >= due:
                due += 1
                versions = store.publish("weights", {"w": weights, "at": time.monotonic()}, group="actors")
    took = time.monotonic() - began
    return {"samples": (turns.count * APEX_BATCH / took, APEX_SAMPLES), "versions": (versions / took, 1.0)}


def impala(store: Any, seconds: float) -> dict[str, tuple[float, float]]:
    """The learner takes all that comes."""
    table, count, began = store.table("impala"), 0, time.monotonic()
    last = began
    with table.loader(IMPALA_BATCH, prefetch=1, timeout=1) as loader, suppress(Timeout):  # the last batch is not full
        while time.monotonic() - began < seconds:
            count += len(next(loader))
            last = time.monotonic()
    return {"samples": (count / (last - began), IMPALA_INSERTS)}


def run(load: str, seconds: float, near: str, far: str) -> bool:
    """One load; whether all its rates were reached."""
    with cluster.attach(near) as store:
        if load == "apex":
            store.create_table(
                load, capacity=APEX_ITEMS, schema=APEX, sampler=Prioritized(alpha=0.6), lanes=8, timeout=60
            )
            first = {name: np.stack([value] * 512) for name, value in element(APEX).items()}
            store.table(load).extend(first, priority=1.0)
        else:
            store.create_table(
                load, capacity=IMPALA_QUEUE, schema=IMPALA, limiter=Queue(IMPALA_QUEUE), lanes=8, timeout=60
            )
        writers = [Worker(write, far, load, seconds) for _ in range(WRITERS)]
        pullers = [Worker(pull, far, load, seconds) for _ in range(PULLERS if load == "apex" else 0)]
        for each in (*writers, *pullers):
            each.pipe.recv()
        for each in (*writers, *pullers):
            each.pipe.send(None)
        found = (apex if load == "apex" else impala)(store, seconds)
        inserted = [each.pipe.recv() for each in writers]
        found["inserts"] = (sum(n / s for n, s in inserted), APEX_INSERTS if load == "apex" else IMPALA_INSERTS)
        pulled = [each.pipe.recv() for each in pullers]
        for each in (*writers, *pullers):
            each.end()
        store.drop_table(load)
    for name, (rate, aim) in found.items():
        print(f"{load}: {name} {rate:,.1f}/s of {aim:,.1f}/s: {rate / aim:.2f}", flush=True)
    if pulled:
        print(
            f"{load}: each of {PULLERS} actors read at least {min(n for n, _ in pulled)} versions, the oldest "
            f"{max(age for _, age in pulled):.2f} s after it was begun"
        )
    return all(rate >= REACHED * aim for rate, aim in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="+", choices=("apex", "impala"))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    args = parser.parse_args()
    with ExitStack() as running:
        places = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                places.append(f"127.0.0.1:{listener.getsockname()[1]}")
        names = []
        for place in sorted(places):
            words = [sys.executable, "-m", "di_store", "serve", "--memory", "5GiB", "--listen", place, "--json"]
            process = subprocess.Popen([*words, "--peers", ",".join(places)], stdout=subprocess.PIPE, text=True)
            running.callback(process.terminate)
            assert process.stdout is not None
            names.append(json.loads(process.stdout.readline())["name"])
        reached = [run(load, args.seconds, *names) for load in args.loads]
        return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
