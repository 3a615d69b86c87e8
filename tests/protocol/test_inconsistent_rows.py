"""Batches and rows in a message that do not add up are refused, and rows that do come back as they were sent."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from cluster.messages import PLAIN, RAGGED, SCHEMA, array, batch, joined, opaque

import di_store
from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.columns.schema import Schema, Spec
from di_store.protocol import batches, rows, values


def form_of(data: Any, **changes: Any) -> tuple[bytes, Array]:
    meta, body = batches.pack_batch(batch(data, 2))
    form = msgspec.msgpack.decode(meta, type=batches.BatchForm)
    for name, value in changes.items():
        setattr(form, name, value(getattr(form, name)))
    return msgspec.msgpack.encode(form), array(joined(body))


def leaf(**changes: Any) -> Callable[[list[batches.BatchLeaf]], list[batches.BatchLeaf]]:
    """Change the first array."""

    def change(leaves: list[batches.BatchLeaf]) -> list[batches.BatchLeaf]:
        for name, value in changes.items():
            setattr(leaves[0], name, value)
        return leaves

    return change


LIES: list[tuple[Any, dict[str, Any], str]] = [
    (PLAIN, {"parts": lambda parts: parts[1:]}, "missing parts"),
    (PLAIN, {"parts": leaf(dtype="<i8")}, "'keys' have dtype int64"),
    (PLAIN, {"parts": leaf(shape=[1])}, "'priorities' have dtype float64 and shape"),
    (PLAIN, {"parts": leaf(path=["other"])}, "missing parts"),
    (PLAIN, {"leaves": leaf(path=[])}, "column without a name"),
    (PLAIN, {"leaves": leaf(path=["reward", "x"])}, "two columns of the same name"),
    (PLAIN, {"leaves": leaf(shape=[2**62, 2**62, 0])}, "array of invalid shape"),
    (PLAIN, {"leaves": leaf(shape=[2**64 - 1])}, "beyond its end"),
    (PLAIN, {"leaves": leaf(shape=[10**12], dtype="|S0")}, "invalid shape"),
    (PLAIN, {"leaves": leaf(shape=[-1, -1])}, "invalid shape"),
    (PLAIN, {"leaves": leaf(dtype="|O8")}, "unknown dtype"),
    (RAGGED, {"leaves": lambda leaves: leaves[:1]}, "ragged column without offsets"),
    (RAGGED, {"ragged": lambda ragged: {0: [3]}}, "does not fit its offsets"),
    (RAGGED, {"ragged": lambda ragged: {0: []}}, "does not fit its offsets"),
    (RAGGED, {"ragged": lambda ragged: {0: [-1, -2]}}, "does not fit its offsets"),
    (RAGGED, {"leaves": leaf(shape=[4])}, "without offsets"),
    (opaque(1, 2), {"leaves": leaf(shape=[1])}, "without their offsets"),
    (opaque(1, 2), {"leaves": leaf(dtype="|i1")}, "without their offsets"),
    (opaque(1, 2), {"leaves": lambda leaves: leaves + leaves}, "beyond|not a pair"),
]


@pytest.mark.parametrize(("data", "changes", "why"), LIES)
def test_an_inconsistent_batch_is_refused(data: Any, changes: dict[str, Any], why: str) -> None:
    meta, body = form_of(data, **changes)
    with pytest.raises(CorruptData, match=why) as caught:
        batches.unpack_batch(meta, body, trusted=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"lead": [-1]}, "invalid leading axes"),
        ({"lead": [2**40]}, "invalid leading axes"),
        ({"lead": [1, 1, 1]}, "invalid leading axes"),
        ({"lead": [2**30, 2**30]}, "missing bytes"),
        ({"groups": {"self": [0]}}, "unknown argument 'self'"),
        ({"groups": {"step": [-1]}}, "unknown column"),
        ({"groups": {"step": [4]}}, "unknown column"),
        ({"groups": {"step": [3]}}, "missing bytes"),  # its rows vary in length
        ({"groups": {"step": [0, 1]}}, "missing bytes"),
        ({"count": 2}, "missing bytes"),
        ({"count": 2**60}, "missing bytes"),
        ({"count": 0}, "stands for 0"),
        ({"count": -1}, "stands for -1"),
        ({"groups": {"step": []}, "count": 2**40}, "stands for"),  # it would cost its sender nothing
    ],
)
def test_a_row_that_does_not_fit_is_refused(record: dict[str, Any], why: str) -> None:
    given = {"seq": 1, "method": "append", "lead": [], "groups": {"step": [0]}, **record}
    schema = Schema.from_tree({**SCHEMA.specs(), "tokens": Spec((None,), np.int32)})
    with pytest.raises(CorruptData, match=why):
        rows.RowReader(schema).find(rows.Record(**given), array(bytes(16)), 0)


@pytest.mark.parametrize(("lead", "count"), [((), 1), ((), 5), ((), 600), ((3,), 4), ((2, 3), 4)])
def test_calls_in_one_record_keep_their_own_values(lead: tuple[int, ...], count: int) -> None:
    """Each has its own values; they are those that it would have with a record of its own."""
    random, numbers = np.random.default_rng(count), list(range(len(list(SCHEMA))))
    parts, expected = [], []
    for _ in range(count):
        image = random.integers(0, 256, (*lead, 4, 4), np.uint8)
        text = random.choice(np.array(["", "a", "a\0b"], "U3"), lead)
        reward = random.random(lead, np.float32)
        leaves = [image, np.asarray(text, "U3"), np.asarray(reward, "f4")]
        parts += [leaves, leaves[:1]]
        expected.append(leaves)
    body = array(joined([each for part in parts for each in values.padded(part, rows.ALIGNMENT)]))
    record = rows.Record(7, "append", list(lead), {"step": numbers, "next": numbers[:1]}, count=count)
    run = rows.RowReader(SCHEMA).find(record, body, 0)
    assert run.end == len(body)
    found = list(run.calls())
    assert len(found) == count
    for arguments, leaves in zip(found, expected, strict=True):
        step = [arguments["step"]["obs"]["image"], arguments["step"]["obs"]["text"], arguments["step"]["reward"]]
        assert [np.asarray(each).tobytes() for each in step] == [leaf.tobytes() for leaf in leaves]
        assert [np.asarray(each).dtype for each in step] == [leaf.dtype for leaf in leaves]
        assert arguments["next"]["obs"]["image"].tobytes() == leaves[0].tobytes()


def test_rows_outside_their_message_are_refused(count: Callable[[int, int], int]) -> None:
    """The core takes no value that does not lie in the message, whatever is said of places and numbers."""
    choice, body = random.Random(4), np.zeros(64, np.uint8)
    numbers = [0, 1, 7, 8, 16, 56, 64, 65, 2**31, 2**61, 2**63, 2**64 - 8, 2**64 - 1]
    refused = 0
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=4, schema={"a": Spec((), np.int64), "b": Spec((2,), np.int64)})
        with table.writer() as writer:
            native = writer._backend.stream.native  # type: ignore[union-attr]
            assert native is not None
            for _ in range(count(2_000, 200_000)):
                column, at, stride, begin = (choice.choice(numbers) for _ in range(4))
                column, total = min(column, 2), min(choice.choice(numbers), 2**31)
                size = (8, 16, 65)[column]
                fits = at + size <= stride and begin + total * stride <= len(body) and total > 0
                form = _core.RowForm([(column, at)], [], stride, 0)
                try:  # a call of no session is refused before its values are read
                    made = native.append_rows(form, body, begin, total, 1, None, None, [0])
                except CorruptData:
                    refused += 1
                    assert not fits
                    continue
                assert fits
                assert made.calls == 0
                with pytest.raises(ValueError, match="no session"):
                    made.check()
    assert refused


@pytest.mark.parametrize("counts", [[[-1]], [[2, -1]], [[2**62]], [[9]], [[2**63, 2**63]]])
def test_an_acknowledgement_without_keys_is_refused(counts: list[list[int]]) -> None:
    with pytest.raises(CorruptData, match="without its keys"):
        rows.Acknowledgement(1, 0, counts, b"", []).made(array(bytes(64)))
