"""The tensors of a memory: tensors in a table, ordinary tensors, and ordinary copies of the tensors in the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import di_store
from di_store.adapters.casts import assign, cast
from di_store.adapters.ring import Ring
from di_store.adapters.stored_array import Array
from di_store.adapters.torch_types import NUMPY_TYPES, array_of

_COPIED_BYTES = 256 << 20
"""The most bytes of samples that are also kept in ordinary tensors, from which they are read."""


class Rows(Ring):
    """The rows of the tensors in a table.

    Args:
        specs: types of the columns.
        slots: number of slots.
        copies: arrays ``[slots, …]`` of all columns, from which the table takes its rows; None: no such arrays.
        options: other arguments of `Ring`.
    """

    def __init__(
        self, specs: dict[str, di_store.Spec], slots: int, copies: dict[str, Array] | None, **options: Any
    ) -> None:
        self._copies, self.late = copies, frozenset(copies or ())
        super().__init__(specs, slots, option="memory_size=", **options)
        if self.given:
            self.take_over()

    def _completed(self, slots: slice, rows: dict[str, Any], one: bool) -> dict[str, Any]:
        return rows if self._copies is None else {name: self._copies[name][slots] for name in self.specs}

    def drop_copies(self) -> None:
        """Stop reading from `copies`."""
        self.flush()
        self._copies, self.late = None, frozenset()
        self._allocate()


class Columns:
    """Tensors by name, ``[memory_size * num_envs, …]``, written and read by slots.

    Slots are numbered time by time: first all environments of one time, then those of the next. The tensors of the
    first `write` are in the table. All other tensors are ordinary ones. Values that were never written are NaN, or 0
    for types without NaN.

    If the samples take at most 256 MiB and are on the CPU, ordinary tensors hold them too. Writes assign to these
    tensors, and the table takes its rows from them, several at a time; reads gather from the tensors. In a given store
    there is only the table. Every write reaches it at once, and its existing rows count as written.

    Args:
        memory_size: number of times.
        num_envs: number of environments.
        device: device of ordinary tensors, and of the results of reads.
        store: the store of the table; None: a store of its own.
        table: name of the table.

    Attributes:
        kinds: dtype of each declared tensor, and the shape of one sample.
        rows: the table; None: there is none yet.
        copied: whether ordinary tensors hold copies of the table's tensors.
    """

    def __init__(
        self, memory_size: int, num_envs: int, device: Any, store: di_store.Store | None = None, table: str = "replay"
    ) -> None:
        self.kinds: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.rows: Rows | None = None
        self.copied = False
        self._lead, self._slots, self._next = (memory_size, num_envs), memory_size * num_envs, 0
        self._device, self._cpu = device, device.type == "cpu"
        self._plain: dict[str, Any] = {}  # ordinary tensors
        self._copies: dict[str, Array] = {}  # those of the table's tensors, as numpy sees them
        self._shared = False
        self._shared_keys: Any = None
        self._given, self._table = store, table
        if self._given is not None and (specs := _stored_specs(self._given, table)):
            self.rows = self._make_rows(specs)
            self._next = (self.rows.newest + 1) % self._slots

    def declare(self, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        """Add a tensor, with samples of this shape."""
        rows = self.rows
        there = None if rows is None else rows.specs.get(name)  # in the table of a store that was given
        if there is not None and (there.shape, there.dtype) != (shape, NUMPY_TYPES.get(dtype)):
            raise ValueError(f"{name!r} is {there.dtype}{list(there.shape)} in the table, not {dtype}{list(shape)}")
        self.kinds[name] = dtype, shape
        if rows is not None and there is None:  # its table has its columns
            self._make_plain(name)

    def is_stored(self, name: str) -> bool:
        """Whether the tensor is in the table, or may be in the table that the first write makes."""
        return name not in self._plain if self.rows is None else name in self.rows.specs

    def _empty(self, name: str) -> Any:
        """As skrl's: NaN marks what was not written."""
        dtype, shape = self.kinds[name]
        empty = torch.zeros((self._slots, *shape), dtype=dtype, device=self._device)
        return empty.fill_(float("nan")) if dtype.is_floating_point else empty

    def _make_plain(self, name: str) -> Any:
        tensor = self._empty(name)
        if self._shared and self._cpu:
            tensor.share_memory_()
        self._plain[name] = tensor
        return tensor

    def _make_rows(self, specs: dict[str, di_store.Spec]) -> Rows:
        copied = specs if self.copied else ()
        for name in copied:
            if name not in self._plain:
                self._make_plain(name)
        self._copies = {name: self._plain[name].numpy() for name in copied}
        options: dict[str, Any] = {"chunk": self._lead[1], "store": self._given, "table": self._table}
        rows = Rows(specs, self._slots, self._copies or None, **options)
        if self._shared:
            self._share_keys(rows)
        return rows

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, slot: int, count: int, given: dict[str, Any]) -> None:
        """Write `count` samples from `slot` on. Tensors that are not given keep their values.

        Args:
            slot: the first slot.
            count: number of samples.
            given: tensors ``[count, …]`` of declared names.
        """
        self._next = (slot + count) % self._slots
        rows = self.rows
        if rows is None and (rows := self._first_rows(given)) is None:
            self._write_plain(slot, count, given)
            return
        if self.copied:
            self._write_copies(rows, slot, count, given)
            return
        missing = [name for name in rows.specs if name not in given]
        values = given | self.read(slice(slot, slot + count), missing) if missing else given
        if count > rows.limit:
            rows.write(np.arange(slot, slot + count), {name: array_of(values[name]) for name in rows.specs})
        else:
            staged, part = rows.place(slot, count)
            for name, column in staged.items():
                assign(column[part], array_of(values[name]), name)
        if self._shared or self._given is not None:
            rows.flush()
        if others := [name for name in given if name in self._plain or name not in rows.specs]:
            self._write_plain(slot, count, {name: given[name] for name in others})

    def _write_copies(self, rows: Rows, slot: int, count: int, given: dict[str, Any]) -> None:
        """`write` if there are copies, from which the table takes its rows later."""
        if count > rows.limit:
            for begin in range(0, count, rows.limit):
                part = slice(begin, min(begin + rows.limit, count))
                some = {name: value[part] for name, value in given.items()}
                self._write_copies(rows, slot + begin, part.stop - begin, some)
            return
        rows.place(slot, count)  # which may write rows that are overwritten here
        copies, part = self._copies, slice(slot, slot + count)
        for name, value in given.items():
            if name not in copies:
                self._write_plain(slot, count, {name: value})
            else:
                assign(copies[name][part], array_of(value), name)

    def _first_rows(self, given: dict[str, Any]) -> Rows | None:
        """The table, with a column for each given tensor whose type numpy has; None: there is no such tensor."""
        specs = {}
        for name in given:
            dtype, shape = self.kinds[name]
            if dtype in NUMPY_TYPES and name not in self._plain:
                specs[name] = di_store.Spec(shape, NUMPY_TYPES[dtype])
        sizes = [self.kinds[name][0].itemsize * int(np.prod(self.kinds[name][1])) for name in specs]
        self.copied = (
            self._cpu and not self._shared and self._given is None and self._slots * sum(sizes) <= _COPIED_BYTES
        )
        self.rows = self._make_rows(specs) if specs else None
        return self.rows

    def _write_plain(self, slot: int, count: int, given: dict[str, Any]) -> None:
        for name, value in given.items():
            flat = self._plain[name] if name in self._plain else self._make_plain(name)
            flat[slot : slot + count].copy_(_checked(value, flat.dtype, name))

    def set(self, name: str, tensor: Any) -> None:
        """Set all of a tensor, ``[memory_size, num_envs, …]``. From now on it is an ordinary tensor."""
        if self._given is None and self.rows is not None and name in self.rows.specs:
            self._move_out(self.rows, name)
        flat = self._plain[name] if name in self._plain else self._make_plain(name)
        with torch.no_grad():
            flat.view(*self._lead, *flat.shape[1:]).copy_(_checked(tensor, flat.dtype, name))

    def _move_out(self, old: Rows, name: str) -> None:
        """Make a table without this column. This happens once for each such tensor of an agent."""
        pieces = old.pieces(self._order(), tuple(old.specs))
        rest = {each: spec for each, spec in old.specs.items() if each != name}
        self.rows = self._make_rows(rest) if rest else None
        flat = self._plain[name] if self.copied else self._make_plain(name)
        for slots, data in pieces:
            flat[torch.from_numpy(slots)] = torch.from_numpy(data.pop(name)).to(self._device)
            self._put(slots, data)

    def _order(self) -> Array:
        """All slots, that of the oldest sample first."""
        order: Array = (np.arange(self._slots) + self._next) % self._slots
        return order

    def _put(self, slots: Array, data: dict[str, Array]) -> None:
        """Write samples that `pieces` of other rows returned."""
        if self.copied:
            for name, value in data.items():
                self._copies[name][slots] = value
        if self.rows is not None:
            self.rows.write(slots, data)

    def clear(self) -> None:
        """Remove all samples from the table; ordinary tensors keep theirs."""
        self._next = 0
        if self.rows is not None:
            self.rows.clear()
            if self.copied:
                for name in self.rows.specs:
                    self._plain[name].copy_(self._empty(name))

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, slots: Any, names: list[str]) -> dict[str, Any]:
        """New tensors ``[n, …]`` of the names that exist.

        Args:
            slots: indexes, which count from the end if negative; or a slice.
            names: names of tensors.
        """
        rows, found = self.rows, {}
        stored = []
        if rows is not None and not self.copied:
            stored = [name for name in names if name in rows.specs and name not in self._plain]
        if rows is not None and stored:
            found = self._read_rows(rows, slots, stored)
            if len(found) == len(names):
                return found
        if not isinstance(slots, slice):
            slots = torch.as_tensor(slots, device=self._device)
        for name in names:
            if name in found or name not in self.kinds:
                continue
            if (flat := self._plain.get(name)) is None:
                flat = self._empty(name) if rows is None else self._make_plain(name)
            found[name] = _select(flat, slots)
        return found

    def _read_rows(self, rows: Rows, slots: Any, names: list[str]) -> dict[str, Any]:
        if not isinstance(slots, slice):
            slots = slots.numpy() if type(slots) is torch.Tensor and not slots.is_cuda else np.asarray(slots)
        data, live = rows.peek(slots, tuple(names))
        if not live.all():
            for value in data.values():
                if value.dtype.kind == "f":
                    value[~live] = np.nan
        tensor = torch.from_numpy
        return {name: tensor(value) if self._cpu else tensor(value).to(self._device) for name, value in data.items()}

    def tensor(self, name: str) -> Any:
        """All of a tensor, ``[memory_size, num_envs, …]``: the ordinary tensor itself, or a copy from the table.

        Raises:
            KeyError: the tensor was not declared.
        """
        if name not in self.kinds:
            raise KeyError(name)
        if self.rows is not None and name in self.rows.specs:
            flat = self.read(slice(None), [name])[name]  # a change of `_plain` itself would not reach the table
        elif (flat := self._plain.get(name)) is None:  # nothing was written yet, so it may still become a column
            flat = self._empty(name) if self.rows is None else self._make_plain(name)
        return flat.view(*self._lead, *flat.shape[1:])

    # -- processes ----------------------------------------------------------------------------------------------

    def share(self) -> None:
        """Let copies that are pickled from now on read and write the same samples."""
        self._shared = True
        if self.rows is not None:
            self._share_keys(self.rows)
            if self.copied:  # other processes write to the table only
                self.rows.drop_copies()
                self._plain = {name: each for name, each in self._plain.items() if name not in self.rows.specs}
        self.copied, self._copies = False, {}
        for tensor in self._plain.values():
            if not tensor.is_cuda:
                tensor.share_memory_()

    def _share_keys(self, rows: Rows) -> None:
        self._shared_keys = torch.from_numpy(rows.keys.view(np.int64)).clone().share_memory_()
        rows.keys = self._shared_keys.numpy().view(np.uint64)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the table's rows; after `share`, and with a given store, only its name."""
        state = self.__dict__.copy()
        del state["_copies"]
        rows: Rows | None = state.pop("rows")
        if rows is None:
            return state
        if self._shared:
            inner = rows.__getstate__()
            del inner["keys"]
            return state | {"_rows_state": inner}
        if self._given is not None:
            return state | {"_specs": rows.specs}
        state["_plain"] = {name: each for name, each in self._plain.items() if name not in rows.specs}
        return state | {"_specs": rows.specs, "_pieces": [*rows.pieces(self._order(), tuple(rows.specs))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        inner, specs, pieces = (state.pop(name, None) for name in ("_rows_state", "_specs", "_pieces"))
        self.__dict__.update(state)
        self.rows, self._copies = None, {}
        if inner is not None:
            self.rows = Rows.__new__(Rows)
            self.rows.__setstate__(inner | {"keys": self._shared_keys.numpy().view(np.uint64)})
        elif specs is not None:
            self.rows = self._make_rows(specs)
            for slots, data in pieces or ():
                self._put(slots, data)


def _stored_specs(store: di_store.Store, table: str) -> dict[str, di_store.Spec]:
    """The tensors that a table of this store holds already."""
    try:
        schema = store.table(table).schema
    except di_store.TableNotFound:
        return {}
    return dict(schema["row"]) if schema is not None and "row" in schema else {}


def _select(flat: Any, slots: Any) -> Any:
    """A copy of these slots of a tensor."""
    if isinstance(slots, slice):
        return flat[slots].clone()
    try:
        return flat.index_select(0, slots)  # of small rows it takes half the time of an index
    except (IndexError, RuntimeError):  # what counts from the end, flags
        return flat[slots]


def _checked(value: Any, dtype: Any, name: str) -> Any:
    """The value for an ordinary tensor. Integers that would wrap are refused; numbers with fractions are rounded."""
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if whole and isinstance(value, torch.Tensor) and value.dtype != dtype and value.dtype in NUMPY_TYPES:
        cast(array_of(value), np.dtype(NUMPY_TYPES[dtype]), name)
    return value
