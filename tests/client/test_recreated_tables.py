"""Tables dropped and made anew with the same name: what was meant for the old one never reaches the new one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.far import open_far
from cluster.nodes import node, stop

import di_store

Call = Callable[[di_store.Table], Any]

CALLS: dict[str, Call] = {
    "len": len,
    "insert": lambda table: table.insert({"n": 1}),
    "extend": lambda table: table.extend({"n": np.arange(2)}),
    "sample": lambda table: table.sample(1, timeout=0),
    "peek": lambda table: table.peek(np.zeros(1, np.uint64)),
    "keys": lambda table: table.keys(),
    "at": lambda table: table.at([0]),
    "positions": lambda table: table.positions(np.zeros(1, np.uint64)),
    "update": lambda table: table.update(np.zeros(1, np.uint64), {"n": np.zeros(1, np.int64)}),
    "update_priorities": lambda table: table.update_priorities(np.zeros(1, np.uint64), np.ones(1)),
    "delete": lambda table: table.delete(np.zeros(1, np.uint64)),
    "reset": lambda table: table.reset(),
    "resize": lambda table: table.resize(4),
    "configure": lambda table: table.configure(limiter=di_store.MinSize(1)),
    "finish": lambda table: table.finish(),
    "stats": lambda table: table.stats()["live"],
    "evicted": lambda table: table.evicted(),
    "loader": lambda table: next(table.loader(1, timeout=1)),
    "writer": lambda table: table.writer(),
}


def outcome(call: Call, table: di_store.Table) -> Any:
    """What it gives, or the type of what it raises."""
    try:
        found = call(table)
    except Exception as error:
        return type(error)
    return found if isinstance(found, (int, bool)) else None


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[di_store.Store]:
    monkeypatch.setenv("DI_STORE_TOKEN", "a token of the tests")
    with open_far(memory="64MiB") as store:
        yield store


def made_anew(store: di_store.Store) -> di_store.Table:
    """Another table of the same name, whose columns are others, with one row."""
    store.drop_table("t")
    table = store.create_table("t", capacity=5, schema={"n": di_store.Spec((), "f8")})
    table.insert({"n": 0.5})
    return table


@pytest.mark.parametrize("name", CALLS)
def test_a_handle_of_a_dropped_table_raises(far: di_store.Store, name: str) -> None:
    far.create_table("t", capacity=5, schema={"n": di_store.Spec((), "i8")})
    with di_store.attach(far.name) as near, di_store.attach(far.name) as other:
        handles = near.table("t"), far.table("t")
        assert len(handles[1]) == 0
        anew = made_anew(other)
        assert outcome(CALLS[name], handles[1]) == outcome(CALLS[name], handles[0])
        assert anew.peek(anew.keys()).data["n"].tolist() == [0.5]
        assert (anew.capacity, anew.stats()["finished"]) == (5, False)
        assert far.table("t").peek(anew.keys()).data["n"].tolist() == [0.5]


def test_objects_made_from_a_dropped_table_raise(far: di_store.Store) -> None:
    """A mixture, a loader, a follower of keys, and a writer."""
    table = far.create_table("t", capacity=5, schema={"n": di_store.Spec((), "i8")})
    table.insert({"n": 1})
    mixture, loader, keys, writer = far.mix({"t": 1}), table.loader(1, prefetch=0), table.evicted(), table.writer()
    next(loader)
    writer.append({"n": 2})
    writer.flush()
    with di_store.attach(far.name) as other:
        anew = made_anew(other)
        for call in (lambda: mixture.sample(1), lambda: next(loader), lambda: list(keys)):
            with pytest.raises(di_store.TableNotFound):
                call()
        with pytest.raises(di_store.TableNotFound):
            writer.append({"n": 3}, timeout=10)
        assert len(anew) == 1
    loader.close()


def test_objects_made_from_a_dropped_table_raise_after_an_agent_restart(store_name: Callable[[], str]) -> None:
    """The agent that knew it was killed: nothing is written to the new table, by whoever still has the old columns."""
    with node(store_name()) as served, served.connect() as far, di_store.attach(served.name) as near:
        table = far.create_table("t", capacity=5, schema={"n": di_store.Spec((), "i8")})
        writer, mixture = table.writer(), far.mix({"t": 1})
        writer.append({"n": 1})
        writer.flush()
        agent = served.agent
        stop(agent)  # nobody comes back to a table between the drop and the new one
        anew = made_anew(near)
        os.kill(agent, signal.SIGKILL)
        with pytest.raises(di_store.TableNotFound):
            table.keys()
        with pytest.raises(di_store.TableNotFound):
            table.insert({"n": 2})
        with pytest.raises(di_store.TableNotFound):
            mixture.sample(1)

        def write() -> None:
            for n in range(100):
                writer.append({"n": n})
                writer.flush()

        with pytest.raises(di_store.TableNotFound):
            write()
        assert anew.peek(anew.keys()).data["n"].tolist() == [0.5]
