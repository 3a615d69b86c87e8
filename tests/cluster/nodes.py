"""Nodes of tests: a real `di-store serve` with an agent of its own, on a port of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pains import stop, until
from programs import need

import di_store
from di_store import cluster
from di_store.cluster.store import ClusterStore

SERVED_SECONDS = 30.0  # ten times what it may take


class Node:
    """One served store: the holder, its agent, and its address."""

    def __init__(self, name: str, *options: str, env: dict[str, str] | None = None, log: Path | None = None) -> None:
        """Start it. `log`: file for what it and its agents say."""
        self._given = (*options,), env
        self._log = log or Path(os.environ["DI_STORE_TEST_ROOT"], f"{name}.log")
        self._start(name)

    def _start(self, name: str) -> None:
        options, env = self._given
        command = [
            sys.executable,
            "-m",
            "di_store",
            "serve",
            name,
            "--memory",
            "512MiB",
            "--listen",
            f"127.0.0.1:{free_ports(1)[0]}",
            "--json",
        ]  # options come later, and win
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"node {name} is not served: {self.said()}"
        told = json.loads(line)
        self.address: str = told["address"]
        self.name: str = told["name"]
        self._agent: int = told["agent"]

    def said(self) -> str:
        """What the holder and its agents have written, since the store's first start."""
        return self._log.read_text(errors="replace")

    def connect(self, **options: Any) -> di_store.Store:
        """A handle of the store, through the agent."""
        return di_store.connect(self.address, **options)

    def agents(self) -> list[int]:
        """The holder's children: the agent that serves, and the one that waits for its turn."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(path) as file:
            return [int(each) for each in file.read().split()]

    @property
    def pids(self) -> list[int]:
        """All of its processes."""
        return [self.process.pid, *self.agents()]

    @property
    def agent(self) -> int:
        """Of the agent that serves: it alone has the store."""
        until = time.monotonic() + SERVED_SECONDS
        while time.monotonic() < until:
            holders = next((each.pids for each in di_store.list_stores() if each.name == self.name), ())
            if found := [pid for pid in self.agents() if pid in holders]:
                return found[0]
        raise AssertionError("no agent serves")

    def kill_agent(self) -> int:
        """SIGKILL to the agent; returns its pid."""
        pid = self.agent
        os.kill(pid, signal.SIGKILL)
        return pid

    def lose(self) -> None:
        """SIGKILL to all of it: what lay in its memory is gone."""
        if self.process.poll() is not None:
            return
        agents = self.agents()
        for pid in (self.process.pid, *agents):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(SERVED_SECONDS)
        until(lambda: not any(each.name == self.name for each in di_store.list_stores()), "the node to be gone")

    def serve_again(self, *more: str) -> None:
        """Start it again, with these options too, after its holder was killed: others may still have the store."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        given, self._given = self._given, ((*self._given[0], *more), self._given[1])
        try:
            self._start(self.name)
        finally:
            self._given = given

    def restart(self, *more: str) -> None:
        """Lose it, and start it with the same options and these: at the same address if `--listen` says so."""
        self.lose()
        self.serve_again(*more)

    def end(self) -> None:
        """End it as Ctrl-C would."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(SERVED_SECONDS)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes that are stopped until the block ends; of a whole node: `Node.pids`."""
    try:
        for pid in pids:
            stop(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def show_kills(waited: list[float]) -> None:
    """What `pytest -s` prints of so many kills of an agent: how many seconds clients waited for the next one."""
    median, most = statistics.median(waited), max(waited)
    print(f"\n{len(waited)} kills, served again after {median:.2f} s (median), {most:.2f} s (slowest)")


@contextmanager
def node(name: str, *options: str, env: dict[str, str] | None = None, log: Path | None = None) -> Iterator[Node]:
    """A node for one test; nothing of it is left."""
    made = Node(name, *options, env=env, log=log)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            for pid in (*made.agents(), made.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            made.end()
        assert made.process.stdout is not None
        made.process.stdout.close()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens at now.

    The system gives none of them to others by itself: a node that was killed finds its port free again, and its clients
    do not reach the agent of another test there.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1_000):  # Ray's workers have those below
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no port is free")


@contextmanager
def cluster_nodes(name: str, count: int, *options: str) -> Iterator[list[Node]]:
    """Nodes of one cluster with a static directory, each with a store and a port of its own."""
    places = sorted(f"127.0.0.1:{port}" for port in free_ports(count))  # the first one has the words
    made = [
        node(f"{name}-{at}", *options, "--listen", place, "--peers", ",".join(places))
        for at, place in enumerate(places)
    ]
    with ExitStack() as running:
        with ThreadPoolExecutor(count) as starting:  # all at once
            found = list(starting.map(running.enter_context, made))
        yield found


def served_again(nodes: list[Node]) -> list[Node]:
    """These nodes, after those that an earlier test has lost were started again: each with an empty store."""
    for each in nodes:
        if each.process.poll() is not None:
            each.serve_again()
    return nodes


@contextmanager
def attached(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    """A handle of the store of each, as a node of their cluster. Each has seen all of them."""
    with ExitStack() as opened:
        made = [opened.enter_context(cluster.attach(each.name)) for each in nodes]
        # A node that gets no processor for long misses a look.
        until(lambda: all(len(each.nodes()) == len(nodes) for each in made), "nodes that see each other")
        yield made


class Etcd:
    """Members of a real etcd cluster on this machine."""

    def __init__(self, folder: Path, count: int, tls: tuple[str, str, str] | None = None) -> None:
        """`tls`: paths of who signs, of the members' certificate and of its key; clients must have one too."""
        need("etcd")
        ports = free_ports(2 * count)
        clients, peers = ports[:count], ports[count:]
        every = ",".join(f"m{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
        self.where = ",".join(f"127.0.0.1:{port}" for port in clients)
        self.members: list[subprocess.Popen[bytes]] = []
        self._words: list[list[str]] = []
        for at, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            urls = [f"http{'s' if tls else ''}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"]
            words = ["etcd", "--name", f"m{at}", "--data-dir", str(folder / f"m{at}"), "--log-level", "error"]
            words += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
            words += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
            words += ["--initial-cluster", every, "--initial-cluster-state", "new"]
            if tls is not None:
                words += [
                    "--trusted-ca-file",
                    tls[0],
                    "--cert-file",
                    tls[1],
                    "--key-file",
                    tls[2],
                    "--client-cert-auth",
                ]
            self._words.append(words)
            self.members.append(self._started(words))

    @staticmethod
    def _started(words: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def revive(self) -> None:
        """Start those again that were killed, with what they have on disk."""
        for at, member in enumerate(self.members):
            if member.poll() is not None:
                self.members[at] = self._started(self._words[at])

    def kill(self, at: int) -> None:
        """SIGKILL to one member."""
        self.members[at].kill()
        self.members[at].wait(SERVED_SECONDS)

    def end(self) -> None:
        """All of them."""
        for at in range(len(self.members)):
            self.kill(at)
