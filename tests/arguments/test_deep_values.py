"""Values nested without an end, or deeper than Python's recursion goes: refused by name, where any argument is odd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def endless(kind: type) -> Any:
    """A list or dict that holds itself."""
    found: Any = kind()
    if kind is list:
        found.append(found)
    else:
        found["in"] = found
    return found


def deep_list() -> list[Any]:
    """Lists in lists, deeper than Python's recursion goes."""
    found: list[Any] = []
    for _ in range(20_000):
        found = [found]
    return found


@pytest.mark.parametrize("odd", [endless(list), deep_list()], ids=["endless", "deep"])
def test_errors_can_show_deeply_nested_values(store: Any, odd: Any) -> None:
    table = store.create_table("t", capacity=10)
    with pytest.raises(ValueError, match=r"^autoreset="):
        table.writer(autoreset=odd)
    with pytest.raises(ValueError, match=r"has no fixed \.shape"):
        store.create_table("other", capacity=10, schema={"x": odd})
    with pytest.raises(ValueError, match=r"^name="):
        di_store.attach(odd, timeout=0)
    with pytest.raises(ValueError, match=r"^Spec\(max=.* bounds a ragged dimension"):
        di_store.Spec((2,), "f4", max=odd)
    with pytest.raises((TypeError, ValueError), match=r"^Spec\(max=\)"):
        di_store.Spec((None,), "f4", max=odd)


def test_unknown_names_of_any_kind_are_shown(store: Any) -> None:
    writer = store.create_table("t", capacity=10).writer()
    row = {"x": 1.0}
    with pytest.raises(ValueError, match=r"^priority= names .*, and this writer's tables are"):
        writer.append(row, priority={"u": 1.0, 3: 2.0, None: 1.0})


def test_a_schema_nested_too_deep_is_refused(store: Any) -> None:
    with pytest.raises(ValueError, match="does a dict hold itself"):
        store.create_table("t", capacity=10, schema=endless(dict))
    space = type("Dict", (), {})()
    space.spaces = {"in": space}
    with pytest.raises(ValueError, match="does a dict hold itself"):
        store.create_table("t", capacity=10, schema=space)
