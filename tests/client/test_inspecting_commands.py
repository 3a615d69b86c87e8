"""The commands that look at stores, on one that an agent serves: its tables are a client's, which holds draws."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import looked_at
import numpy as np
import pytest
from cli_run import process
from cluster.served import TOKEN, ServedStore, agent_here
from looked_at import VIEWS, shown, shown_json

import di_store
from di_store.cli import main
from di_store.cli.stores import reports

Serve = Callable[..., ServedStore]

READER = """
import sys, di_store
store = di_store.attach(sys.argv[1])
arrays = [store.get(ref) for ref in sys.argv[2:]]
arrays.append(store.get(sys.argv[2]))
weights = store.latest("policy").value
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def reader(store: di_store.Store, *refs: di_store.Ref) -> Iterator[subprocess.Popen[str]]:
    """A process that reads objects, the first of them twice, and the newest weights."""
    with process(sys.executable, "-c", READER, store.name, *map(str, refs)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child


@pytest.fixture
def near(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[di_store.Store, ServedStore]]:
    """A served store, found without a search through all processes."""
    served = serve("--memory", "256MiB", "--allow-pickle")
    with di_store.attach(served.name) as store:

        @contextlib.contextmanager
        def attached(name: str, *, readonly: bool) -> Iterator[di_store.Store]:
            yield store

        monkeypatch.setattr(importlib.import_module("di_store.cli.inspect"), "attached", attached)
        monkeypatch.setattr(importlib.import_module("di_store.cli.status"), "reports", lambda: reports(served.name))
        yield store, served


def drawing(table: di_store.Table, held: contextlib.ExitStack) -> None:
    """Have the client hold two batches of it, of which one is not delivered."""
    if len(table) >= 2:
        loader = held.enter_context(table.loader(2, prefetch=2, timeout=60))
        next(loader)


@pytest.mark.parametrize(
    "view", [view if view in ("step", "opaque") else pytest.param(view, marks=pytest.mark.extended) for view in VIEWS]
)
def test_every_table_of_a_client_can_be_inspected(view: str, near: tuple[di_store.Store, ServedStore]) -> None:
    """While that client holds draws of a table of each sampler, and another process reads objects."""
    store, served = near
    ref = store.put(np.zeros(100_000, np.uint8))
    store.publish("policy", np.zeros(10, np.float32))
    with served.connect(allow_pickle=True) as far, contextlib.ExitStack() as held, reader(store, ref):
        states = dict(looked_at.tables(far, view))
        for sampler in looked_at.SAMPLERS:
            drawing(far.table(f"{sampler} fixed some"), held)
        for name, state in states.items():
            about = shown_json("inspect", store.name, name, "--values")
            assert name in shown("inspect", store.name, name, "--values", "--items", "3")
            assert (state == "finished") == about["finished"]
        found = shown_json("inspect", store.name)
        assert {table["name"] for table in found["tables"]} == set(states)
        top = ("top", "--once", store.name)
        for command in (("inspect", store.name), ("status",), top, (*top, "--stat")):
            assert store.name in shown(*command)
        for command in (("status",), top):
            (about,) = shown_json(*command)["stores"]
            assert {client["pid"] for client in about["clients"]} >= {served.agent, served.pid}
        assert shown_json("check", store.name)["findings"] == []


def test_inspect_shows_pins_and_connected_clients(near: tuple[di_store.Store, ServedStore]) -> None:
    """Pins by process and object, command lines, and the addresses of remote clients."""
    store, served = near
    large, small = store.put(np.zeros(300_000, np.uint8)), store.put(np.zeros(100_000, np.uint8))
    unread = store.put(np.zeros(200_000, np.uint8))
    store.publish("policy", np.zeros(30_000, np.float32))
    with reader(store, large, small) as child, served.connect() as far:
        far.stats()
        found = shown_json("inspect", store.name)
        clients = {client["pid"]: client for client in found["clients"]}
        pins = clients[child.pid]["pins"]
        assert [(pin["object"], pin["pins"]) for pin in pins if not pin["weights"]] == [
            (str(large), 2),
            (str(small), 1),
        ]
        assert [pin["bytes"] >= 120_000 for pin in pins if pin["weights"]] == [True]
        assert pins[0]["bytes"] >= 300_000
        assert f"di-store serve {store.name}" in clients[served.pid]["command"].replace("-m di_store", "di-store")
        assert clients[child.pid]["command"].endswith(f"{store.name} {large} {small}")
        assert "\n" not in clients[child.pid]["command"]
        places = clients[served.agent]["connected"]
        assert places
        assert all(place.startswith("127.0.0.1:") for place in places)
        assert clients[child.pid]["connected"] == clients[served.pid]["connected"] == []
        text = shown("inspect", store.name)
        for wanted in (f"object {large}", f"object {small}", "weights ", places[0], clients[child.pid]["command"]):
            assert wanted in text
        assert str(unread) not in text
    assert shown_json("inspect", store.name)["clients"]


def test_many_pins_are_summed(near: tuple[di_store.Store, ServedStore]) -> None:
    store, _ = near
    refs = [store.put(np.full(1000 + at, at, np.uint8)) for at in range(40)]
    store.publish("policy", 1)
    with reader(store, *refs) as child:
        lines = [line.split() for line in shown("inspect", store.name).splitlines()]
        mine = [line for line in lines if line[:1] == [str(child.pid)]]
        assert len([line for line in mine if line[1:2] == ["object"]]) <= 16
        assert [line for line in mine if line[2:3] == ["others"]]


def test_inspect_does_not_load_foreign_pickles(capsys: pytest.CaptureFixture[str]) -> None:
    """Pickles of another machine are not loaded by `inspect` either: it says so in the value's place."""
    with (
        di_store.open(memory="64MiB") as store,
        agent_here(store) as agent,
        di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far,
    ):
        far.create_table("t", capacity=4, view=di_store.Opaque(), max_bytes=1 << 16).insert({1})
        assert shown_json("inspect", store.name, "t")["size"] == 1
        assert main(["inspect", store.name, "t", "--values"]) == 0
        assert "holds a pickle" in capsys.readouterr().out
