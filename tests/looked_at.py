"""Tables of every view, sampler and kind of column, in every state, for tests of the commands that look at stores."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

import di_store
from di_store.cli import main

VIEWS: dict[str, di_store.View] = {
    "step": di_store.Step(),
    "opaque": di_store.Opaque(),
    "transition": di_store.Transition(n_step=2, frame_stack={"obs": 2}),
    "sequence": di_store.Sequence(length=2, first=("state",), bootstrap=("obs",)),
    "episode": di_store.Episode(max_length=4, bootstrap=("obs",)),
    "group": di_store.Group(size=2),
}
SAMPLERS = {
    "uniform": di_store.Uniform(),
    "fifo": di_store.Fifo(),
    "lifo": di_store.Lifo(),
    "min": di_store.MinHeap(),
    "max": di_store.MaxHeap(),
    "prioritized": di_store.Prioritized(alpha=0.6, beta=0.4, stratified=True, normalize="table"),
    "once": di_store.Once(),
}
COLUMNS: dict[str, dict[str, di_store.Spec]] = {
    "fixed": {"frame": di_store.Spec((6, 6), "u1")},
    "ragged": {"tokens": di_store.Spec((None, 2), "i4", max=4)},
    "late": {"tokens": di_store.Spec((None,), "i4", max=4), "reply": di_store.Spec((2,), "f4", late=True)},
    "odd": {
        "half": di_store.Spec((2,), "bfloat16"),
        "complex": di_store.Spec((), "c16"),
        "bytes": di_store.Spec((), "S4"),
        "text": di_store.Spec((2,), "U3"),
        "since": di_store.Spec((), "M8[s]"),
        "empty": di_store.Spec((2,), "f2"),
    },
}
BASE = {
    "obs": di_store.Spec((3,), "f4"),
    "state": di_store.Spec((2,), "f4"),
    "reward": di_store.Spec((), "f4"),
    "terminated": di_store.Spec((), "?"),
    "truncated": di_store.Spec((), "?"),
    "group": di_store.Spec((), "i8"),
}
STATES = ("undeclared", "empty", "some", "finished", "emptied")
ROWS = 9
VALUES = ({"text": "a\nb", "n": [1, object]}, np.arange(99), None)


def step(columns: str, at: int) -> dict[str, Any]:
    """Row number `at` of a table with these columns, without the late ones."""
    row: dict[str, Any] = {
        "obs": np.full(3, at, "f4"),
        "state": np.zeros(2, "f4"),
        "reward": 1.0,
        "terminated": at % 4 == 3,
        "truncated": False,
        "group": at // 2,
    }
    for name, spec in COLUMNS[columns].items():
        if not spec.late:
            row[name] = np.zeros([at % 4 if size is None else size for size in spec.shape], _dtype(spec))
    return row


def _dtype(spec: di_store.Spec) -> Any:
    if spec.dtype != "bfloat16":
        return np.dtype(spec.dtype)
    import ml_dtypes

    return ml_dtypes.bfloat16


def make(store: di_store.Store, view: str, sampler: str, columns: str, state: str) -> str:
    """Make such a table, and write to it; its name."""
    options: dict[str, Any] = {"schema": None if state == "undeclared" else BASE | COLUMNS[columns]}
    if view == "opaque":
        options = {"max_bytes": 1 << 16}
    table = store.create_table(
        f"{sampler} {columns} {state}", capacity=32, view=VIEWS[view], sampler=SAMPLERS[sampler], lanes=1, **options
    )
    if state in ("undeclared", "empty"):
        return table.name
    write(table, view, columns)
    if state == "finished":
        table.finish()
    if state == "emptied":
        table.delete(table.keys())
    return table.name


def write(table: di_store.Table, view: str, columns: str) -> None:
    """Rows, of which the first half gets its late values: the others wait."""
    if view == "opaque":
        for value in VALUES:
            table.insert(value)
        return
    items: list[Any] = []
    with table.writer() as writer:
        for at in range(ROWS):
            items.extend(writer.append(step(columns, at)).keys)
    if columns == "late":
        table.update(np.array(items[: ROWS // 2], "u8"), {"reply": np.ones((len(items[: ROWS // 2]), 2), "f4")})


def tables(store: di_store.Store, view: str) -> Iterator[tuple[str, str]]:
    """Make tables of a view; name and state of each. Kinds of column beside the first have one state in turn."""
    others, turn = ([] if view == "opaque" else list(COLUMNS)[1:]), itertools.cycle(STATES)
    for sampler in SAMPLERS:
        for columns, state in [("fixed", state) for state in STATES] + list(zip(others, turn, strict=False)):
            yield make(store, view, sampler, columns, state), state


def shown(*arguments: str) -> str:
    """What a command prints that is run in this process and works."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = main(arguments)
    assert (status, errors.getvalue()) == (0, ""), arguments
    return out.getvalue()


def shown_json(*arguments: str) -> Any:
    """The same with --json, read back."""
    return json.loads(shown(*arguments, "--json"))
