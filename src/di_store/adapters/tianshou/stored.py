"""The code that all buffers share: their observations and actions in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from tianshou.data import Batch
from tianshou.data import ReplayBuffer as TianshouReplayBuffer
from tianshou.data.batch import alloc_by_keys_diff, create_value
from tianshou.data.utils.converter import to_hdf5

import di_store
from di_store.adapters.ring import Held, Ring, parts
from di_store.adapters.tianshou.entries import (
    STORED,
    TOLD,
    as_batch,
    may_have_nulls,
    spec_of,
    taken,
    told_of,
    with_arrays,
)
from di_store.adapters.trees import Tree, any_nan, flat, leaves, named_leaves

FLAGS = ("rew", "terminated", "truncated", "done")
_ROWS = ("act", *FLAGS)
"""Entries that are never stacked."""
_RETURNED = ("obs", "act", *FLAGS, "obs_next", "info", "policy")
"""The entries of a batch, in Tianshou's order."""


class TianshouSteps(Ring):
    """A ring of each environment's steps.

    Attributes:
        has_nan: whether a row written since the last `clear` has a NaN, even if the row was evicted.
    """

    has_nan = False

    def _completed(self, slots: Any, rows: dict[str, Any], one: bool) -> dict[str, Any]:
        self.has_nan = self.has_nan or any_nan(rows)  # rows do not change later
        return rows

    def clear(self) -> None:
        """Remove all rows."""
        super().clear()
        self.has_nan = False

    def take_over(self, columns: tuple[str, ...] = ()) -> Held:
        """As `Ring.take_over`."""
        held = super().take_over(columns)
        kinds = [(name.partition(".")[0], spec.dtype.kind) for name, spec in named_leaves(self.specs)]
        floats = tuple({name for name, kind in kinds if kind == "f"})
        found = (self.read(held.slots[part], floats) for part in parts(len(held.slots)))
        self.has_nan = bool(floats) and any(map(any_nan, found))
        return held


class Stored(TianshouReplayBuffer):  # type: ignore[misc]
    """Works like Tianshou's buffers, with a table instead of arrays for the entries of `STORED`.

    Entries that a table has no columns for (text, objects, tensors), rewards, flags, `info` and `policy` stay in
    Tianshou's arrays.
    """

    _rows: TianshouSteps | None = None
    _columns: Mapping[str, str] = MappingProxyType({})
    """By entry of a batch that lies in the table: the column of the table."""
    _given: di_store.Store | None = None
    _name = "replay"

    buffer_num: int = 1
    _random_state: Any
    _meta: Any
    _insertion_idx: Any
    _size: Any

    # -- writing ------------------------------------------------------------------------------------------------

    def _begin(self, values: dict[str, Any], lead: int) -> None:
        """Make the table for the first step's entries, whose leading axes are not part of their types."""
        specs: dict[str, Tree] = {}
        for name in STORED:
            if name in values and (spec := spec_of(values[name], lead)) is not None:
                specs[name] = spec
        flat = all(np.ndim(values[name]) == lead for name in ("terminated", "truncated"))
        if self._given is not None:
            specs["step"] = told_of(values, lead, specs)
        follows = flat and "obs" in specs and specs.get("obs_next") == specs["obs"]
        if any(0 not in spec.shape for spec in leaves(specs)):
            self._make(specs, follows)

    def _make(self, specs: dict[str, Tree], follows: bool) -> None:
        """Make the table of these types, or find it; with `follows`, each observation is stored once."""
        own = [name for name in specs if name in STORED] + (["obs_next"] if follows and "obs_next" not in specs else [])
        self._columns = {name: "next_obs" if follows and name == "obs_next" else name for name in own}
        specs = {name: spec for name, spec in specs.items() if not (follows and name == "obs_next")}
        option = "total_size=" if hasattr(self, "buffers") else "size="
        place: dict[str, Any] = {"option": option, "store": self._given, "table": self._name}
        self._rows = TianshouSteps(specs, self.maxsize, lanes=self.buffer_num, follows=follows, **place)
        self._show()

    def _show(self) -> None:
        """Add the table's columns to `_meta`, beside Tianshou's arrays."""
        if self._rows is None:
            return
        every = np.arange(self.maxsize)
        shown = {name: as_batch(self._rows.column(column, every)) for name, column in self._columns.items()}
        others = self._beside(self._meta).__dict__
        # As in the batches of Tianshou: its buffers list their entries in this order.
        self._meta.__dict__.clear()
        self._meta.__dict__.update(shown | others)

    def _stage(self, values: dict[str, Any], lanes: tuple[int, ...] | None = None) -> None:
        """Take the entries for the table out of `values`, and gather them."""
        rows = self._rows
        if rows is None:
            return
        told: dict[str, Any] = {"step": {name: values[name] for name in TOLD}}
        found: list[Any] = []

        def take(name: str, spec: Tree) -> None:
            value = told.pop(name) if name == "step" else values.pop(name, None)
            # As Tianshou, zeros for an entry that a step lacks.
            found.extend([0 for _ in leaves(spec)] if value is None else flat(value, spec, name))

        for name, spec in rows.specs.items():
            take(name, spec)
        if self._columns.get("obs_next") == "next_obs":
            reward = values["rew"]
            found.append(reward if np.ndim(reward) == np.ndim(values["terminated"]) else 0.0)
            found += [values["terminated"], values["truncated"]]
            take("obs_next", rows.specs["obs"])
        rows.stage(found, lanes)

    def _assign(self, index: Any, values: dict[str, Any], stack: bool) -> None:
        """Write to Tianshou's arrays, as Tianshou does."""
        meta, stored = self._meta.__dict__, self._columns
        if len(meta) == len(values) + len(stored) and values.keys() <= meta.keys():
            try:
                for key, value in values.items():
                    meta[key][index] = value
                return
            except ValueError:  # Tianshou's way says what is wrong, or makes room for it
                pass
        plain = Batch()
        plain.__dict__.update({key: value for key, value in meta.items() if key not in stored})
        batch = Batch()
        batch.__dict__.update(values)
        try:
            plain[index] = batch
        except ValueError:  # the first step, or an entry that there was not before
            batch.rew = batch.rew.astype(float)
            for name in ("done", "terminated", "truncated"):
                batch[name] = batch[name].astype(bool)
            if plain.get_keys():
                alloc_by_keys_diff(plain, batch, self.maxsize, stack)
            else:
                plain = create_value(batch, self.maxsize, stack)
            meta.update(plain.__dict__)
            self._linked()
            plain[index] = batch

    def _linked(self) -> None:
        """Pass new entries of `_meta` to the inner buffers, if there are any."""

    def _leave(self) -> None:
        """Go on with arrays in place of the table."""
        if self._rows is not None:
            self._meta = with_arrays(self._meta)
            self._rows, self._columns, self._given = None, MappingProxyType({}), None

    # -- reading ------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        rows, stored = self._rows, self._columns
        if rows is None:
            return super().__getitem__(index)
        if isinstance(index, slice):
            index = self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]
        meta, stacks, following = self._meta.__dict__, self.stack_num > 1, self._save_obs_next
        data: dict[str, Any]
        if stacks:
            stacked = self._stack(index, self.stack_num)
            data = self._read(stacked, [name for name in stored if name == "obs" or (name == "obs_next" and following)])
            data |= self._read(index, [name for name in stored if name == "act"])
        else:
            data = self._read(index, stored if following else [name for name in stored if name != "obs_next"])
        if not following:
            data["obs_next"] = self.get(self.next(index), "obs", Batch())
        found, plain = Batch(), type(index) is np.ndarray and index.dtype.kind == "i"
        result = found.__dict__
        for name in _RETURNED:
            if name in data:
                result[name] = data[name]
                continue
            value = meta.get(name)
            if plain and (name in _ROWS or not stacks) and (rows_of := taken(value, index)) is not None:
                result[name] = rows_of
            elif name in _ROWS:
                result[name] = meta[name][index]
            else:
                result[name] = Batch() if value is None and name != "obs" else self.get(index, name, Batch())
        for name in meta:
            if name not in result:
                result[name] = meta[name][index]
        return found if plain or np.ndim(index) else Batch(result)

    def _read(self, index: Any, names: Iterable[str]) -> dict[str, Any]:
        """Entries that lie in the table."""
        rows, columns = self._rows, self._columns
        asked = tuple(columns.values()) if names is columns else tuple(columns[name] for name in names)
        if rows is None or not asked:
            return {}
        data = rows.read(index, asked)
        return {name: as_batch(data[columns[name]]) for name in names}

    def _stack(self, index: Any, count: int) -> Any:
        """The indices of this step and of the steps before it, ``[…, count]``, oldest first."""
        indices: Any = np.array(index) if isinstance(index, list) else index
        found = []
        for _ in range(count):
            found.append(indices)
            indices = self.prev(indices)
        return np.stack([np.asarray(each) for each in reversed(found)], axis=-1)

    def _simple(self, batch_size: int | None) -> bool:
        """Whether a draw may take any stored step, each with the same probability."""
        return batch_size is not None and batch_size > 0 and not (self._sample_avail and self.stack_num > 1)

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """As in Tianshou."""
        if key not in self._columns:
            return super().get(index, key, default_value, stack_num)
        count = self.stack_num if stack_num is None else stack_num
        return self._read(index if count == 1 else self._stack(index, count), [key])[key]

    def hasnull(self) -> bool:
        """As in Tianshou, but faster: Tianshou copies all steps.

        Its trainer calls this after every collection of steps. Here, rows of the table are checked once, when they are
        written; only the other arrays are checked each time. While there may be nulls, this takes as long as
        Tianshou's.
        """
        if self._rows is None or self._may_have_nulls():
            return bool(super().hasnull())
        return False

    def _may_have_nulls(self) -> bool:
        """False if surely no entry of any step has a NaN or None."""
        if self._rows is None:
            return True
        self._rows.flush()
        others = (value for name, value in self._meta.__dict__.items() if name not in self._columns)
        return self._rows.has_nan or any(may_have_nulls(each) for each in others)

    # -- the rest of Tianshou's interface -------------------------------------------------------------------------

    def reset(self, keep_statistics: bool = False) -> None:
        """Remove all steps."""
        super().reset(keep_statistics=keep_statistics)
        if self._rows is not None:
            self._rows.clear()

    def set_batch(self, batch: Any) -> None:
        """Use the arrays of this batch, as Tianshou does. These steps and all later ones do not lie in a table."""
        self._leave()
        super().set_batch(batch)

    def dropnull(self) -> None:
        """As in Tianshou. The remaining steps lie in arrays, not in a table."""
        self._leave()
        super().dropnull()

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Save the buffer to an HDF5 file, which Tianshou's class can load too."""
        with h5py.File(path, "w") as file:
            to_hdf5(self._state(with_steps=True), file, compression=compression)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle Tianshou's attributes with the steps as arrays; with a given store, the name of the table instead."""
        return self._state(with_steps=self._given is None)

    def _state(self, with_steps: bool) -> dict[str, Any]:
        state, rows = self.__dict__.copy(), self._rows
        for name in ("_rows", "_columns", *(("_given", "_name") if with_steps else ())):
            state.pop(name, None)
        if with_steps:
            state["_meta"] = with_arrays(self._meta)
        elif rows is not None:
            state["_meta"] = self._beside(self._meta)
            state["_keys"] = rows.keys
        return state

    def _beside(self, meta: Any) -> Any:
        """The entries that do not lie in the table."""
        return as_batch({key: value for key, value in meta.__dict__.items() if key not in self._columns})

    def _renewed(self, places: Any) -> None:
        """Called after steps were taken over from a table; a subclass sets its own state for them."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A buffer with a store of its own."""
        super().__setstate__(state)
        self._restore()

    def _restore(self) -> None:
        """Write the arrays of `_meta` to a table."""
        raise NotImplementedError

    def _restore_lanes(self, order: list[Any]) -> None:
        """Write the steps at these indices, oldest first, of each lane."""
        meta = self._meta.__dict__
        if not all(name in meta for name in FLAGS):
            return
        given = {name: meta.pop(name) for name in STORED if name in meta}
        self._begin(given | {name: meta[name] for name in ("terminated", "truncated")}, 1)
        rows = self._rows
        for name, value in given.items():
            if name not in self._columns:
                meta[name] = value
        if rows is None:
            return
        flags = {name: meta[name] for name in ("terminated", "truncated")}
        flags["reward"] = meta["rew"] if meta["rew"].ndim == 1 else np.zeros(self.maxsize)
        values = {column: given[name] for name, column in self._columns.items()} | flags
        for lane, indices in enumerate(order):
            if len(indices):
                rows.write(indices, {name: value[indices] for name, value in values.items()}, lane)
