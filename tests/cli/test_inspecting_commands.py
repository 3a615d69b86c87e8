"""The commands that look at stores, on tables of every view, sampler and kind of column, in every state."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import looked_at
import numpy as np
import pytest
from looked_at import VIEWS, shown, shown_json

import di_store
from di_store.cli import main
from di_store.cli.stores import reports


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[di_store.Store]:
    """A store that `inspect` finds without a search through all processes, which takes longer than what is tried here.

    `status` looks at no other store: those of other tests may be locked by stopped processes.
    """
    with di_store.open(memory="256MiB") as made:

        @contextlib.contextmanager
        def attached(name: str, *, readonly: bool) -> Iterator[di_store.Store]:
            yield made

        monkeypatch.setattr(importlib.import_module("di_store.cli.inspect"), "attached", attached)
        monkeypatch.setattr(importlib.import_module("di_store.cli.status"), "reports", lambda: reports(made.name))
        yield made


@pytest.mark.parametrize("view", VIEWS)
def test_every_table_can_be_inspected(view: str, store: di_store.Store) -> None:
    """Each table alone, with its items and their values, as text and as JSON; then all of them together."""
    states = dict(looked_at.tables(store, view))
    sizes = {name: _look(store, name, state) for name, state in states.items()}
    assert {name: size > 0 for name, size in sizes.items()} == {
        name: state in ("some", "finished") for name, state in states.items()
    }
    found = shown_json("inspect", store.name)
    assert {table["name"]: table["size"] for table in found["tables"]} == sizes
    top = ("top", "--once", store.name)
    for command in (("status",), top, (*top, "--stat"), ("inspect", store.name)):
        assert store.name in shown(*command)
    for command in (("status",), top):
        (about,) = shown_json(*command)["stores"]
        assert {table["name"]: table["size"] for table in about["tables"]} == sizes
    assert shown_json("check", store.name)["findings"] == []


def _look(store: di_store.Store, name: str, state: str) -> int:
    """Look at one table both ways; how many items it has."""
    about = shown_json("inspect", store.name, name, "--values")
    text = shown("inspect", store.name, name, "--values", "--items", "3")
    assert name in text
    assert len(about["items"]) == about["size"] == len(store.table(name))
    assert (about["waiting"] > 0) == (
        f"; waiting for late columns: {about['waiting']}" in text or "incomplete groups" in text
    )
    assert ("finished" in text.partition("sampler")[0]) == (state == "finished")
    for item in about["items"]:
        assert isinstance(item["episode"], list) == about["view"].startswith("Group(")
    return int(about["size"])


FRAME = np.random.default_rng(1).integers(256, size=(64, 64), dtype=np.uint8)


def _filled(table: di_store.Table, view: str) -> None:
    """Write 8 MiB of rows that do not pack."""
    if view == "opaque":
        for at in range(2048):
            table.insert((at, FRAME))
        return
    with table.writer() as writer:
        for at in range(2048):
            writer.append({**looked_at.step("fixed", at), "frame": FRAME})


def test_rows_on_disk_are_shown(tmp_path: Path) -> None:
    """One table of each view, together 48 MiB in a store of 32: the oldest rows of most are read from disk."""
    with di_store.open(memory="32MiB", disk=tmp_path, disk_capacity="256MiB") as store:
        schema = looked_at.BASE | {"frame": di_store.Spec(FRAME.shape, "u1")}
        for view, how in VIEWS.items():
            options = {"max_bytes": 12 << 20} if view == "opaque" else {"schema": schema}
            _filled(store.create_table(view, capacity=2048, view=how, lanes=1, **options), view)
        for view in VIEWS:
            item = shown_json("inspect", store.name, view, "--values", "--items", "1")["items"][0]["values"]
            if view != "opaque":
                assert np.array_equal(np.array(item["frame"]).reshape(-1, *FRAME.shape)[0], FRAME)
            shown("inspect", store.name, view, "--values", "--items", "3")
        for command in (("top", "--once", store.name), ("inspect", store.name)):
            assert shown(*command)
            assert shown_json(*command)
        disk = store.stats()["disk"]
        assert disk is not None
        assert disk["read"] > 0
        assert shown_json("check", store.name)["findings"] == []


class Unloadable:
    """Pickles, and raises when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class Unshowable:
    """Loads, and raises when it is shown."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("its own error")


def test_a_value_that_cannot_be_shown_is_its_own_loss(store: di_store.Store) -> None:
    """Its error stands in its place, and the other values of the page are shown."""
    table = store.create_table("t", capacity=10, view=di_store.Opaque())
    for value in ("good", Unloadable(), Unshowable(), 3):
        table.insert(value)
    first, unloadable, unshowable, last = (
        each["values"] for each in shown_json("inspect", store.name, "t", "--values")["items"]
    )
    assert (first, last) == ("'good'", "3")
    assert "cannot be loaded, keys [1]: ValueError: invalid literal for int()" in unloadable
    assert unshowable == "ZeroDivisionError: its own error"
    assert "ZeroDivisionError" in shown("inspect", store.name, "t", "--values")


@pytest.mark.parametrize("view", ["step", "group", "opaque"])
@pytest.mark.parametrize("before", ["open_table", "table_report", "print_table", "item_page", "print_items"])
def test_a_table_dropped_during_inspect_is_handled(
    before: str, view: str, store: di_store.Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever moment that is, `inspect` shows what it has read, or says in one line that there is no such table."""
    name = looked_at.make(store, view, "uniform", "fixed", "some")
    module = importlib.import_module("di_store.cli.inspect")
    call = getattr(module, before)

    def dropped(*given: Any) -> Any:
        store.drop_table(name)
        return call(*given)

    monkeypatch.setattr(module, before, dropped)
    status = main(["inspect", store.name, name, "--values"])
    printed = capsys.readouterr()
    assert (status, printed.err.count("\n")) == ((0, 0) if before == "print_items" else (1, 1)), printed.err


@pytest.mark.parametrize("disk", [False, True])
def test_status_looks_once_through_all_processes(disk: bool, tmp_path: Path, store_name: Callable[[], str]) -> None:
    """However many stores there are: such a look takes longer the more processes and stores the machine has.

    Stores of other tests may end meanwhile, which takes another look each.
    """
    with contextlib.ExitStack() as opened:
        names = [store_name() for _ in range(12)]
        for name in names:
            folder = str(tmp_path / name) if disk else None
            opened.enter_context(
                di_store.open(name, memory="16MiB", disk=folder, disk_capacity="64MiB" if disk else None)
            )
        command = [sys.executable, "-m", "di_store", "status", "--json"]
        environment = {**os.environ, "DI_STORE_FAULT": "os.find_holders:10"}  # that look kills the process
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        assert set(names) <= {each["name"] for each in json.loads(done.stdout)["stores"]}
