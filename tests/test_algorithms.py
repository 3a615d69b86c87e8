"""The options of docs/algorithms.md make tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "algorithms.md").read_text()
ROWS = re.findall(r"^\| ([A-Z][^|]*) \| `(capacity=[^`]*)` \|", PAGE, re.M)


def test_the_page_has_rows() -> None:
    """So that the test below can't pass by finding nothing."""
    assert len(ROWS) >= 25


def options_of(text: str) -> dict[str, Any]:
    """The options of a row."""
    names: dict[str, Any] = {name: getattr(di_store, name) for name in dir(di_store) if name[0].isupper()}
    found: dict[str, Any] = eval(f"dict({text})", names)
    return found


@pytest.mark.parametrize(("algorithm", "options"), ROWS, ids=[name for name, _ in ROWS])
def test_the_options_make_a_table(algorithm: str, options: str) -> None:
    given = options_of(options)
    with di_store.open(memory="1GiB") as store:
        table = store.create_table(algorithm, **given)
        assert table.stats()["capacity"] == given["capacity"]


@pytest.mark.parametrize(("algorithm", "epochs"), [("PPO", 4), ("MAPPO", 10)])
def test_rounds_of_on_policy_epochs_go_on(algorithm: str, epochs: int) -> None:
    """Collect 16 rollouts, learn from them for some epochs, publish, and again: nobody waits, nothing is left over."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", **options_of(dict(ROWS)[algorithm]))
        step = {"obs": np.zeros(4, np.float32), "reward": 1.0, "truncated": False}
        with table.writer() as writer:
            for version in range(3):
                store.publish("policy", {"w": np.zeros(2)})
                store.latest("policy")
                for number in range(16 * 128):
                    row = {**step, "terminated": number % 100 == 99}
                    writer.append(row, next={"obs": np.zeros(4, np.float32)}, timeout=10)
                for _ in range(epochs):
                    keys = table.sample(16, replace=False, timeout=10).keys
                    assert sorted(keys) == list(range(16 * version, 16 * version + 16))
                assert len(table) == 0
