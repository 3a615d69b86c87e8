"""skrl's `RandomMemory` with its samples in a Di-store table.

`Memory` draws what skrl's own memory would draw: with the same seed a training run is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import di_store
from di_store.adapters.rows import Array, Rows

try:
    import skrl
    import torch
    from skrl.memories.torch import RandomMemory
    from skrl.utils.spaces.torch import compute_space_size
except ImportError as error:
    raise ImportError("di_store.adapters.skrl needs skrl and PyTorch: pip install di-store[skrl]") from error

if skrl.__version__.partition(".")[0] != "2":
    raise ImportError(
        f"di_store.adapters.skrl works with skrl 2, and {skrl.__version__} is installed: pip install 'skrl>=2,<3'"
    )

_STORED = {
    getattr(torch, name): np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
_AT_ONCE = 4_096
"""Samples that are written in one call while a file is loaded."""


class Memory(RandomMemory):  # type: ignore[misc]
    """In place of skrl's `RandomMemory`, with its arguments, methods and results.

    The first `add_samples` decides what lies in the store: the tensors that it names. The others (an agent writes
    `returns` and `advantages` later, by `set_tensor_by_name`) are ordinary tensors. A tensor that is in the store and
    is set by `set_tensor_by_name` moves out of it.

    Args:
        memory_size: samples of each environment.
        num_envs: environments.
        device: of the tensors of a batch, and of the ordinary tensors. The store is in the machine's memory.
        export: whether to write a file each time the memory is full.
        export_format: of that file: "pt", "npz" or "csv".
        export_directory: its folder.
        replacement: whether a batch may hold a sample twice.

    Raises:
        ValueError: an export format that skrl does not know. di_store.CapacityError (from the first `add_samples`):
            more than the machine's memory.
    """

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
        self._cpu = self.device.type == "cpu"
        self._kinds: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self._late: dict[str, Any] = {}
        self._rows: Rows | None = None
        self._shared_keys: Any = None
        self._shared = False
        self.tensors: Mapping[str, Any] = _Tensors(self, flat=False)
        self.tensors_view: Mapping[str, Any] = _Tensors(self, flat=True)

    # -- columns ------------------------------------------------------------------------------------------------

    def create_tensor(self, name: str, *, size: Any, dtype: Any = None, keep_dimensions: bool = False) -> bool:
        """Declare a tensor ``[memory_size, num_envs, size]``, as skrl's; False: `size` is None, or it exists."""
        if size is None:
            return False
        if keep_dimensions and not isinstance(size, (tuple, list)):
            raise ValueError("Only sequences of integers are supported as `size` when `keep_dimensions` is enabled")
        shape = tuple(size) if keep_dimensions else (compute_space_size(size, occupied_size=True),)
        if name in self._kinds:
            known, had = self._kinds[name]
            if had != shape:
                raise ValueError(f"Tensor size ({shape}) doesn't match the existing one ({had}): '{name}'")
            if dtype is not None and dtype != known:
                raise ValueError(f"Tensor dtype ({dtype}) doesn't match the existing one ({known}): '{name}'")
            return False
        self._kinds[name] = dtype or torch.get_default_dtype(), shape
        if self._rows is not None:  # its table has its columns
            self._make_late(name)
        return True

    def _is_stored(self, name: str) -> bool:
        return self._rows is not None and name in self._rows.specs

    def _empty(self, name: str) -> Any:
        """As skrl's: NaN marks what was not written."""
        dtype, shape = self._kinds[name]
        empty = torch.zeros((self.memory_size, self.num_envs, *shape), dtype=dtype, device=self.device)
        return empty.fill_(float("nan")) if dtype.is_floating_point else empty

    def _make_late(self, name: str) -> Any:
        self._late[name] = tensor = self._empty(name)
        return tensor.share_memory_() if self._shared and self._cpu else tensor

    def _tensor(self, name: str) -> Any:
        """All of a tensor: the ordinary one itself, or a copy of what is in the store."""
        if name not in self._kinds:
            raise KeyError(name)
        if (found := self._late.get(name)) is not None:
            return found
        if not self._is_stored(name):  # nothing was written yet, so it may still become a column
            return self._empty(name) if self._rows is None else self._make_late(name)
        shape = (self.memory_size, self.num_envs, *self._kinds[name][1])
        return self._read(slice(None), [name])[name].reshape(shape)

    def set_tensor_by_name(self, name: str, tensor: Any) -> None:
        """Set all of a tensor, which from now on is an ordinary tensor."""
        if name not in self._kinds:
            raise KeyError(name)
        if self._is_stored(name):
            self._move_out(name)
        with torch.no_grad():
            (self._late[name] if name in self._late else self._make_late(name)).copy_(tensor)

    def _move_out(self, name: str) -> None:
        """Make a table without this column; that happens once for each such tensor of an agent."""
        assert self._rows is not None
        pieces = self._rows.pieces(self._next_slot())
        rest = {each: spec for each, spec in self._rows.specs.items() if each != name}
        self._rows = self._make_rows(rest) if rest else None
        late = self._make_late(name)
        flat = late.view(-1, *late.shape[2:])
        for slot, data in pieces:
            values = torch.from_numpy(data.pop(name))
            flat[slot : slot + len(values)] = values.to(self.device)
            if self._rows is not None:
                self._rows.write(slot, data)

    def _next_slot(self) -> int:
        slot: int = self.memory_index * self.num_envs + self.env_index
        return slot

    def _make_rows(self, specs: dict[str, di_store.Spec]) -> Rows:
        rows = Rows(specs, self.memory_size * self.num_envs, chunk=self.num_envs, option="memory_size=")
        if self._shared:
            self._share_keys(rows)
        return rows

    # -- writing ------------------------------------------------------------------------------------------------

    def add_samples(self, **tensors: Any) -> None:
        """Add samples of all environments, of some, or several of one environment, as skrl's.

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
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None and name in self._kinds}
        if first.ndim == 1:
            given = {name: tensor.unsqueeze(0) for name, tensor in given.items()}
        fits = min(count, size - slot)
        if fits == count:
            self._write(slot, count, given)
        else:  # one environment: the rest goes to the front
            self._write(slot, fits, {name: tensor[:fits] for name, tensor in given.items()})
            self._write(0, count - fits, {name: tensor[fits:] for name, tensor in given.items()})
        if count == self.num_envs and first.ndim == 2:
            self.memory_index += 1
        else:
            self.memory_index, self.env_index = divmod(slot + count, self.num_envs)
        if self.memory_index >= self.memory_size:
            self.memory_index -= self.memory_size
            self.filled = True
            if self.export:
                self.save(directory=self.export_directory, format=self.export_format)

    def _write(self, slot: int, count: int, given: dict[str, Any]) -> None:
        rows = self._rows
        if rows is None and (rows := self._first_rows(given)) is None:
            self._write_late(slot, count, given)
            return
        missing = [name for name in rows.specs if name not in given]
        kept = self._read(slice(slot, slot + count), missing) if missing else {}
        values = given | kept if kept else given
        if count > rows.limit:
            rows.write(slot, {name: _array(values[name]) for name in rows.specs})
        else:
            staged, part = rows.place(slot, count)
            for name, column in staged.items():
                column[part] = _array(values[name])
        if self._shared:
            rows.flush()
        if len(given) + len(missing) > len(rows.specs):
            self._write_late(slot, count, {name: value for name, value in given.items() if name not in rows.specs})

    def _first_rows(self, given: dict[str, Any]) -> Rows | None:
        """The table, with a column for each given tensor that is of a type numpy knows; None: there is none."""
        specs = {}
        for name in given:
            dtype, shape = self._kinds[name]
            if dtype in _STORED and name not in self._late:
                specs[name] = di_store.Spec(shape, _STORED[dtype])
        self._rows = self._make_rows(specs) if specs else None
        return self._rows

    def _write_late(self, slot: int, count: int, given: dict[str, Any]) -> None:
        for name, value in given.items():
            tensor = self._late[name] if name in self._late else self._make_late(name)
            tensor.view(-1, *tensor.shape[2:])[slot : slot + count].copy_(value)

    def reset(self) -> None:
        """Remove all samples."""
        super().reset()
        if self._rows is not None:
            self._rows.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def sample_by_index(self, names: list[str], *, indexes: Any, mini_batches: int = 1) -> list[list[Any]]:
        """Samples of these indexes, which count through the environments of a time first, as skrl's."""
        index = indexes.numpy() if type(indexes) is torch.Tensor and not indexes.is_cuda else np.asarray(indexes)
        found = self._read(index, names)
        if mini_batches == 1:
            return [[found.get(name) for name in names]]
        ends = np.cumsum([len(part) for part in np.array_split(index, mini_batches)])
        parts = zip([0, *ends[:-1]], ends, strict=True)
        return [[found[name][begin:end] if name in found else None for name in names] for begin, end in parts]

    def sample_all(self, names: list[str], *, mini_batches: int = 1, sequence_length: int = 1) -> list[list[Any]]:
        """All samples, as skrl's; in the order of environments if `sequence_length` is more than 1."""
        if sequence_length > 1:
            return self.sample_by_index(names, indexes=self.all_sequence_indexes, mini_batches=mini_batches)
        found = self._read(slice(None), names)
        size = self.memory_size * self.num_envs // mini_batches
        parts = [slice(size * number, size * (number + 1)) for number in range(mini_batches)]
        if mini_batches == 1:
            parts = [slice(None)]
        return [[found[name][part] if name in found else None for name in names] for part in parts]

    def _read(self, slots: Any, names: list[str]) -> dict[str, Any]:
        """Tensors ``[n, …]`` of the names that exist; what was not written is NaN, or 0."""
        rows, found, tensor = self._rows, {}, torch.from_numpy
        if rows is not None and (stored := [name for name in names if name in rows.specs]):
            data, live = rows.read(slots, stored)
            if live is not None:
                for value in data.values():
                    if value.dtype.kind == "f":
                        value[~live] = np.nan
            found = {
                name: tensor(value) if self._cpu else tensor(value).to(self.device) for name, value in data.items()
            }
            if len(found) == len(names):
                return found
        for name in names:
            if name not in found and name in self._kinds:
                whole = self._tensor(name)
                flat = whole.view(-1, *whole.shape[2:])
                found[name] = flat[slots if isinstance(slots, slice) else torch.as_tensor(slots, device=self.device)]
        return found

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, directory: str = "", *, format: Any = "pt") -> None:
        """Write all tensors to a file, as skrl's."""
        tensors = self.tensors, self.tensors_view
        self.tensors = {name: self._tensor(name) for name in self._kinds}
        self.tensors_view = {name: each.view(-1, *each.shape[2:]) for name, each in self.tensors.items()}
        try:
            super().save(directory, format=format)
        finally:
            self.tensors, self.tensors_view = tensors

    def load(self, path: str) -> None:
        """Take over the samples of a file that `save` wrote, in place of those that are there.

        Slots behind the last one of which a float is a number count as empty, as no file says how many were written.

        Raises:
            ValueError: another kind of file, or tensors of another shape. NotImplementedError: a csv file.
        """
        if path.endswith(".pt"):
            data = torch.load(path, map_location="cpu")
        elif path.endswith(".npz"):
            with np.load(path) as file:
                data = {name: torch.from_numpy(file[name]) for name in file}
        elif path.endswith(".csv"):
            raise NotImplementedError("Loading from csv is not supported yet")
        else:
            raise ValueError(f"File at path '{path}' has an unsupported format")
        lead = (self.memory_size, self.num_envs)
        for name, tensor in data.items():
            expected = (*lead, *self._kinds[name][1]) if name in self._kinds else (*lead, *tensor.shape[2:])
            if tuple(tensor.shape) != expected:
                raise ValueError(f"'{name}' is {list(tensor.shape)} in {path}, and {list(expected)} in this memory")
            self.create_tensor(name, size=expected[2:], dtype=tensor.dtype, keep_dimensions=True)
        self._take_over(data)

    def _take_over(self, data: dict[str, Any]) -> None:
        stored = [name for name in data if self._is_stored(name) or (self._rows is None and name not in self._late)]
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
            self._write(begin, part.stop - begin, {name: tensor[part] for name, tensor in flat.items()})
        for name in data:
            if not self._is_stored(name):
                self.set_tensor_by_name(name, data[name])
        self.filled = count == len(written)
        self.memory_index, self.env_index = (0, 0) if self.filled else divmod(count, self.num_envs)

    # -- processes ----------------------------------------------------------------------------------------------

    def share_memory(self) -> None:
        """Let copies that are pickled from now on read and write the same samples, as skrl's.

        As in skrl, how many samples there are is not shared: each process has indexes of its own.
        """
        self._shared = True
        if self._rows is not None:
            self._share_keys(self._rows)
        for tensor in self._late.values():
            if not tensor.is_cuda:
                tensor.share_memory_()

    def _share_keys(self, rows: Rows) -> None:
        self._shared_keys = torch.from_numpy(rows.keys.view(np.int64)).clone().share_memory_()
        rows.keys = self._shared_keys.numpy().view(np.uint64)

    def __getstate__(self) -> dict[str, Any]:
        """With `share_memory` the table by name, otherwise its rows."""
        state = self.__dict__.copy()
        for name in ("tensors", "tensors_view"):
            del state[name]
        rows: Rows | None = state.pop("_rows")
        if rows is None:
            return state
        if self._shared:
            inner = rows.__getstate__()
            del inner["keys"]
            return state | {"_rows_state": inner}
        return state | {"_specs": rows.specs, "_pieces_of": [*rows.pieces(self._next_slot())]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        inner, specs, pieces = (state.pop(name, None) for name in ("_rows_state", "_specs", "_pieces_of"))
        self.__dict__.update(state)
        self.tensors, self.tensors_view = _Tensors(self, flat=False), _Tensors(self, flat=True)
        self._rows = None
        if inner is not None:
            self._rows = Rows.__new__(Rows)
            self._rows.__setstate__(inner | {"keys": self._shared_keys.numpy().view(np.uint64)})
        elif specs is not None:
            self._rows = self._make_rows(specs)
            for slot, data in pieces:
                self._rows.write(slot, data)


class _Tensors(Mapping[str, Any]):
    """The tensors of a memory by name; those in the store are read when they are asked for."""

    def __init__(self, memory: Memory, *, flat: bool) -> None:
        self._memory, self._flat = memory, flat

    def __getitem__(self, name: str) -> Any:
        tensor = self._memory._tensor(name)
        return tensor.view(-1, *tensor.shape[2:]) if self._flat else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._memory._kinds)

    def __len__(self) -> int:
        return len(self._memory._kinds)


def _array(tensor: Any) -> Array:
    """A tensor as an array; of another device, or one that gradients flow to, its values."""
    try:
        found: Array = tensor.numpy()
    except (RuntimeError, TypeError):
        found = tensor.detach().cpu().numpy()
    return found
