"""A TorchRL storage whose rows lie in a Di-store table."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection
from torch.utils._pytree import tree_map
from torchrl.data.replay_buffers import LazyTensorStorage, TensorStorage
from torchrl.data.replay_buffers import Storage as AnyStorage

import di_store
from di_store.adapters.stores import StoreLike, given_store
from di_store.adapters.torchrl.named_rows import NamedRows
from di_store.adapters.torchrl.view import View, torch_index
from di_store.adapters.torchrl.writers import continuing

_TURN = "di_store.json"
_AT_ONCE = 4_096
"""Rows that are written at once while a file is loaded."""


class Storage(TensorStorage):  # type: ignore[misc]
    """A replacement for TorchRL's `LazyTensorStorage` and `LazyMemmapStorage`, with all its samplers and writers.

    Rows lie in shared memory, in a table of a store. A storage pickles as a name. The unpickled storage reads and
    writes the same rows, in any process of the machine, even if nothing was written yet. Writers must take turns, as in
    a TorchRL buffer with ``shared=True``.

    Args:
        max_size: number of rows; with `ndim` above 1, elements of all axes.
        device: device of the tensors that it returns. The rows are in the machine's memory.
        ndim: number of axes that count as rows, as in TorchRL.
        store: the store of the rows, see `adapters.stores.StoreLike`; None: a store of its own.
        table: name of the table. Storages with the same table in the same store have the same rows.
        sampler: `di_store.Uniform` or `di_store.Prioritized`: how `ReplayBuffer` draws, if it has no sampler of
            TorchRL's.
        seed: seed of these draws; None: torch's seed.

    Raises:
        ValueError: a size that is no positive number, or (from the first use) differs from that of an existing table.
        TypeError (from the first write): data that are no tensors.
        di_store.CapacityError (from the first write): the rows need more than the machine's memory.
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: Any = "cpu",
        ndim: int = 1,
        store: StoreLike = None,
        table: str = "replay",
        sampler: di_store.Uniform | di_store.Prioritized | None = None,
        seed: int | None = None,
    ) -> None:
        if int(max_size) < 1:
            raise ValueError(f"max_size={max_size!r}: a storage holds at least one row")
        if sampler is not None and not isinstance(sampler, (di_store.Uniform, di_store.Prioritized)):
            raise TypeError(f"sampler={sampler!r}: give di_store.Uniform() or di_store.Prioritized(…)")
        self.ndim = ndim
        AnyStorage.__init__(self, max_size)
        self.device = torch.device(device)
        owner = given_store(store) or di_store.open(memory="fit")
        self.named = NamedRows(owner, table, self.max_size, sampler, seed, self.device)
        self._last_cursor: Any = None
        self._numbers_of_all: Any = None

    @property
    def store(self) -> di_store.Store:
        """The store of the rows."""
        return self.named.store

    @property
    def table(self) -> di_store.Table:
        """The table of the rows.

        Raises:
            RuntimeError: nothing was written yet, so there is no table.
        """
        return self.named.rows.table

    @property
    def initialized(self) -> bool:
        """Whether the first rows have declared the structure of rows, here or in another process."""
        return self.named.declared

    def _init(self, data: Any) -> None:
        """Declare the structure of rows by an example, as TorchRL's storages do; with `ndim` above 1, by one slice."""
        self.named.declare(data, self.ndim - 1, _lead_of(data, self.ndim - 1))

    # -- sizes --------------------------------------------------------------------------------------------------

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __len__(self) -> int:
        return len(self.named)

    @property
    def _len(self) -> int:
        return len(self.named)

    @_len.setter
    def _len(self, value: int) -> None:
        """The table counts its rows."""

    @property
    def _total_shape(self) -> Any:
        if not self.named.declared:
            return None
        inner = self.named.form.inner
        return torch.Size((self.named.size // math.prod(inner), *inner))

    def _numbers(self) -> Any:
        """The slots of all rows, as a tensor of the storage's shape."""
        if self._numbers_of_all is None:
            shape = self._total_shape
            self.max_size = shape.numel()
            self._numbers_of_all = torch.arange(self.max_size).view(shape)
        return self._numbers_of_all

    # -- writing ------------------------------------------------------------------------------------------------

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write rows, as in TorchRL. Keys that the first rows lacked are left out. Missing keys keep their value."""
        if set_cursor:
            self._set_last_cursor(cursor)
        if isinstance(data, list):
            data = _stacked(data)
        if not self.named.declared:
            single = isinstance(cursor, (int, np.integer)) or (isinstance(cursor, torch.Tensor) and not cursor.ndim)
            lead = self.ndim - single
            self.named.declare(data, lead, _lead_of(data, lead)[0 if single else 1 :])
            self._numbers()
        if self.ndim == 1 and type(cursor) is torch.Tensor and cursor.ndim == 1 and cursor.dtype is torch.int64:
            slots = cursor.numpy() if cursor.device.type == "cpu" else cursor.cpu().numpy()
            self.named.write(slots, (len(slots),), data, set_cursor)
        else:
            self._put(self._numbers()[torch_index(cursor)], data, set_cursor)
        self._bump_mutation_revision()

    def _put(self, slots: Any, data: Any, turn: bool = False) -> None:
        self.named.write(slots.reshape(-1).numpy(), tuple(slots.shape), data, turn)

    def attach(self, buffer: Any) -> None:
        """As in TorchRL. A buffer's writer continues after the storage's last row, whichever process wrote it."""
        super().attach(buffer)
        if hasattr(buffer, "_init_writer"):
            buffer._init_writer = functools.partial(continuing, self, buffer._init_writer)

    def _empty(self) -> None:
        if self.named.declared:
            self.named.rows.clear()
        self._bump_mutation_revision()

    # -- reading ------------------------------------------------------------------------------------------------

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def get(self, index: Any) -> Any:
        """Rows, as in TorchRL, in tensors of their own. A slice is read when its tensors are accessed."""
        named = self.named
        if self.ndim == 1 and type(index) is torch.Tensor and index.dtype is torch.int64 and index.ndim == 1:
            slots = index.numpy() if index.device.type == "cpu" else index.cpu().numpy()
            return named.read(slots, (len(slots),))
        if isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str)):
            return self._view((slice(None),)).get(index)
        slices = index if isinstance(index, tuple) else (index,)
        if slices and all(isinstance(each, slice) for each in slices) and named.form.root is not None:
            return self._view(slices)
        named.rows  # noqa: B018 - raises if there is none
        length = self._len_along_dim0
        if isinstance(index, int) and not -length <= index < length:
            raise IndexError(f"row {index} does not exist: the storage has {length} rows")
        found = self._numbers()[:length][torch_index(index)]
        return named.read(found.reshape(-1).numpy(), tuple(found.shape))

    def _view(self, slices: tuple[slice, ...], every: bool = False) -> Any:
        """Rows of slices of the first axes; `every`: also slots without a row."""
        root = self.named.form.root
        assert root is not None
        length = self._total_shape[0] if every else self._len_along_dim0
        numbers = self._numbers()[:length]
        whole = all(part.indices(size) == (0, size, 1) for part, size in zip(slices, numbers.shape, strict=False))
        view = View.over(self, numbers[slices], whole)
        return view if root.kind is None else root.kind.from_tensordict(view)

    @property
    def _storage(self) -> Any:
        """All rows, as TorchRL's storages keep them; None: nothing was written yet."""
        if not self.named.declared:
            return None
        return _held(self, every=True) if self.named.form.root is None else self._view((slice(None),), every=True)

    def flatten(self) -> Any:
        """A copy with one axis, as in TorchRL."""
        if self.ndim == 1:
            return self
        held, axes = _held(self), (0, self.ndim - 1)
        if is_tensor_collection(held):
            return TensorStorage(held.flatten(*axes))
        return TensorStorage(tree_map(lambda each: each.flatten(*axes), held))

    # -- rows that are changed only if they are still there -----------------------------------------------------

    def _conditional_patch_leaf(self, key: Any) -> Any:
        form, path = self.named.form, (key,) if isinstance(key, str) else tuple(key)
        number = None if form.root is None else form.root.find(path)
        if not isinstance(number, int):
            raise KeyError(
                f"Key {key} does not exist in the storage. Conditional patches can only target existing tensor fields "
                "of a tensordict storage."
            )
        if self.named.is_small(number):
            return self._storage.get(path)
        leaf = form.leaves[number]  # of larger columns only type and shape are looked at
        return torch.zeros((), dtype=leaf.dtype, device=self.device).expand((*self._total_shape, *leaf.shape))

    def _apply_conditional_patch(self, index: Any, patch: Any) -> None:
        slots = self._numbers()[tuple(index.unbind(-1)) if index.ndim > 1 else index]
        self._put(slots, TensorDict(patch, batch_size=slots.shape))
        self._bump_mutation_revision()

    # -- files and processes ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All rows, in the form of TorchRL's storages."""
        state: dict[str, Any] = _copy(self).state_dict()
        return state | {"first": self.named.first()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace all rows with those of `state_dict`, of this storage or of TorchRL's."""
        ordinary = LazyTensorStorage(self.max_size, ndim=self.ndim)
        ordinary.load_state_dict(state_dict)
        _take_over(self, ordinary._storage, ordinary._len, state_dict.get("first", 0))

    def dumps(self, path: Any) -> None:
        """Write all rows to a folder with the checkpointer, as in TorchRL."""
        self.checkpointer.dumps(_copy(self), path)
        (Path(path) / _TURN).write_text(json.dumps({"first": self.named.first()}))

    def loads(self, path: Any) -> None:
        """Replace all rows with those of a folder that `dumps` of this storage or of TorchRL's wrote."""
        if self.initialized and self.named.form.root is None:
            ordinary = _copy(self)  # a tree is read into one
        else:
            ordinary = LazyTensorStorage(self.max_size, ndim=self.ndim)
        self.checkpointer.loads(ordinary, path)
        turn = Path(path) / _TURN
        first = json.loads(turn.read_text())["first"] if turn.exists() else 0
        _take_over(self, ordinary._storage, ordinary._len, first)

    def __getstate__(self) -> dict[str, Any]:
        """The names of store and table."""
        state: dict[str, Any] = AnyStorage.__getstate__(self)
        return state | {"_numbers_of_all": None}

    def __repr__(self) -> str:
        leaves = self.named.form.leaves if self.initialized else []
        parts = ", ".join(f"{'/'.join(leaf.path)}: {leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        return (
            f"{type(self).__name__}(len={len(self)}, max_size={self.max_size}, table {self.named.name!r} of store "
            f"{self.named.store.name!r}, rows of {parts or 'a kind that the first write decides'})"
        )


def _held(storage: Storage, every: bool = False) -> Any:
    """All written rows, read at once; `every`: also the other rows, as zeros."""
    numbers = storage._numbers()
    if not every:
        numbers = numbers[: -(-len(storage) // storage.named.form.width)]
    return storage.named.read(numbers.reshape(-1).numpy(), tuple(numbers.shape))


def _take_over(storage: Storage, held: Any, count: int, first: int) -> None:
    """Replace the existing rows with these, oldest first."""
    storage._empty()  # counts as the one change that this is
    if held is None or not count:
        return
    if not storage.named.declared:
        storage.named.declare(held, storage.ndim, _lead_of(held, storage.ndim)[1:])
    numbers = storage._numbers()
    each = numbers[0].numel()
    length = -(-count // each)
    for part in (range(first // each, length), range(first // each)):
        for begin in range(part.start, part.stop, _AT_ONCE):
            piece = slice(begin, min(begin + _AT_ONCE, part.stop))
            storage._put(numbers[piece], _cut(held, piece), turn=True)


def _copy(storage: Storage) -> LazyTensorStorage:
    """An ordinary storage with these rows."""
    ordinary = LazyTensorStorage(storage.max_size, ndim=storage.ndim)
    if storage.initialized:
        ordinary._storage = _held(storage, every=True)
        ordinary.initialized = True
        ordinary._len = len(storage)
    ordinary._last_cursor = storage._last_cursor
    return ordinary


def _lead_of(data: Any, lead: int) -> tuple[int, ...]:
    """The leading axes of rows."""
    shapes: list[tuple[int, ...]] = [tuple(data.shape)] if is_tensor_collection(data) else []
    if not shapes:
        tree_map(lambda each: shapes.append(tuple(getattr(each, "shape", ()))), data)
    if not shapes or len(shapes[0]) < lead:
        raise ValueError(f"the data have the shape {list(shapes[0]) if shapes else []}, without {lead} axes of rows")
    return shapes[0][:lead]


def _stacked(data: list[Any]) -> Any:
    """A list of rows as rows."""
    if all(is_tensor_collection(each) for each in data):
        return torch.stack(data)
    try:
        return tree_map(lambda *each: torch.stack(each), *data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RuntimeError(
            f"Stacking the elements of the list resulted in an error: {error}. Storages of type Storage expect all "
            "elements of the list to have the same tree structure. If the list is compact (each leaf is itself a batch "
            "with the appropriate number of elements) consider using a tuple instead, as lists are used within "
            "`extend` for per-item addition."
        ) from error


def _cut(data: Any, part: slice) -> Any:
    return data[part] if is_tensor_collection(data) else tree_map(lambda each: each[part], data)
