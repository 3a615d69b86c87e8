"""Odd arguments, each by a name that a replay can give.

Numbers, texts, arrays, tensors, containers, and objects that raise or call the store from inside.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import itertools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

import di_store


class OddError(Exception):
    """What an argument of the user's own raises: it comes through as it is."""


class Colour(enum.IntEnum):
    """A number that is more than one."""

    RED = 1


torch.set_num_threads(1)  # a forked child that makes a nested tensor would wait for threads that its parent has

SPECIAL = ("array", "index", "float", "int", "len", "eq", "hash", "iter", "bool", "repr", "reduce_ex", "getitem")
"""Methods that a call may use of its argument."""


def raising(method: str) -> Any:
    """An object whose method raises; it looks like a number and a sequence."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OddError(f"__{method}__ of the user's own object fails")

    return _object(method, fail)


def entering(method: str, enter: Callable[[], None]) -> Any:
    """An object whose method calls the store before it answers."""
    answers: dict[str, Any] = {
        "array": np.zeros(3, np.float32),
        "index": 1,
        "float": 1.0,
        "int": 1,
        "len": 1,
        "eq": True,
        "hash": 1,
        "bool": True,
        "repr": "odd",
        "getitem": 1.0,
    }

    def call(*_: Any, **__: Any) -> Any:
        enter()
        if method == "iter":
            return iter([1.0])
        return (float, ("1",)) if method == "reduce_ex" else answers[method]

    return _object(method, call)


def _object(method: str, call: Callable[..., Any]) -> Any:
    plain: dict[str, Any] = {"__float__": lambda self: 1.0} if method in ("index", "int", "bool", "eq") else {}
    if method == "getitem":
        plain["__len__"] = lambda self: 1
    if method == "eq":
        plain["__hash__"] = lambda self: 1
    return type("Odd", (), plain | {f"__{method}__": call})()


class LoudAttribute:
    """An object every attribute of which raises."""

    def __getattr__(self, name: str) -> Any:
        raise OddError(f"attribute {name} of the user's own object fails")


class Subclass(np.ndarray):
    """An array of somebody's own kind."""


def _recursive(kind: type) -> Any:
    if kind is dict:
        found: dict[str, Any] = {"a": 1}
        found["self"] = found
        return found
    several: list[Any] = [1]
    several.append(several)
    return several


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _frozen(value: Any) -> Any:
    value.flags.writeable = False
    return value


def _jagged() -> Any:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


NUMBERS: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus-one": -1,
    "minus-zero": -0.0,
    "half": 0.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "minus-inf": float("-inf"),
    "denormal": 5e-324,
    "tiny": 1e-300,
    "largest": sys.float_info.max,
    "float32-largest-and-more": 3.5e38,
    "complex": 1j,
    "decimal": decimal.Decimal("NaN"),
    "fraction": fractions.Fraction(1, 3),
    "enum": Colour.RED,
} | {
    f"2**{power}{plus:+}": 2**power + plus
    for power, plus in itertools.product((8, 31, 32, 34, 62, 63, 64, 65, 1100), (-1, 0, 1))
}
NUMBERS |= {f"-2**{power}": -(2**power) for power in (31, 32, 63, 64)}

TEXTS: dict[str, Any] = {
    "empty-text": "",
    "text": "much",
    "digits": "12",
    "nul": "a\0b",
    "surrogate": "a\udc80b",
    "umlauts": "ä" * 60,
    "slash": "a/b",
    "dots": "../..",
    "long-text": "x" * 100_000,
    "format": "%s%n{0}{",
    "share": "50%",
    "bytes-text": "8MiB",
    "hex": "ab" * 20,
    "not-hex": "zz" * 20,
    "spaced-hex": "ab " * 13 + "a",
    "bytes": b"x" * 20,
    "empty-bytes": b"",
    "bytearray": bytearray(b"xyz"),
    "memoryview": memoryview(b"xyz"),
    "np-str": np.str_("max"),
    "inf-text": "inf",
}

SCALARS = "?bhilqBHILQefdgFDG"
ARRAYS: dict[str, Callable[[], Any]] = {
    f"np-{np.dtype(code).name}": lambda code=code: np.dtype(code).type(1) for code in SCALARS
}  # type: ignore[misc]
ARRAYS |= {
    "nan-float32": lambda: np.float32("nan"),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "timedelta64": lambda: np.timedelta64(3, "s"),
    "not-a-time": lambda: np.datetime64("NaT"),
    "bfloat16": lambda: ml_dtypes.bfloat16(1),
    "float8": lambda: np.ones(3, ml_dtypes.float8_e4m3fn),
    "int4": lambda: np.ones(3, ml_dtypes.int4),
    "0-d": lambda: np.array(3),
    "0-d-object": lambda: np.array(None, dtype=object),
    "empty": lambda: np.empty(0),
    "empty-uint64": lambda: np.empty(0, np.uint64),
    "empty-2-d": lambda: np.empty((3, 0)),
    "empty-front": lambda: np.empty((0, 3), np.float32),
    "floats": lambda: np.arange(5.0),
    "ints": lambda: np.arange(-2, 3),
    "uint64s": lambda: np.array([0, 1, 2**63, 2**64 - 1], np.uint64),
    "2-d": lambda: np.zeros((3, 3)),
    "32-d": lambda: np.zeros((1,) * 32),
    "bools": lambda: np.array([True, False, True]),
    "objects": lambda: np.array([None, 1, "x"], dtype=object),
    "objects-arrays": lambda: np.array([np.zeros(2), None], dtype=object),
    "structured": lambda: np.zeros(3, [("a", "i4"), ("b", "f8")]),
    "texts": lambda: np.array(["a", "bc"]),
    "byte-texts": lambda: np.array([b"a", b"bc"]),
    "void": lambda: np.zeros(3, "V5"),
    "datetimes": lambda: np.zeros(3, "M8[ns]"),
    "nan-array": lambda: np.array([1.0, np.nan, np.inf]),
    "negative-array": lambda: np.array([-1.0, -0.0, 1e308]),
    "denormals": lambda: np.array([5e-324, 1e-310, 1e308]),
    "masked": lambda: np.ma.masked_array(np.arange(3.0), [0, 1, 0]),
    "subclass": lambda: np.arange(3.0).view(Subclass),
    "matrix": lambda: np.asmatrix(np.eye(2)),
    "record": lambda: np.rec.array([(1, 2.0)]),
    "tebibyte": lambda: np.broadcast_to(np.uint8(1), (1 << 40,)),
    "gibirows": lambda: np.broadcast_to(np.float32(1), (1 << 30, 4)),
    "long-double": lambda: np.arange(3, dtype=np.longdouble),
    "array.array": lambda: array.array("d", [1, 2]),
}

TENSORS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.arange(3.0),
    "tensor-0-d": lambda: torch.tensor(2.0),
    "tensor-int": lambda: torch.arange(3),
    "tensor-bool": lambda: torch.tensor([True, False]),
    "tensor-bfloat16": lambda: torch.zeros(3, dtype=torch.bfloat16),
    "tensor-complex": lambda: torch.zeros(3, dtype=torch.complex64),
    "tensor-conj": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
    "tensor-negative": lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
    "tensor-grad": lambda: torch.ones(3, requires_grad=True),
    "tensor-graph": lambda: torch.ones(3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "tensor-sparse": lambda: torch.eye(3).to_sparse(),
    "tensor-meta": lambda: torch.empty(3, device="meta"),
    "tensor-strided": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "tensor-expanded": lambda: torch.ones(1).expand(1 << 20),
    "tensor-empty": lambda: torch.empty(0, 3),
    "tensor-nan": lambda: torch.tensor([1.0, float("nan")]),
    "tensor-float8": lambda: torch.zeros(3, dtype=torch.float8_e5m2),
    "tensor-jagged": _jagged,
    "torch-device": lambda: torch.device("meta"),
    "torch-dtype": lambda: torch.float16,
}

CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2, 3],
    "empty-list": list,
    "empty-dict": dict,
    "empty-tuple": tuple,
    "empty-set": set,
    "nones": lambda: [None, None],
    "mixed": lambda: [1, "x", None, b"y", 2.5],
    "uneven": lambda: [[1], [1, 2]],
    "wide-list": lambda: list(range(3_000)),
    "huge-ints": lambda: [2**63, 2**64, -1],
    "floats-nan": lambda: [1.0, float("nan")],
    "recursive-list": lambda: _recursive(list),
    "recursive-dict": lambda: _recursive(dict),
    "deep-list": lambda: _deep(100),
    "very-deep-list": lambda: _deep(20_000),
    "int-keys": lambda: {1: 2},
    "none-key": lambda: {None: 1},
    "empty-key": lambda: {"": 1.0},
    "slash-key": lambda: {"a/b": 1.0, "a": {"b": 2.0}},
    "nul-key": lambda: {"a\0b": 1.0},
    "surrogate-key": lambda: {"\udc80": 1.0},
    "step-of-another": lambda: {"image": np.zeros((84, 84), np.uint8), "reward": 1.0},
    "uneven-dict": lambda: {"x": np.zeros((3, 2), np.float32), "reward": np.zeros(2, np.float32)},
    "loud-key": lambda: {raising("eq"): 1.0},
    "many-columns": lambda: {f"c{i}": 1.0 for i in range(5_000)},
    "generator": lambda: (number for number in range(3)),
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset("ab"),
    "range": lambda: range(3),
    "dict-view": lambda: {"a": 1}.keys(),
    "map": lambda: map(str, range(3)),
    "zip": lambda: zip("ab", "cd", strict=True),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "object": object,
    "ellipsis": lambda: ...,
    "not-implemented": lambda: NotImplemented,
    "class": lambda: di_store.Uniform,
    "type": lambda: int,
    "module": lambda: sys,
    "function": lambda: len,
    "lambda": lambda: lambda *_: 1,
    "slice": lambda: slice(None),
    "path": lambda: pathlib.Path("/tmp"),
    "datetime": lambda: datetime.datetime(2020, 1, 1),
    "exception": lambda: ValueError("x"),
    "file": lambda: sys.stderr,
    "dtype": lambda: np.dtype("f4"),
    "loud-attribute": LoudAttribute,
    "spec": lambda: di_store.Spec((3,), "f4"),
    "ragged-spec": lambda: di_store.Spec((None,), "i4"),
    "huge-spec": lambda: di_store.Spec((2**31, 2**31), "f8"),
    "sampler": lambda: di_store.Prioritized(1.0, 1.0),
    "limiter": lambda: di_store.Queue(3),
    "view": lambda: di_store.Sequence(3, 2),
    "ref": lambda: di_store.Ref(b"\xee" * 20),
}

BENDS: dict[str, Callable[[Any], Any]] = {
    "every-second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "fortran": np.asfortranarray,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "read-only": lambda a: _frozen(a.copy()),
    "unaligned": lambda a: _unaligned(a),
    "one-more": lambda a: np.concatenate([a, a[:1]]),
    "one-less": lambda a: a[:-1],
    "none-at-all": lambda a: a[:0],
    "axis-in-front": lambda a: a[None],
    "axis-behind": lambda a: a[..., None],
    "first": lambda a: a[0],
    "as-object": lambda a: a.astype(object),
    "as-float64": lambda a: a.astype(np.float64),
    "as-float16": lambda a: a.astype(np.float16),
    "as-int8": lambda a: a.astype(np.int8),
    "as-bool": lambda a: a.astype(bool),
    "as-complex": lambda a: a.astype(complex),
    "as-text": lambda a: a.astype(str),
    "as-list": lambda a: a.tolist(),
    "as-tensor": lambda a: torch.from_numpy(np.ascontiguousarray(a)),
    "as-grad": lambda a: torch.from_numpy(np.asarray(a, np.float32)).requires_grad_(),
    "as-meta": lambda a: torch.from_numpy(np.ascontiguousarray(a)).to("meta"),
    "as-sparse": lambda a: torch.from_numpy(np.ascontiguousarray(a)).to_sparse(),
    "as-subclass": lambda a: a.view(Subclass),
    "as-masked": np.ma.masked_array,
    "twice": lambda a: np.concatenate([a, a]),
    "gibi": lambda a: np.broadcast_to(a[:1], (1 << 33, *a.shape[1:])),
    "nan": lambda a: np.full_like(a, np.nan, dtype=np.float64),
    "largest": lambda a: np.full(a.shape, np.finfo(np.float64).max),
    "ones": lambda a: np.full_like(a, ~a.dtype.type(0)) if a.dtype.kind in "iu" else np.ones_like(a),
}
"""Other forms of a valid array."""


def _unaligned(array: Any) -> Any:
    room = np.zeros(array.nbytes + 1, np.uint8)
    bent = room[1:].view(array.dtype).reshape(array.shape) if array.nbytes else array
    bent[...] = array
    return bent


def _plain() -> dict[str, Callable[[], Any]]:
    fixed = {name: lambda value=value: value for name, value in (NUMBERS | TEXTS).items()}
    loud = {f"raises-in-{method}": lambda method=method: raising(method) for method in SPECIAL}
    return fixed | ARRAYS | TENSORS | CONTAINERS | OTHERS | loud


PLAIN = _plain()
"""All that need no store."""
ENDLESS = frozenset({"none", "inf", "largest", "float32-largest-and-more", "inf-text", "huge-spec"}) | {
    name for name in NUMBERS if name.startswith("2**")
}
"""As a timeout these wait for as long as it takes: something has to interrupt the call."""
