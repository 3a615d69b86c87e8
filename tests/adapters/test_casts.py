"""Casts of the adapters: what a type holds is cast as numpy casts it, all else is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import di_store
from di_store.adapters.casts import assign, cast, zeros

NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
VALUES = [0, 1, -1, 2, 127, 128, 255, 256, 300, -129, 65_504, 65_536, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
VALUES += [0.5, -0.5, 1e5, 1e39, 1e300, 2.0**31, 2.0**63, 2.0**64, np.inf, -np.inf, np.nan, 1 + 2j]


def holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether the range of a type has a value, by Python's exact numbers."""
    if isinstance(value, complex):
        return dtype.kind == "c"
    if dtype.kind in "fc":
        most = float(np.finfo(dtype).max)
        return not np.isfinite(float(value)) or abs(float(value)) <= most
    if not np.isfinite(float(value)):
        return False
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(least <= value <= most)


@pytest.mark.parametrize("wanted", NUMBERS)
@pytest.mark.parametrize("given", NUMBERS)
def test_a_cast_keeps_the_value_or_is_refused(given: str, wanted: str) -> None:
    dtype = np.dtype(wanted)
    for value in VALUES:
        if isinstance(value, complex) and np.dtype(given).kind != "c":
            continue
        with np.errstate(all="ignore"):
            try:
                source = np.array([1, value]).astype(given)
            except (OverflowError, ValueError, TypeError):
                continue
        exact = source[1].item()
        if isinstance(exact, complex) and dtype.kind == "c":
            exact = exact.real
        if holds(dtype, exact):
            found = cast(source, dtype, "x")
            assert found.dtype == dtype
            with np.errstate(all="ignore"):
                assert np.array_equal(found, source.astype(dtype), equal_nan=True)
        else:
            with pytest.raises(di_store.SchemaMismatch, match=f"x is {dtype}, and was given"):
                cast(source, dtype, "x")


def test_a_cast_to_the_same_type_returns_the_same_array() -> None:
    array = np.arange(3, dtype=np.float32)
    assert cast(array, np.dtype(np.float32), "x") is array
    assert cast(np.zeros((0, 3)), np.dtype(np.uint8), "x").shape == (0, 3)
    for odd in (["a"], [None], [10**30], np.zeros(2, "M8[s]")):
        with pytest.raises(di_store.SchemaMismatch):
            cast(odd, np.dtype(np.int32), "x")


def test_a_refused_assignment_changes_nothing() -> None:
    target = np.array([1, 2], np.uint8)
    with pytest.raises(di_store.SchemaMismatch, match="x is uint8, and was given the value 300"):
        assign(target, np.array([7, 300]), "x")
    assert target.tolist() == [1, 2]
    assign(target, [7, 30], "x")
    assert target.tolist() == [7, 30]


def test_zeros_have_native_dtypes() -> None:
    found = zeros((4,), di_store.Spec((2,), np.dtype(np.float32).newbyteorder("=")))
    assert found.shape == (4, 2)
    assert found.dtype is np.dtype(np.float32)
