"""`--bulk` where Mooncake's engine cannot be used: objects are sent over TCP, and the log says why, once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_run import fails
from cluster.nodes import free_ports, node
from cluster.test_cluster import LARGE, same
from pains import until

from di_store import cluster
from di_store.server import engine

ENGINE = ("--bulk", "mooncake-tcp", "--plaintext")


def test_without_the_package_objects_are_copied_over_tcp(store_name: Callable[[], str], tmp_path: Path) -> None:
    """Of both nodes: what they are asked for comes all the same."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("")  # hides the package, where it is installed
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    name, log = store_name(), tmp_path / "log"
    places = sorted(f"127.0.0.1:{port}" for port in free_ports(2))
    peers = ("--peers", ",".join(places))
    with (
        node(f"{name}-0", "--listen", places[0], *peers, *ENGINE) as here,
        node(
            f"{name}-1", "--listen", places[1], *peers, *ENGINE, env={**os.environ, "PYTHONPATH": path}, log=log
        ) as there,
    ):
        one, two = cluster.attach(here.name), cluster.attach(there.name)
        for value in (LARGE, LARGE[::-1].copy()):
            assert same(two.get(one.put(value)), value)
        until(lambda: "mooncake" in log.read_text(), "the agent to say what it lacks")
        [line] = [each for each in log.read_text().splitlines() if "over TCP" in each]
        assert "pip install 'di-store[rdma]'" in line
        one.close()
        two.close()


@pytest.mark.parametrize("kind", ["mooncake-tcp", "rdma"])
def test_bulk_transfers_past_tls_need_plaintext(store_name: Callable[[], str], kind: str) -> None:
    text = fails(2, "serve", store_name(), "--listen", "127.0.0.1:0", "--bulk", kind)
    assert "give --plaintext too if all machines that reach this one are trusted" in text


def test_rdma_without_a_device_falls_back_to_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mooncake would take TCP without a word."""
    monkeypatch.setattr(engine, "DEVICES", str(tmp_path))
    assert "no RDMA device" in engine.Engine("rdma", "127.0.0.1").missing()
