"""Versions of di-store that differ: what both speak is spoken, and nothing in common is said at once.

The other version is a copy of the package that speaks other protocols, in processes of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.served import TOKEN, ServedStore
from pains import Program

import di_store
from di_store.base.errors import LayoutMismatch
from di_store.client.address import TOKEN_ENV
from di_store.protocol.handshake import NEWEST, OLDEST

Serve = Callable[..., ServedStore]
ROWS = 100

WORKS = """
import sys
import numpy as np
import di_store
from di_store.protocol import handshake
with di_store.connect(sys.argv[1]) as store:
    ref = store.put({"w": np.arange(100_000)})
    assert store.get(ref)["w"][-1] == 99_999
    assert [each["w"][-1] for each in store.get_many([ref, ref])] == [99_999, 99_999]
    assert store.publish("w", np.ones(3)) == 1
    assert store.latest("w").version == 1
    for _ in range(1000):
        assert store.latest("w", newer_than=1) is None
    assert store.publish("w", None) == 2
    assert store.latest("w", newer_than=1).version == 2
    table = store.create_table("t", capacity=1000, schema={"n": di_store.Spec((), "i8")})
    with table.writer() as writer:
        for number in range(int(sys.argv[2])):
            writer.append({"n": number})
        writer.flush(timeout=60)
    assert len(table.sample(32, timeout=60)) == 32
    with table.loader(16) as loader:
        assert len(next(loader)) == 16
print(handshake.OLDEST, handshake.NEWEST)
"""


def version(folder: Path, oldest: int, newest: int) -> str:
    """What PYTHONPATH has to be for a version that speaks these protocols."""
    package = Path(di_store.__file__).parent
    copied = folder / f"{oldest}-{newest}" / "di_store"
    shutil.copytree(package, copied, ignore=shutil.ignore_patterns("__pycache__"))
    where = copied / "protocol" / "handshake.py"
    text, line = where.read_text(), f"OLDEST, NEWEST = {OLDEST}, {NEWEST}\n"
    assert line in text
    where.write_text(text.replace(line, f"OLDEST, NEWEST = {oldest}, {newest}\n"))
    return str(copied.parent)


def client(address: str, path: str | None) -> Program:
    """A program of this version, or of that one."""
    found = {"PYTHONPATH": path} if path else {}
    return Program(WORKS, address, ROWS, env={**os.environ, TOKEN_ENV: TOKEN, **found})


@pytest.mark.parametrize(
    ("other", "oldest", "newest"),
    [
        pytest.param("agent", OLDEST, NEWEST - 1, id="older-agent"),
        pytest.param("client", OLDEST, NEWEST - 1, id="older-client"),
        pytest.param("agent", OLDEST, NEWEST + 1, id="newer-agent", marks=pytest.mark.extended),
        pytest.param("client", OLDEST, NEWEST + 1, id="newer-client", marks=pytest.mark.extended),
        pytest.param("agent", OLDEST - 1, NEWEST, id="oldest-agent", marks=pytest.mark.extended),
        pytest.param("client", OLDEST - 1, NEWEST, id="oldest-client", marks=pytest.mark.extended),
    ],
)
def test_overlapping_versions_work_together(serve: Serve, tmp_path: Path, other: str, oldest: int, newest: int) -> None:
    """An older or newer client, and an older or newer agent, beside one of this version: all of it works."""
    path = version(tmp_path, oldest, newest)
    served = serve(**({"PYTHONPATH": path} if other == "agent" else {}))
    with client(served.address, path if other == "client" else None) as program:
        spoken = (oldest, newest) if other == "client" else (OLDEST, NEWEST)
        assert program.line() == f"{spoken[0]} {spoken[1]}"
        program.finish()
    with di_store.attach(served.name) as near:
        table = near.table("t")
        assert sorted(table.peek(table.keys()).data["n"].tolist()) == list(range(ROWS))
        assert near.check() == []


def test_a_too_new_agent_is_refused(serve: Serve, tmp_path: Path) -> None:
    """A client of this version is refused, and one of the agent's own is served."""
    path = version(tmp_path, NEWEST + 1, NEWEST + 2)
    served = serve(PYTHONPATH=path)
    spoken = f"speaks protocols {OLDEST} to {NEWEST}, this agent {NEWEST + 1} to {NEWEST + 2}"
    with pytest.raises(LayoutMismatch, match=spoken):
        served.connect()
    with client(served.address, path) as program:
        assert program.line() == f"{NEWEST + 1} {NEWEST + 2}"


def test_a_too_new_client_is_refused(serve: Serve, tmp_path: Path) -> None:
    """It is told both ranges and what to do; clients of the agent's version go on."""
    served, path = serve(), version(tmp_path, NEWEST + 1, NEWEST + 2)
    spoken = f"{NEWEST + 1} to {NEWEST + 2}, this agent {OLDEST} to {NEWEST}"
    told = pytest.raises(AssertionError, match=rf"LayoutMismatch: .* {spoken}(.|\n)*agents first")
    with client(served.address, path) as program, told:
        program.line()
    with served.connect() as store:
        assert store.stats()["tables"] == {}
