"""`Sequence(stride=)` and `Sequence(last=)`: windows that leave rows out, beside plain lists of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.episodes import flatten
from view_oracle import SCHEMA, check, windows, write

import di_store
from di_store import Sequence, Spec

VIEWS = [
    Sequence(4, stride=2),
    Sequence(3, period=2, stride=3, burn_in=1),
    Sequence(3, period=1, stride=2, tail="drop", first=("obs", "tokens")),
    Sequence(2, period=4, stride=4, burn_in=2, tail="shift"),
    Sequence(4, last={"obs": 2, "wide": 1, "tokens": 3, "reward": 1}),
    Sequence(3, burn_in=2, period=2, last={"obs": 3, "wide": 5, "tokens": 1}, bootstrap=("obs", "wide", "tokens")),
    Sequence(3, burn_in=1, tail="shift", last={"reward": 2}, frame_stack={"obs": 3}, bootstrap=("obs",)),
    Sequence(4, last={"wide": 1, "tokens": 2}, cross_episodes=True),
    Sequence(3, stride=2, burn_in=1, last={"obs": 1, "tokens": 2}),
]


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="128MiB") as opened:
        yield opened
        assert opened.check() == []


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("remover", [di_store.Fifo(), di_store.Uniform()], ids=["in order", "any order"])
def test_strided_windows_hold_the_right_rows(
    store: di_store.Store, view: Sequence, remover: Any, tmp_path: Path
) -> None:
    table = store.create_table("t", capacity=1000, view=view, schema=SCHEMA, remover=remover, lanes=1)
    runs = write(table, np.random.default_rng(len(str(view))), 30, 24, cross=view.cross_episodes)
    expected = [(run, start) for run in runs for start in windows(view, run)]
    batch = table.peek(table.keys())
    assert len(batch) == len(expected)
    for at, (run, start) in enumerate(expected):
        check(batch, at, view, run, start)
    drawn = table.sample(500)
    number = {key: at for at, key in enumerate(batch.keys.tolist())}
    for at, key in enumerate(drawn.keys.tolist()):
        check(drawn, at, view, *expected[number[key]])
    table.export(tmp_path / "t.npz")
    again = store.import_table(tmp_path / "t.npz", "again")
    assert again.view == view
    back = again.peek(again.keys())
    for at, (run, start) in enumerate(expected):
        check(back, at, view, run, start)


def test_late_values_work_with_strides(store: di_store.Store) -> None:
    schema = {"x": Spec((), "i4"), "value": Spec((), "f4", late=True), "terminated": Spec((), "?")}
    table = store.create_table("t", capacity=10, view=Sequence(3, stride=2), schema=schema, lanes=1)
    with table.writer() as writer:
        items = writer.extend({"x": np.arange(12, dtype="i4"), "terminated": np.arange(12) == 11}).keys
    assert (len(items), len(table)) == (2, 0)  # they wait for the values of their first rows
    table.update(items, {"value": np.array([[0, 2, 4], [6, 8, 10]], "f4")}, row=None)
    table.update(items, {"value": np.array([-4, -10], "f4")}, row=-1)
    batch = table.peek(table.keys())
    assert batch.data["x"].tolist() == [[0, 2, 4], [6, 8, 10]]
    assert batch.data["value"].tolist() == [[0, 2, -4], [6, 8, -10]]


def test_contradicting_stride_options_are_refused(store: di_store.Store) -> None:
    nested = {"obs": {"frame": Spec((2,), "u1"), "pose": Spec((3,), "f4")}, "terminated": Spec((), "?")}
    table = store.create_table("t", capacity=9, view=Sequence(4, last={"obs": 2}), schema=nested)
    table.insert(
        {"obs": {"frame": np.ones((4, 2), "u1"), "pose": np.ones((4, 3), "f4")}, "terminated": np.zeros(4, bool)}
    )
    shapes = {name: value.shape for name, value in flatten(table.sample(1).data).items()}
    assert shapes["obs/frame"] == (1, 2, 2)
    assert shapes["obs/pose"] == (1, 2, 3)
    assert shapes["terminated"] == (1, 4)
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: Sequence(4, stride=0), ValueError, "stride=0"),
        (lambda: Sequence(4, stride=2, bootstrap=("obs",)), ValueError, "bootstrap=.* with stride=2"),
        (lambda: Sequence(4, stride=2, frame_stack={"obs": 2}), ValueError, "frame_stack=.* with stride=2"),
        (lambda: Sequence(4, stride=2, cross_episodes=True), ValueError, "cross_episodes=True with stride=2"),
        (lambda: Sequence(4, last={"obs": 5}), ValueError, r"last\['obs'\]=5 is above 4"),
        (lambda: Sequence(4, last=2), TypeError, '"action": 1'),  # type: ignore[arg-type]
        (lambda: create(store, Sequence(4, last={"obs": 2}, first=("obs",)), nested), ValueError, "first="),
        (
            lambda: create(store, Sequence(4, last={"obs": 2}, frame_stack={"obs/frame": 2}), nested),
            ValueError,
            "stack=",
        ),
        (lambda: create(store, Sequence(4, last={"obs": 2, "obs/pose": 1}), nested), ValueError, "one way only"),
        (lambda: create(store, Sequence(4, last={"no": 2}), nested), ValueError, "last"),
        (lambda: create(store, Sequence(2**17, stride=16), nested), ValueError, "stride"),
    ]
    for call, kind, text in refused:
        with pytest.raises(kind, match=text):
            call()


def create(store: di_store.Store, view: Sequence, schema: Any) -> di_store.Table:
    return store.create_table("refused", capacity=9, view=view, schema=schema)
