"""Bytes to values. Every size and offset of the header is checked against the payload before it is used."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import pickle
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from di_store.base import dtypes
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.objects.codec.foreign import (
    check_keys,
    dataclass_fields,
    foreign_class,
    named_fields,
    pickle_refused,
)
from di_store.objects.codec.form import MAX_DEPTH, Tag, find_class, unpack_header


def decode(
    header: bytes | bytearray | memoryview, payload: Array, copy: bool | None = None, foreign: bool = False
) -> Any:
    """The value that `encode` encoded.

    Args:
        header: as `Encoded.header`.
        payload: uint8, 1-D, the buffers at their offsets. Arrays that are not copied keep the payload alive, and with
            it the pin of its `base`.
        copy: None: numpy arrays are read-only views of `payload`, torch tensors are copies. False: both are views; an
            in-place write to such a tensor writes to `payload`, or kills the process if the payload is mapped
            read-only. True: writable copies of both.
        foreign: whether the bytes came from another machine. Then no code that they name is run. Pickles are refused,
            and so are classes of modules that this process has not loaded, or whose own code would run.

    Raises:
        AccessDenied: the value is foreign, and decoding it could run such code.
        CorruptData: header and payload do not fit together.
        LayoutMismatch: another version of the form.
        TypeError: a class cannot be imported here. ModuleNotFoundError: the value has tensors, and torch is not
            installed.
    """
    size, node = unpack_header(header)
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise TypeError(f"payload is {payload.dtype} of {payload.ndim} dimensions, not bytes")
    if payload.nbytes < size:
        raise CorruptData(f"the object's header announces {size} bytes of payload, but there are {payload.nbytes}")
    return (_ForeignDecoder if foreign else Decoder)(payload, size, copy).value(node)


class Decoder:
    """Builds a value from nodes.

    Attributes:
        foreign: the classes of the instances built so far, for a value of another machine; None for a local value.
    """

    __slots__ = ("_address", "_copy", "_depth", "_payload", "_size", "_writable")
    foreign: set[type] | None = None

    def __init__(self, payload: Array, size: int, copy: bool | None) -> None:
        if payload.flags.writeable:
            payload = payload[:]
            payload.flags.writeable = False
        self._payload = payload
        self._size = size
        self._copy = copy
        self._depth = 0
        self._writable: Array | None = None

    def value(self, node: Any) -> Any:
        """The value of one node."""
        if type(node) is not list:
            if type(node) is dict or isinstance(node, _NO_NODES):
                raise CorruptData(f"the object's header contains an unexpected {type(node).__name__}")
            return node
        builder = _BUILDERS.get(node[0]) if node and type(node[0]) is int else None
        if builder is None:
            raise CorruptData(f"the object's header contains an unknown node {str(node[:1])[:40]}")
        return builder(self, node)

    def values(self, nodes: Any) -> list[Any]:
        """The values of a container's entries."""
        if type(nodes) is not list:
            raise CorruptData("the object's header contains a container without entries")
        self._depth += 1
        if self._depth > 2 * MAX_DEPTH:
            raise CorruptData("the object's header is nested too deep")
        value = self.value
        found = [value(node) for node in nodes]
        self._depth -= 1
        return found

    def span(self, offset: Any, size: Any) -> Array:
        """Read-only bytes of the payload."""
        self.check_span(offset, size)
        return self._payload[offset : offset + size]

    def check_span(self, offset: Any, size: Any) -> None:
        """CorruptData unless these bytes lie in the payload."""
        if type(offset) is not int or type(size) is not int or offset < 0 or size < 0 or offset + size > self._size:
            raise CorruptData(
                f"the object's header points at bytes {offset!r} + {size!r}, outside the {self._size} bytes of payload"
            )

    def raw(self, node: list[Any]) -> bytes:
        """Bytes that lie in the node itself, or in the payload."""
        if len(node) == 2 and type(node[1]) is bytes:
            return node[1]
        _expect(node, 3)
        return self.span(node[1], node[2]).tobytes()

    def array(self, node: list[Any]) -> Array:
        """A numpy array."""
        dtype, shape, offset = array_of(node, self._size)
        try:
            if not math.prod(shape) * dtype.itemsize:
                found: Array = np.ndarray(shape, dtype, bytearray())  # np.empty gives text of no size one character
                found.flags.writeable = bool(self._copy)
                return found
            found = np.ndarray(shape, dtype, self._payload, offset)
        except (TypeError, ValueError) as error:
            raise CorruptData(f"the object's header describes an invalid array: {error}") from None
        return found.copy() if self._copy else found

    def tensor(self, node: list[Any]) -> Any:
        """A torch tensor on the CPU."""
        dtype, shape, offset = tensor_of(node, self._size)
        size = math.prod(shape) * dtype.itemsize
        if self._writable is None:
            self._writable = np.asarray(_Writable(self._payload))
            self._address = self._payload.__array_interface__["data"][0]
        if size and (self._address + offset) % dtype.itemsize:  # torch takes elements for aligned
            return _tensor_over(self._payload[offset : offset + size].copy(), 0, size, dtype, shape, copy=False)
        return _tensor_over(self._writable, offset, size, dtype, shape, copy=self._copy is not False)

    def unpickled(self, node: list[Any]) -> Any:
        """The value of a pickle."""
        if self.foreign is not None:
            raise pickle_refused()
        _expect(node, 3)
        _, stream, spans = node
        if type(spans) is not list or any(type(span) is not list or len(span) != 2 for span in spans):
            raise CorruptData("the object's header holds a pickle without buffers")
        if type(stream) is not bytes:
            if type(stream) is not list or len(stream) != 3:
                raise CorruptData("the object's header holds a pickle without stream")
            raw = self.span(stream[0], stream[1])
            if zlib.crc32(raw.data) != stream[2]:
                raise CorruptData("a pickle inside the object does not match its checksum")
            stream = raw.tobytes()
        views = [self.span(*span) for span in spans]
        try:
            return pickle.loads(stream, buffers=[view.copy() for view in views] if self._copy else views)
        except (AttributeError, ImportError, pickle.UnpicklingError) as error:
            raise TypeError(
                f"the object holds a pickle, which this process cannot load ({type(error).__name__}: {error}): "
                "define its classes in a module that all processes share"
            ) from error


class _ForeignDecoder(Decoder):
    """Builds a value that another machine sent."""

    __slots__ = ("foreign",)

    def __init__(self, payload: Array, size: int, copy: bool | None) -> None:
        super().__init__(payload, size, copy)
        self.foreign = set()


_NO_NODES = (bytearray, memoryview, np.generic)
_Builder: TypeAlias = Callable[[Decoder, list[Any]], Any]


def _expect(node: list[Any], length: int) -> None:
    if len(node) != length:
        raise CorruptData(f"the object's header contains a node {node[0]} of {len(node)} entries instead of {length}")


def _dtype(plain: Any) -> np.dtype[Any]:
    try:
        found = dtypes.parse(plain)
    except ValueError as error:
        raise CorruptData(f"the object's header contains an invalid dtype: {error}") from None
    return found


def array_of(node: list[Any], payload_bytes: int) -> tuple[np.dtype[Any], list[int], int]:
    """Dtype, shape and offset of the array of a node; CorruptData if it lies outside the payload."""
    _expect(node, 4)
    _, plain, shape, offset = node
    dtype = _dtype(plain)
    _check_place("an array", offset, _bytes_of(shape, dtype.itemsize), payload_bytes)
    return dtype, shape, offset


def tensor_of(node: list[Any], payload_bytes: int) -> tuple[Any, list[int], int]:
    """The same for a tensor, with torch's dtype."""
    _expect(node, 4)
    _, name, shape, offset = node
    dtype = _torch_dtype(name if type(name) is str else str(name))
    _check_place("a tensor", offset, _bytes_of(shape, dtype.itemsize), payload_bytes)
    return dtype, shape, offset


def _check_place(what: str, offset: Any, size: int, payload_bytes: int) -> None:
    if type(offset) is not int or offset < 0 or offset + size > payload_bytes:
        raise CorruptData(
            f"the object's header puts {what} at bytes {offset!r} + {size}, outside the {payload_bytes} bytes "
            "of payload"
        )


def _bytes_of(shape: Any, itemsize: int) -> int:
    total, sizes = itemsize, shape if type(shape) is list else [None]
    for size in sizes:
        if type(size) is not int or size < 0:
            raise CorruptData(f"the object's header contains an invalid shape: {str(shape)[:80]}")
        total *= size
    return total


def _mapping(decoder: Decoder, node: list[Any]) -> list[tuple[Any, Any]]:
    keys, values = decoder.values(node[1]), decoder.values(node[2])
    if len(keys) != len(values):
        raise CorruptData(f"the object's header holds {len(keys)} keys for {len(values)} values")
    if decoder.foreign:
        check_keys(keys, decoder.foreign)
    return list(zip(keys, values, strict=True))


def _dict(decoder: Decoder, node: list[Any]) -> dict[Any, Any]:
    _expect(node, 3)
    pairs = _mapping(decoder, node)
    try:
        return dict(pairs)
    except TypeError as error:
        raise CorruptData(f"the object's header contains an invalid key: {error}") from None


def _ordered(decoder: Decoder, node: list[Any]) -> OrderedDict[Any, Any]:
    _expect(node, 4)
    pairs = _mapping(decoder, node)
    try:
        found = OrderedDict(pairs)
    except TypeError as error:
        raise CorruptData(f"the object's header contains an invalid key: {error}") from None
    attributes = decoder.values(node[3:])[0]
    if attributes is not None:
        if type(attributes) is not dict or not all(type(name) is str for name in attributes):
            raise CorruptData("the object's header holds attributes without names")
        vars(found).update(attributes)
    return found


def _list(decoder: Decoder, node: list[Any]) -> list[Any]:
    return decoder.values(node[1:])


def _tuple(decoder: Decoder, node: list[Any]) -> tuple[Any, ...]:
    return tuple(decoder.values(node[1:]))


def _class(decoder: Decoder, node: list[Any]) -> type:
    if len(node) < 2 or type(node[1]) is not str:
        raise CorruptData("the object's header holds an instance without class")
    if decoder.foreign is None:
        return find_class(node[1])
    found = foreign_class(node[1])
    decoder.foreign.add(found)
    return found


def _named(decoder: Decoder, node: list[Any]) -> Any:
    cls, values = _class(decoder, node), decoder.values(node[2:])
    fields = named_fields(cls)
    if fields is None:
        raise CorruptData(f"the object's header names {node[1]!r}, which is not a named tuple")
    if len(fields) != len(values):
        raise TypeError(f"{node[1]} has {len(fields)} fields here, but {len(values)} in the object")
    return tuple.__new__(cls, values)


def _dataclass(decoder: Decoder, node: list[Any]) -> Any:
    _expect(node, 4)
    cls, names, values = _class(decoder, node), node[2], decoder.values(node[3])
    known = _fields_of(cls) if decoder.foreign is None else dataclass_fields(cls)
    if known is None:
        raise CorruptData(f"the object's header names {node[1]!r}, which is not a dataclass here")
    if type(names) is not list or len(names) != len(values) or not all(type(name) is str for name in names):
        raise CorruptData("the object's header holds fields without names")
    unknown = set(names) - known
    if unknown:
        raise TypeError(
            f"{node[1]} has no field {sorted(unknown)[0]!r} here: the class differs from the one that was put"
        )
    try:
        found: Any = object.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(found, name, value)
    except (AttributeError, TypeError) as error:  # abstract, or without a place for a field
        raise CorruptData(f"the object's header names {node[1]!r}, which cannot be instantiated: {error}") from None
    return found


def _fields_of(cls: type) -> frozenset[str] | None:
    if not dataclasses.is_dataclass(cls) or cls.__new__ is not object.__new__:
        return None
    return frozenset(field.name for field in dataclasses.fields(cls))


def scalar_of(node: list[Any]) -> Any:
    """The numpy scalar of a node."""
    _expect(node, 3)
    dtype = _dtype(node[1])
    if type(node[2]) is not bytes or len(node[2]) != dtype.itemsize:
        raise CorruptData("the object's header holds a scalar of the wrong size")
    return np.ndarray((), dtype, bytearray(node[2]))[()] if dtype.itemsize else np.zeros((), dtype)[()]


def _int(_: Decoder, node: list[Any]) -> int:
    _expect(node, 2)
    try:
        return int(node[1], 16)
    except (TypeError, ValueError):
        raise CorruptData("the object's header contains an invalid integer") from None


def _complex(_: Decoder, node: list[Any]) -> complex:
    _expect(node, 3)
    if type(node[1]) is not float or type(node[2]) is not float:
        raise CorruptData("the object's header contains an invalid complex number")
    return complex(node[1], node[2])


def _text(decoder: Decoder, node: list[Any]) -> str:
    try:
        return decoder.raw(node).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise CorruptData("a text inside the object is not valid UTF-8") from None


_BUILDERS: dict[int, _Builder] = {
    Tag.DICT: _dict,
    Tag.ORDERED: _ordered,
    Tag.LIST: _list,
    Tag.TUPLE: _tuple,
    Tag.NAMED: _named,
    Tag.DATACLASS: _dataclass,
    Tag.ARRAY: lambda decoder, node: decoder.array(node),
    Tag.TENSOR: lambda decoder, node: decoder.tensor(node),
    Tag.SCALAR: lambda _, node: scalar_of(node),
    Tag.INT: _int,
    Tag.COMPLEX: _complex,
    Tag.TEXT: _text,
    Tag.BYTES: Decoder.raw,
    Tag.BYTEARRAY: lambda decoder, node: bytearray(decoder.raw(node)),
    Tag.PICKLE: Decoder.unpickled,
}


# --- torch ------------------------------------------------------------------------------------------------------------


class _Writable:
    """Bytes that numpy takes for writable, because torch has no read-only tensors; keeps their owner alive."""

    def __init__(self, span: Array) -> None:
        self.owner = span
        address = span.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": span.shape, "typestr": "|u1", "version": 3}


def torch_module() -> Any:
    """torch, which is imported if necessary; ModuleNotFoundError if it is not installed."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ModuleNotFoundError(f"the object holds torch tensors, and torch cannot be imported ({error})") from None


@functools.lru_cache(maxsize=64)
def _torch_dtype(name: str) -> Any:
    torch = torch_module()
    found = vars(torch).get(name)  # not getattr: torch imports some of its modules when they are asked for
    if not isinstance(found, torch.dtype):
        raise CorruptData(f"the object's header holds a tensor of type {str(name)[:40]!r}")
    return found


def _tensor_over(writable: Array, offset: int, size: int, dtype: Any, shape: list[int], *, copy: bool) -> Any:
    torch = torch_module()
    try:
        if not size:
            return torch.empty(shape, dtype=dtype)
        found = torch.frombuffer(writable, dtype=dtype, count=size // dtype.itemsize, offset=offset).view(shape)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise CorruptData(f"the object's header describes an invalid tensor: {error}") from None
    return found.clone() if copy else found


def rebuild_tensor(buffer: Any, name: str, shape: tuple[int, ...]) -> Any:
    """A tensor from inside a pickle; always a copy, because torch has no read-only tensors."""
    raw = np.frombuffer(buffer, np.uint8).copy()
    return _tensor_over(raw, 0, raw.nbytes, _torch_dtype(name), list(shape), copy=False)
