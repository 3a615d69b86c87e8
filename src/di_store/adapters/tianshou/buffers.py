"""The buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBufferManager
from tianshou.data import PrioritizedVectorReplayBuffer as TianshouPrioritizedVectorReplayBuffer
from tianshou.data import VectorReplayBuffer as TianshouVectorReplayBuffer

from di_store.adapters.tianshou.entries import STORED, count_step, order_of, part_of, prepare, with_arrays
from di_store.adapters.tianshou.given import Given
from di_store.adapters.tianshou.priorities import WithWeights
from di_store.adapters.tianshou.stored import FLAGS, Stored


class NoOptions:
    """Replaces a buffer's `options`, which `CachedReplayBuffer` and `ReplayBufferManager` read to make more like it.

    These classes lay their buffers over the arrays of one batch, and a table is no such array. Tianshou's own
    constructors write the attribute; it is deleted afterwards.
    """

    def __get__(self, buffer: Any, kind: type) -> Any:
        if buffer is None:
            return self
        raise TypeError(
            "CachedReplayBuffer and ReplayBufferManager lay their buffers over Tianshou's arrays: give them Tianshou's "
            "own ReplayBuffer, as main_buffer too, or use di_store's VectorReplayBuffer, which needs neither"
        )


class _StoredOne(Stored):
    """The common part of buffers of one environment."""

    options: Any = NoOptions()

    def add(self, batch: Any, buffer_ids: Any = None) -> Any:
        """Add one step. Returns its index, and return, length and first index of an episode that ended, ``[1]`` each.

        Args:
            batch: obs, act, rew, terminated, truncated, and usually obs_next and info.
            buffer_ids: ``[0]`` if `batch` has a leading axis of 1, else None.
        """
        values, stacked = batch.__dict__.copy(), buffer_ids is not None
        if stacked and (list(buffer_ids) != [0] or np.shape(values.get("terminated"))[:1] != (1,)):
            raise ValueError(
                f"buffer_ids is [0], with a leading axis of 1, or None: got {buffer_ids} and the shape "
                f"{np.shape(values.get('terminated'))} of terminated"
            )
        prepare(values, stacked, self._save_obs_next, self._save_only_last_obs)
        if self._rows is None and not self._meta.get_keys():
            self._begin(values, int(stacked))
        self._stage(values)
        rew, done = (values["rew"][0], values["done"][0]) if stacked else (values["rew"], values["done"])
        found = count_step(self.__dict__, rew, done)
        if self._rows is not None:
            self._rows.commit(found[0])
        index, *episode = (np.array([each]) for each in found)
        self._assign(index, values, not stacked)
        return index, *episode

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
            needed = {key: values[key] for key in (*STORED, *FLAGS) if key in values}  # `info` may have no entries
            for number, index in enumerate(indices.tolist()):
                self._stage({key: value[number] for key, value in needed.items()})
                self._rows.commit(index)
        self._assign(indices, {key: value for key, value in values.items() if key not in self._columns}, False)
        self._insertion_idx = int(indices[-1] + 1) % self.maxsize
        self.last_index[0] = indices[-1]
        self._size = min(self._size + len(indices), self.maxsize)
        return indices

    @classmethod
    def from_data(cls, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, done: Any, obs_next: Any) -> Any:
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


class ReplayBuffer(Given, _StoredOne):
    """A replacement for Tianshou's `ReplayBuffer`, with its arguments, `store=` and `table=`.

    Raises:
        di_store.CapacityError: at the first `add`: the buffer does not fit in the machine's memory.
    """


class PrioritizedReplayBuffer(Given, WithWeights, _StoredOne):
    """A replacement for Tianshou's `PrioritizedReplayBuffer`, with its arguments, `store=` and `table=`."""


class _StoredVector(Stored, ReplayBufferManager):  # type: ignore[misc]
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
        prepare(values, True, self._save_obs_next, self._save_only_last_obs)
        every = list(range(self.buffer_num))
        lanes = every if buffer_ids is None else np.asarray(buffer_ids).tolist()
        if len(set(lanes)) < len(lanes):
            parts = [self.add(batch[number : number + 1], [lane]) for number, lane in enumerate(lanes)]
            return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
        if self._rows is None and not self._meta.get_keys():
            self._begin(values, 1)
        chosen = None if lanes == every else tuple(lanes)
        self._stage(values, chosen)
        index, *episode = self._advanced(lanes, values["rew"], values["done"])
        if self._rows is not None:
            self._rows.commit(index, chosen)
        self._assign(index, values, False)
        return index, *episode

    def _advanced(self, lanes: list[int], rew: Any, done: Any) -> tuple[Any, ...]:
        """Let these environments' buffers count a step; returns what `add` returns."""
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
        """The last steps of the environments with open episodes."""
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

    def _state(self, with_steps: bool) -> dict[str, Any]:
        state = super()._state(with_steps)
        buffers = []
        for buffer in self.buffers:
            kept = object.__new__(type(buffer))
            kept.__dict__.update(buffer.__dict__)
            kept._meta = self._beside(buffer._meta)
            buffers.append(kept)
        state["buffers"] = np.array(buffers, dtype=object)
        return state

    def _restore(self) -> None:
        order = [order_of(buffer) + offset for offset, buffer in zip(self._offset.tolist(), self.buffers, strict=True)]
        self._restore_lanes(order)
        if self._meta.get_keys():
            self._set_batch_for_children()


class VectorReplayBuffer(Given, _StoredVector, TianshouVectorReplayBuffer):  # type: ignore[misc]
    """A replacement for Tianshou's `VectorReplayBuffer`, with its arguments, `store=` and `table=`.

    Raises:
        di_store.CapacityError: at the first `add`: the buffer does not fit in the machine's memory.
    """


class PrioritizedVectorReplayBuffer(Given, WithWeights, TianshouPrioritizedVectorReplayBuffer, _StoredVector):  # type: ignore[misc]
    """A replacement for Tianshou's `PrioritizedVectorReplayBuffer`, with its arguments, `store=` and `table=`.

    Priorities stay in Tianshou's sum tree.
    """
