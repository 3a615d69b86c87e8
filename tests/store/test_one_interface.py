"""Each public call has one signature: the handles are one class each, and what differs lies behind their backends."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import di_store
from di_store.client.table import RemoteTable
from di_store.cluster.node_store import NodeStore
from di_store.cluster.shards.sharded_table import ShardedTable
from di_store.policy.options import OPTIONS
from di_store.policy.settings import Settings
from di_store.replay.laws import DrawOptions
from di_store.replay.local_table import LocalTable
from di_store.replay.table_backend import TableBackend
from di_store.store.backend import ALONE, StoreBackend
from di_store.store.local import LocalStore

HANDLES = (di_store.Store, di_store.Table, di_store.Writer, di_store.Mixture, di_store.Loader)


def _calls(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_no_class_overrides_a_call_of_a_handle() -> None:
    """A subclass may only add calls, as a cluster's store does. Adapters have the names of their frameworks."""
    package, handles, seen = Path(di_store.__file__).parent, {each.__name__: _calls(each) for each in HANDLES}, set()
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "adapters"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            bases = {ast.unparse(each) for each in node.bases} if isinstance(node, ast.ClassDef) else set()
            for base in bases & set(handles):
                assert isinstance(node, ast.ClassDef)
                seen.add(node.name)
                own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                assert not own & handles[base], f"{path}: {node.name}"
    assert seen == {"ClusterStore"}


@pytest.mark.parametrize("cls", HANDLES)
def test_each_call_says_what_it_does(cls: type) -> None:
    assert all(inspect.getdoc(getattr(cls, name)) for name in _calls(cls))


@pytest.mark.parametrize(
    ("backend", "lacking"),
    [
        (LocalTable, set()),
        (RemoteTable, {"export"}),
        (ShardedTable, {"at", "positions", "export", "incomplete"}),
        (LocalStore, set()),
        (NodeStore, set()),
    ],
)
def test_a_backend_has_a_call_or_declares_that_it_lacks_it(backend: Any, lacking: set[str]) -> None:
    base = TableBackend if issubclass(backend, TableBackend) else StoreBackend
    optional = {"at", "positions", "export", "incomplete", "checkpoint", "reserve", "import_table"}
    optional &= set(vars(base))
    assert {name for name in optional if getattr(backend, name) is getattr(base, name)} == lacking
    assert lacking - {"incomplete"} <= set(backend.lacks)  # groups are refused when a table in parts is made


def test_tables_elsewhere_refuse_all_laws_of_the_caller() -> None:
    options = set(DrawOptions.__annotations__) - {"linger"}
    assert all(options <= set(backend.lacks) for backend in (RemoteTable, ShardedTable))


def test_options_that_are_none_leave_a_draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent passes all options of its clients' draws."""
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=4)
        table.extend({"n": [1, 2]})
        monkeypatch.delattr(TableBackend, "sample")
        assert len(table.sample(2, linger=None, keys=None, budget=None)) == 2
        with pytest.raises(TypeError, match="'law'"):
            table.sample(2, law=None)  # type: ignore[call-arg]


def test_a_store_alone_refuses_the_options_of_a_cluster() -> None:
    with di_store.open(memory="32MiB") as store:
        for option, call in {
            "copies": lambda: store.put(1, copies=2),
            "group": lambda: store.publish("w", 1, group="g"),
            "node": lambda: store.create_table("t", capacity=1, node="elsewhere"),
            "shards": lambda: store.create_table("t", capacity=1, shards="learners"),
            "draw": lambda: store.create_table("t", capacity=1, draw="mass"),
        }.items():
            assert option in ALONE
            with pytest.raises(ValueError, match=f"{option}=.* is for a store of a cluster.*leave it out"):
                call()
        with pytest.raises(ValueError, match="copies=2 is for a store of a cluster"):
            store.sync(copies=2)


def test_the_options_of_a_new_table_stand_in_one_place() -> None:
    """Each has a field of the settings, and a line in the docstring of `create_table`."""
    doc = inspect.getdoc(di_store.Store.create_table) or ""
    assert set(OPTIONS) <= set(Settings.__struct_fields__)
    assert all(f"\n    {option}: " in doc for option in OPTIONS)
    with di_store.open(memory="32MiB") as store:
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            store.create_table("t", capacity=1, colour="red")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'capacity'"):
            store.create_table("t")  # type: ignore[call-arg]
