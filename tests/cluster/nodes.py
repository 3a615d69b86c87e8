"""Nodes of tests: a real `di-store serve` with an agent of its own, on a port of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import di_store

SERVED_SECONDS = 30.0  # ten times what it may take


class Node:
    """One served store: the holder, its agent, and its address."""

    def __init__(self, name: str, *options: str, env: dict[str, str] | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "di_store",
            "serve",
            name,
            "--memory",
            "512MiB",
            "--listen",
            "127.0.0.1:0",
            "--json",
        ]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.address: str = told["address"]
        self.name: str = told["name"]
        self._agent: int = told["agent"]

    def connect(self, **options: Any) -> di_store.Store:
        """A handle of the store, through the agent."""
        return di_store.connect(self.address, **options)

    def agents(self) -> list[int]:
        """The holder's children: the agent that serves, and the one that waits for its turn."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(path) as file:
            return [int(each) for each in file.read().split()]

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

    def end(self) -> None:
        """End it as Ctrl-C would."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(SERVED_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def node(name: str, *options: str, env: dict[str, str] | None = None) -> Iterator[Node]:
    """A node for one test; nothing of it is left."""
    made = Node(name, *options, env=env)
    try:
        yield made
    finally:
        for pid in (*made.agents(), made.process.pid):
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        if made.process.poll() is None:
            made.end()
