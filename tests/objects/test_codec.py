"""Values to bytes and back: every kind of value, copies, and what damaged bytes do."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import gc
import math
import pickle
import subprocess
import sys
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from di_store.objects.codec import Encoded, decode, encode
from di_store.objects.codec.form import ALIGNMENT


def stored(encoded: Encoded) -> np.ndarray[Any, Any]:
    """The payload as the store would hold it: read-only, with noise in the gaps."""
    payload = np.full(encoded.payload_bytes, 0xA5, np.uint8)
    for buffer, offset, size in zip(encoded.buffers, encoded.offsets, encoded.sizes, strict=True):
        raw = memoryview(buffer)
        assert raw.c_contiguous
        assert raw.nbytes == size
        payload[offset : offset + size] = np.frombuffer(raw.cast("B"), np.uint8)
    payload.flags.writeable = False
    return payload


def through(value: Any, copy: bool | None = None) -> Any:
    encoded = encode(value)
    return decode(encoded.header, stored(encoded), copy)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, all the way down; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and (a.tobytes() == b.tobytes() or a.dtype.hasobject)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and stored(encode(a)).tobytes() == stored(encode(b)).tobytes()
    if isinstance(a, (dict, OrderedDict)):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


# --- round trips ------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters())  # lone surrogates too
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.complex_numbers(),
    TEXT,
    st.binary(),
    st.binary().map(bytearray),
    st.sampled_from(
        [2**63, 2**64, -(2**63) - 1, "x" * 5000, "é" * 5000, b"y" * 5000, bytearray(5000), "\ud800" * 2000]
    ),
)
DTYPES = st.one_of(
    hnp.scalar_dtypes(), hnp.array_dtypes(), hnp.nested_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes()
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(TEXT | st.integers() | st.tuples(st.integers(), TEXT), inner),
        st.dictionaries(TEXT, inner).map(OrderedDict),
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, False, True]))
def test_values_come_back_as_they_were(value: Any, copy: bool | None) -> None:
    assert same(through(value, copy), value)


@given(VALUES)
def test_payload_offsets_are_aligned_and_disjoint(value: Any) -> None:
    encoded = encode(value)
    end = 0
    for offset, size in zip(encoded.offsets, encoded.sizes, strict=True):
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + size
    assert end == encoded.payload_bytes


STRUCTURED = np.dtype([("a", ">f4"), ("b", "u1", (2, 3)), ("c", [("d", "M8[ms]")])], align=True)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=">i4").reshape(2, 3, 4),
        np.arange(24).reshape(4, 6)[::2, ::-1],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.array(5),
        np.array("text"),
        np.empty((0, 3), "f4"),
        np.empty((3, 0)),
        np.zeros(3, "S0"),
        np.zeros(3, "V5"),
        np.zeros((2, 2), STRUCTURED),
        np.array(["2026-01-01", "NaT"], "M8[D]"),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([[1.5], [-2]], ml_dtypes.float8_e4m3fn).T,
        np.array([1, -2], ml_dtypes.int4),
        np.zeros(2, np.dtype([("x", ml_dtypes.bfloat16)])),
        np.arange(3, dtype=np.longdouble),
        np.array([True, False]),
        np.arange(4, dtype="c8"),
        np.frombuffer(b"read-only", np.uint8),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
@pytest.mark.parametrize("copy", [None, False, True])
def test_arrays_come_back(array: np.ndarray[Any, Any], copy: bool | None) -> None:
    found = through(array, copy)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.c_contiguous
    assert found.flags.writeable == bool(copy)
    inside = through({"a": [array]}, copy)["a"][0]
    assert inside.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1.5),
        np.int64(-3),
        np.bool_(True),
        np.str_("é"),
        np.datetime64("2026"),
        ml_dtypes.bfloat16(1.5),
        np.zeros(1, STRUCTURED)[0],
        np.bytes_(b""),
    ],
    ids=repr,
)
def test_numpy_scalars_come_back(value: np.generic) -> None:
    found = through([value])[0]
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()


TORCH_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "uint16",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
]


@pytest.mark.parametrize("name", TORCH_DTYPES)
@pytest.mark.parametrize("copy", [None, False, True])
def test_tensors_come_back(name: str, copy: bool | None) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).to(getattr(torch, name))
    for tensor in (base, base.permute(2, 0, 1), base[:, 1:2], base[0, 0, 0], base[:0]):
        found = through({"w": tensor}, copy)["w"]
        assert (found.dtype, found.shape, found.is_contiguous()) == (tensor.dtype, tensor.shape, True)
        assert (
            found.view(torch.uint8 if found.dim() else found.dtype).tolist()
            == tensor.contiguous().view(torch.uint8 if found.dim() else found.dtype).tolist()
        )


def test_tensors_with_gradients_and_views_come_back() -> None:
    weight = torch.ones(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2))
    found = through([weight * 2, parameter, torch.arange(2.0).mul(1j).conj(), torch.ones(2).neg()])
    assert not any(tensor.requires_grad for tensor in found)
    assert [type(tensor) for tensor in found] == [torch.Tensor] * 4
    assert found[0].tolist() == [2, 2, 2]
    assert found[2].tolist() == [0, -1j]


def test_unusual_tensors_are_pickled() -> None:
    sparse = torch.eye(3).to_sparse()
    found = through({"sparse": sparse, "meta": torch.empty(3, device="meta")})
    assert found["sparse"].to_dense().tolist() == torch.eye(3).tolist()
    assert found["meta"].is_meta


def test_a_state_dict_keeps_type_order_and_metadata() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state = net.state_dict()
    found = through(state)
    assert type(found) is OrderedDict
    assert list(found) == list(state)
    assert found._metadata == state._metadata  # type: ignore[attr-defined]
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(found)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Plain:
    a: Any
    b: Any = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: Any

    def __post_init__(self) -> None:
        if self.a is None:
            raise ValueError("a constructor that must not run again")


@dataclasses.dataclass
class Guarded:
    a: Any

    def __getstate__(self) -> Any:
        return {"a": "guarded"}


@dataclasses.dataclass
class Mixed(dict[str, Any]):
    a: int = 0


class Colour(enum.IntEnum):
    RED = 1


class Custom:
    def __init__(self, array: Any, tensor: Any) -> None:
        self.array, self.tensor = array, tensor


def test_containers_are_encoded_without_pickle() -> None:
    array = np.arange(5.0)
    value = [
        Point(array, {"k": 1}),
        Plain(array),
        Slotted(array),
        {1: "int key", (1, "a"): "tuple key", None: 2, 2.5: 3},
    ]
    found = through(value)
    assert same(found, value)
    assert not encode(value).header.count(b"numpy._core")  # nothing of it is a pickle
    Plain(1).b.append(2)
    extra = Plain(1)
    extra.more = array  # type: ignore[attr-defined]
    assert (through(extra).more == array).all()


def test_custom_pickling_is_used() -> None:
    assert through(Guarded(1)).a == "guarded"
    mixed = Mixed(a=3)
    mixed["k"] = 4
    found = through(mixed)
    assert (type(found), found.a, dict(found)) == (Mixed, 3, {"k": 4})


OTHERS = [
    {1, 2},
    frozenset("ab"),
    collections.Counter("aab"),
    collections.defaultdict(list, a=[1]),
    collections.deque([1, 2], maxlen=3),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
    decimal.Decimal("1.5"),
    range(3),
    slice(1, 2),
    Colour.RED,
    int,
    len,
    np.ma.masked_array([1, 2], [True, False]).filled(),
    np.array([{"a": 1}, None], object),
    np.float32,
    torch.float32,
    torch.Size([1, 2]),
]


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_other_values_are_pickled(value: Any) -> None:
    found = through({"inside": (value,)})["inside"][0]
    assert type(found) is type(value)
    assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value


@pytest.mark.parametrize("copy", [None, False, True])
def test_buffers_of_a_pickle_lie_in_the_payload(copy: bool | None) -> None:
    array, tensor = np.arange(10_000.0), torch.arange(5000, dtype=torch.bfloat16)
    encoded = encode(Custom(array, tensor))
    assert sorted(encoded.sizes)[-2:] == [10_000, 80_000]
    assert len(encoded.header) < 2000
    payload = stored(encoded)
    found = decode(encoded.header, payload, copy)
    assert (found.array == array).all()
    assert torch.equal(found.tensor, tensor)
    assert found.array.flags.writeable == bool(copy)
    assert np.shares_memory(found.array, payload) == (not copy)


def test_a_recursive_value_is_pickled_or_refused() -> None:
    loop: list[Any] = [np.arange(1000)]
    loop.append(loop)
    found = through(loop)
    assert found[1] is found
    assert encode(loop).payload_bytes < 2 * 8000
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    assert through(deep) == deep


def test_values_that_cannot_be_encoded_are_refused_by_type() -> None:
    class Local:
        pass

    @dataclasses.dataclass
    class LocalData:
        a: int = 1

    for value in (lambda: 1, Local(), sys.stdout, (i for i in range(3)), memoryview(b"x")):
        with pytest.raises(TypeError, match=f"a {type(value).__qualname__} cannot be put"):
            encode({"a": [value]})
    with pytest.raises(TypeError, match="define it at module level"):
        encode(LocalData())


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_nothing_contiguous_is_copied_on_the_way_in() -> None:
    array, tensor, raw = np.arange(10.0), torch.arange(10.0), bytes(5000)
    encoded = encode({"a": array, "t": tensor, "r": raw})
    assert np.shares_memory(np.asarray(encoded.buffers[0]), array)
    assert np.shares_memory(np.asarray(encoded.buffers[1]), tensor.numpy())
    assert encoded.buffers[2] is raw


def test_views_are_read_only_and_keep_their_pin() -> None:
    class Pin:
        """Stands for the memory of an object: numpy sees it through the array interface."""

        def __init__(self, payload: np.ndarray[Any, Any]) -> None:
            self.payload = payload
            self.__array_interface__ = {**payload.__array_interface__, "data": (payload.ctypes.data, True)}

    encoded = encode({"a": np.arange(10.0), "e": np.empty(0), "t": torch.arange(4.0), "c": Custom(np.arange(9.0), 0)})
    pin = Pin(stored(encoded))
    alive = weakref.ref(pin)
    value = decode(encoded.header, np.asarray(pin))
    array, inner = value["a"], value["c"].array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        value["e"][...] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.flags.writeable = True
    del value, pin
    gc.collect()
    part = array[3:]
    del array
    gc.collect()
    assert alive() is not None
    del part
    gc.collect()
    assert alive() is not None
    assert inner.sum() == 36
    del inner
    gc.collect()
    assert alive() is None


def test_tensors_are_copied_or_viewed_as_asked() -> None:
    encoded = encode({"t": torch.arange(4.0), "n": np.arange(4.0)})
    payload = stored(encoded)
    start = payload.ctypes.data
    for copy, tensor_shares, array_shares in ((None, False, True), (False, True, True), (True, False, False)):
        found = decode(encoded.header, payload, copy)
        assert (start <= found["t"].data_ptr() < start + payload.nbytes) == tensor_shares
        assert np.shares_memory(found["n"], payload) == array_shares
    kept = decode(encoded.header, payload, copy=False)["t"]
    alive = weakref.ref(payload)
    del payload, found
    gc.collect()
    assert alive() is not None
    assert kept.tolist() == [0, 1, 2, 3]
    del kept
    gc.collect()
    assert alive() is None


def test_a_writable_payload_gives_read_only_views() -> None:
    encoded = encode([np.arange(4)])
    payload = stored(encoded).copy()
    (found,) = decode(encoded.header, payload)
    assert not found.flags.writeable
    assert payload.flags.writeable


# --- another process --------------------------------------------------------------------------------------------------

READER = """
import sys, pickle
header, payload = pickle.load(sys.stdin.buffer)
import numpy as np
from di_store.objects.codec import decode
assert not {"torch", "ml_dtypes"} & set(sys.modules)
value = decode(header, np.frombuffer(payload, np.uint8))
print(type(value["t"]).__name__, value["t"].dtype, value["t"].tolist(), value["m"].dtype, value["m"].tolist())
"""


def test_a_fresh_process_can_decode() -> None:
    encoded = encode({"t": torch.ones(2, dtype=torch.bfloat16), "m": np.ones(2, ml_dtypes.bfloat16)})
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=pickle.dumps((encoded.header, stored(encoded).tobytes())),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout.decode().strip() == "Tensor torch.bfloat16 [1.0, 1.0] bfloat16 [1.0, 1.0]"


def test_importing_the_package_imports_no_framework() -> None:
    code = "import sys, di_store.objects.codec, di_store.columns.schema\n"
    code += "assert not {'torch', 'ml_dtypes', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
