"""Values to bytes."""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np

from di_store.base import dtypes
from di_store.base.dtypes import Array
from di_store.base.errors import shown
from di_store.objects.codec.decode import rebuild_tensor
from di_store.objects.codec.form import (
    ALIGNMENT,
    INLINE_BYTES,
    MAX_DEPTH,
    MAX_HEADER_BYTES,
    Tag,
    class_path,
    pack_header,
)

Buffer: TypeAlias = "Array | bytes | bytearray | memoryview"

_PLAIN_KINDS = frozenset("?biufc")
_PROTOCOL = 5


class Encoded(msgspec.Struct, frozen=True):
    """A value ready to be copied into the store.

    Attributes:
        header: how the value is built.
        buffers: C-contiguous objects with the buffer protocol, each to be copied to its offset. They refer to the
            value's own memory if it is contiguous, so the value must not change before they are copied.
        offsets: offset of each buffer in the payload, ascending multiples of 64.
        sizes: bytes of each buffer.
        payload_bytes: size of the whole payload; gaps between buffers have no meaning.
    """

    header: bytes
    buffers: list[Buffer]
    offsets: list[int]
    sizes: list[int]
    payload_bytes: int


def encode(value: Any, pickles: bool = True) -> Encoded:
    """Encode a value. Contiguous memory is not copied.

    Args:
        value: numpy arrays and scalars of any dtype, torch tensors of any device, numbers, text, bytes, None, and dict,
            OrderedDict, list, tuple, named tuples and dataclasses of them; anything else that pickles.
        pickles: whether the value may contain other objects, which are pickled.

    Raises:
        TypeError: a part does not pickle, or its class cannot be found by name.
    """
    encoder = _Encoder(pickles)
    try:
        header = pack_header_of(encoder, encoder.node(value))
    except _TooDeep:
        header = b""
    if not header or len(header) > MAX_HEADER_BYTES:
        encoder = _Encoder(pickles)
        header = pack_header_of(encoder, encoder.pickled(value))
    return Encoded(header, encoder.buffers, encoder.offsets, encoder.sizes, encoder.size)


def pack_header_of(encoder: _Encoder, node: Any) -> bytes:
    """The header of the value that `encoder` has placed."""
    return pack_header(encoder.size, node)


class _TooDeep(Exception):
    """The value holds itself, or is nested deeper than `MAX_DEPTH`."""


class _Encoder:
    """Places buffers one after the other while it walks a value."""

    __slots__ = ("buffers", "offsets", "path", "pickles", "size", "sizes")

    def __init__(self, pickles: bool = True) -> None:
        self.pickles = pickles
        self.buffers: list[Buffer] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.size = 0
        self.path: set[int] = set()

    def place(self, buffer: Buffer, size: int) -> int:
        """Give `buffer` its place in the payload; an empty one needs none."""
        if size == 0:
            return 0
        offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        self.buffers.append(buffer)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.size = offset + size
        return offset

    def node(self, value: Any) -> Any:
        """The header's node for `value`."""
        handler = _HANDLERS.get(type(value))
        return _classify(value)(self, value) if handler is None else handler(self, value)

    def nodes(self, values: Any, owner: object) -> list[Any]:
        """Nodes of a container's entries."""
        path, key = self.path, id(owner)
        if key in path or len(path) >= MAX_DEPTH:
            raise _TooDeep
        path.add(key)
        get = _HANDLERS.get
        found = [(get(type(value)) or _classify(value))(self, value) for value in values]
        path.discard(key)
        return found

    def pickled(self, value: Any) -> list[Any]:
        """Node of a pickle, its buffers placed."""
        if not self.pickles:
            raise TypeError(f"{shown(value)} is a {type(value).__name__}, which would have to be pickled")
        buffers: list[pickle.PickleBuffer] = []
        stream = _pickle(value, buffers)
        spans = [(self.place(raw, raw.nbytes), raw.nbytes) for raw in (buffer.raw() for buffer in buffers)]
        if len(stream) <= INLINE_BYTES:
            return [Tag.PICKLE, stream, spans]
        return [Tag.PICKLE, (self.place(stream, len(stream)), len(stream), zlib.crc32(stream)), spans]


_Handler: TypeAlias = Callable[[_Encoder, Any], Any]


def _class_of(value: object) -> type:
    return type(value)


def _itself(_: _Encoder, value: Any) -> Any:
    return value


def _int(_: _Encoder, value: int) -> Any:
    return value if -(2**63) <= value < 2**64 else [Tag.INT, hex(value)]


def _complex(_: _Encoder, value: complex) -> Any:
    return [Tag.COMPLEX, value.real, value.imag]


def _text(encoder: _Encoder, value: str) -> Any:
    if value.isascii() and len(value) <= INLINE_BYTES:
        return value
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) > INLINE_BYTES:
        return [Tag.TEXT, encoder.place(raw, len(raw)), len(raw)]
    try:
        raw.decode()
    except UnicodeDecodeError:
        return [Tag.TEXT, raw]
    return value


def _bytes(encoder: _Encoder, value: bytes) -> Any:
    if len(value) <= INLINE_BYTES:
        return value
    return [Tag.BYTES, encoder.place(value, len(value)), len(value)]


def _bytearray(encoder: _Encoder, value: bytearray) -> Any:
    if len(value) <= INLINE_BYTES:
        return [Tag.BYTEARRAY, bytes(value)]
    return [Tag.BYTEARRAY, encoder.place(value, len(value)), len(value)]


def _dict(encoder: _Encoder, value: dict[Any, Any]) -> Any:
    return [Tag.DICT, encoder.nodes(value.keys(), value), encoder.nodes(value.values(), value)]


def _ordered(encoder: _Encoder, value: OrderedDict[Any, Any]) -> Any:
    keys, values = encoder.nodes(value.keys(), value), encoder.nodes(value.values(), value)
    attributes = encoder.nodes((vars(value),), value)[0] if vars(value) else None
    return [Tag.ORDERED, keys, values, attributes]


def _list(encoder: _Encoder, value: list[Any]) -> Any:
    return [Tag.LIST, *encoder.nodes(value, value)]


def _tuple(encoder: _Encoder, value: tuple[Any, ...]) -> Any:
    return [Tag.TUPLE, *encoder.nodes(value, value)]


def _named(encoder: _Encoder, value: tuple[Any, ...]) -> Any:
    if getattr(value, "__dict__", None):
        return encoder.pickled(value)
    return [Tag.NAMED, class_path(_class_of(value)), *encoder.nodes(value, value)]


def _dataclass(encoder: _Encoder, value: Any) -> Any:
    names = _plain_fields(_class_of(value)) or ()
    state = getattr(value, "__dict__", None)
    if state is not None and not state.keys() <= set(names):
        return encoder.pickled(value)
    present = [name for name in names if hasattr(value, name)]
    values = encoder.nodes([getattr(value, name) for name in present], value)
    return [Tag.DATACLASS, class_path(_class_of(value)), present, values]


def _array(encoder: _Encoder, value: Array) -> Any:
    dtype = value.dtype
    try:
        plain = dtypes.describe(dtype)
    except ValueError:
        return encoder.pickled(value)
    shape = value.shape
    if not value.flags.c_contiguous:
        value = np.ascontiguousarray(value)
    size = value.nbytes
    # Dates, extensions and structures have no buffer protocol of their own; as bytes they do.
    buffer = (
        value if (dtype.kind in _PLAIN_KINDS and dtype.isbuiltin == 1) or not size else value.reshape(-1).view(np.uint8)
    )
    return [Tag.ARRAY, plain, shape, encoder.place(buffer, size)]


def _scalar(encoder: _Encoder, value: np.generic) -> Any:
    try:
        return [Tag.SCALAR, dtypes.describe(value.dtype), value.tobytes()[: value.dtype.itemsize]]
    except ValueError:
        return encoder.pickled(value)


def _tensor(encoder: _Encoder, value: Any) -> Any:
    try:
        array, _ = dtypes.tensor_array(value)
    except ValueError:
        return encoder.pickled(value)
    size = array.nbytes
    buffer = array.reshape(-1).view(np.uint8) if size and array.dtype.kind == "V" else array
    return [Tag.TENSOR, dtypes.torch_name(value.dtype), array.shape, encoder.place(buffer, size)]


def _pickled(encoder: _Encoder, value: Any) -> Any:
    return encoder.pickled(value)


_HANDLERS: dict[type, _Handler] = {
    type(None): _itself,
    bool: _itself,
    float: _itself,
    int: _int,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    bytearray: _bytearray,
    dict: _dict,
    OrderedDict: _ordered,
    list: _list,
    tuple: _tuple,
    np.ndarray: _array,
}


def _classify(value: Any) -> _Handler:
    """The handler of a value whose exact type has no handler."""
    cls = type(value)
    if dtypes.is_tensor(value):
        return _tensor if cls.__name__ in ("Tensor", "Parameter") and cls.__module__.startswith("torch") else _pickled
    if isinstance(value, np.generic):
        return _scalar
    if cls is np.memmap:
        return _array
    if isinstance(value, tuple) and hasattr(cls, "_fields") and not _overrides(cls, "__reduce_ex__"):
        return _named
    if dataclasses.is_dataclass(cls) and _plain_fields(cls) is not None:
        return _dataclass
    return _pickled


def _overrides(cls: type, name: str) -> bool:
    """Whether a class or one of its bases, except object, defines `name`."""
    return any(name in vars(base) for base in cls.__mro__[:-1])


@functools.lru_cache(maxsize=1024)
def _plain_fields(cls: type) -> tuple[str, ...] | None:
    """Field names of a dataclass that has no other state; None for a class with its own pickling."""
    if any(_overrides(cls, name) for name in ("__new__", "__reduce__", "__reduce_ex__", "__getnewargs__")):
        return None  # classes derived from dict, list and the like have their own __new__ too
    for name in ("__getstate__", "__setstate__"):
        method = getattr(cls, name, None)
        if _overrides(cls, name) and not getattr(method, "__qualname__", "").startswith("_dataclass_"):
            return None
    return tuple(field.name for field in dataclasses.fields(cls))


def _pickle(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    stream = io.BytesIO()
    try:
        _Pickler(stream, buffers).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise TypeError(f"a {type(value).__qualname__} cannot be put: {type(error).__name__}: {error}") from error
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles with buffers out of band, torch's included (torch itself would copy them into the stream)."""

    def __init__(self, stream: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(stream, _PROTOCOL, buffer_callback=buffers.append)

    def reducer_override(self, value: Any) -> Any:
        """The reduction of a dense tensor; NotImplemented (the usual pickling) for all other objects."""
        if not dtypes.is_tensor(value) or type(value).__name__ != "Tensor":
            return NotImplemented
        try:
            array, _ = dtypes.tensor_array(value)
        except ValueError:
            return NotImplemented
        raw = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
        return rebuild_tensor, (pickle.PickleBuffer(raw.data), dtypes.torch_name(value.dtype), tuple(value.shape))
