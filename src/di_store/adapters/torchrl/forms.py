"""Converts the contents of a storage (a TensorDict, tensorclass, tensor or tree of tensors) to columns and back."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection, is_tensorclass
from tensordict.utils import is_non_tensor
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

import di_store
from di_store.adapters.casts import cast
from di_store.adapters.stored_array import Array
from di_store.adapters.torch_types import NUMPY_TYPES, array_of

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_CARRIERS = {1: torch.uint8, 2: torch.int16}
"""By bytes: the type that carries the bits of a float that numpy lacks."""
SLOT = "slot"
tensor_dict = getattr(TensorDict, "_new_unsafe", TensorDict)
"""Makes a TensorDict without checking each tensor, which would take most of a small batch's time. Versions of
TensorDict that cannot skip these checks make them."""


def cast_tensor(tensor: Any, dtype: torch.dtype, what: str) -> Any:
    """A tensor as another type.

    Raises:
        di_store.SchemaMismatch: the tensor has a value that the type cannot hold.
    """
    if tensor.dtype in NUMPY_TYPES and dtype in NUMPY_TYPES:
        return torch.from_numpy(cast(array_of(tensor), NUMPY_TYPES[dtype], what))
    found = tensor.to(dtype)
    if not (torch.isfinite(found.float()) | ~torch.isfinite(tensor.double())).all():
        raise di_store.SchemaMismatch(
            f"{what} is {dtype}, and was given a value beyond its range", remedy="scale it, or store a wider type"
        )
    return found


@dataclass(frozen=True)
class Leaf:
    """One tensor of a row.

    Attributes:
        path: its path in the row.
        column: name of its column; "" if it has no bytes.
        dtype: type of the tensor.
        carrier: type that the table uses for it.
        shape: shape in one row.
    """

    path: tuple[str, ...]
    column: str
    dtype: torch.dtype
    carrier: torch.dtype
    shape: tuple[int, ...]

    @property
    def spec(self) -> di_store.Spec:
        """Type of the leaf's column."""
        return di_store.Spec(self.shape, NUMPY_TYPES[self.carrier])

    def array(self, tensor: Any, lead: tuple[int, ...]) -> Array:
        """A tensor ``[*lead, *shape]``, or one that broadcasts to it, as the array of its column, ``[n, *shape]``."""
        if tensor.dtype is not self.dtype:
            tensor = cast_tensor(tensor, self.dtype, "/".join(self.path) or "the tensor")
        if tensor.shape != (*lead, *self.shape):
            tensor = self._expanded(tensor, lead)
        if len(lead) != 1:
            tensor = tensor.reshape((-1, *self.shape))
        if self.carrier is not self.dtype:
            tensor = tensor.contiguous().view(self.carrier)
        return array_of(tensor)

    def _expanded(self, tensor: Any, lead: tuple[int, ...]) -> Any:
        try:
            return tensor.expand((*lead, *self.shape))
        except RuntimeError:
            name = "/".join(self.path) or "the tensor"
            raise ValueError(
                f"{name} is {list(tensor.shape)} for {list(lead)} rows, and the first rows that the storage was given "
                f"have {list(self.shape)} each"
            ) from None

    def empty(self, lead: tuple[int, ...]) -> Any:
        """The tensor of rows without bytes."""
        return torch.empty((*lead, *self.shape), dtype=self.dtype)

    def tensor(self, array: Array, lead: tuple[int, ...]) -> Any:
        """The tensor ``[*lead, *shape]`` over the memory of its column's array."""
        found = torch.from_numpy(array)
        if self.carrier is not self.dtype:
            found = found.view(self.dtype)
        return found if len(lead) == 1 else found.reshape((*lead, *self.shape))


@dataclass
class DictNode:
    """One TensorDict of a row, or tensorclass.

    Attributes:
        children: by key: the number of a leaf, or a node.
        batch: the axes of its batch size after those that all rows share.
        kind: its tensorclass; None: a TensorDict.
    """

    children: dict[str, int | DictNode] = field(default_factory=dict)
    batch: tuple[int, ...] = ()
    kind: Any = None

    def find(self, key: tuple[str, ...]) -> int | DictNode | None:
        """The part of this name."""
        found: int | DictNode | None = self
        for each in key:
            found = found.children.get(each) if isinstance(found, DictNode) else None
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"kind": _pickled_class(self.kind)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"kind": pickle.loads(state["kind"])})


class Form:
    """The structure of rows, as the first rows had it. It pickles, so that other processes read the same.

    Args:
        rows: rows ``[*lead, …]``, of which only types and shapes are used.
        lead: number of leading axes that count rows.

    Attributes:
        leaves: all tensors of a row.
        root: root node of TensorDicts; None: rows are trees of other containers, or tensors.
        inner: the storage's axes after the first one.
        width: rows of one step along the first axis.

    Raises:
        TypeError: a part is not a tensor with values of fixed size in memory.
    """

    def __init__(self, rows: Any, lead: int, inner: tuple[int, ...]) -> None:
        self.leaves: list[Leaf] = []
        self.inner, self.width = inner, math.prod(inner)
        self.root: DictNode | None = None
        self._tree: Any = None
        if is_tensor_collection(rows):
            self.root = self._node(rows, lead, ())
        else:
            found, self._tree = tree_flatten_with_path(rows)
            for path, tensor in found:
                self._leaf(tensor, lead, tuple(str(getattr(part, "key", getattr(part, "idx", part))) for part in path))
        if not self.leaves:
            raise TypeError("a row without tensors cannot be stored: give a TensorDict, a tensor or a tree of tensors")

    def _node(self, rows: Any, lead: int, path: tuple[str, ...]) -> DictNode:
        node = DictNode(batch=tuple(rows.batch_size[lead:]), kind=type(rows) if is_tensorclass(rows) else None)
        for key in rows.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            value = rows.get(key)
            if is_tensor_collection(value) and not is_non_tensor(value):
                node.children[key] = self._node(value, lead, (*path, key))
            else:
                node.children[key] = self._leaf(value, lead, (*path, key))
        return node

    def _leaf(self, tensor: Any, lead: int, path: tuple[str, ...]) -> int:
        name = "/".join(path) or "the data"
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} is a {type(tensor).__name__}, and this storage holds tensors only: leave it out "
                "(torchrl's ExcludeTransform), or use torchrl's ListStorage"
            )
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise TypeError(
                f"{name} is a {'nested' if tensor.is_nested else tensor.layout} tensor, and this storage holds dense "
                "ones: give the result of its to_dense() or to_padded_tensor()"
            )
        carrier = tensor.dtype if tensor.dtype in NUMPY_TYPES else _CARRIERS.get(tensor.dtype.itemsize)
        if carrier is None or (carrier is not tensor.dtype and not tensor.is_floating_point()):
            raise TypeError(f"{name} is {tensor.dtype}, which this storage does not hold: cast it")
        shape, number = tuple(tensor.shape[lead:]), len(self.leaves)
        column = ".".join(path)
        taken = {leaf.column for leaf in self.leaves} | {SLOT}
        if not _PLAIN.fullmatch(column) or column in taken:
            column = f"column{number}"
        self.leaves.append(Leaf(path, column if np.prod(shape) else "", tensor.dtype, carrier, shape))
        return number

    @property
    def columns(self) -> dict[str, di_store.Spec]:
        """The types of all columns."""
        return {leaf.column: leaf.spec for leaf in self.leaves if leaf.column}

    def values(self, rows: Any) -> list[Any]:
        """The tensors of rows, in the order of `leaves`; None for tensors that the rows lack.

        Raises:
            TypeError: the rows are another kind of container.
        """
        if self.root is not None:
            if not is_tensor_collection(rows):
                raise TypeError(f"this storage holds TensorDicts, and was given a {type(rows).__name__}")
            found: list[Any] = [None] * len(self.leaves)
            _collect(self.root, rows, found)
            return found
        flat: list[Any]
        flat, tree = tree_flatten(rows)
        if tree != self._tree:
            raise TypeError(f"this storage holds {self._tree}, and was given {tree}")
        return flat

    def build(self, tensor: Callable[[int], Any], lead: tuple[int, ...], device: Any) -> Any:
        """Rows, from a function that returns the tensor of a leaf's number."""
        if self.root is None:
            return tree_unflatten([tensor(number) for number in range(len(self.leaves))], self._tree)
        return build(self.root, tensor, torch.Size(lead), device)


def _pickled_class(kind: Any) -> bytes:
    """A class by its name, or by its definition if it cannot be imported, like a class defined in a function."""
    try:
        return pickle.dumps(kind)
    except (AttributeError, pickle.PicklingError):
        return bytes(cloudpickle.dumps(kind))


def build(node: DictNode, tensor: Callable[[int], Any], lead: torch.Size, device: Any) -> Any:
    """The TensorDict or tensorclass of a node."""
    source = {
        key: build(child, tensor, lead, device) if isinstance(child, DictNode) else tensor(child)
        for key, child in node.children.items()
    }
    size = torch.Size((*lead, *node.batch)) if node.batch else lead
    found = tensor_dict(source=source, batch_size=size, device=device)
    return found if node.kind is None else node.kind.from_tensordict(found)


def _collect(node: DictNode, rows: Any, found: list[Any]) -> None:
    for key, child in node.children.items():
        value = rows.get(key, None)
        if isinstance(child, DictNode):
            if value is not None:
                _collect(child, value, found)
        else:
            found[child] = value
