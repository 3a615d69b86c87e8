"""Many rows of a storage as a TensorDict, whose tensors are read when they are accessed.

So a sampler that looks for the ends of trajectories in all rows, `storage[:]["next", "done"]`, reads one column.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection

from di_store.adapters.torchrl.forms import DictNode, cast_tensor, tensor_dict


class View(TensorDict):  # type: ignore[misc]
    """Rows of a storage. Reading gives copies; methods that end in ``_``, and ``view[index] = …``, write to them."""

    @classmethod
    def over(cls, storage: Any, numbers: Any, first: bool) -> View:
        """A view.

        Args:
            storage: the storage.
            numbers: slots of the rows, a tensor of any shape.
            first: whether these are the first slots, in order.
        """
        root, size, device = storage.named.form.root, numbers.shape, storage.device
        read = functools.partial(storage.named.column, slots=numbers.reshape(-1).numpy(), lead=tuple(size), first=first)
        view: View = super()._new_unsafe(source={}, batch_size=torch.Size((*size, *root.batch)), device=device)
        view._tensordict = _Columns(root, read, size, device)
        view._stored, view._slots = storage, numbers
        return view

    def _write(self, data: Any, index: Any) -> None:
        """Set some of the rows: some of their leaves."""
        self._stored._put(self._slots[torch_index(index)], data)

    @classmethod
    def _new_unsafe(cls, *values: Any, **options: Any) -> TensorDict:
        """A TensorDict made from a view, such as a clone, is an ordinary one."""
        return TensorDict._new_unsafe(*values, **options)

    def __setitem__(self, index: Any, value: Any) -> None:
        """As TensorDict's: set some rows, in the storage; with a name as the index, a key of this TensorDict alone."""
        if isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str)):
            super().__setitem__(index, value)
        elif is_tensor_collection(value) or isinstance(value, Mapping):
            self._write(value if is_tensor_collection(value) else TensorDict(value), index)
            self._tensordict.forget(*self._tensordict)
        else:
            for key in list(self.keys(True, True)):
                self.set_at_(key, value, index)

    def transpose(self, dim0: int, dim1: int) -> Any:
        """As in TensorDict. The result writes to the storage too, if both axes are axes of rows."""
        first, second = sorted(axis % self.ndim for axis in (dim0, dim1))
        if second >= self._slots.ndim:
            return super().transpose(dim0, dim1)
        return View.over(self._stored, self._slots.transpose(first, second), False)

    def set_at_(self, key: Any, value: Any, index: Any, **options: Any) -> View:
        """As in TensorDict: set one key of some rows."""
        old = self.get(key)
        changed = old[index].clone()
        changed.copy_(cast_tensor(torch.as_tensor(value), old.dtype, str(key)))
        self._put(key, changed, index)
        return self

    def set_(self, key: Any, value: Any, **options: Any) -> View:
        """As in TensorDict: set one key of all rows."""
        self._put(key, torch.as_tensor(value).expand_as(self.get(key)), slice(None))
        return self

    def update_(self, values: Any, clone: bool = False, *, keys_to_update: Any = None, **options: Any) -> View:
        """As in TensorDict: set some keys of all rows."""
        given = values if is_tensor_collection(values) else TensorDict(values)
        for key in given.keys(True, True) if keys_to_update is None else keys_to_update:
            self.set_(key, given.get(key))
        return self

    def update_at_(self, values: Any, index: Any, clone: bool = False, **options: Any) -> View:
        """As in TensorDict: set some keys of some rows."""
        given = values if is_tensor_collection(values) else TensorDict(values)
        for key in given.keys(True, True):
            self.set_at_(key, given.get(key), index)
        return self

    def _put(self, key: Any, value: Any, index: Any) -> None:
        lead = value.shape[: value.ndim - (self.get(key).ndim - self.ndim)]
        self._write(TensorDict({key: value}, batch_size=lead), index)
        node = self
        *path, last = (key,) if isinstance(key, str) else key
        for each in path:
            node = node.get(each)
        node._tensordict.forget(last)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, (dict(self.items()), self.batch_size, self.device)


def torch_index(index: Any) -> Any:
    """The index in a form that tensors accept: ranges and arrays become tensors."""
    if isinstance(index, (range, np.ndarray)):
        return torch.as_tensor(np.asarray(index))
    if isinstance(index, tuple):
        return tuple(torch_index(each) for each in index)
    return index.cpu() if isinstance(index, torch.Tensor) else index


def _plain(source: dict[str, Any], size: torch.Size, device: Any) -> TensorDict:
    return TensorDict(source, size, device)


class _Columns(dict):  # type: ignore[type-arg]
    """Tensors by key, read at the first use."""

    def __init__(self, node: DictNode, read: Callable[[int], Any], size: torch.Size, device: Any) -> None:
        super().__init__(dict.fromkeys(node.children))
        self._node, self._read, self._size, self._device = node, read, size, device

    def __getitem__(self, key: str) -> Any:
        found = super().__getitem__(key)
        if found is None:
            found = self._made(self._node.children[key])
            super().__setitem__(key, found)
        return found

    def _made(self, child: int | DictNode) -> Any:
        if not isinstance(child, DictNode):
            return self._read(child)
        size = torch.Size((*self._size, *child.batch))
        found = tensor_dict(source={}, batch_size=size, device=self._device)
        found._tensordict = _Columns(child, self._read, self._size, self._device)
        return found if child.kind is None else child.kind.from_tensordict(found)

    def forget(self, *keys: str) -> None:
        """Read these tensors again at their next access."""
        for key in keys:
            super().__setitem__(key, None)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - get() of a dict reads nothing

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:  # dict() and ** then read through __getitem__
        return super().__iter__()

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)
