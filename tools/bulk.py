"""Time reads of objects from another node: over our own TCP, and by Mooncake's transfer engine over TCP.

Run from the repository root, with an environment that has the extra ``rdma`` (`make adapters ADAPTER=rdma` makes one)::

    build/adapters/rdma/bin/python tools/bulk.py --megabytes 10 64 --rounds 15

Two pairs of nodes on this machine, one of each kind, take turns. A read is the `get` of an object that was just put on
the other node. Printed: median, fastest, and the processor time of both agents and the reader for a gigabyte.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from di_store import cluster

KINDS = ("tcp", "mooncake-tcp")


def free_ports(count: int) -> list[int]:
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class Pair:
    """Two nodes; the second one reads what was put on the first."""

    def __init__(self, kind: str) -> None:
        places = sorted(f"127.0.0.1:{port}" for port in free_ports(2))
        self._processes: list[subprocess.Popen[str]] = []
        self._agents: list[int] = []
        names = []
        for place in places:
            words = ["serve", f"bulk-{os.getpid()}-{place.rpartition(':')[2]}", "--memory", "1GiB", "--listen", place]
            words += ["--peers", ",".join(places), "--bulk", kind, "--plaintext", "--json"]
            command = [sys.executable, "-m", "di_store", *words]
            self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            said = json.loads((self._processes[-1].stdout or sys.stdin).readline())
            names.append(said["name"])
            self._agents.append(said["agent"])
        self._one, self._two = (cluster.attach(name) for name in names)

    def read(self, value: np.ndarray) -> tuple[float, float]:
        """Seconds of one read, and of the processors."""
        ref = self._one.put(value)
        before, began = self._spent(), time.perf_counter()
        got = self._two.get(ref)
        seconds, spent = time.perf_counter() - began, self._spent() - before
        if not np.array_equal(got, value):
            raise SystemExit("another value came back")
        del got
        for each in (self._two, self._one):
            each.delete(ref)
        return seconds, spent

    def _spent(self) -> float:
        """Processor time so far."""
        ticks = 0
        for pid in self._agents:
            with open(f"/proc/{pid}/stat") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()

    def end(self) -> None:
        """Nothing is left."""
        self._one.close()
        self._two.close()
        for each in self._processes:
            each.terminate()
            each.wait()


@contextmanager
def pairs() -> Iterator[dict[str, Pair]]:
    made: dict[str, Pair] = {}
    try:
        for kind in KINDS:
            made[kind] = Pair(kind)
        yield made
    finally:
        for each in made.values():
            each.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 64])
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    random = np.random.default_rng(1)
    with pairs() as made:
        for megabytes in asked.megabytes:
            value = random.integers(0, 255, int(megabytes * 1e6), dtype=np.uint8)
            taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            for number in range(asked.rounds + 1):
                for kind in KINDS:
                    found = made[kind].read(value)
                    taken[kind] += [found] if number else []  # the first one opens connections
            for kind, found in taken.items():
                seconds = [each for each, _ in found]
                cost = statistics.mean(each for _, each in found) / (megabytes / 1e3)
                print(
                    f"{megabytes:g} MB {kind}: median {statistics.median(seconds) * 1e3:.1f} ms, "
                    f"fastest {min(seconds) * 1e3:.1f} ms, {cost:.2f} processor-s/GB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
