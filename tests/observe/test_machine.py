"""A look at the stores of this machine: it shows what their processes see, and changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_run import run as run_cli

import di_store
from di_store import observe
from di_store.observe.machine import held_stores
from di_store.store.opening import attach_held


def _by_reports(name: str) -> int:
    (found,) = observe.reports(name)
    return found["tables"][0]["size"]


def _by_handles(name: str) -> int:
    with attach_held(name, held_stores((name,))[name], 60) as store:
        return store.stats()["tables"]["t"]["size"]


def _by_inspect(name: str) -> int:
    size: int = json.loads(run_cli("inspect", name, "t", "--json").stdout)["size"]
    return size


@pytest.mark.parametrize("look", [_by_reports, _by_handles, _by_inspect])
def test_a_look_writes_no_durable_table(look: Callable[[str], int], tmp_path: Path) -> None:
    """A handle that ends writes durable rows, as it may be the last one: not one that only looks at a store."""
    with di_store.open(memory="64MiB", disk=tmp_path / "disk") as store:
        table = store.create_table("t", capacity=100, durability="disk", sync_every=3600)
        table.extend({"x": np.zeros((10, 4), "f4")})
        before = _files(tmp_path)
        assert look(store.name) == 10
        assert _files(tmp_path) == before
        di_store.attach(store.name).close()
        assert _files(tmp_path) != before, "another handle writes them"


def _files(folder: Path) -> set[tuple[str, int]]:
    return {
        (os.path.join(place, name), os.stat(os.path.join(place, name)).st_ino)
        for place, _, names in os.walk(folder)
        for name in names
    }
