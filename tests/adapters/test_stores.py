"""What the adapters' argument `store=` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import di_store
from di_store.adapters.stores import given_store, own_store


def test_a_given_store_is_used_as_it_is() -> None:
    with di_store.open(memory="16MiB") as store:
        assert given_store(store) is store


def test_without_store_the_adapter_opens_its_own() -> None:
    assert given_store(None) is None


def test_a_store_name_is_opened() -> None:
    with di_store.open("adapters-store", memory="16MiB") as store:
        store.publish("weights", 7)
        found = given_store("adapters-store")
        assert found is not None
        assert found.name == store.name
        assert found.latest("weights").value == 7


def test_a_dict_gives_options_of_open(tmp_path: Path) -> None:
    found = given_store({"memory": "32MiB", "disk": tmp_path / "tier"})
    assert found is not None
    assert found.stats()["memory"] == 32 << 20
    assert (tmp_path / "tier").is_dir()


@pytest.mark.parametrize("given", [7, b"name", ["name"], object()])
def test_anything_but_a_store_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"store= is a .*di_store.open's options"):
        given_store(given)


def test_an_own_store_adds_spare_memory_only_if_there_is_room() -> None:
    assert own_store(16 << 20, "rows", "size=", spare=4 << 20).stats()["memory"] == 20 << 20
    assert own_store(16 << 20, "rows", "size=", spare=1 << 44).stats()["memory"] == 16 << 20


def test_an_own_store_that_does_not_fit_names_both_remedies() -> None:
    with pytest.raises(di_store.CapacityError, match=r"rows need .*lower size=, or give a store with a disk"):
        own_store(1 << 44, "rows", "size=")
