"""What a node says late to the directory of a Ray cluster brings nothing back that was dropped meanwhile."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs Ray")

from di_store.cluster import ray_actors
from di_store.cluster.node import Node
from di_store.cluster.ray_actors import DirectoryActor, Plan


def test_a_late_report_does_not_restore_a_dropped_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actors, "look_again", lambda *_: None)
    directory = DirectoryActor(Plan("cluster", "token", ()))
    directory._expected = {"one"}  # else it waits a minute for nodes
    one, two = (Node(uuid * 32, "host", f"di-store://h:{port}/s") for uuid, port in (("a", 1), ("b", 2)))
    kept = {"table/t": b"one", "table/u": b"two"}
    directory.report("one", one, kept)
    assert directory.swap("table/t", b"one", None)
    directory._nodes.clear()  # Ray took the node for dead: what its keeper had sent comes now
    directory.report("one", one, kept)
    assert directory.listed("table/") == {"table/u": b"two"}
    assert directory.swap("table/t", None, b"three")
    directory.report("two", two, {"table/t": b"four", "table/v": b"five"})
    assert directory.listed("table/") == {"table/t": b"three", "table/u": b"two", "table/v": b"five"}
