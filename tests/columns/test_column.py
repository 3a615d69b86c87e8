"""One column: what it takes, casts and refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from di_store.base.dtypes import round_to_bfloat16
from di_store.base.errors import SchemaMismatch
from di_store.columns.column import Column
from di_store.columns.schema import Schema, Spec


def column(dtype: Any, shape: Any = (), name: str = "x", max: int | None = None) -> Column:
    return Schema.from_tree({name: Spec(shape, dtype, max)})[name]


# --- coerced ----------------------------------------------------------------------------------------------------------

SCALARS = {
    "bool": [True, np.bool_(True)],
    "int": [3, np.int8(3), np.uint64(3)],
    "float": [0.5, np.float16(0.5), np.float64(0.5)],
}
COLUMNS = {"bool": ["?"], "int": ["i1", "u1", "i8", "u8"], "float": ["f2", "f4", "f8", "bfloat16"]}


@pytest.mark.parametrize("target", COLUMNS)
@pytest.mark.parametrize("source", SCALARS)
def test_numbers_are_cast_within_their_kind(source: str, target: str) -> None:
    for dtype in COLUMNS[target]:
        for number in SCALARS[source]:
            for value in (
                number,
                np.array(number),
                torch.tensor(number.item() if isinstance(number, np.generic) else number),
            ):
                if source == target:
                    found = column(dtype).coerce(value)
                    assert isinstance(found, np.ndarray)
                    assert (found.shape, found.dtype) == ((), column(dtype).dtype)
                    if dtype != "bfloat16":
                        assert found.item() == number
                else:
                    with pytest.raises(
                        SchemaMismatch, match=f"column 'x': expected .*within their kind.*{source} is not {target}"
                    ):
                        column(dtype).coerce(value)


@pytest.mark.parametrize("value", [1, 0.5, True, np.float64(2), np.array([0.5]), np.array([3]), [1], torch.ones(1)])
def test_reward_takes_any_real_number(value: Any) -> None:
    shape = np.shape(value)
    found = column("f4", shape, "reward").coerce(value)
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.dtype) == (shape, np.float32)
    assert (found == np.asarray(value)).all()
    with pytest.raises(SchemaMismatch, match="shape"):
        column("f4", (2,), "reward").coerce(value)


def test_rewards_refuse_text_and_overflow() -> None:
    for value in ("1", np.array("1"), 1j):
        with pytest.raises(SchemaMismatch, match="'reward'"):
            column("f4", (), "reward").coerce(value)
    with pytest.raises(SchemaMismatch, match="too large"):
        column("f4", (2,), "reward").coerce(np.array([1.0, 1e300]))
    found = column("f4", (3,), "reward").coerce(np.array([np.inf, -np.inf, np.nan]))
    assert np.array_equal(found, np.array([np.inf, -np.inf, np.nan], "f4"), equal_nan=True)


@pytest.mark.parametrize("value", [0, 1, 1.0, True, np.uint8(1), np.array(0.0)])
def test_flags_take_zero_and_one(value: Any) -> None:
    assert column("?", (), "terminated").coerce(value) == bool(value)
    for bad in (2, 0.5, float("nan"), -1, "yes"):
        with pytest.raises(SchemaMismatch, match="'truncated'"):
            column("?", (), "truncated").coerce(bad)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("u1", 256), ("u1", -1), ("i8", 2**63), ("i4", np.int64(2**31)), ("i8", np.uint64(2**63)), ("u1", [1, 300])],
)
def test_numbers_that_do_not_fit_are_refused(dtype: str, value: Any) -> None:
    with pytest.raises(SchemaMismatch, match="column 'x'"):
        column(dtype, np.shape(value)).coerce(value)
    with pytest.raises(SchemaMismatch, match="too large"):
        column("f4").coerce(1e300)
    assert column("f4").coerce(float("inf")) == np.inf


ARRAYS = [
    np.zeros(3, "f8"),
    np.zeros(3, "i4"),
    np.zeros(3, "?"),
    torch.zeros(3, dtype=torch.float64),
    [np.float64(0)] * 3,
]


@pytest.mark.parametrize("value", ARRAYS[:4], ids=repr)
def test_arrays_match_exactly(value: Any) -> None:
    text = r"'x': expected float32 \(3,\), got dtype .* \(arrays are not cast silently: write value.astype\('float32'\)"
    with pytest.raises(SchemaMismatch, match=text):
        column("f4", (3,)).coerce(value)
    with pytest.raises(SchemaMismatch, match="not cast silently"):
        column("f4", (1, 3)).coerce([np.zeros(3, "f8")])


@pytest.mark.parametrize(
    ("value", "lanes", "remedy"),
    [
        (np.zeros((2, 3), "f4"), None, "lanes=2"),
        (np.zeros(3, "f4"), 2, r"leading axes \(2,\)"),
        (np.zeros((3, 3), "f4"), 2, "reshape"),
        (0.5, None, "reshape"),
        (np.zeros((3, 1), "f4"), None, "reshape"),
    ],
)
def test_shapes_match_exactly(value: Any, lanes: Any, remedy: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"column 'x': expected float32 .*, got shape .*{remedy}"):
        column("f4", (3,)).coerce(value, lanes)


def test_memory_layout_and_byte_order_do_not_matter() -> None:
    value = np.arange(6, dtype=">f4").reshape(2, 3)
    for given_value in (value, np.asfortranarray(value), value[::-1][::-1], value.astype("f4")):
        found = column("f4", (2, 3)).coerce(given_value)
        assert isinstance(found, np.ndarray)
        assert found.flags.c_contiguous
        assert found.dtype == np.float32
        assert found.dtype.isnative
        assert (found == value).all()


def test_a_fitting_array_is_not_copied() -> None:
    value = np.zeros((2, 3), "f4")
    assert np.shares_memory(column("f4", (3,)).coerce(value, 2), value)  # type: ignore[arg-type]
    tensor = torch.zeros(3)
    assert np.shares_memory(column("f4", (3,)).coerce(tensor), tensor.numpy())  # type: ignore[arg-type]


def test_text_columns_take_fitting_text() -> None:
    assert column("U4").coerce("abc") == "abc"
    assert column("S4").coerce(b"abcd") == b"abcd"
    assert list(column("U4", (2,)).coerce(np.array(["a", "abc"]))) == ["a", "abc"]
    for dtype, value in (("U2", "abc"), ("S2", b"abc"), ("U4", b"abc"), ("U4", 3)):
        with pytest.raises(SchemaMismatch, match="column 'x'"):
            column(dtype).coerce(value)


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_rounds_as_ml_dtypes_does(value: float) -> None:
    expected = np.array(value, ml_dtypes.bfloat16).view("u2")
    assert round_to_bfloat16(np.array(value)).view("u2") == expected


def test_extension_types_are_stored() -> None:
    bf16 = column("bfloat16", (2,))
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    for value in (values, tensor, [1.5, -2.0]):
        found = bf16.coerce(value)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.dtype("V2")
        assert (found.view(ml_dtypes.bfloat16) == values).all()
    with pytest.raises(SchemaMismatch, match="got dtype float8_e5m2"):
        bf16.coerce(values.astype(ml_dtypes.float8_e5m2))
    assert column("i2").coerce(np.array(-3, ml_dtypes.int4)) == -3
    with pytest.raises(SchemaMismatch, match="int4 holds -8 … 7"):
        column("int4").coerce(8)
    assert column("f4").coerce(torch.tensor(1.5, dtype=torch.bfloat16)) == 1.5
    assert column("f4", (2,), "reward").coerce(values).tolist() == [1.5, -2.0]  # type: ignore[union-attr]


# --- ragged -----------------------------------------------------------------------------------------------------------


def test_ragged_rows_are_stored() -> None:
    units = column("f4", (None, 2), max=3)
    for count in range(4):
        value = np.ones((count, 2), "f4")
        found = units.coerce(value)
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.dtype) == ((count, 2), np.float32)
    assert units.coerce([]).shape == (0, 2)  # type: ignore[union-attr]
    assert column("i4", (None,)).coerce([1, 2, 3]).tolist() == [1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(SchemaMismatch, match=r"4 elements.*max=3 fit.*max=4"):
        units.coerce(np.ones((4, 2), "f4"))
    for bad in (np.ones((2, 3), "f4"), np.ones(2, "f4"), 0.5):
        with pytest.raises(SchemaMismatch, match=r"expected float32 \(None, 2\), got shape"):
            units.coerce(bad)
    with pytest.raises(SchemaMismatch, match="not cast silently"):
        units.coerce(np.ones((2, 2)))


@pytest.mark.parametrize("text", ["", "héllo", b"raw\0bytes", bytearray(b"x")])
def test_ragged_bytes_take_text(text: Any) -> None:
    found = column("u1", (None,)).coerce(text)
    assert found.tobytes() == (text.encode() if isinstance(text, str) else bytes(text))  # type: ignore[union-attr]


class Packed:
    """Looks like the Ragged of a batch."""

    def __init__(self, rows: list[np.ndarray[Any, Any]]) -> None:
        self.values = np.concatenate(rows)
        self.offsets = np.cumsum([0, *map(len, rows)])


@pytest.mark.parametrize("lanes", [3, (3, 1), (1, 3)])
def test_ragged_rows_work_with_lanes(lanes: Any) -> None:
    rows = [np.full(count, count, "i4") for count in (2, 0, 1)]
    shape = (3,) if lanes == 3 else lanes
    objects = np.empty(3, object)
    objects[:] = rows
    nested: list[Any] = rows if lanes == 3 else [rows] if lanes == (1, 3) else [[row] for row in rows]
    for value in (nested, objects.reshape(shape), Packed(rows)):
        found = column("i4", (None,)).coerce(value, lanes)
        assert isinstance(found, list)
        assert [row.tolist() for row in found] == [row.tolist() for row in rows]
    dense = column("i4", (None,)).coerce(np.ones((*shape, 2), "i4"), lanes)
    assert [row.tolist() for row in dense] == [[1, 1]] * 3
    for bad in (rows[:2], rows[0], 3, None, np.ones((2, 2), "i4"), [1, 2, 3]):
        with pytest.raises(SchemaMismatch, match="column 'x': expected int32"):
            column("i4", (None,)).coerce(bad, lanes)
