"""The options of docs/algorithms.md make tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import di_store

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "algorithms.md").read_text()
ROWS = re.findall(r"^\| ([A-Z][^|]*) \| `(capacity=[^`]*)` \|", PAGE, re.M)


def test_the_page_has_rows() -> None:
    """So that the test below can't pass by finding nothing."""
    assert len(ROWS) >= 25


@pytest.mark.parametrize(("algorithm", "options"), ROWS, ids=[name for name, _ in ROWS])
def test_the_options_make_a_table(algorithm: str, options: str) -> None:
    names: dict[str, Any] = {name: getattr(di_store, name) for name in dir(di_store) if name[0].isupper()}
    given = eval(f"dict({options})", names)
    with di_store.open(memory="1GiB") as store:
        table = store.create_table(algorithm, **given)
        assert table.stats()["capacity"] == given["capacity"]
