"""One column of a stream: its type, and the slow path that converts values to that type.

The core writes arrays of exactly the right type and shape directly. All other values go through `Column.coerce`, which
casts the cases below and refuses all others. Its error names the path, the expected type, the given value, and a
remedy:

* numbers (Python's and numpy's), 0-d arrays, lists of numbers, and the column ``reward`` in any form are cast *within
  their kind*: bool to bool, int to int (signed or not), float to float, complex to complex, text to wider text. A value
  that does not fit the narrower type (300 into uint8, 1e300 into float32) is refused, never wrapped;
* across kinds nothing is cast (``1`` into a float column is refused, since 16777217 would change), except that
  ``reward`` takes any real number, and the flags ``terminated`` and ``truncated`` take 0 and 1 of any kind;
* other arrays must match exactly, byte order aside.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import msgspec
import numpy as np

from di_store.base import dtypes
from di_store.base.config import MAX_COUNT
from di_store.base.dtypes import Array, DType
from di_store.base.errors import SchemaMismatch

REWARD = "reward"
FLAGS = ("terminated", "truncated")
Lead: TypeAlias = "int | tuple[int, ...] | None"

MAX_BYTES = 2**32 - 1
"""Most bytes of one row of a fixed column or of one element of a ragged one; most elements of a ragged row."""
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "S": "bytes", "U": "text"}
_MAX_DIMENSIONS = 32


class Column(msgspec.Struct, frozen=True):
    """A named column.

    Attributes:
        name: the leaf's path, joined by "/".
        dtype: stored type, in native byte order; for an extension type a void type of its size.
        shape: shape of one row; for a ragged column, of one element of a row.
        ragged: whether rows hold a varying number of elements, ``[k, *shape]``.
        max_rows: the largest k; None: no bound, or not ragged.
        extension: name of an element type that numpy does not have ("bfloat16"), else "".
        late: whether steps may leave out the column; `Table.update` writes it afterwards.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] = ()
    ragged: bool = False
    max_rows: int | None = None
    extension: str = ""
    late: bool = False

    def __post_init__(self) -> None:
        if self.late and (self.ragged or self.name in FLAGS):
            raise ValueError(
                f"column {self.name!r} is {self.type_text} and late: "
                + (
                    "late values have a fixed shape; declare the largest, and pad"
                    if self.ragged
                    else "it ends the lane's episode, so every step must give it"
                )
            )
        if min(self.shape, default=0) < 0 or self.dtype.itemsize < 1:
            raise ValueError(f"column {self.name!r} is {self.type_text} and holds no bytes: leave it out")
        if 0 in self.shape and (self.ragged or self.late):
            raise ValueError(
                f"column {self.name!r} is {self.type_text} {'and late ' if self.late else ''}and holds no bytes: "
                "only a column of fixed size that every step gives may be empty; leave it out"
            )
        if len(self.shape) > _MAX_DIMENSIONS:
            raise ValueError(f"column {self.name!r} has {len(self.shape)} dimensions, more than {_MAX_DIMENSIONS}")
        if (largest := max(self.shape, default=1)) > MAX_COUNT:
            raise ValueError(
                f"column {self.name!r} is {self.type_text}: a dimension of {largest} is above {MAX_COUNT}, the largest "
                "there is; split it into several columns or rows"
            )
        if self.element_bytes > MAX_BYTES or (self.row_bytes or 0) > MAX_BYTES:
            raise ValueError(
                f"column {self.name!r} is {self.type_text}: one row takes up to {self.row_bytes or self.element_bytes} "
                f"bytes, above {MAX_BYTES} (4 GiB), the most there is; split it into several columns or rows"
            )
        if self.name in FLAGS and (self.dtype != np.bool_ or self.ragged or math.prod(self.shape) != 1):
            raise ValueError(
                f"column {self.name!r} is {self.type_text}, but a column of this name ends the lane's "
                "episode and is one bool per row; give it another name if it means something else"
            )

    @property
    def element_bytes(self) -> int:
        """Bytes of one row of a fixed column, or of one element of a ragged column."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row, or of the longest row of a ragged column; None if there is no bound."""
        if not self.ragged:
            return self.element_bytes
        return None if self.max_rows is None else self.element_bytes * self.max_rows

    @property
    def kind(self) -> str:
        """bool, int, float, complex, bytes, text, or "other"."""
        if self.extension:
            return _extension_kind(self.extension)
        return _KINDS.get(self.dtype.kind, "other")

    @property
    def type_name(self) -> str:
        """Element type as people write it: "float32", "bfloat16", "U4"."""
        return self.extension or (self.dtype.str.lstrip("<>|=") if self.dtype.kind in "SU" else str(self.dtype))

    @property
    def type_text(self) -> str:
        """Type and shape for error texts: "float32 (4, 84, 84)", "uint8 (None, 31)"."""
        return f"{self.type_name} {shape_text((None, *self.shape) if self.ragged else self.shape)}"

    @property
    def value_dtype(self) -> DType:
        """The dtype that readers see: for an extension the type of ml_dtypes if it is installed, else `dtype`."""
        return (dtypes.extension_dtype(self.extension) if self.extension else None) or self.dtype

    def coerce(self, value: Any, lanes: Lead = None) -> Array | list[Array]:
        """`value` in the column's dtype, in C order.

        Args:
            value: number, array, tensor, list.
            lanes: leading axes: None for none, n for ``[n, …]``, ``(T, n)`` for ``[T, n, …]``.

        Returns:
            An array of shape ``lanes + shape``; it may share memory with `value`. For a ragged column an array
            ``[k, *shape]``, or with `lanes` a list of such arrays, one per row in C order.

        Raises:
            SchemaMismatch: wrong type or shape, a number that does not fit, more rows than `max_rows`.
        """
        lead = leading(lanes)
        return self._coerce_ragged(value, lead) if self.ragged else self._coerce_fixed(value, lead)

    def _coerce_fixed(self, value: Any, lead: tuple[int, ...]) -> Array:
        array, extension, loose = as_array(value, self.name)
        shape = lead + self.shape
        if array.shape != shape:
            raise self._mismatch(f"shape {shape_text(array.shape)}", shape, self._shape_remedy(array.shape, shape))
        return np.require(self._cast(array, extension, loose), requirements="C")

    def _coerce_ragged(self, value: Any, lead: tuple[int, ...]) -> Array | list[Array]:
        if not lead:
            return self._coerce_row(value)
        rows = _ragged_rows(value, lead)
        count = math.prod(lead)
        if rows is None or len(rows) != count:
            found = f"a {type(value).__name__}" if rows is None else f"{len(rows)} rows"
            remedy = f"give a list of {count} arrays, one per row" + (", nested by axis" if len(lead) > 1 else "")
            raise self._mismatch(found, (*lead, None, *self.shape), remedy)
        return [self._coerce_row(row) for row in rows]

    def _coerce_row(self, value: Any) -> Array:
        if isinstance(value, (str, bytes, bytearray)) and self.dtype == np.uint8 and not self.shape:
            value = np.frombuffer(value.encode() if isinstance(value, str) else bytes(value), np.uint8)
        if isinstance(value, (list, tuple)) and not value:
            empty: Array = np.empty((0, *self.shape), self.dtype)
            return empty
        array, extension, loose = as_array(value, self.name)
        if array.ndim != 1 + len(self.shape) or array.shape[1:] != self.shape:
            expected = (None, *self.shape)
            raise self._mismatch(
                f"shape {shape_text(array.shape)}", expected, "the first axis counts the row's elements"
            )
        if array.size * self.dtype.itemsize > MAX_BYTES:
            taken = f"{len(array)} elements, which take {array.size * self.dtype.itemsize} bytes"
            raise self._mismatch(taken, (None, *self.shape), f"a row has at most {MAX_BYTES} bytes (4 GiB): split it")
        if self.max_rows is not None and len(array) > self.max_rows:
            remedy = f"at most max={self.max_rows} fit: cut it, or declare Spec(…, max={len(array)}) in schema="
            raise self._mismatch(f"{len(array)} elements", (None, *self.shape), remedy)
        return np.require(self._cast(array, extension, loose), requirements="C")

    def _cast(self, array: Array, extension: str, loose: bool) -> Array:
        if extension == self.extension and array.dtype.newbyteorder("=") == self.dtype:
            return array if array.dtype.isnative else array.astype(self.dtype)
        if not (loose or self.name == REWARD or self.name in FLAGS) and not self._widens(array.dtype):
            found = extension or str(array.dtype)
            cast = "cast the value yourself" if self._loses(array.dtype) else f"write value.astype({self.type_name!r})"
            remedy = f"arrays are not cast silently: {cast}, or declare {found!r} in schema="
            raise self._mismatch(f"dtype {found}", None, remedy)
        if extension:
            known = dtypes.extension_dtype(extension)
            if known is None:
                raise self._mismatch(f"dtype {extension}", None, "convert the tensor before writing")
            source = _extension_kind(extension)
            array = array.view(known).astype({"float": "f8", "int": "i8", "complex": "c16"}[source])
        else:
            source = _KINDS.get(array.dtype.kind, "other")
        if source != self.kind:
            array = self._cast_across(array, source)
        return self._narrow(array)

    def _loses(self, dtype: DType) -> bool:
        """Whether `astype` would lose data or fail: imaginary parts, text, objects, dates."""
        return dtype.kind in "USOVmM" or (dtype.kind == "c" and self.kind != "complex")

    def _widens(self, dtype: DType) -> bool:
        return (
            self.kind in ("bytes", "text") and dtype.kind == self.dtype.kind and dtype.itemsize <= self.dtype.itemsize
        )

    def _cast_across(self, array: Array, source: str) -> Array:
        real = source in ("bool", "int", "float")
        if self.name == REWARD and real and self.kind == "float":
            return array.astype(np.float64)
        if self.name in FLAGS and real:
            if bool(np.all((array == 0) | (array == 1))):
                return array.astype(np.bool_)
            raise self._mismatch(f"the value {_shown(array)}", None, "a flag is False or True, or 0 or 1")
        remedy = f"numbers are cast within their kind only, {source} is not {self.kind}"
        if self.kind in ("bool", "int", "float") and array.ndim == 0 and real:
            remedy += f": write {self.kind}(value), or declare the column in schema="
        raise self._mismatch(f"{source} {_shown(array)}", None, remedy)

    def _narrow(self, array: Array) -> Array:
        """Cast within one kind; refuse values that the target type cannot hold."""
        if self.kind == "int" and array.size:
            least, most = _int_bounds(self.type_name)
            low, high = int(array.min()), int(array.max())
            if low < least or high > most:
                fits = f"{self.type_name} holds {least} … {most}; declare a wider type in schema="
                raise self._mismatch(f"the value {low if low < least else high}", None, fits)
        if self.kind in ("bytes", "text") and array.dtype.itemsize > self.dtype.itemsize:
            remedy = "declare a wider one in schema=, or Spec((None,), 'u1') for text of any length"
            raise self._mismatch(f"{array.dtype.str.lstrip('<>|=')} {_shown(array)}", None, remedy)
        try:
            with np.errstate(over="raise"):
                return self._convert(array)
        except FloatingPointError:
            remedy = "the value is too large for it: scale it, or declare a wider type in schema="
            raise self._mismatch(_shown(array), None, remedy) from None
        except (TypeError, ValueError) as error:
            raise self._mismatch(f"dtype {array.dtype}", None, str(error)) from None

    def _convert(self, array: Array) -> Array:
        if not self.extension:
            return array.astype(self.dtype, casting="same_kind" if self.kind == "other" else "unsafe")
        known = dtypes.extension_dtype(self.extension)
        if known is not None:
            return array.astype(known).view(self.dtype)
        if self.extension == "bfloat16":
            return dtypes.round_to_bfloat16(array)
        raise ValueError(f"ml_dtypes is needed to make {self.extension} from numbers; write arrays or tensors of it")

    def _shape_remedy(self, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
        if found == self.shape:
            return f"this call needs the leading axes {shape_text(expected[: len(expected) - len(self.shape)])}"
        if found[1:] == expected:
            return f"leaves with a leading axis belong to a writer with lanes={found[0]}"
        return "reshape the value, or declare another shape in schema="

    def _mismatch(self, found: str, shape: tuple[int | None, ...] | None, remedy: str) -> SchemaMismatch:
        expected = self.type_text if shape is None else f"{self.type_name} {shape_text(shape)}"
        return SchemaMismatch(f"column {self.name!r}: expected {expected}, got {found}", remedy=remedy)


def leading(lanes: Lead) -> tuple[int, ...]:
    """Leading axes as a tuple."""
    return () if lanes is None else lanes if isinstance(lanes, tuple) else (lanes,)


def _extension_kind(name: str) -> str:
    return next(kind for kind in ("float", "int", "complex") if kind in name)


def _int_bounds(name: str) -> tuple[int, int]:
    """Least and greatest value of an integer type, by its name."""
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as Python writes it; None for a varying axis."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def range_text(array: Array) -> str:
    """Least and greatest of numbers that are not NaN, such as "0.5 to 2.0, and NaN"."""
    least, most = np.fmin.reduce(array, axis=None), np.fmax.reduce(array, axis=None)
    if np.isnan(least):
        return "all NaN"
    return (f"{least}" if least == most else f"{least} to {most}") + (", and NaN" if np.isnan(array.min()) else "")


def _shown(array: Array) -> str:
    """The value, or the first three of an array."""
    if array.ndim == 0:
        return repr(array.item())
    first = np.array2string(array.ravel()[:3], separator=", ")
    return first if array.size <= 3 else f"{first[:-1]}, …]"


def is_number(value: Any) -> bool:
    """Whether `value` is a Python number. Numpy scalars are not: they have a dtype of their own."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def all_scalars(value: Any) -> bool:
    """Whether nested lists hold nothing but numbers, Python's or numpy's."""
    if isinstance(value, (list, tuple)):
        return all(all_scalars(entry) for entry in value)
    return is_number(value) or isinstance(value, np.generic)


def as_array(value: Any, name: str) -> tuple[Array, str, bool]:
    """Any leaf as an array, its extension type's name or "", and whether it may be cast within its kind.

    Raises:
        SchemaMismatch: it cannot become an array of a fixed element type.
    """
    if dtypes.is_tensor(value):
        try:
            array, extension = dtypes.tensor_array(value)
        except ValueError as error:
            raise SchemaMismatch(f"column {name!r}: {error}", remedy="convert it to a dense tensor first") from None
        return array, extension, array.ndim == 0
    if isinstance(value, np.ndarray):
        _check_unmasked(value, name)
        array, loose = np.asarray(value), value.ndim == 0
    elif isinstance(value, (list, tuple)):
        array, loose = _list_array(value, name), all_scalars(value)
    else:
        array = _other_array(value, name)
        loose = array.ndim == 0
    if array.dtype.isbuiltin == 2:
        storage, extension = _extension_of(array.dtype, name)
        return array.view(storage), extension, loose
    if array.dtype.hasobject or array.dtype.kind == "T":
        large = " (is a number too large for 64 bits?)" if all_scalars(value) else ""
        raise SchemaMismatch(
            f"column {name!r}: got {type(value).__name__} of Python objects{large}",
            remedy="columns hold numbers, fixed-width text and bytes; for varying rows declare Spec((None, …), dtype), "
            "for any Python value use a table with view=Opaque()",
        )
    if array.dtype.names is not None:
        _extension_of(array.dtype, name)
    return array, "", loose


def _check_unmasked(value: Any, name: str) -> None:
    """Raise SchemaMismatch for masked elements: a column would store the values under the mask, but no mask."""
    if dtypes.is_masked(value):
        raise SchemaMismatch(
            f"column {name!r}: got an array with masked elements",
            remedy="write value.filled(…), and the mask as a column of its own",
        )


def _extension_of(dtype: DType, name: str) -> tuple[DType, str]:
    try:
        return dtypes.resolve(dtype)
    except ValueError as error:
        raise SchemaMismatch(f"column {name!r}: {error}", remedy="cast it to a known type") from None


def _list_array(value: list[Any] | tuple[Any, ...], name: str) -> Array:
    try:
        if value and dtypes.is_tensor(value[0]):
            return np.stack([dtypes.tensor_array(entry)[0] for entry in value])
        if value and isinstance(value[0], np.ndarray):
            for entry in value:
                _check_unmasked(entry, name)
        return np.asarray(value)
    except (ValueError, TypeError, AttributeError, RuntimeError):  # torch raises RuntimeError
        raise SchemaMismatch(
            f"column {name!r}: got a {type(value).__name__} whose entries have different shapes",
            remedy="make them equal, or declare the column ragged: Spec((None, …), dtype, max=…)",
        ) from None


def _other_array(value: Any, name: str) -> Array:
    if is_number(value) or isinstance(value, (np.generic, str, bytes)) or hasattr(value, "__array__"):
        return np.asarray(value)
    if isinstance(value, (bytearray, memoryview)):
        return np.asarray(value)
    got = "None" if value is None else f"a {type(value).__name__}"
    raise SchemaMismatch(
        f"column {name!r}: expected a number or an array, got {got}",
        remedy="give np.asarray(value, dtype=…); for any Python value use a table with view=Opaque()",
    )


def _ragged_rows(value: Any, lead: tuple[int, ...]) -> list[Any] | None:
    """The rows of a ragged value with leading axes `lead`, flat in C order; None if the value has no such form."""
    values, offsets = getattr(value, "values", None), getattr(value, "offsets", None)
    if dtypes.is_tensor(values) and dtypes.is_tensor(offsets):
        values, offsets = dtypes.tensor_array(values)[0], dtypes.tensor_array(offsets)[0]
    if isinstance(values, np.ndarray) and isinstance(offsets, np.ndarray):
        return [values[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    if dtypes.is_tensor(value):
        if value.is_nested:
            return list(value.unbind()) if len(lead) == 1 else None
        value = dtypes.tensor_array(value)[0]
    if isinstance(value, np.ndarray):
        return list(value.reshape(-1, *value.shape[len(lead) :])) if value.shape[: len(lead)] == lead else None
    rows: list[Any] = [value]
    for size in lead:
        if not all(isinstance(row, (list, tuple, np.ndarray)) and len(row) == size for row in rows):
            return None
        rows = [entry for row in rows for entry in row]
    return rows
