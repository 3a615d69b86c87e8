"""Ctrl-C in the calls of a remote writer: it goes on, and no row is lost or comes twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pains import until

import di_store

from .nodes import node

Names = Callable[[], str]
CHILD = Path(__file__).with_name("interrupted_writer.py")


@pytest.mark.parametrize("row", ["small", "large"])
@pytest.mark.parametrize("kills", [0, 2])
def test_a_writer_goes_on_after_interrupts(
    row: str, kills: int, store_name: Names, count: Callable[[int, int], int]
) -> None:
    """KeyboardInterrupt at any place of `append`, `flush` and `Items.keys`, also beside an agent that is killed.

    What was acknowledged is there once, what an interrupted call had begun at most once, in order.
    """
    size = 1 if row == "small" else 60_000
    schema = {"n": di_store.Spec((), "i8"), "obs": di_store.Spec((size,), "u1")}
    with node(store_name()) as served, di_store.attach(served.name) as store:
        table = store.create_table("t", capacity=1_000_000 if row == "small" else 4_000, schema=schema)
        interrupts = count(150, 5_000)
        command = [sys.executable, str(CHILD), served.address, str(size), str(interrupts)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(kills):
                seen = len(table)
                until(lambda seen=seen: len(table) > seen or child.poll() is not None, "rows")  # type: ignore[misc]
                served.kill_agent()
            told = json.loads(child.communicate(timeout=100)[0])
        finally:
            child.kill()
            child.communicate()
        assert child.returncode == 0
        batch = table.peek(table.keys())
        rows = batch.data["n"].tolist()
        assert max(Counter(rows).values()) == 1, "a row came twice"
        assert rows == sorted(rows)
        kept = set(range(rows[0], told["written"]))  # a queue of the newest
        assert not kept & set(told["acknowledged"]) - set(rows), "rows that were acknowledged are not there"
        assert not kept - set(rows) - set(told["interrupted"]), "rows of calls that had returned are not there"
        assert told["written"] - 1 in rows, "the writer has not gone on"
        assert len(told["interrupted"]) > interrupts // 4
        assert (batch.data["obs"] == (np.array(rows) % 251)[:, None]).all(), "a row is torn"
        assert not store.check()
