"""A table that another node of the cluster has taken over: it can be read, and nothing else is done to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from di_store import Prioritized, Queue, Spec, Step
from di_store.base.errors import TableNotFound
from di_store.replay.serving import handle_of

SCHEMA = {"n": Spec((), "i8"), "reward": Spec((), "f4", late=True)}
TOLD = r"another node of the cluster has table 't' now, .* store.table\(\) opens it there"


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[di_store.Store]:
    with di_store.open(store_name(), memory="64MiB") as opened:
        yield opened


def give_up(table: di_store.Table) -> None:
    handle_of(table).native.give_up(60.0)


def test_a_taken_over_table_refuses_changes_and_allows_reads(store: di_store.Store, tmp_path: Path) -> None:
    """Each that changes it, or gives its items away, is refused; each that reads is as before."""
    table = store.create_table("t", capacity=100, schema=SCHEMA, sampler=Prioritized(1.0), lanes=4)
    keys = table.extend({"n": np.arange(20)})
    assert table.update(keys[:10], {"reward": np.ones(10, np.float32)}) == 10
    writer, loader = table.writer(), table.loader(4)
    writer.append({"n": 20})
    next(loader)
    give_up(table)
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: writer.append({"n": 21}),
        "extend of a writer": lambda: table.extend({"n": np.arange(3)}),
        "insert": lambda: table.insert({"n": 21}),
        "writer": lambda: table.writer(),
        "sample": lambda: table.sample(4),
        "sample of many": lambda: table.sample(200),
        "loader": lambda: [next(loader) for _ in range(100)],  # behind what it has drawn ahead
        "update_priorities": lambda: table.update_priorities(keys[:10], np.ones(10)),
        "update": lambda: table.update(keys[:10], {"reward": np.ones(10, np.float32)}),
        "delete": lambda: table.delete(keys[:1]),
        "reset": lambda: table.reset(),
        "resize": lambda: table.resize(capacity=200),
        "configure": lambda: table.configure(limiter=di_store.MinSize(5)),
        "finish": lambda: table.finish(),
    }
    for name, call in calls.items():
        with pytest.raises(TableNotFound, match=TOLD):
            print(name, call())
        assert store.table("t").stats()["inserts"] == 10
    loader.close()
    again = store.table("t")
    assert sorted(again.peek(again.keys()).data["n"].tolist()) == list(range(10))
    assert again.export(tmp_path / "rows.zip").items == 21
    assert store.check() == []
    store.drop_table("t")
    table = store.import_table(tmp_path / "rows.zip", "t")
    table.insert({"n": 5})


@pytest.mark.parametrize("call", ["insert", "sample"])
def test_waiting_calls_end_when_the_table_is_taken_over(store: di_store.Store, call: str) -> None:
    """A full queue, and an empty table."""
    table = store.create_table("t", capacity=10, schema={"n": Spec((), "i8")}, limiter=Queue(1), view=Step())
    if call == "insert":
        table.insert({"n": 1})
    told: list[str] = []

    def wait() -> None:
        with pytest.raises(TableNotFound) as error:
            table.insert({"n": 2}, timeout=None) if call == "insert" else table.sample(1, timeout=None)
        told.append(str(error.value))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: store.stats()["waiters"], "the call to wait")
    give_up(table)
    thread.join(60)
    assert told
    assert "another node" in told[0]


def test_a_store_made_from_a_checkpoint_has_the_table_for_itself(
    store: di_store.Store, store_name: Callable[[], str], tmp_path: Path
) -> None:
    table = store.create_table("t", capacity=10, schema={"n": Spec((), "i8")})
    table.extend({"n": np.arange(3)})
    give_up(table)
    store.checkpoint(tmp_path / "saved")
    with di_store.restore(tmp_path / "saved", name=store_name()) as again:
        again.table("t").insert({"n": 3})
        assert len(again.table("t")) == 4
