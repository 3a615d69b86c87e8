"""What notebooks show of stores, tables and batches."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from cluster.served import serving
from pains import Program, status, until

import di_store
from di_store.replay.batch import empty_batch

ODD = "<script>\x1b[31m&amp;<img src=x onerror=alert(1)>"


class _Cells(HTMLParser):
    """Tags, and the text of the cells, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.title, self.rows = "", [[""]]
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if "table" not in self.tags:
            self.title += data
        else:
            self.rows[-1][-1] += data


def cells(shown: Any) -> dict[str, list[str]]:
    """The rows of what a notebook shows, by their first cell, and under "" its title."""
    found = _Cells(shown._repr_html_())
    assert found.tags <= {"div", "code", "table", "tr", "td", "th"}
    return {"": [found.title], **{row[0]: row[1:] for row in found.rows if row and row[0]}}


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[di_store.Store]:
    with di_store.open(store_name(), memory="64MiB") as made:
        yield made


def test_names_and_values_are_text(store: di_store.Store) -> None:
    table = store.create_table(ODD, capacity=10)
    table.extend({ODD: np.arange(10), "text": np.full(10, b"<b>", "S3")})
    shown = ODD.replace("\x1b", r"\x1b")
    assert shown in cells(store)
    assert shown in cells(table)[""][0]
    assert cells(table)[shown] == ["int64", "()"]
    assert cells(table.sample(3))[shown][:2] == ["int64", "(3,)"]


def test_long_names_and_tables_are_cut(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=10)
    table.insert({"n" * 10_000: 1, **{f"c{at}": 1 for at in range(99)}})
    assert len(table._repr_html_()) < 20_000
    assert cells(table)["and 50 more"] == []
    assert max(map(len, cells(table))) < 300


def test_figures_are_those_of_stats(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=1_000, limiter=di_store.SamplesPerInsert(2, min_size=10, tolerance=1.0))
    table.extend({"obs": np.zeros((40, 4), "f4")}, timeout=0)
    whole, one = cells(store), cells(table)
    assert whole["t"][:2] == one["items"][0].split(" of ") == ["40", "1,000"]
    assert one["limiter"] == [f"SamplesPerInsert, inserts wait: {table.stats()['limiter']['reason']}"]
    assert "samples_per_insert" in one["limiter"][0]
    assert whole["memory"][0].endswith("of 64.0 MiB")
    assert one["obs"] == ["float32", "(4,)"]


def test_a_batch_shows_types_shapes_and_ranges(store: di_store.Store) -> None:
    spec = di_store.Spec((None,), "i4", max=4)
    table = store.create_table("t", capacity=10, schema={"x": 0.0, "words": spec, "deep": {"one": 1}})
    table.insert({"x": 2.5, "words": np.array([3, 9], "i4"), "deep": {"one": 7}})
    batch = table.sample(2)
    shown = cells(batch)
    assert shown["x"] == ["float32", "(2,)", "2.5"]
    assert shown["words"] == ["int32", "(2,) of (4,)", "3 to 9"]
    assert shown["deep/one"] == ["int64", "(2,)", "7"]
    assert shown["batch.times_sampled"] == ["int32", "(2,)", "1 to 2"]
    assert "1 items" in shown[""][0]
    assert cells(batch.to("cpu"))["x"] == ["torch.float32", "(2,)", "cpu"]
    assert "batch.keys" in cells(empty_batch(np.zeros(0, np.uint64)))


def test_nan_is_left_out_of_a_range(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=10)
    table.extend({"none": np.full(2, np.nan), "some": np.array([np.nan, 2.0]), "inf": np.array([-np.inf, np.nan])})
    shown = cells(table.sample(2, replace=False))
    assert [shown[name][2] for name in ("none", "some", "inf")] == ["all NaN", "2.0, and NaN", "-inf, and NaN"]


def test_python_values_are_counted(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=5, view=di_store.Opaque(), max_bytes=1 << 20)
    table.insert("<b>")
    assert cells(table.sample(1))["values"] == ["list", "(1,)", ""]


def test_what_is_gone_is_said_in_a_line(store: di_store.Store) -> None:
    table, kept = store.create_table("t", capacity=5), store.create_table("kept", capacity=5)
    assert "column" not in cells(kept)  # not declared yet
    store.drop_table("t")
    assert "was dropped" in cells(table)[""][0]
    store.close()
    for each in (store, kept):
        assert "was closed" in cells(each)[""][0]
        assert "<table" not in each._repr_html_()


STOPPED = """
import sys, di_store
table = di_store.attach(sys.argv[1], timeout=60).table("t")
print("ready", flush=True)
di_store._core.arm_fault("table.insert_item:1:stop")
table.insert({"x": 1})
"""


def test_a_stopped_holder_of_the_lock_holds_up_nothing(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=5)
    table.insert({"x": 1})
    with Program(STOPPED, store.name) as program:
        assert program.line() == "ready"
        until(lambda: status(program.pid)["State"].startswith("T"), "the writer to stop in the table's lock")
        assert cells(store)["t"][1] == "5"
        assert cells(table)["x"] == ["int64", "()"]
        program.signal(signal.SIGKILL)


def test_a_store_of_another_machine_is_shown_too(store: di_store.Store) -> None:
    store.create_table("t", capacity=5).insert({"x": 1})
    with serving(store.name) as served, served.connect() as far:
        assert cells(far)["t"][:2] == ["1", "5"]
        assert cells(far.table("t"))["x"] == ["int64", "()"]
    assert cells(far)[""][0]
