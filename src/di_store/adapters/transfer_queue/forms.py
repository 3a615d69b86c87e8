"""The stored forms of the values of a sample."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorStack

from di_store.adapters.torch_types import NUMPY_TYPES, array_of
from di_store.base.buffers import take_buffer

Array: TypeAlias = NDArray[Any]

LEAVES = frozenset({str, bytes, int, float, bool, complex, type(None), torch.Tensor})
"""Types of values that `Store.get_many` returns as the reader's own, without arrays that lie in the store."""


_POOLED_BYTES = 1 << 20
"""Results of this size are in memory that was used before, if there is some."""


class Kept(NamedTuple):
    """A numpy array that was put as an array: a bare array in the store stands for a tensor."""

    value: Any


class StoredForms(list[Any]):
    """Values in the form in which they are stored."""


def _plain(tensor: Any) -> Array | None:
    """A tensor on the CPU as an array over the same memory, others as a copy; None: numpy has no such type."""
    if tensor.dtype not in NUMPY_TYPES or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return array_of(tensor)


def form(value: Any) -> Any:
    """The stored form of a value: an array for a tensor, `Kept` for an array, other values unchanged."""
    if isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            array = _plain(value)
            return value if array is None else array
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return Kept(value)
    return value


def rows(field: Any) -> Iterable[Any]:
    """The stored forms of the samples of a field of a TensorDict."""
    if not isinstance(field, torch.Tensor):
        return map(form, field)
    if field.is_nested:
        return _nested_rows(field)
    array = _plain(field)
    if array is None:
        return list(field)
    if array.ndim == 1:
        return [array[at, ...] for at in range(len(array))]  # arrays without dimensions; iteration would give scalars
    return list(array if array.flags.c_contiguous else np.ascontiguousarray(array))


def _nested_rows(field: Any) -> Iterable[Any]:
    """As `_rows`, of a nested tensor."""
    if field.layout is torch.jagged and field.lengths() is None:
        values, offsets = field.values(), field.offsets().tolist()
        array = _plain(values)
        # Only where the ragged dimension comes first do the samples lie one after the other in the values.
        if array is not None and offsets[-1] == len(array) and field.dim() == values.dim() + 1 and _ragged_first(field):
            array = np.ascontiguousarray(array)
            return [array[begin:end] for begin, end in itertools.pairwise(offsets)]
    return map(form, field.unbind())


def _ragged_first(field: Any) -> bool:
    """Whether the samples of a jagged tensor differ in their first dimension."""
    return isinstance(field.shape[1], torch.SymInt)


def value_of(form: Any) -> Any:
    """The value of a stored form. Tensors are copied out of the store."""
    if type(form) is np.ndarray:
        return torch.from_numpy(form.copy())
    return form.value if type(form) is Kept else form


def column(forms: list[Any]) -> Any:
    """A field of a TensorDict from the stored forms of its samples, as TransferQueue's own storage returns it.

    Tensors become a nested tensor, jagged if their shapes allow it. Tensors without dimensions become one tensor.
    """
    if all(type(each) is np.ndarray for each in forms):
        first = forms[0]
        if len({(each.dtype, each.shape[1:], each.ndim) for each in forms}) == 1:
            return _jagged(forms) if first.ndim else torch.from_numpy(np.array(forms))
    forms = [value_of(each) for each in forms]
    if not (isinstance(forms[0], torch.Tensor) and isinstance(forms[-1], torch.Tensor)):
        return NonTensorStack(*forms)
    if all(isinstance(each, torch.Tensor) and each.dim() == 0 for each in forms):
        return torch.stack(forms)
    for layout in (torch.jagged, torch.strided):
        try:
            return torch.nested.as_nested_tensor(forms, layout=layout)
        except (RuntimeError, TypeError):
            continue
    return NonTensorStack(*forms)


def _jagged(arrays: list[Array]) -> Any:
    """A nested tensor of arrays that differ in their first dimension only. The one copy out of the store."""
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    first = arrays[0]
    shape = int(offsets[-1]), *first.shape[1:]
    size = math.prod(shape) * first.dtype.itemsize
    # Fresh pages cost more than the copy.
    memory = take_buffer(size) if size >= _POOLED_BYTES else np.empty(size, np.uint8)
    values = memory.view(first.dtype).reshape(shape)
    np.concatenate(arrays, out=values)
    return torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(values),
        torch.from_numpy(offsets),
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )
