"""Columns: declared, inferred, coerced, stored, united."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from di_store.base.errors import CorruptData, SchemaMismatch
from di_store.columns.column import Column
from di_store.columns.schema import Schema, Spec


def types(schema: Schema) -> dict[str, str]:
    return {column.name: column.type_text for column in schema}


def column(dtype: Any, shape: Any = (), name: str = "x", max: int | None = None) -> Column:
    return Schema.from_tree({name: Spec(shape, dtype, max)})[name]


# --- declared ---------------------------------------------------------------------------------------------------------


def test_anything_with_shape_and_dtype_declares_a_column() -> None:
    schema = Schema.from_tree(
        {
            "spec": Spec((84, 84), "u1"),
            "int": Spec(3, np.float16),
            "array": np.zeros((2, 3), ">i4"),
            "scalar": np.float64(1),
            "number": {"bool": True, "int": 3, "float": 0.5, "complex": 1j},
            "tensor": torch.zeros(5, dtype=torch.bfloat16),
            "ml": np.zeros(2, ml_dtypes.float8_e5m2),
            "ragged": Spec((None, 31), "f4", max=512),
            "text": Spec((), "U4"),
            "bytes": Spec((), "S8"),
        }
    )
    assert types(schema) == {
        "spec": "uint8 (84, 84)",
        "int": "float16 (3,)",
        "array": "int32 (2, 3)",
        "scalar": "float64 ()",
        "number/bool": "bool ()",
        "number/int": "int64 ()",
        "number/float": "float32 ()",
        "number/complex": "complex64 ()",
        "tensor": "bfloat16 (5,)",
        "ml": "float8_e5m2 (2,)",
        "ragged": "float32 (None, 31)",
        "text": "U4 ()",
        "bytes": "S8 ()",
    }
    assert schema["array"].dtype == np.dtype("=i4")
    assert schema["tensor"].dtype == np.dtype("V2")
    assert schema["tensor"].value_dtype == ml_dtypes.bfloat16
    assert schema["ragged"].row_bytes == 512 * 31 * 4


def test_gymnasium_spaces_declare_columns() -> None:
    schema = Schema.from_tree(
        gym.spaces.Dict(
            box=gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
            discrete=gym.spaces.Discrete(6),
            multi=gym.spaces.MultiDiscrete([3, 4]),
            binary=gym.spaces.MultiBinary((2, 2)),
            inner=gym.spaces.Dict(leaf=gym.spaces.Box(-1, 1, ())),
        )
    )
    assert types(schema) == {
        "box": "uint8 (4, 84, 84)",
        "discrete": "int64 ()",
        "multi": "int64 (2,)",
        "binary": "int8 (2, 2)",
        "inner/leaf": "float32 ()",
    }
    with pytest.raises(ValueError, match="schema 'a': a Tuple space has no names for its parts: use a Dict space"):
        Schema.from_tree({"a": gym.spaces.Tuple([gym.spaces.Discrete(2)])})
    with pytest.raises(ValueError, match=r"no fixed \.shape"):
        Schema.from_tree({"a": gym.spaces.Text(5)})


def test_reward_and_flags_have_their_types() -> None:
    schema = Schema.from_tree(
        {"reward": Spec((), "i8"), "terminated": Spec((), "u1"), "truncated": 0, "x": Spec((), "i8")}
    )
    assert types(schema) == {"reward": "float32 ()", "terminated": "bool ()", "truncated": "bool ()", "x": "int64 ()"}
    assert types(Schema.from_tree({"reward": Spec((), "f8")})) == {"reward": "float64 ()"}
    with pytest.raises(ValueError, match="ends the lane's episode"):
        Schema.from_tree({"terminated": Spec((8,), "?")})


@pytest.mark.parametrize(
    "leaf",
    ["f4", (3, "f4"), [1, 2], None, np.float32, float, object(), np.zeros(3, object), Spec, np.array([{}]), b"x"],
    ids=lambda leaf: f"{type(leaf).__name__} {leaf}"[:30].partition(" at ")[0],
)
def test_leaves_without_a_type_are_refused_by_path(leaf: Any) -> None:
    with pytest.raises(ValueError, match="schema 'a/b'"):
        Schema.from_tree({"a": {"b": leaf}})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Spec((4, None), "f4"), "only the first dimension"),
        (lambda: Spec((-1,), "f4"), "dimension of -1"),
        (lambda: Spec((4,), "f4", max=3), "shape=.* has none"),
        (lambda: Spec((None,), "f4", max=0), "max"),
        (lambda: Spec((4,), object), "no fixed size"),
        (lambda: Spec((4,), "no such"), "not known to numpy"),
        (lambda: Spec((4,), None), "no fixed size"),
        (lambda: column("S0"), "holds no bytes"),
        (lambda: column("f4", (2**20, 2**20)), "4 GiB"),
        (lambda: Schema.from_tree({f"c{i}": 1 for i in range(5000)}), "5000 columns"),
        (lambda: column("f4", name="a\0b"), r"column 'a\\x00b' contains a NUL character: give it another name"),
    ],
)
def test_bad_declarations_are_refused(make: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


# --- inferred ---------------------------------------------------------------------------------------------------------


def test_the_first_step_declares_the_columns() -> None:
    step = {
        "obs": {"pixels": np.zeros((84, 84), np.uint8), "tensor": torch.zeros(3, dtype=torch.float16)},
        "flag": True,
        "count": 3,
        "value": 0.5,
        "f64": np.float64(0.5),
        "zero_d": np.array(7, np.int16),
        "listed": [0.5, 1.5],
        "reward": 1,
        "terminated": 0,
        "truncated": np.uint8(1),
    }
    assert types(Schema.infer(step)) == {
        "obs/pixels": "uint8 (84, 84)",
        "obs/tensor": "float16 (3,)",
        "flag": "bool ()",
        "count": "int64 ()",
        "value": "float32 ()",
        "f64": "float64 ()",
        "zero_d": "int16 ()",
        "listed": "float32 (2,)",
        "reward": "float32 ()",
        "terminated": "bool ()",
        "truncated": "bool ()",
    }


@pytest.mark.parametrize("lanes", [1, 3, (2, 3)])
def test_leading_axes_are_removed(lanes: Any) -> None:
    lead = lanes if isinstance(lanes, tuple) else (lanes,)
    step = {"obs": np.zeros((*lead, 4), "f4"), "reward": np.zeros(lead), "action": np.zeros(lead, "i8")}
    assert types(Schema.infer(step, lanes)) == {"obs": "float32 (4,)", "reward": "float32 ()", "action": "int64 ()"}
    with pytest.raises(SchemaMismatch, match=r"column 'reward': expected .*leading axis"):
        Schema.infer({**step, "reward": 0.5}, lanes)


@pytest.mark.parametrize(
    ("leaf", "named"),
    [
        ("text", r"Spec\(\(\), 'U4'\), or Spec\(\(None,\), 'u1'"),
        (b"text", r"Spec\(\(\), 'S4'\)"),
        (None, "got None"),
        (object(), "got a object"),
        ([[1], [2, 3]], "different shapes"),
        (np.array([{}, 1]), "Python objects"),
        (2**70, "too large for 64 bits"),
        (torch.zeros(3).to_sparse(), "dense"),
    ],
)
def test_values_that_cannot_be_columns_are_refused_by_path(leaf: Any, named: str) -> None:
    with pytest.raises(SchemaMismatch, match=rf"column 'a/b'.*{named}"):
        Schema.infer({"a": {"b": leaf}})


# --- whole steps ------------------------------------------------------------------------------------------------------


def test_steps_give_every_column_and_no_other() -> None:
    schema = Schema.from_tree({"obs": {"a": Spec((2,), "f4"), "b": Spec((), "i8")}, "reward": 0.0})
    step = {"obs": {"a": np.zeros(2, "f4"), "b": 1}, "reward": 1}
    assert set(schema.coerce(step)) == {"obs/a", "obs/b", "reward"}
    with pytest.raises(SchemaMismatch, match=r"missing column 'obs/b' \(int64 \(\)\)"):
        schema.coerce({"obs": {"a": np.zeros(2, "f4")}, "reward": 1})
    with pytest.raises(SchemaMismatch, match="column 'rewards' is not in the schema, did you mean 'reward'"):
        schema.coerce({**step, "rewards": 1})
    assert set(schema.coerce({"reward": 1}, optional=("obs/a", "obs/b"))) == {"reward"}
    assert set(schema.coerce({"obs": {"b": 1}}, partial=True)) == {"obs/b"}
    with pytest.raises(TypeError, match="a step is a dict"):
        schema.coerce([1])  # type: ignore[arg-type]


@given(st.data())
def test_a_step_fits_the_schema_it_declared(data: st.DataObject) -> None:
    dtypes = st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?"),
        hnp.complex_number_dtypes(),
        hnp.datetime64_dtypes(),
        hnp.byte_string_dtypes(max_len=8),
        hnp.unicode_string_dtypes(max_len=8),
    )
    lanes = data.draw(st.sampled_from([None, 1, 3, (2, 2)]))
    lead = () if lanes is None else lanes if isinstance(lanes, tuple) else (lanes,)
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, max_side=3).map(lambda shape: (*lead, *shape))
    array = data.draw(hnp.arrays(dtypes, shapes))
    schema = Schema.infer({"x": array}, lanes)
    found = schema.coerce({"x": array}, lanes)["x"]
    assert isinstance(found, np.ndarray)
    assert found.shape == (*lead, *schema["x"].shape)
    assert np.array_equal(found, array, equal_nan=array.dtype.kind in "fcmM")
    assert found.nbytes == np.prod(lead, dtype=int) * schema.fixed_row_bytes


# --- stored and compared ----------------------------------------------------------------------------------------------

STRUCTURED = np.dtype({"names": ["a", "b"], "formats": ["<f4", ("u1", (2, 3))], "offsets": [0, 8], "itemsize": 16})
PLAIN_DTYPES = [
    "?",
    "i1",
    "u8",
    "f2",
    "f8",
    "c16",
    "S5",
    "U7",
    "M8[ns]",
    "m8[25s]",
    "V3",
    "bfloat16",
    "float8_e4m3fn",
    STRUCTURED,
]


@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_schemas_convert_to_plain_data_and_back(dtype: Any) -> None:
    schema = Schema.from_tree(
        {"a": {"b": Spec((2, 3), dtype)}, "r": Spec((None, 4), dtype, max=9), "u": Spec((None,), dtype)}
    )
    again = Schema.from_plain(schema.to_plain())
    assert again == schema
    assert schema.difference(again) == ""
    assert schema["a/b"].row_bytes == 6 * schema["a/b"].dtype.itemsize


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "O"},
        {"dtype": "|O8"},
        {"dtype": 3},
        {"shape": [-1]},
        {"shape": 3},
        {"name": 3},
        {"ragged": 2},
        {"max_rows": "x"},
        {"name": ""},
        {"name": "a\0b"},
    ],
)
def test_foreign_plain_data_is_corrupt(change: dict[str, Any]) -> None:
    (entry,) = Schema.from_tree({"a": Spec((2,), "f4")}).to_plain()
    for plain in ([{**entry, **change}], [], [entry, entry], [3], None, 3, [{}]):
        with pytest.raises(CorruptData, match="stored schema"):
            Schema.from_plain(plain)


def test_row_bytes_are_computed() -> None:
    schema = Schema.from_tree({"a": Spec((10,), "f8"), "b": Spec((None, 2), "u1", max=100), "c": 1})
    assert (schema.fixed_row_bytes, schema.row_bytes, schema.dominant.name) == (88, 288, "b")
    endless = Schema.from_tree({"a": Spec((10,), "f8"), "b": Spec((None,), "u1")})
    assert (endless.row_bytes, endless.dominant.name) == (None, "b")


def test_difference_names_columns() -> None:
    one = Schema.from_tree({"a": Spec((2,), "f4"), "b": 1, "r": Spec((None,), "u1", max=3)})
    two = Schema.from_tree({"a": Spec((3,), "f4"), "c": 1, "r": Spec((None,), "u1", max=4)})
    assert one.difference(two) == (
        "'b' is only in the first; 'c' is only in the second; 'a' is float32 (2,) in the first, float32 (3,) in the "
        "second; 'r' is uint8 (None,) max=3 in the first, uint8 (None,) max=4 in the second"
    )


def test_schemas_can_be_united() -> None:
    one = Schema.from_tree({"a": Spec((2,), "f4"), "r": Spec((None,), "u1", max=3)})
    two = Schema.from_tree({"b": 1, "a": Spec((2,), "f4"), "r": Spec((None,), "u1")})
    assert types(Schema.union({"one": one, "two": two})) == {"a": "float32 (2,)", "r": "uint8 (None,)", "b": "int64 ()"}
    assert Schema.union({"one": one, "two": two})["r"].max_rows == 3
    with pytest.raises(SchemaMismatch, match=r"'a' is float32 \(2,\) in table 'one' and float32 \(3,\) in table 'two'"):
        Schema.union({"one": one, "two": Schema.from_tree({"a": Spec((3,), "f4")})})
    with pytest.raises(SchemaMismatch, match="both a column and a group"):
        Schema.union({"one": one, "two": Schema.from_tree({"a": {"b": 1}})})


def test_columns_can_be_selected() -> None:
    schema = Schema.from_tree({"obs": {"a": 1, "b": 2}, "reward": 0.0})
    assert schema.select("obs") == ("obs/a", "obs/b")
    assert "obs/a" in schema
    assert len(schema) == 3
    with pytest.raises(ValueError, match="columns: no column 'rewrd'"):
        schema.select(["rewrd"])
