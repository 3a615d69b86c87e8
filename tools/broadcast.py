"""Time how long a version of weights takes to the nodes of a group over shaped links: one receiver against many.

Run as root, from the repository root, with the environment of the tests::

    python tools/broadcast.py --members 8 --megabytes 159 --mbit 500

Each node is a `di-store serve` in a network namespace of its own, all on one machine; a bridge connects them, and `tbf`
limits each link in both directions. Rounds with one receiver and with all take turns. For each round with all it prints
how long the slowest took, as a ratio to one receiver, and the most bytes on a link, as a ratio to those of the version.
With ``--fault stop`` or ``--fault kill`` the first of the chain is stopped or killed half way, and the others timed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import di_store

NAME = "w"


def shell(command: str) -> None:
    subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)


class Place:
    """A network namespace with one link to the bridge of `places`.

    Attributes:
        address: of its end of the link, which is ``eth0`` in the namespace.
    """

    def __init__(self, at: int, mbit: float) -> None:
        self.name, self.address = f"dib{os.getpid() % 10000}-{at}", f"10.77.0.{at + 1}"
        bridge, link = f"dib{os.getpid() % 10000}", f"div{os.getpid() % 10000}-{at}"
        self._link = link
        shell(f"ip netns add {self.name}")
        shell(f"ip link add {link} type veth peer name eth0 netns {self.name}")
        shell(f"ip link set {link} master {bridge} up")
        inside = f"ip netns exec {self.name} "
        shell(inside + f"ip addr add {self.address}/24 dev eth0")
        shell(inside + "ip link set eth0 up")
        shell(inside + "ip link set lo up")
        shape = f"root tbf rate {mbit}mbit burst 256kb latency 50ms"
        shell(f"tc qdisc add dev {link} {shape}")
        shell(inside + f"tc qdisc add dev eth0 {shape}")

    def start(self, *words: str, quiet: bool = False, **environment: str) -> Process:
        """A Python program in it. `quiet`: nobody sees what it says of errors."""
        return Process(
            ["ip", "netns", "exec", self.name, sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env={**os.environ, **environment},
            text=True,
        )

    def sent(self) -> tuple[int, int]:
        """Bytes that have gone in and out through the link."""
        found = []
        for each in ("tx_bytes", "rx_bytes"):
            with open(f"/sys/class/net/{self._link}/statistics/{each}") as file:
                found.append(int(file.read()))
        return found[0], found[1]

    def end(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name])


class Process(subprocess.Popen[str]):
    """A program that is told lines, and says lines."""

    def read(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def until_ready(self) -> None:
        """Wait for the line that it is ready."""
        if (said := self.read()) != "ready":
            raise SystemExit(f"a process says {said!r} instead of 'ready'")

    def say(self, word: Any) -> None:
        assert self.stdin is not None
        self.stdin.write(json.dumps(word) + "\n")
        self.stdin.flush()

    def ask(self, word: Any) -> Any:
        self.say(word)
        return json.loads(self.read())

    def end(self) -> None:
        self.kill()
        self.wait()


class Node:
    """A store that is served in a place, and a process that waits for versions."""

    def __init__(self, place: Place, size: int, running: ExitStack) -> None:
        self.place, memory = place, f"{max(64, 4 * size >> 20)}MiB"
        serve = ["serve", place.name, "--memory", memory, "--listen", f"{place.address}:7370", "--plaintext", "--json"]
        self.holder = place.start("-m", "di_store", *serve, quiet=True)
        running.callback(self.holder.end)
        self.served = json.loads(self.holder.read())["address"]
        self.process = place.start(os.path.abspath(__file__), "--role", place.name, "--at", self.served)
        running.callback(self.process.end)
        self.process.until_ready()


def role(name: str, address: str) -> None:
    """The process of a node: publishes, or waits, as it is told."""
    with di_store.attach(name) as store, di_store.connect(address) as far:
        print("ready", flush=True)
        for line in sys.stdin:
            word = json.loads(line)
            if "publish" in word:
                data = np.random.default_rng(word["publish"]).integers(0, 255, word["bytes"], np.uint8)
                began = time.monotonic()
                version = store.publish(NAME, data)
                call = far._backend.session.link.call  # type: ignore[attr-defined]
                call("spread", {"name": NAME, "version": version, "keep": 1, "epoch": 1, "members": word["members"]})
                print(json.dumps([version, began]), flush=True)
            else:
                found = store.latest(NAME, newer_than=word["after"], timeout=word["seconds"])
                print(json.dumps(None if found is None else [found.version, time.monotonic()]), flush=True)


def most_sent(places: list[Place], before: list[tuple[int, int]]) -> int:
    """Bytes that have gone through a link in one direction since then, of that with the most."""
    pairs = zip(places, before, strict=True)
    return max(now - was for each, old in pairs for now, was in zip(each.sent(), old, strict=True))


def measure(nodes: list[Node], number: int, size: int, fault: str) -> tuple[float, float]:
    """Seconds until the last of the members that live had it, and the most bytes on a link, by those of the version."""
    first, *members = nodes
    places = [each.place for each in nodes]
    before = [each.sent() for each in places]
    order = {"publish": number, "bytes": size, "members": [each.served for each in members]}
    version, began = first.process.ask(order)
    victim = members[0] if fault else None
    for each in members:
        if each is not victim:
            each.process.say({"after": version - 1, "seconds": 120})
    if victim is not None:
        while victim.place.sent()[0] - before[1][0] < size / 2:
            time.sleep(0.005)
        found = subprocess.run(["pgrep", "-P", str(victim.holder.pid)], capture_output=True, text=True).stdout.split()
        for pid in found:  # the agent, and the one that waits to take its place: killed, another pair is started
            os.kill(int(pid), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    ended = [json.loads(each.process.read())[1] for each in members if each is not victim]
    if fault == "stop" and victim is not None:
        for pid in found:
            os.kill(int(pid), signal.SIGCONT)
    if victim is not None and victim.process.ask({"after": version - 1, "seconds": 120}) is None:
        raise SystemExit("the node that was gone for a while never got the version")
    return max(ended) - began, most_sent(places, before) / size


@contextmanager
def places(count: int, mbit: float) -> Iterator[list[Place]]:
    """So many places, and a bridge that connects them."""
    bridge = f"dib{os.getpid() % 10000}"
    shell(f"ip link add {bridge} type bridge")
    with ExitStack() as stack:
        stack.callback(shell, f"ip link del {bridge}")
        shell(f"ip link set {bridge} up")
        found = []
        for at in range(count):
            found.append(Place(at, mbit))
            stack.callback(found[-1].end)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=159)
    parser.add_argument("--mbit", type=float, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fault", choices=("", "stop", "kill"), default="")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role:
        role(asked.role, asked.at)
        return
    os.environ.setdefault("DI_STORE_TOKEN", os.urandom(16).hex())
    size = int(asked.megabytes * 1e6)
    with places(asked.members + 1, asked.mbit) as found, ExitStack() as running:
        nodes = [Node(each, size, running) for each in found]
        ratios = []
        for number in range(asked.rounds):
            one, _ = measure(nodes[:2], 2 * number, size, "")
            many, most = measure(nodes, 2 * number + 1, size, asked.fault)
            ratios.append(many / one)
            print(
                f"one {one:.2f} s, {asked.members} {many:.2f} s: {ratios[-1]:.3f}; most on a link {most:.3f}",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
