"""The memory of arrays and tensors that a tree is written from or read into."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base import dtypes
from di_store.base.dtypes import Array
from di_store.checkpoint.tree.file_format import PAGE, PIECE_BYTES
from di_store.objects.codec import ArrayLeaf

ALIGNMENT = 64


def address(buffer: Any) -> int:
    """Address of the first byte of a C-contiguous buffer that is not empty."""
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    found: int = array.__array_interface__["data"][0]
    return found


def fresh_bytes(size: int, offset: int) -> Array:
    """Untouched memory for bytes at `offset` of a payload.

    Large memory has the same alignment as these bytes, so that the disk can write to it. numpy asks for huge pages;
    without them a load would mostly wait for the first touch of each page.
    """
    unit = PAGE if size >= PIECE_BYTES else ALIGNMENT
    raw = np.empty(size + unit, np.uint8)
    return raw[(offset - address(raw)) % unit :][:size]


def fresh(leaf: ArrayLeaf) -> Any:
    """A new array or tensor for a leaf, without content."""
    if not leaf.tensor:
        if not leaf.bytes:
            return np.empty(leaf.shape, leaf.dtype)
        return np.ndarray(leaf.shape, leaf.dtype, fresh_bytes(leaf.bytes, leaf.offset))
    torch = dtypes.import_torch("a checkpoint with tensors")
    if not leaf.bytes:
        return torch.empty(leaf.shape, dtype=leaf.dtype)
    return torch.from_numpy(fresh_bytes(leaf.bytes, leaf.offset)).view(leaf.dtype).view(leaf.shape)


class Target:
    """The memory that a leaf is read into: `address`; call `finish()` after its bytes were read."""

    def __init__(self, value: Any, leaf: ArrayLeaf) -> None:
        """`value`: an array or tensor that fits the leaf (`misfit`)."""
        self.value = value
        self._staging: Any = None
        direct = _tensor_is_plain(value) if leaf.tensor else value.flags.c_contiguous
        if not direct:
            self._staging = fresh(leaf)
        at = value if direct else self._staging
        self.address: int = 0
        if leaf.bytes:
            self.address = at.data_ptr() if leaf.tensor else address(at)

    def finish(self) -> None:
        """Copy the bytes to their target if they could not be read directly: to a GPU, or to memory with gaps."""
        if self._staging is None:
            return
        if isinstance(self.value, np.ndarray):
            self.value[...] = self._staging
        else:
            self.value.detach().copy_(self._staging)
        self._staging = None


def _tensor_is_plain(tensor: Any) -> bool:
    return bool(tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def misfit(value: Any, leaf: ArrayLeaf) -> str | None:
    """The reason why a leaf cannot be read into an array or tensor; None: it can."""
    if leaf.tensor != dtypes.is_tensor(value):
        return f"is a {'torch tensor' if leaf.tensor else 'numpy array'} in the checkpoint, into= has a {_kind(value)}"
    if value.dtype != leaf.dtype or tuple(value.shape) != leaf.shape:
        kept, given = (f"{_name(each.dtype)}{list(each.shape)}" for each in (leaf, value))
        return f"is {kept} in the checkpoint, {given} in into="
    if leaf.tensor:
        torch = dtypes.import_torch("a checkpoint with tensors")
        plain = value.layout is torch.strided and not value.is_meta
        return None if plain else f"is a {value.layout} tensor on {value.device} in into=, which cannot be filled"
    return None if value.flags.writeable else "is read-only in into="


def _kind(value: Any) -> str:
    return "torch tensor" if dtypes.is_tensor(value) else "numpy array"


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
