"""skrl's `RandomMemory` over `Columns`: its indexes, batches and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from skrl.memories.torch import RandomMemory
from skrl.utils.spaces.torch import compute_space_size

from di_store.adapters.skrl.columns import Columns, Rows
from di_store.adapters.stores import NO_KEY, MadeAtFirst, StoreLike, given_store

_AT_ONCE = 4_096
"""Samples that are written in one call while a file is loaded."""


class Memory(MadeAtFirst, RandomMemory):  # type: ignore[misc]
    """A replacement for skrl's `RandomMemory`, with its arguments, methods and results.

    The tensors of the first `add_samples` lie in the store. All others are ordinary tensors, such as `returns` and
    `advantages`, which an agent writes later by `set_tensor_by_name`. If `set_tensor_by_name` sets a tensor in the
    store, that tensor moves out of it.

    A memory of at most 256 MiB on the CPU also keeps ordinary copies of the tensors in the store. It reads batches from
    them, because gathering small samples costs less than looking them up in a table. Samples then reach the table
    several at a time. With `share_memory`, and in a given store, there is only the table.

    In a given store, each `add_samples` is in the table when it returns. If the table already exists, the memory
    continues with its samples. A pickle then holds the name of the table, not the samples.

    Args:
        memory_size: number of samples of each environment.
        num_envs: number of environments.
        device: device of the tensors of a batch, and of the ordinary tensors. The store is in the machine's memory.
        export: whether to write a file each time the memory is full.
        export_format: format of that file: "pt", "npz" or "csv".
        export_directory: its folder.
        replacement: whether a batch may hold a sample twice.
        store: the store of the samples: a store, its name, or a dict of `di_store.open`'s options; None: its own store.
        table: name of the table there; only one memory may write to it.

    Raises:
        ValueError: an export format that skrl does not know. di_store.CapacityError (from the first `add_samples`): the
        memory needs more than the machine's memory.
    """

    _first_call = "add_samples"

    def __init__(
        self,
        *,
        memory_size: int,
        num_envs: int = 1,
        device: Any = None,
        export: bool = False,
        export_format: Any = "pt",
        export_directory: str = "",
        replacement: bool = False,
        store: StoreLike = None,
        table: str = "replay",
    ) -> None:
        super().__init__(
            memory_size=memory_size,
            num_envs=num_envs,
            device=device,
            export=export,
            export_format=export_format,
            export_directory=export_directory,
            replacement=replacement,
        )
        self.memory_index: int
        self.env_index: int
        self._given = given_store(store)
        self._columns = Columns(memory_size, num_envs, self.device, self._given, table)
        self._count_rows()
        self.tensors: Mapping[str, Any] = _NamedTensors(self._columns, flat=False)
        self.tensors_view: Mapping[str, Any] = _NamedTensors(self._columns, flat=True)

    def _count_rows(self) -> None:
        """Continue after the samples in the table of a given store."""
        rows = self._columns.rows
        if rows is not None and rows.newest >= 0:
            self.filled = bool((rows.keys != NO_KEY).all())
            self.memory_index, self.env_index = divmod((rows.newest + 1) % rows.slots, self.num_envs)

    def _made(self) -> Rows | None:
        return self._columns.rows

    # -- columns ------------------------------------------------------------------------------------------------

    def create_tensor(self, name: str, *, size: Any, dtype: Any = None, keep_dimensions: bool = False) -> bool:
        """Declare a tensor ``[memory_size, num_envs, size]``, as in skrl.

        False: `size` is None, or the tensor exists.
        """
        if size is None:
            return False
        if keep_dimensions and not isinstance(size, (tuple, list)):
            raise ValueError("Only sequences of integers are supported as `size` when `keep_dimensions` is enabled")
        shape = tuple(size) if keep_dimensions else (compute_space_size(size, occupied_size=True),)
        if name in self._columns.kinds:
            known, had = self._columns.kinds[name]
            if had != shape:
                raise ValueError(f"Tensor size ({shape}) doesn't match the existing one ({had}): '{name}'")
            if dtype is not None and dtype != known:
                raise ValueError(f"Tensor dtype ({dtype}) doesn't match the existing one ({known}): '{name}'")
            return False
        self._columns.declare(name, dtype or torch.get_default_dtype(), shape)
        return True

    def set_tensor_by_name(self, name: str, tensor: Any) -> None:
        """Set all of a tensor. From now on it is an ordinary tensor."""
        if name not in self._columns.kinds:
            raise KeyError(name)
        self._columns.set(name, tensor)

    # -- writing ------------------------------------------------------------------------------------------------

    def add_samples(self, **tensors: Any) -> None:
        """Add samples of all environments, of some, or several of one environment, as in skrl.

        Raises:
            ValueError: no tensor, or a shape of more samples than fit.
        """
        if not tensors:
            raise ValueError(
                "There are no samples. Provide samples as key-value arguments, where keys are the tensor names"
            )
        first = tensors["observations"] if "observations" in tensors else next(iter(tensors.values()))
        count, size = first.shape[0] if first.ndim == 2 else 1, self.memory_size * self.num_envs
        slot = self.memory_index * self.num_envs
        if count != self.num_envs or first.ndim == 1:
            slot += self.env_index
            end = size if self.num_envs == 1 else slot - self.env_index + self.num_envs
            if first.ndim > 2 or count > (size if self.num_envs == 1 else end - slot):
                raise ValueError(
                    f"Expected shape (current_num_envs, data_size) where current_num_envs <= {self.num_envs}, "
                    f"got {tuple(first.shape)}"
                )
        kinds = self._columns.kinds
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None and name in kinds}
        if first.ndim == 1:
            given = {name: tensor.unsqueeze(0) for name, tensor in given.items()}
        fits = min(count, size - slot)
        if fits == count:
            self._columns.write(slot, count, given)
        else:  # one environment: the rest goes to the front
            self._columns.write(slot, fits, {name: tensor[:fits] for name, tensor in given.items()})
            self._columns.write(0, count - fits, {name: tensor[fits:] for name, tensor in given.items()})
        if count == self.num_envs and first.ndim == 2:
            self.memory_index += 1
        else:
            self.memory_index, self.env_index = divmod(slot + count, self.num_envs)
        if self.memory_index >= self.memory_size:
            self.memory_index -= self.memory_size
            self.filled = True
            if self.export:
                self.save(directory=self.export_directory, format=self.export_format)

    def reset(self) -> None:
        """Remove all samples."""
        super().reset()
        self._columns.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def sample_by_index(self, names: list[str], *, indexes: Any, mini_batches: int = 1) -> list[list[Any]]:
        """Samples of these indexes, as in skrl. All environments of a time come before those of the next time."""
        found = self._columns.read(indexes, names)
        if mini_batches == 1:
            return [[found.get(name) for name in names]]
        ends = np.cumsum([len(part) for part in np.array_split(np.arange(len(indexes)), mini_batches)])
        parts = zip([0, *ends[:-1]], ends, strict=True)
        return [[found[name][begin:end] if name in found else None for name in names] for begin, end in parts]

    def sample_all(self, names: list[str], *, mini_batches: int = 1, sequence_length: int = 1) -> list[list[Any]]:
        """All samples, as in skrl; in the order of environments if `sequence_length` is more than 1."""
        if sequence_length > 1:
            return self.sample_by_index(names, indexes=self.all_sequence_indexes, mini_batches=mini_batches)
        found = self._columns.read(slice(None), names)
        size = self.memory_size * self.num_envs // mini_batches
        parts = [slice(size * number, size * (number + 1)) for number in range(mini_batches)]
        if mini_batches == 1:
            parts = [slice(None)]
        return [[found[name][part] if name in found else None for name in names] for part in parts]

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, directory: str = "", *, format: Any = "pt") -> None:
        """Write all tensors to a file, as in skrl."""
        tensors = self.tensors, self.tensors_view
        self.tensors = {name: tensors[0][name] for name in self._columns.kinds}
        self.tensors_view = {name: each.view(-1, *each.shape[2:]) for name, each in self.tensors.items()}
        try:
            super().save(directory, format=format)
        finally:
            self.tensors, self.tensors_view = tensors

    def load(self, path: str) -> None:
        """Replace all samples with those of a file that `save` wrote.

        The file does not say how many samples were written. Slots at the end count as empty if none of their floats is
        a number.

        Raises:
            ValueError: another kind of file, or tensors of another shape. NotImplementedError: a csv file.
        """
        if path.endswith(".pt"):
            data = torch.load(path, map_location="cpu", weights_only=True)
        elif path.endswith(".npz"):
            with np.load(path) as file:
                data = {name: torch.from_numpy(file[name]) for name in file}
        elif path.endswith(".csv"):
            raise NotImplementedError("Loading from csv is not supported yet")
        else:
            raise ValueError(f"File at path '{path}' has an unsupported format")
        lead, kinds = (self.memory_size, self.num_envs), self._columns.kinds
        for name, tensor in data.items():
            expected = (*lead, *kinds[name][1]) if name in kinds else (*lead, *tensor.shape[2:])
            if tuple(tensor.shape) != expected:
                raise ValueError(f"'{name}' is {list(tensor.shape)} in {path}, and {list(expected)} in this memory")
            self.create_tensor(name, size=expected[2:], dtype=tensor.dtype, keep_dimensions=True)
        self._take_over(data)

    def _take_over(self, data: dict[str, Any]) -> None:
        stored = [name for name in data if self._columns.is_stored(name)]
        written = np.zeros(self.memory_size * self.num_envs, bool)
        for tensor in data.values():
            if tensor.is_floating_point():
                written |= ~torch.isnan(tensor).flatten(2).all(2).flatten().numpy()
        has_floats = any(tensor.is_floating_point() for tensor in data.values())
        count = int(np.flatnonzero(written)[-1]) + 1 if written.any() else 0 if has_floats else len(written)
        self.reset()
        flat = {name: data[name].flatten(0, 1) for name in stored}
        for begin in range(0, count, _AT_ONCE):
            part = slice(begin, min(begin + _AT_ONCE, count))
            self._columns.write(begin, part.stop - begin, {name: tensor[part] for name, tensor in flat.items()})
        for name in data:
            if not self._columns.is_stored(name):
                self.set_tensor_by_name(name, data[name])
        self.filled = count == len(written)
        self.memory_index, self.env_index = (0, 0) if self.filled else divmod(count, self.num_envs)

    # -- processes ----------------------------------------------------------------------------------------------

    def share_memory(self) -> None:
        """Let copies that are pickled from now on read and write the same samples, as in skrl.

        As in skrl, the number of samples is not shared: each process has indexes of its own.
        """
        self._columns.share()

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name not in ("tensors", "tensors_view")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tensors, self.tensors_view = (
            _NamedTensors(self._columns, flat=False),
            _NamedTensors(self._columns, flat=True),
        )
        self._count_rows()


class _NamedTensors(Mapping[str, Any]):
    """The tensors of a memory by name; those in the store are read when they are asked for."""

    def __init__(self, columns: Columns, *, flat: bool) -> None:
        self._columns, self._flat = columns, flat

    def __getitem__(self, name: str) -> Any:
        tensor = self._columns.tensor(name)
        return tensor.flatten(0, 1) if self._flat else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.kinds)

    def __len__(self) -> int:
        return len(self._columns.kinds)
