"""Subclasses of the classes that describe a table are refused: the store keeps only the fields of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


class MyPrioritized(di_store.Prioritized):
    """Users subclass what looks like a class of their framework."""


class MyFifo(di_store.Fifo):
    pass


class MyMinSize(di_store.MinSize):
    pass


class MyStep(di_store.Step):
    pass


class MyCompress(di_store.Compress):
    pass


@pytest.mark.parametrize(
    ("option", "value", "parent"),
    [
        ("sampler", MyPrioritized(0.6), "Prioritized"),
        ("sampler", MyFifo(), "Fifo"),
        ("remover", MyFifo(), "Fifo"),
        ("limiter", MyMinSize(1), "MinSize"),
        ("view", MyStep(), "Step"),
        ("compress", MyCompress(), "Compress"),
    ],
)
def test_a_subclass_of_a_policy_is_refused(store: Any, option: str, value: Any, parent: str) -> None:
    with pytest.raises(TypeError, match=f"{option}=.*a subclass of {parent}: .*give an instance of that class"):
        store.create_table("t", capacity=10, **{option: value})
    assert not store.stats()["tables"]
    table = store.create_table("t", capacity=10)
    if option == "limiter":
        with pytest.raises(TypeError, match="a subclass of MinSize"):
            table.configure(limiter=value)
