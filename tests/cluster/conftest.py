"""A store that `di-store serve` serves in processes of its own, and certificates."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli_run import command
from pains import until

import di_store
from cluster.certificates import Authority
from cluster.nodes import Node
from cluster.served import TOKEN, ServedStore
from di_store import cluster
from di_store.cluster.store import ClusterStore
from di_store.remote.address import TOKEN_ENV


@pytest.fixture
def serve(store_name: Callable[[], str]) -> Iterator[Callable[..., ServedStore]]:
    """`serve(*options, name=, listen=, token=, **environment)`: a store that is served until the test ends."""
    running: list[ServedStore] = []

    def start(
        *options: str,
        name: str | None = None,
        listen: str = "127.0.0.1:0",
        token: str | None = TOKEN,
        **environment: str,
    ) -> ServedStore:
        words = command("serve", name or store_name(), "--memory", "64MiB", "--listen", listen, "--json", *options)
        given = {key: value for key, value in os.environ.items() if key != TOKEN_ENV}
        given.update(environment if token is None else {TOKEN_ENV: token, **environment})
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, env=given, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        running.append(ServedStore(process, **json.loads(line)))
        return running[-1]

    yield start
    for each in running:
        _end(each)


@pytest.fixture
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    """A handle of the store of each of the test's `nodes`, as a node of their cluster."""
    made = [cluster.attach(each.name) for each in nodes]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def far(served: Node) -> Iterator[di_store.Store]:
    """A client of the test's `served`."""
    with served.connect() as store:
        yield store


@pytest.fixture
def near(served: Node) -> Iterator[di_store.Store]:
    """The store of the test's `served`, as processes of its machine have it."""
    with di_store.attach(served.name) as store:
        yield store


def _end(served: ServedStore) -> None:
    """End it, whatever state it is in; its agent goes when it sees that the holder has gone."""
    with contextlib.suppress(ProcessLookupError):
        served.process.send_signal(signal.SIGCONT)
        served.process.kill()
    served.process.communicate()
    for pid in served.agents():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not served.agents(), "the agent to end")


@pytest.fixture(scope="session")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two of them."""
    return Authority(tmp_path_factory.mktemp("ca")), Authority(tmp_path_factory.mktemp("other"))
