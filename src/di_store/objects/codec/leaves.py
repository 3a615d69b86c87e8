"""Decoding with arrays that lie elsewhere: the caller supplies a replacement for each array and tensor of a value.

A large tree is read from a file straight into the memory of its arrays. Everything else in its payload (long texts,
pickles) is small, and is read before the value is built.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np

from di_store.base import dtypes
from di_store.base.dtypes import Array
from di_store.objects.codec.decode import Decoder, array_of, tensor_of
from di_store.objects.codec.form import MAX_DEPTH, Tag, unpack_header

Path: TypeAlias = "tuple[tuple[str, Any], ...]"
"""How a leaf is reached: kinds (key, index, field) and names."""


class ArrayLeaf(msgspec.Struct, frozen=True):
    """An array or tensor as the header describes it.

    Attributes:
        tensor: whether the leaf is a torch tensor; else it is a numpy array.
        dtype: dtype of numpy or torch.
        shape: sizes of its dimensions.
        offset: its place in the payload.
        bytes: bytes of its elements.
    """

    tensor: bool
    dtype: Any
    shape: tuple[int, ...]
    offset: int
    bytes: int


def build(header: bytes, leaf: Callable[[ArrayLeaf], Any], read: Callable[[int, int], Array]) -> Any:
    """The value of a header.

    Args:
        header: as `Encoded.header`.
        leaf: returns the replacement for an array or tensor.
        read: returns bytes of the payload by offset and size, for `small_spans`; uint8, 1-D.

    Raises:
        CorruptData, LayoutMismatch, TypeError, ModuleNotFoundError: as `decode`.
    """
    size, node = unpack_header(header)
    return _Building(size, leaf, read).value(node)


class _Building(Decoder):
    """Builds a value without its payload."""

    __slots__ = ("_leaf", "_read")

    def __init__(self, size: int, leaf: Callable[[ArrayLeaf], Any], read: Callable[[int, int], Array]) -> None:
        super().__init__(np.empty(0, np.uint8), size, True)
        self._leaf = leaf
        self._read = read

    def span(self, offset: Any, size: Any) -> Array:
        """Bytes of the payload."""
        self.check_span(offset, size)
        return self._read(offset, size)

    def array(self, node: list[Any]) -> Any:
        """The replacement of a numpy array."""
        dtype, shape, offset = array_of(node, self._size)
        return self._leaf(ArrayLeaf(False, dtype, tuple(shape), offset, math.prod(shape) * dtype.itemsize))

    def tensor(self, node: list[Any]) -> Any:
        """The replacement of a torch tensor."""
        dtype, shape, offset = tensor_of(node, self._size)
        return self._leaf(ArrayLeaf(True, dtype, tuple(shape), offset, math.prod(shape) * dtype.itemsize))


def small_spans(header: bytes) -> set[tuple[int, int]]:
    """Offset and size of all bytes of the payload that `build` reads; CorruptData if they lie outside it."""
    size, root = unpack_header(header)
    checker = Decoder(np.empty(0, np.uint8), size, True)
    found: set[tuple[int, int]] = set()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if type(node) is not list or not node or type(node[0]) is not int:
            continue
        for span in _spans(node):
            checker.check_span(*span)
            found.add(span)
        nodes.extend(_children(node))
    return found


def _spans(node: list[Any]) -> list[tuple[Any, Any]]:
    """Bytes of the payload that belong to a node itself. Here and below: the decoder refuses nodes of no known form."""
    if node[0] in (Tag.TEXT, Tag.BYTES, Tag.BYTEARRAY) and len(node) == 3:
        return [(node[1], node[2])]
    if node[0] == Tag.PICKLE and len(node) == 3:
        spans = (node[1], *_entries_of(node[2:]))
        return [(span[0], span[1]) for span in spans if type(span) is list and len(span) > 1]
    return []


def _children(node: list[Any]) -> list[Any]:
    """Nodes inside a container's node."""
    tag = node[0]
    if tag in (Tag.LIST, Tag.TUPLE):
        return node[1:]
    if tag == Tag.NAMED:
        return node[2:]
    if tag in (Tag.DICT, Tag.ORDERED):
        return [*_entries_of(node[1:3]), *node[3:]]
    return _entries_of(node[3:]) if tag == Tag.DATACLASS else []


def _entries_of(nodes: list[Any]) -> list[Any]:
    return [entry for node in nodes if type(node) is list for entry in node]


def leaves_of(value: Any) -> dict[Path, Any]:
    """The arrays, tensors and `ArrayLeaf`s in a value's dicts, lists, tuples and dataclasses, by their path."""
    found: dict[Path, Any] = {}
    _collect(value, (), found)
    return found


def _collect(value: Any, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, (np.ndarray, ArrayLeaf)) or dtypes.is_tensor(value):
        found[path] = value
    elif len(path) <= 2 * MAX_DEPTH:
        for step, entry in _entries(value):
            _collect(entry, (*path, step), found)


def _entries(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    cls = type(value)
    if cls in (dict, OrderedDict):
        yield from ((("key", key), entry) for key, entry in value.items())
    elif isinstance(value, tuple) and hasattr(cls, "_fields"):
        yield from ((("field", name), entry) for name, entry in zip(cls._fields, value, strict=False))
    elif cls in (list, tuple):
        yield from ((("index", at), entry) for at, entry in enumerate(value))
    elif dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if hasattr(value, field.name)]
        yield from ((("field", name), getattr(value, name)) for name in names)


def shown_path(path: Path) -> str:
    """A path for an error text: names joined by ``/``."""
    return "/".join(str(name) for _, name in path) or "the value itself"
