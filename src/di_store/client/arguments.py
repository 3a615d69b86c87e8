"""Converts arguments to values that can be sent. Other values are refused here, with the error of a local call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from di_store.base import config, dtypes, tree
from di_store.base.dtypes import Array, is_tensor, tensor_array
from di_store.base.errors import CapacityError, SchemaMismatch, shown
from di_store.columns.column import MAX_BYTES, as_array, is_number
from di_store.columns.ragged import Ragged
from di_store.columns.schema import Schema
from di_store.protocol.connection import MAX_CALL_BYTES
from di_store.replay.batch import encode_blob
from di_store.replay.stream import check_priority, kind_of, leading_rows, rows_limit

_MOST_NESTED = 64  # as many axes as numpy's arrays may have
_SUBCLASSED: tuple[Any, ...] = (bytes, int, float, complex)
_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes)
_LANE = "lane= is an int, an int array or a bool mask"


def plain(value: Any) -> Any:
    """A number, or numbers. Tensors become arrays."""
    return tensor_array(value)[0] if is_tensor(value) else value


class _Odd(Exception):
    """A leaf that does not travel."""


def travelling(value: Any, *, finals: str | None = None) -> Any:
    """Rows as values that an agent reads without running code: numbers, text, arrays, lists, dicts.

    Args:
        value: the argument of a call that takes rows.
        finals: whether it is `final=`, where an array of objects may hold one lane's final observation in each place.

    Raises: SchemaMismatch, ValueError, TypeError: it contains other values; the error is that of a local call.
        CapacityError: it is too large for a call.
    """
    try:
        return _travelling(value, 0, finals is not None)
    except (_Odd, RecursionError):
        raise _refused(value, finals or "value") from None


def _travelling(value: Any, depth: int, finals: bool) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if depth > _MOST_NESTED:
        raise _Odd
    if isinstance(value, Mapping):
        return {_name(name): _travelling(each, depth + 1, finals) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        made = [_travelling(each, depth + 1, finals) for each in value]
        return tuple(made) if type(value) is tuple else made
    if isinstance(value, np.ndarray):
        return _array(value, depth, finals)
    if isinstance(value, Ragged):
        return [_travelling(each, depth + 1, finals) for each in value]
    if is_tensor(value):
        return _tensor(value)
    if isinstance(value, np.generic):
        return value if value.dtype.isbuiltin else _known(np.asarray(value))
    return _other(value)


def items_travelling(batch: Any, *, several: bool) -> Any:
    """As `travelling`, for items that are inserted whole. `several`: whether leaves have a leading axis of items.

    Raises:
        ValueError: too many items in one call.
    """
    leaves = tree.flatten(batch) if isinstance(batch, Mapping) else {}
    for name, leaf in leaves.items():
        if getattr(leaf, "is_nested", False) and leading_rows(leaf) is None:
            raise SchemaMismatch(f"column {name!r}: got a {kind_of(leaf)}")
        if several:
            rows_limit(leading_rows(leaf) or 0)
    return travelling(batch)


def _name(name: Any) -> str:
    if isinstance(name, str):
        return str.__str__(name)
    raise _Odd


def _array(value: Array, depth: int, finals: bool) -> Any:
    if dtypes.is_masked(value):
        raise _Odd
    if value.dtype != np.object_:
        return _known(np.asarray(value))
    entries = value.reshape(-1).tolist()
    if not value.ndim or (not finals and all(map(is_number, entries))):
        raise _Odd
    return _travelling(entries if finals else value.tolist(), depth + 1, finals)


def _known(value: Array) -> Array:
    """An array of a type that travels."""
    if value.nbytes > MAX_CALL_BYTES:
        raise _Odd
    try:
        dtypes.describe(value.dtype)
    except ValueError:
        raise _Odd from None
    return value


def _tensor(value: Any) -> Any:
    try:
        if value.is_nested:
            return [_tensor(each) for each in value.unbind()]
        array, extension = tensor_array(value)
    except (ValueError, RuntimeError):  # torch raises RuntimeError
        raise _Odd from None
    return value if extension else _known(array)


def _other(value: Any) -> Any:
    if isinstance(value, bytearray):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, str):
        return str.__str__(value)
    for kind in _SUBCLASSED:
        if isinstance(value, kind):
            return kind(value)
    if not isinstance(value, memoryview) and not hasattr(value, "__array__"):
        raise _Odd
    try:
        return _known(np.asarray(value))
    except Exception:  # the conversion may raise anything
        raise _Odd from None


def _refused(value: Any, column: str) -> Exception:
    """Why a row does not travel."""
    try:
        leaves = tree.flatten(value) if isinstance(value, Mapping) else {column: value}
        for name, leaf in leaves.items():
            if getattr(leaf, "is_nested", False):
                return SchemaMismatch(f"column {name!r}: got a {kind_of(leaf)}")
            rows = leaf if isinstance(leaf, (list, tuple)) else [leaf]
            size = max(map(_bytes_of, rows), default=0)
            if size > MAX_CALL_BYTES:
                return _too_large(name, leaf, size)
            as_array(leaf, name)
    except (SchemaMismatch, ValueError, TypeError) as error:
        return error
    except RecursionError:
        pass
    return SchemaMismatch(
        f"a {type(value).__name__} holds a value that cannot be sent to another machine: {shown(value)}",
        remedy="columns hold numbers, fixed-width text and bytes, as arrays, lists or tensors",
    )


def _bytes_of(value: Any) -> int:
    try:
        return int(getattr(value, "nbytes", 0))
    except (TypeError, RuntimeError):  # a sparse tensor does not tell
        return 0


def _too_large(name: str, leaf: Any, size: int) -> Exception:
    if size > MAX_BYTES:
        return SchemaMismatch(
            f"column {name!r}: a value of {size} bytes",
            remedy=f"a row has at most {MAX_BYTES} bytes (4 GiB): split it",
        )
    Schema.infer({name: leaf})  # refuses what no column may hold
    return CapacityError(
        f"column {name!r}: a value of {size} bytes",
        remedy=f"a call to another machine takes at most {MAX_CALL_BYTES} bytes (1 GiB): split it",
    )


def named(columns: Any) -> list[str] | None:
    """``columns=`` as a list of names."""
    return None if columns is None else list(config.names("columns", columns))


def numbers(priority: Any) -> Any:
    """Priorities as numbers, lists of them, or a dict of these by table.

    Raises:
        TypeError: the priorities are no numbers.
    """
    if priority is None or type(priority) in (int, float):
        return priority
    if type(priority) is dict:
        return {name: numbers(value) for name, value in priority.items()}
    return number_array(priority).tolist()


def number_array(priority: Any) -> Any:
    """One priority or several, as an array or unchanged; raises as `numbers`."""
    if priority is None or type(priority) in (int, float):
        return priority
    if dtypes.is_masked(priority):
        raise TypeError("priority= is a number, or one for each row, got one with masked elements")
    try:
        found: Array = np.asarray(priority)
    except Exception:  # the conversion may raise anything
        found = np.empty((), np.object_)
    if found.dtype == np.object_:
        raise TypeError(f"priority= is a number, or one for each row, got a {type(priority).__name__}")
    return found


def lane_of(lane: Any) -> Any:
    """``lane=`` as a number or an array; the call checks it.

    Raises:
        TypeError: it is another type.
    """
    if lane is None or type(lane) in (int, bool, str):
        return lane
    try:
        found: Array = np.asarray(lane)
    except Exception:  # the conversion may raise anything
        raise TypeError(_LANE) from None
    if found.dtype == np.object_:
        raise TypeError(f"{_LANE}, each with one axis at most")
    if not found.size and found.ndim == 1:
        return []
    return found if found.ndim or found.dtype == np.bool_ else found.item()


def blob(value: Any) -> Array:
    """A Python value of an `Opaque` table, encoded."""
    return np.asarray(encode_blob(value))


def blobs(values: Any, depth: int) -> Any:
    """Values nested as lists `depth` deep, encoded."""
    return blob(values) if depth == 0 else [blobs(each, depth - 1) for each in values]


def check_priority_of(priority: Any) -> None:
    """Check priorities by table, or of the only table."""
    for value in priority.values() if type(priority) is dict else (priority,):
        check_priority(value)


def plain_lane(lane: Any, which: Array) -> int | list[int] | None:
    """``lane=`` in the form in which it is sent. `which`: the lanes that it names."""
    if lane is None:
        return None
    return int(which[0]) if np.ndim(lane) == 0 else which.tolist()
