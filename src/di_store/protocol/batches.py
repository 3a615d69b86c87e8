"""Batches from an agent to a learner: the bytes of the arrays, and a form that says which array is which."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from di_store.base import dtypes
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.base.tree import MAX_DEPTH
from di_store.columns.ragged import Ragged
from di_store.protocol.frame import Buffer
from di_store.protocol.handshake import decoded
from di_store.protocol.values import padded, texts, warn
from di_store.replay.batch import Batch, load_values
from di_store.replay.keys import plain

_ALIGNMENT = 64
_PARTS = ("keys", "priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts")
_OF_ROWS = ("versions", "episodes", "starts")  # of groups these have an axis of answers
_OPTIONAL = ("live", "source")
_LEASE = "lease"  # of a batch with a lease, for each item the number of its draw
_KINDS = ("u8", "f8", "f8", "f4", "i4", "i8", "i8", "i8", "?", "i4", "u8")
_TYPES = dict(zip((*_PARTS, *_OPTIONAL, _LEASE), map(np.dtype, _KINDS), strict=True))


class BatchLeaf(msgspec.Struct, array_like=True):
    """One array of a batch: its path in `data` (or the name of a part), dtype and shape."""

    path: list[str]
    dtype: Any
    shape: list[int]


class BatchForm(msgspec.Struct, array_like=True):
    """The content of a batch's body.

    Attributes:
        leaves: leaves of `data`, in order; ragged leaves come as their values, followed by their offsets.
        ragged: numbers of the leaves that are ragged values, each with the shape of its rows.
        opaque: whether `data` are Python values. Then the two leaves are the values' bytes and their ends.
        parts: the other arrays, with their names as paths.
        table_size: as `Batch.table_size`.
        draws: the agent's number of the held draws; 0: the draws were delivered.
        warnings: texts of the warnings of the call.
    """

    leaves: list[BatchLeaf]
    ragged: dict[int, list[int]]
    opaque: bool
    parts: list[BatchLeaf]
    table_size: int
    draws: int
    warnings: list[str]


def pack_batch(batch: Batch, *, draws: int = 0, told: list[str] | None = None) -> tuple[bytes, list[Buffer]]:
    """A batch as meta and body of a message.

    Args:
        batch: for an opaque table, `data` is a pair: the bytes of all values, and the end of each
            (`serving.keep_encoded`).
        draws: the agent's number of the held draws; 0: the draws were delivered.
        told: texts of the warnings of the call.
    """
    leaves: list[BatchLeaf] = []
    arrays: list[Array] = []
    lead: dict[int, list[int]] = {}
    opaque = not isinstance(batch.data, dict)
    _add((), batch.data, leaves, arrays, lead)
    parts = [(name, getattr(batch, name)) for name in (*_PARTS, *_OPTIONAL)]
    given = [(name, each) for name, each in parts if each is not None]
    if batch.lease is not None:
        numbers = np.array(batch.lease.number, np.uint64)  # one, or one for each table of a mixture
        given.append((_LEASE, np.full(len(batch), numbers) if batch.source is None else numbers[batch.source]))
    form = BatchForm(
        leaves,
        lead,
        opaque,
        [BatchLeaf([name], dtypes.describe(each.dtype), list(each.shape)) for name, each in given],
        batch.table_size,
        draws,
        texts(told or []),
    )
    return msgspec.msgpack.encode(form), padded(arrays + [each for _, each in given])


def _add(
    path: tuple[str, ...], value: Any, leaves: list[BatchLeaf], arrays: list[Array], lead: dict[int, list[int]]
) -> None:
    """Add the arrays of a value.

    This is no nested function: a nested function that calls itself is part of a reference cycle. It would keep the
    batch's memory until the garbage collector runs, so that each batch took fresh pages.
    """
    if isinstance(value, dict):
        for name, each in value.items():
            _add((*path, name), each, leaves, arrays, lead)
        return
    if isinstance(value, Ragged):
        lead[len(leaves)] = list(value.lead)
        value = (value.values, value.offsets)
    for each in value if isinstance(value, tuple) else (value,):
        leaves.append(BatchLeaf(list(path), dtypes.describe(each.dtype), list(each.shape)))
        arrays.append(each)


def unpack_batch(
    meta: bytes, body: Array, *, trusted: bool, what: str = "a batch"
) -> tuple[Batch, int, dict[int, int]]:
    """The batch, whose arrays are views of `body`, the number of its draws, and the numbers of its lease.

    The latter come by place of the table in a mixture, 0 if there is one table. Without a lease there are none.

    Args:
        meta: meta of the message.
        body: body of the message.
        trusted: whether pickled values of an opaque table are loaded.
        what: the owner of the batch, for error texts.

    Raises:
        CorruptData: the data are no batch. Others as in `load_values`.
    """
    form = decoded(BatchForm, meta)
    reader = _Reader(body)
    arrays = [reader.take(leaf) for leaf in form.leaves]
    parts = {leaf.path[0]: reader.take(leaf) for leaf in form.parts if len(leaf.path) == 1}
    _check_parts(parts)
    warn(form.warnings)
    data = _values(parts, arrays, trusted, what) if form.opaque else _columns(form, arrays)
    batch = Batch(data, *(parts[name] for name in _PARTS), form.table_size, parts.get("live"))
    batch.source = parts.get("source")
    return batch, form.draws, _lease_numbers(parts)


def _lease_numbers(parts: dict[str, Array]) -> dict[int, int]:
    if (numbers := parts.get(_LEASE)) is None:
        return {}
    places = parts.get("source", np.zeros(len(numbers), np.int32))
    pairs = set(zip(places.tolist(), numbers.tolist(), strict=True))
    if len(found := dict(pairs)) < len(pairs):
        raise CorruptData("received a batch of several draws with a lease", remedy="")
    return found


def _check_parts(parts: dict[str, Array]) -> None:
    """CorruptData unless these are valid data of a batch's items."""
    if any(name not in parts for name in _PARTS):
        raise CorruptData("received a batch with missing parts", remedy="")
    for name, each in parts.items():
        shape = each.shape[:1] if name in _OF_ROWS and each.ndim == 2 else each.shape
        if name not in _TYPES or each.dtype != _TYPES[name] or shape != parts["keys"].shape[:1]:
            raise CorruptData(
                f"received a batch whose {name[:40]!r} have dtype {each.dtype} and shape {each.shape}", remedy=""
            )


def _values(parts: dict[str, Array], arrays: list[Array], trusted: bool, what: str) -> list[Any]:
    """The values of an opaque table, from their bytes and ends."""
    if not arrays:
        return []
    if len(arrays) != 2:
        raise CorruptData("received a batch of values that is not a pair of arrays", remedy="")
    raw, ends = arrays
    if (
        raw.dtype != np.uint8
        or raw.ndim != 1
        or not _are_offsets(ends, len(raw))
        or len(ends) != len(parts["keys"]) + 1
    ):
        raise CorruptData("received a batch of values without their offsets", remedy="")
    return load_values(plain(parts["keys"]), raw, ends, not trusted, what=what, source=parts.get("source"))


def _columns(form: BatchForm, arrays: list[Array]) -> dict[str, Any]:
    """The columns by name, nested as in rows."""
    data: dict[str, Any] = {}
    at = 0
    while at < len(arrays):
        value: Any = arrays[at]
        path = form.leaves[at].path
        if (lead := form.ragged.get(at)) is not None:
            at += 1
            if at == len(arrays) or not value.ndim or not _are_offsets(arrays[at], len(value)):
                raise CorruptData("received a batch with a ragged column without offsets", remedy="")
            if any(size < 0 for size in lead) or math.prod(lead) != len(arrays[at]) - 1 or not lead:
                raise CorruptData(
                    "received a batch with a ragged column whose shape does not fit its offsets", remedy=""
                )
            value = Ragged(value, arrays[at], tuple(lead))
        _place(data, path, value)
        at += 1
    return data


def _are_offsets(offsets: Array, total: int) -> bool:
    """Whether these are places in `total` elements, in order."""
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.dtype.itemsize != 8 or not len(offsets):
        return False
    return bool(offsets[0] >= 0 and offsets[-1] <= total and (offsets[1:] >= offsets[:-1]).all())


def _place(data: dict[str, Any], path: list[str], value: Any) -> None:
    if not 0 < len(path) <= MAX_DEPTH + 1:
        raise CorruptData("received a batch with a column without a name", remedy="")
    node = data
    for name in path[:-1]:
        node = node.setdefault(name, {})
        if type(node) is not dict:
            raise CorruptData("received a batch with a column inside another column", remedy="")
    if path[-1] in node:
        raise CorruptData("received a batch with two columns of the same name", remedy="")
    node[path[-1]] = value


class _Reader:
    """Takes arrays from a body, one after the other."""

    def __init__(self, body: Array) -> None:
        self._body = body
        self._at = 0

    def take(self, leaf: BatchLeaf) -> Array:
        try:
            dtype = dtypes.parse(leaf.dtype)
        except ValueError as error:
            raise CorruptData(f"received a batch with an array of unknown dtype: {error}", remedy="") from None
        if min(leaf.shape, default=0) < 0 or not dtype.itemsize:
            raise CorruptData("received a batch with an array of invalid shape", remedy="")
        size = math.prod(leaf.shape) * dtype.itemsize
        if dtype.hasobject or self._at + size > len(self._body):
            raise CorruptData("received a batch with an array that reaches beyond its end", remedy="")
        found: Array
        try:
            found = np.ndarray(leaf.shape, dtype, self._body, self._at if size else 0)
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptData(f"received a batch with an array of invalid shape: {error}", remedy="") from None
        self._at += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found
