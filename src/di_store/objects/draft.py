"""Drafts: objects that are written in place, without a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from di_store import _core
from di_store.base import dtypes, tree
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, StoreError, shown
from di_store.base.sizes import format_size
from di_store.objects import codec
from di_store.objects.access import written
from di_store.objects.refs import Ref
from di_store.session import Session

_ALIGNMENT = 64


class Draft:
    """An object that is being written in place: `Store.reserve` makes it, `seal` makes it readable for others.

    As a context manager, a draft seals at the end of the block, or discards if the block raises. A draft that is
    dropped without `seal` or `discard` is discarded. If its process dies, the draft is freed.
    """

    def __init__(self, native: _core.Reserved, value: Any, arrays: list[Array]) -> None:
        self._native: _core.Reserved | None = native
        self._value = value
        self._arrays = arrays
        self._ref: Ref | None = None
        self._raw = native.id

    @property
    def value(self) -> Any:
        """The arrays to write to, in the shape of the spec: writable, in shared memory, with undefined content.

        They become read-only at `seal` or `discard`. Arrays and tensors that you made from them earlier stay writable:
        do not write to them any more. The memory stays valid until the last of these arrays is deleted. A forked child
        may write to the arrays only while this process keeps the draft open: in the child they keep no memory alive and
        stay writable.
        """
        return self._value

    @property
    def id(self) -> str:
        """The object's id: 40 hex characters."""
        return self._raw.hex()

    def seal(self) -> Ref:
        """Make the object readable, and return its ref. A second call returns the same ref.

        Raises:
            StoreError: the draft was discarded, or belongs to the parent process. Timeout: another process held the
            store's lock; the draft is unchanged, call `seal` again.
        """
        if self._ref is None:
            if self._native is None:
                raise StoreError("this draft was discarded", remedy="reserve another one with store.reserve()")
            self._native.seal()
            self._ref = Ref(self._raw)
            self._end()
        return self._ref

    def discard(self) -> None:
        """Give the object up. Its bytes and its id are freed when the last array over them is deleted."""
        if self._ref is None:
            self._value = None
            self._end()

    def _end(self) -> None:
        for array in self._arrays:
            array.flags.writeable = False
        self._arrays = []
        self._native = None  # the arrays keep what they need of it

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._native is not None:
            self.seal()
        else:
            self.discard()

    def __repr__(self) -> str:
        state = "sealed" if self._ref is not None else "discarded" if self._native is None else "open"
        return f"<Draft {self.id} ({state})>"


def reserve(session: Session, spec: Any, raw: bytes | None, ttl: float, timeout: float | None) -> Draft:
    """`Store.reserve`."""
    leaves = tree.flatten(spec, what="spec") if isinstance(spec, Mapping) else {"": spec}
    types = {name: _type_of(name, leaf) for name, leaf in leaves.items()}
    total = sum(-(-_bytes(shape, dtype) // _ALIGNMENT) * _ALIGNMENT for shape, dtype in types.values())
    budget = session.arena.budget
    if total > budget:
        raise CapacityError(
            f"reserve() of {format_size(total)} does not fit a store of {format_size(budget)}",
            remedy="raise memory= with store.resize(memory=), or split the object",
        )
    # These pages are never touched: the codec only needs to know what lies where.
    shapes = {name: np.empty(shape, dtype) for name, (shape, dtype) in types.items()}
    encoded = codec.encode(tree.unflatten(shapes) if isinstance(spec, Mapping) else shapes[""])
    write = partial(_reserved, encoded.header, encoded.payload_bytes, raw, ttl)
    native = written(session, timeout, "reserve", write)
    payload, offsets = native.payload(), iter(encoded.offsets)
    placed: dict[str, Array] = {}
    for name, like in _in_order(spec, shapes):
        at = next(offsets) if like.nbytes else 0
        placed[name] = payload[at : at + like.nbytes].view(like.dtype).reshape(like.shape)
    value = tree.unflatten(placed) if isinstance(spec, Mapping) else placed[""]
    return Draft(native, value, [payload, *placed.values()])


def _reserved(header: bytes, payload: int, raw: bytes | None, ttl: float, arena: _core.Arena) -> _core.Reserved:
    return arena.reserve(header, payload, raw, ttl)


def _in_order(spec: Any, shapes: dict[str, Array]) -> list[tuple[str, Array]]:
    """The arrays in the order of the nested dict, in which the codec places them."""
    if not isinstance(spec, Mapping):
        return list(shapes.items())
    return list(tree.flatten(tree.unflatten(shapes), what="spec").items())


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _type_of(name: str, leaf: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one leaf.

    Raises:
        ValueError: no shape or dtype, a dimension of no size, a dtype that numpy's arrays cannot have.
    """
    what = f"spec[{name!r}]" if name else "spec"
    try:
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    except RuntimeError:  # a nested tensor of torch says so
        shape = dtype = None
    if shape is None or dtype is None:
        raise ValueError(f"{what}={shown(leaf)}: give di_store.Spec(shape, dtype), or anything with shape and dtype")
    try:
        sizes = tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise ValueError(f"{what}: shape={shown(shape)}: an object has a fixed size, give whole numbers")
    storage, extension = dtypes.resolve(dtype)
    if extension:
        found = dtypes.extension_dtype(extension)
        if found is None:
            raise ValueError(f"{what}: dtype {extension} needs the package ml_dtypes, or reserve it as uint16 or uint8")
        storage = found
    return sizes, storage
