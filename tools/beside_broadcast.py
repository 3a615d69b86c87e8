"""Weights for many nodes over shaped links, beside Ray's objects and torch's `broadcast`, one turn after the other.

Run as root, from the repository root, with the environment of the tests, against a release build::

    PYTHONPATH=build/release python tools/beside_broadcast.py --members 8 --megabytes 159 --mbit 500

The places are those of `broadcast.py`: network namespaces of one machine, with `tbf` on each link. In each of them are
at the same time:

* ours: a `di-store serve`; the first publishes an array, the others wait for it.
* Ray: a raylet of one cluster; the first puts an array, and an actor on each of the others gets it.
* torch: a process of one gloo group; the first broadcasts a tensor.

Each round times each of them with one receiver, then with all. It prints a table of medians: seconds until the slowest
has it, with one and with all, their ratio, and the most bytes on a link, as a ratio to those of the array.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
from broadcast import Node, Place, Process, measure, most_sent, places

RAY_PORT, TORCH_PORT = 6379, 29500
QUIET_BYTES = 100_000  # in a second, on any link


def until_quiet(found: list[Place]) -> None:
    """Wait until next to nothing is sent: Ray goes on for a while with what all have."""
    most = QUIET_BYTES
    while most >= QUIET_BYTES:
        before = [each.sent() for each in found]
        time.sleep(1.0)
        most = most_sent(found, before)


class Peer:
    """What is measured beside ours."""

    def __init__(self, found: list[Place]) -> None:
        self._places = found

    def begin(self, asked: dict[str, int]) -> tuple[float, float]:
        """When it began, and when the last had it."""
        raise NotImplementedError

    def measure(self, members: int, size: int, number: int) -> tuple[float, float]:
        """Seconds until the last had it, and the most bytes on a link, by those of the array."""
        before = [each.sent() for each in self._places]
        began, ended = self.begin({"members": members, "bytes": size, "number": number})
        return ended - began, most_sent(self._places, before) / size


class Torch(Peer):
    """A gloo group."""

    def __init__(self, found: list[Place], running: ExitStack) -> None:
        super().__init__(found)
        self._processes: list[Process] = []
        for rank, each in enumerate(found):
            words = ["--role", "torch", "--rank", str(rank), "--members", str(len(found) - 1)]
            process = each.start(os.path.abspath(__file__), *words, "--at", found[0].address, GLOO_SOCKET_IFNAME="eth0")
            running.callback(process.end)
            self._processes.append(process)
        for process in self._processes:
            process.until_ready()

    def begin(self, asked: dict[str, int]) -> tuple[float, float]:
        own = self._processes[: asked["members"] + 1]
        for each in own:
            each.say(asked)
        times = [json.loads(each.read()) for each in own]
        return times[0][0], max(ended for _, ended in times[1:])


class Ray(Peer):
    """A cluster of raylets, and a driver."""

    def __init__(self, found: list[Place], size: int, running: ExitStack) -> None:
        super().__init__(found)
        folder = tempfile.mkdtemp(prefix="ray-")  # a short path: sockets lie there
        running.callback(shutil.rmtree, folder, ignore_errors=True)
        head = f"{found[0].address}:{RAY_PORT}"
        for at, each in enumerate(found):
            where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"] if not at else [f"--address={head}"]
            words = [*where, f"--node-ip-address={each.address}", f"--temp-dir={folder}/{at}", "--num-cpus=1"]
            words += [f"--object-store-memory={max(80 << 20, 3 * size)}", "--disable-usage-stats", "--block"]
            words += [f"--resources={json.dumps({f'place{at}': 1})}", "--include-log-monitor=false"]
            raylet = each.start("-m", "ray.scripts.scripts", "start", *words, quiet=True, RAY_AUTH_MODE="disabled")
            running.callback(raylet.wait)
            running.callback(raylet.terminate)  # so that it ends the processes that it has started
            while "runtime started" not in raylet.read():
                if raylet.poll() is not None:
                    raise SystemExit(f"ray ended with {raylet.poll()}")
        words = ["--role", "ray", "--at", head, "--members", str(len(found) - 1)]
        self._driver = found[0].start(os.path.abspath(__file__), *words, RAY_AUTH_MODE="disabled")
        running.callback(self._driver.end)
        self._driver.until_ready()

    def begin(self, asked: dict[str, int]) -> tuple[float, float]:
        began, ended = self._driver.ask(asked)
        return float(began), float(ended)


def data_of(asked: dict[str, int]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(asked["number"]).integers(0, 255, asked["bytes"], np.uint8)


def torch_role(rank: int, members: int, address: str) -> None:
    import torch
    from torch import distributed

    where = f"tcp://{address}:{TORCH_PORT}"
    patience = datetime.timedelta(minutes=10)
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=members + 1, timeout=patience)
    groups = {count: distributed.new_group(list(range(count + 1))) for count in {1, members}}
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        group = groups[asked["members"]]
        tensor = torch.zeros(asked["bytes"], dtype=torch.uint8) if rank else torch.from_numpy(data_of(asked))
        tensor += 0  # its pages are there
        distributed.barrier(group)
        began = time.monotonic()
        distributed.broadcast(tensor, 0, group)
        print(json.dumps([began, time.monotonic()]), flush=True)


def ray_role(members: int, address: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")

    class Member:
        def get(self, refs: list[Any]) -> float:
            return time.monotonic() if len(ray.get(refs[0])) else 0.0

    while len([each for each in ray.nodes() if each["Alive"]]) < members + 1:
        time.sleep(0.2)
    made: Any = ray.remote(num_cpus=1)(Member)
    actors = [made.options(resources={f"place{at + 1}": 1}).remote() for at in range(members)]
    first = ray.put(np.zeros(1))
    ray.get([each.get.remote([first]) for each in actors])
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        data = data_of(asked)
        began = time.monotonic()
        ref = ray.put(data)
        ended = ray.get([each.get.remote([ref]) for each in actors[: asked["members"]]])
        del ref
        print(json.dumps([began, max(ended)]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=159)
    parser.add_argument("--mbit", type=float, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", choices=("ray", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role:
        torch_role(asked.rank, asked.members, asked.at) if asked.role == "torch" else ray_role(asked.members, asked.at)
        return
    os.environ.setdefault("DI_STORE_TOKEN", os.urandom(16).hex())
    size = int(asked.megabytes * 1e6)
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with places(asked.members + 1, asked.mbit) as found, ExitStack() as running:
        nodes = [Node(each, size, running) for each in found]
        peers: dict[str, Peer] = {"Ray": Ray(found, size, running), "torch": Torch(found, running)}
        for number in range(2 * asked.rounds):
            members = asked.members if number % 2 else 1
            until_quiet(found)
            taken.setdefault(("ours", members), []).append(measure(nodes[: members + 1], number, size, ""))
            for name, peer in peers.items():
                until_quiet(found)
                taken.setdefault((name, members), []).append(peer.measure(members, size, number))
            print(members, {name: taken[name, members][-1] for name in ("ours", *peers)}, file=sys.stderr, flush=True)
    print(f"{'':8}{'one':>8}{asked.members:>8}{'ratio':>8}{'bytes on a link':>18}")
    for name in ("ours", *peers):
        one, many = (statistics.median(each for each, _ in taken[name, count]) for count in (1, asked.members))
        most = max(each for _, each in taken[name, asked.members])
        print(f"{name:8}{one:6.2f} s{many:6.2f} s{many / one:8.2f}{most:18.3f}")


if __name__ == "__main__":
    main()
