"""Decoding many values of one kind: a repeated header is compiled into a function that builds its values.

Rows of an `Opaque` table mostly have equal headers: the same containers and leaves, of the same types and shapes; only
the bytes of the payload differ. Reading a header takes some ten microseconds; building from a plan takes less than one
per leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from di_store.base.dtypes import Array
from di_store.objects.codec.decode import array_of, decode, scalar_of, tensor_of, torch_module
from di_store.objects.codec.form import Tag, unpack_header

_MOST, _LONGEST = 1024, 4096
"""Headers remembered, and bytes of the longest one."""


class _Tensors(dict[Any, Any]):
    """By dtype: the whole buffer as a torch tensor that shares its memory."""

    def __init__(self, buffer: Array) -> None:
        self._buffer = buffer

    def __missing__(self, dtype: Any) -> Any:
        found = self[dtype] = torch_module().from_numpy(self._buffer).view(dtype)
        return found


class Bytes:
    """The payloads of several values in one buffer: uint8, 1-D, writable. Nobody else may change it.

    Attributes:
        readonly: the buffer, for views that must not write to it.
        tensors: the buffer as tensors, by dtype.
    """

    def __init__(self, buffer: Array) -> None:
        self.readonly = buffer.view()
        self.readonly.flags.writeable = False
        self.tensors = _Tensors(buffer)


_Build: TypeAlias = Callable[[Bytes, int], Any]
"""Builds a value, or a part of one, from the place of its payload."""


class _Unplanned(Exception):
    """A header without a plan: it is read for each value."""


class Plans:
    """The plans of one process, by header. Thread-safe: at worst a header is compiled twice.

    Foreign values share them: no plan has a pickle or an instance of a class, so none runs code that a header names.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, _Build] | None] = {}
        self._seen: dict[bytes, None] = {}

    def decode(self, header: bytes, payloads: Bytes, start: int, end: int, foreign: bool = False) -> Any:
        """The value with this header and the payload at ``payloads[start:end]``; `start` is a multiple of 64.

        Numpy arrays are read-only views of it, torch tensors writable ones.

        Raises:
            As `codec.decode`.
        """
        plan = self._known.get(header)
        if plan is not None:
            size, build = plan
            if size <= end - start:
                return build(payloads, start)
        elif len(header) <= _LONGEST and header not in self._known:
            self._learn(header)
        return decode(header, payloads.readonly[start:end], foreign=foreign)

    def _learn(self, header: bytes) -> None:
        """Compile a header at its second use."""
        if header not in self._seen:
            if len(self._seen) >= _MOST:
                self._seen.clear()
            self._seen[header] = None
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[header] = _compiled(header)


def _compiled(header: bytes) -> tuple[int, _Build] | None:
    """Bytes of payload that a header needs, and its plan; None: the header is read each time."""
    size, node = unpack_header(header)
    try:
        constant, value = _part(node, size)
    except _Unplanned:
        return None
    return size, (lambda payloads, start: value) if constant else value


def _part(node: Any, size: int) -> tuple[bool, Any]:
    """Whether a node's value is the same in all payloads; and this value, or else the function that builds it."""
    if type(node) is not list:
        return True, node
    maker = _MAKERS.get(node[0]) if node else None
    if maker is None:
        raise _Unplanned
    found: tuple[bool, Any] = maker(node, size)
    return found


def _sequence(node: list[Any], size: int) -> tuple[bool, Any]:
    parts = [_part(each, size) for each in node[1:]]
    kind: Any = tuple if node[0] == Tag.TUPLE else list
    template = [None if not constant else value for constant, value in parts]
    if kind is tuple and all(constant for constant, _ in parts):
        return True, tuple(template)
    built = [(place, value) for place, (constant, value) in enumerate(parts) if not constant]

    def build(payloads: Bytes, start: int) -> Any:
        found = template.copy()
        for place, part in built:
            found[place] = part(payloads, start)
        return tuple(found) if kind is tuple else found

    return False, build


def _dict(node: list[Any], size: int) -> tuple[bool, Any]:
    keys, parts = [_part(each, size) for each in node[1]], [_part(each, size) for each in node[2]]
    if not all(constant for constant, _ in keys) or len(keys) != len(parts):
        raise _Unplanned
    try:
        template = {key: value if constant else None for (_, key), (constant, value) in zip(keys, parts, strict=True)}
    except TypeError:
        raise _Unplanned from None
    built = [(key, value) for (_, key), (constant, value) in zip(keys, parts, strict=True) if not constant]

    def build(payloads: Bytes, start: int) -> dict[Any, Any]:
        found = template.copy()
        for key, part in built:
            found[key] = part(payloads, start)
        return found

    return False, build


def _array(node: list[Any], size: int) -> tuple[bool, Any]:
    dtype, shape, offset = array_of(node, size)
    if not math.prod(shape) * dtype.itemsize:
        raise _Unplanned
    new = np.ndarray

    def build(payloads: Bytes, start: int) -> Any:
        return new(shape, dtype, payloads.readonly, start + offset)

    return False, build


def _tensor(node: list[Any], size: int) -> tuple[bool, Any]:
    dtype, shape, offset = tensor_of(node, size)
    if not math.prod(shape) or offset % dtype.itemsize:
        raise _Unplanned
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    as_strided, itemsize = torch_module().as_strided, dtype.itemsize

    def build(payloads: Bytes, start: int) -> Any:
        return as_strided(payloads.tensors[dtype], shape, strides, (start + offset) // itemsize)

    return False, build


_MAKERS: dict[int, Callable[[list[Any], int], tuple[bool, Any]]] = {
    Tag.LIST: _sequence,
    Tag.TUPLE: _sequence,
    Tag.DICT: _dict,
    Tag.ARRAY: _array,
    Tag.TENSOR: _tensor,
    Tag.SCALAR: lambda node, _: (True, scalar_of(node)),
}
