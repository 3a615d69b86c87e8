"""Casts for libraries that cast what they store. A value that the new type cannot hold is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import di_store


def zeros(lead: tuple[int, ...], spec: di_store.Spec) -> NDArray[Any]:
    """Zeros of the type of a column, ``[*lead, …]``, with numpy's own dtype object, which ``is`` can compare."""
    shape: Any = (*lead, *spec.shape)
    dtype = np.dtype(spec.dtype)
    return np.zeros(shape, np.dtype(dtype.str) if dtype.kind in "biuf" else dtype)


def assign(target: NDArray[Any], value: Any, what: str) -> None:
    """``target[...] = value``; a value of another type is cast with `cast`."""
    if getattr(value, "dtype", None) is not target.dtype:
        value = cast(value, target.dtype, what)
    target[...] = value


def cast(values: Any, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """`values` as an array of `dtype`: the same array if it has the type.

    Within its range a type may round: fractions are cut off as in numpy.

    Args:
        values: anything that numpy can make an array of.
        dtype: type of the array.
        what: name of the values, for the error.

    Raises:
        di_store.SchemaMismatch: a value lies outside the range of the type, or the values are no numbers.
    """
    array: NDArray[Any] = np.asarray(values)
    if array.dtype == dtype:
        return array
    given, wanted = array.dtype.kind, dtype.kind
    if np.can_cast(array.dtype, dtype):
        return array.astype(dtype)
    if wanted in "biu" and given in "biuf":
        _check_range(array, dtype, what)
        return array.astype(dtype)
    if wanted in "fc" and given in "biufc" and (wanted == "c" or given != "c"):
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            finite = np.abs(array[np.isfinite(array)])
            raise _refused(f"the value {finite.max()}", dtype, what) from None
    raise _refused(f"{array.dtype}", dtype, what)


def _check_range(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    if not array.size:
        return
    least, most = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    low, high = array.min().item(), array.max().item()
    if not (least <= low and high <= most):  # a NaN is neither
        raise _refused(f"the value {high if least <= low else low}", dtype, what)


def _refused(given: str, dtype: np.dtype[Any], what: str) -> di_store.SchemaMismatch:
    return di_store.SchemaMismatch(
        f"{what} is {dtype}, and was given {given}", remedy="declare a type that holds the values, or scale them"
    )
