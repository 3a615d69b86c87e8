"""The buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from tianshou.data import Batch, ReplayBufferManager
from tianshou.data import PrioritizedVectorReplayBuffer as TianshouPrioritizedVectorReplayBuffer
from tianshou.data import ReplayBuffer as TianshouReplayBuffer
from tianshou.data import VectorReplayBuffer as TianshouVectorReplayBuffer
from tianshou.data.batch import alloc_by_keys_diff, create_value
from tianshou.data.utils.converter import to_hdf5

from di_store.adapters.slots import Slots, Tree, columns
from di_store.adapters.tianshou.entries import (
    as_batch,
    count_step,
    may_have_nulls,
    order_of,
    part_of,
    spec_of,
    taken,
    with_arrays,
    zeros_for,
)
from di_store.adapters.tianshou.priorities import WithWeights

_STORED = ("obs", "act", "obs_next")
_FLAGS = ("rew", "terminated", "truncated", "done")
_NEEDED = {"obs", "act", "rew", "terminated", "truncated"}
_ROWS = ("act", *_FLAGS)
"""Entries that are never stacked."""
_RETURNED = ("obs", "act", *_FLAGS, "obs_next", "info", "policy")
"""The entries of a batch, in Tianshou's order."""


class _Stored(TianshouReplayBuffer):  # type: ignore[misc]
    """What Tianshou's buffers do with their arrays, done with a table for the entries of `_STORED`.

    Entries that a table has no columns for (text, objects, tensors), rewards, flags, `info` and `policy` stay in
    Tianshou's arrays.
    """

    _rows: Slots | None = None
    _columns: Mapping[str, str] = MappingProxyType({})
    """By entry of a batch that lies in the table: the column of the table."""

    buffer_num: int = 1
    _random_state: Any
    _meta: Any
    _insertion_idx: Any
    _size: Any

    # -- writing ------------------------------------------------------------------------------------------------

    def _begin(self, values: dict[str, Any], lead: int) -> None:
        """Make the table for the first step's entries, whose leading axes are not part of their types."""
        specs: dict[str, Tree] = {}
        for name in _STORED:
            if name in values and (spec := spec_of(values[name], lead)) is not None:
                specs[name] = spec
        flat = all(np.ndim(values[name]) == lead for name in ("terminated", "truncated"))
        follows = flat and "obs" in specs and specs.get("obs_next") == specs["obs"]
        if not specs:
            return
        self._columns = {name: "next_obs" if follows and name == "obs_next" else name for name in specs}
        if follows:
            del specs["obs_next"]
        self._rows = Slots(specs, follows, self.buffer_num, self.maxsize)
        self._show()

    def _show(self) -> None:
        """Let `_meta` have the columns of the table beside Tianshou's arrays."""
        if self._rows is None:
            return
        shown = {name: as_batch(columns(self._rows, column)) for name, column in self._columns.items()}
        others = {key: value for key, value in self._meta.__dict__.items() if key not in shown}
        # As in the batches of Tianshou: its buffers list their entries in this order.
        self._meta.__dict__.clear()
        self._meta.__dict__.update(shown | others)

    def _stage(self, values: dict[str, Any], lanes: Any) -> None:
        """Take the entries for the table out of `values`, and gather them."""
        rows = self._rows
        if rows is None:
            return
        staged = {}
        for name, column in self._columns.items():
            value = values.pop(name, None)
            staged[column] = zeros_for(rows.specs(column)) if value is None else value
        if "next_obs" in staged:
            reward = values["rew"]
            staged["reward"] = reward if np.ndim(reward) == np.ndim(values["terminated"]) else 0.0
            staged["terminated"], staged["truncated"] = values["terminated"], values["truncated"]
        rows.stage(staged, lanes)

    def _assign(self, index: Any, values: dict[str, Any], stack: bool) -> None:
        """Write to Tianshou's arrays, as it does."""
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
        """Entries of `_meta` are new: show them to the buffers inside, if there are any."""

    def _leave(self) -> None:
        """Go on with arrays in place of the table."""
        if self._rows is not None:
            self._meta = with_arrays(self._meta)
            self._rows, self._columns = None, MappingProxyType({})

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
        """The indices of this step and of those before it, ``[…, count]``, oldest first."""
        indices: Any = np.array(index) if isinstance(index, list) else index
        found = []
        for _ in range(count):
            found.append(indices)
            indices = self.prev(indices)
        return np.stack([np.asarray(each) for each in reversed(found)], axis=-1)

    def _simple(self, batch_size: int | None) -> bool:
        """Whether a draw is of any steps, with equal probability."""
        return batch_size is not None and batch_size > 0 and not (self._sample_avail and self.stack_num > 1)

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """As Tianshou's."""
        if key not in self._columns:
            return super().get(index, key, default_value, stack_num)
        count = self.stack_num if stack_num is None else stack_num
        return self._read(index if count == 1 else self._stack(index, count), [key])[key]

    def hasnull(self) -> bool:
        """As Tianshou's, whose trainer asks after every collection of steps, and which copies all steps to answer.

        Here the rows of the table are looked at once, when they are written, and only the arrays beside it each time.
        Takes what Tianshou's takes while there may be some.
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
        """Manage the arrays of this batch, as Tianshou does: they do not lie in a table, and later steps neither."""
        self._leave()
        super().set_batch(batch)

    def dropnull(self) -> None:
        """As Tianshou's. What is left lies in arrays, not in a table."""
        self._leave()
        super().dropnull()

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Save the buffer to an HDF5 file, which Tianshou's class can load too."""
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that Tianshou's buffer has, and the steps as arrays."""
        state = self.__dict__.copy()
        for name in ("_rows", "_columns"):
            state.pop(name, None)
        state["_meta"] = with_arrays(self._meta)
        return state

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
        if not all(name in meta for name in _FLAGS):
            return
        given = {name: meta.pop(name) for name in _STORED if name in meta}
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
                rows.write(indices, lane, {name: value[indices] for name, value in values.items()})


class ReplayBuffer(_Stored):
    """In place of Tianshou's `ReplayBuffer`, with its arguments.

    Raises:
        di_store.CapacityError: at the first `add`: the buffer does not fit in the machine's memory.
    """

    def add(self, batch: Any, buffer_ids: Any = None) -> Any:
        """Add one step. Returns its index, and return, length and first index of an episode that ended, ``[1]`` each.

        Args:
            batch: obs, act, rew, terminated, truncated, and usually obs_next and info.
            buffer_ids: ``[0]`` if `batch` has a leading axis of 1, else None.
        """
        values, stacked = self._checked(batch, buffer_ids)
        if self._rows is None and not self._meta.get_keys():
            self._begin(values, int(stacked))
        self._stage(values, None if stacked else 0)
        rew, done = (values["rew"][0], values["done"][0]) if stacked else (values["rew"], values["done"])
        found = count_step(self.__dict__, rew, done)
        if self._rows is not None:
            self._rows.commit(found[0], None if stacked else 0)
        index, *episode = (np.array([each]) for each in found)
        self._assign(index, values, not stacked)
        return index, *episode

    def _checked(self, batch: Any, buffer_ids: Any) -> tuple[dict[str, Any], bool]:
        """The entries of a step, and whether they have a leading axis."""
        values = batch.__dict__.copy()
        if not values.keys() >= _NEEDED:
            raise ValueError("a step needs obs, act, rew, terminated and truncated")
        values["done"] = np.logical_or(values["terminated"], values["truncated"])
        stacked = buffer_ids is not None
        if stacked and (list(buffer_ids) != [0] or np.shape(values["done"])[:1] != (1,)):
            raise ValueError(
                f"buffer_ids is [0], with a leading axis of 1, or None: got {buffer_ids} and the shape "
                f"{np.shape(values['done'])} of terminated"
            )
        if not self._save_obs_next:
            values.pop("obs_next", None)
        if self._save_only_last_obs:
            for name in {"obs", "obs_next"} & values.keys():
                values[name] = values[name][:, -1] if stacked else values[name][-1]
        return values, stacked

    def sample_indices(self, batch_size: int | None) -> Any:
        """As Tianshou's, with the same random numbers."""
        if not self._simple(batch_size):
            return super().sample_indices(batch_size)
        if not self._size:
            raise ValueError("the buffer is empty: add() steps before sample()")
        return self._random_state.randint(0, self._size, batch_size)

    def update(self, buffer: Any) -> Any:
        """Add all steps of another buffer. Returns their indices here."""
        if self._rows is None and self._meta.get_keys():
            return super().update(buffer)
        if len(buffer) == 0 or self.maxsize == 0:
            return np.array([], int)
        stack_num, buffer.stack_num = buffer.stack_num, 1
        source = buffer.sample_indices(0)
        buffer.stack_num = stack_num
        taken = with_arrays(buffer._meta[source])
        values = {key: taken[key] for key in taken.get_keys()}
        if self._rows is None:
            self._begin(values, 1)
        indices = (self._insertion_idx + np.arange(len(source))) % self.maxsize
        if self._rows is not None:
            needed = {key: values[key] for key in (*_STORED, *_FLAGS) if key in values}  # `info` may have no entries
            for number, index in enumerate(indices.tolist()):
                self._stage({key: value[number] for key, value in needed.items()}, 0)
                self._rows.commit(index, 0)
        self._assign(indices, {key: value for key, value in values.items() if key not in self._columns}, False)
        self._insertion_idx = int(indices[-1] + 1) % self.maxsize
        self.last_index[0] = indices[-1]
        self._size = min(self._size + len(indices), self.maxsize)
        return indices

    @classmethod
    def from_data(
        cls, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, done: Any, obs_next: Any
    ) -> ReplayBuffer:
        """A full buffer of these arrays or HDF5 datasets, which all have a leading axis of the same length."""
        given = {"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated, "done": done}
        given["obs_next"] = obs_next
        if len({len(value) for value in given.values()}) != 1:
            raise ValueError(f"lengths differ: { {name: len(value) for name, value in given.items()} }")
        buffer = cls(len(obs))
        if len(obs):
            buffer._meta = Batch({name: np.asarray(value) for name, value in given.items()})
            buffer._size = len(obs)
            buffer._restore()
        return buffer

    def _restore(self) -> None:
        self._restore_lanes([order_of(self)])


class PrioritizedReplayBuffer(WithWeights, ReplayBuffer):
    """In place of Tianshou's `PrioritizedReplayBuffer`, with its arguments."""


class _StoredVector(_Stored, ReplayBufferManager):  # type: ignore[misc]
    """The part that buffers of several environments have in common."""

    def add(self, batch: Any, buffer_ids: Any = None) -> Any:
        """Add one step of some environments.

        Returns their indices, and return, length and first index of the episodes that ended: an array of each.

        Args:
            batch: entries with a leading axis of ``len(buffer_ids)``.
            buffer_ids: environments; None: all.
        """
        given = batch.__dict__
        values = {key: given[key] for key in self._reserved_keys if key in given}
        if not values.keys() >= _NEEDED:
            raise ValueError("a step needs obs, act, rew, terminated and truncated")
        values["done"] = np.logical_or(values["terminated"], values["truncated"])
        if not self._save_obs_next:
            values.pop("obs_next", None)
        if self._save_only_last_obs:
            for name in {"obs", "obs_next"} & values.keys():
                values[name] = values[name][:, -1]
        every = list(range(self.buffer_num))
        lanes = every if buffer_ids is None else np.asarray(buffer_ids).tolist()
        if len(set(lanes)) < len(lanes):
            parts = [self.add(batch[number : number + 1], [lane]) for number, lane in enumerate(lanes)]
            return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
        if self._rows is None and not self._meta.get_keys():
            self._begin(values, 1)
        chosen = None if lanes == every else np.array(lanes)
        self._stage(values, chosen)
        index, *episode = self._advanced(lanes, values["rew"], values["done"])
        if self._rows is not None:
            self._rows.commit(index, chosen)
        self._assign(index, values, False)
        return index, *episode

    def _advanced(self, lanes: list[int], rew: Any, done: Any) -> tuple[Any, ...]:
        """Let these environments' buffers count a step: what `add` returns."""
        offsets, found = self._offset.tolist(), []
        rewards = rew.tolist() if rew.dtype == np.float64 and rew.ndim == 1 else rew
        for lane, reward, ended in zip(lanes, rewards, done.tolist() if done.ndim == 1 else done, strict=True):
            offset = offsets[lane]
            index, ep_return, ep_len, start = count_step(self.buffers[lane].__dict__, reward, ended)
            found.append((index + offset, ep_return, ep_len, start + offset))
            self.last_index[lane] = index + offset
            self._lengths[lane] = self.buffers[lane]._size
        return tuple(np.array(each) for each in zip(*found, strict=True))

    def sample_indices(self, batch_size: int | None) -> Any:
        """As Tianshou's, with the same random numbers."""
        if not self._simple(batch_size):
            return super().sample_indices(batch_size)
        lengths = self._lengths
        if not lengths.any():
            raise ValueError("the buffer is empty: add() steps before sample()")
        shares = (lengths / lengths.sum()).cumsum()
        drawn = (shares / shares[-1]).searchsorted(self._random_state.random_sample(batch_size), side="right")
        found = []
        for lane, count in enumerate(np.bincount(drawn, minlength=self.buffer_num).tolist()):
            if count:
                buffer = self.buffers[lane]
                found.append(buffer._random_state.randint(0, buffer._size, count) + self._offset[lane])
        return np.concatenate(found)

    def unfinished_index(self) -> Any:
        """The last steps of the environments whose episodes go on."""
        done = self._meta.__dict__.get("done")
        if self._rows is None or done is None or done.ndim != 1:
            return super().unfinished_index()
        last = self.last_index[self._lengths > 0]
        return last[~done.take(last)]

    def _set_batch_for_children(self) -> None:
        for offset, buffer in zip(self._offset.tolist(), self.buffers, strict=True):
            buffer._meta = part_of(self._meta, slice(offset, offset + buffer.maxsize))

    def _show(self) -> None:
        super()._show()
        self._set_batch_for_children()

    def _linked(self) -> None:
        self._set_batch_for_children()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        buffers = []
        for buffer in self.buffers:
            kept = object.__new__(type(buffer))
            kept.__dict__.update(buffer.__dict__)
            kept._meta = as_batch({k: v for k, v in buffer._meta.__dict__.items() if k not in self._columns})
            buffers.append(kept)
        state["buffers"] = np.array(buffers, dtype=object)
        return state

    def _restore(self) -> None:
        order = [order_of(buffer) + offset for offset, buffer in zip(self._offset.tolist(), self.buffers, strict=True)]
        self._restore_lanes(order)
        if self._meta.get_keys():
            self._set_batch_for_children()


class VectorReplayBuffer(_StoredVector, TianshouVectorReplayBuffer):  # type: ignore[misc]
    """In place of Tianshou's `VectorReplayBuffer`, with its arguments.

    Raises:
        di_store.CapacityError: at the first `add`: the buffer does not fit in the machine's memory.
    """


class PrioritizedVectorReplayBuffer(WithWeights, TianshouPrioritizedVectorReplayBuffer, _StoredVector):  # type: ignore[misc]
    """In place of Tianshou's `PrioritizedVectorReplayBuffer`, with its arguments. Priorities stay in its sum tree."""
