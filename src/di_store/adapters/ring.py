"""A ring buffer of steps whose rows lie in a table.

It is the base of adapters for libraries whose replay buffers are rings of arrays, ``[size, n_envs, …]``. The adapter
decides what is drawn, and how.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import di_store
from di_store.adapters.casts import assign, whole, zeros
from di_store.adapters.stored_array import Array, StoredArray
from di_store.adapters.stores import (
    MOST_COPIED,
    MOST_STAGED,
    NO_KEY,
    STAGED_BYTES,
    Held,
    StoreLike,
    check_rows_are_there,
    forget_failure,
    given_store,
    held_rows,
    own_store,
    table_of,
)
from di_store.adapters.trees import cut, differ

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_AT_ONCE = 4_096
"""Rows that are read or written in one call while a buffer is pickled or loaded."""
DRAWN = ("obs", "action", "next_obs")
"""What a ring buffer reads for a batch, beside rewards and flags."""


class Ring:
    """The steps of a buffer in a table.

    A slot is a time of the ring and an environment; `keys` says which item of the table it holds. Ring and table both
    drop the oldest steps, so the table evicts exactly the steps that the ring overwrites.

    In a store of its own, the ring gathers steps and writes them together. In a given store, each step is in the table
    when `append` returns, with its slot; steps that the table already holds keep their slots.

    Args:
        obs: type of one environment's observation, or a dict of types by key.
        action: type of its action.
        size: number of times in the ring.
        n_envs: number of environments.
        store: store of the table; None: a store of its own.
        table: name of the table.

    Attributes:
        store: store of the table.
        table: table of the steps.
        given: whether the store was given.
        rewards: float32[size, n_envs].
        dones: float32[size, n_envs], 1 where an episode ended; without the steps that are not in the table yet.
        timeouts: like `dones`, 1 where an episode was cut off.
        keys: uint64[size, n_envs].
        count: number of times that have steps in the table.
        newest: the newest time that the table already held; -1: none.
        staged: number of steps that are not in the table yet.
    """

    def __init__(
        self,
        obs: di_store.Spec | dict[str, di_store.Spec],
        action: di_store.Spec,
        size: int,
        n_envs: int,
        store: StoreLike = None,
        table: str = "replay",
    ) -> None:
        self.rewards = np.zeros((size, n_envs), np.float32)
        self.dones, self.timeouts = flags = np.zeros((2, size, n_envs), np.float32)
        self._flags, self._no_flags = flags.transpose(1, 0, 2), np.zeros((2, n_envs), np.float32)
        self.keys = np.full(self.rewards.shape, NO_KEY)
        self.count = self.staged = self._first = 0
        self._last: Array = self.keys[0]
        self._dict = isinstance(obs, dict)
        self._specs = obs if isinstance(obs, dict) else {"": obs}
        # Keys that cannot name a column are numbered.
        self._names = {
            key: key if _PLAIN.fullmatch(key) or not key else f"key{number}" for number, key in enumerate(self._specs)
        }
        self._action, self._n_envs, self._pid = action, n_envs, os.getpid()
        self.given, self.newest = store is not None, -1
        self.store, self.table = self._make(size * n_envs, given_store(store), table)
        self._writer = self.table.writer(lanes=n_envs)
        self._stage()
        if self.given:
            self._take_over()

    def _make(self, capacity: int, given: di_store.Store | None, name: str) -> tuple[di_store.Store, di_store.Table]:
        columns = {self._names[key]: spec for key, spec in self._specs.items()}
        schema = {"obs": columns if self._dict else columns[""], "action": self._action}
        # The table has to know where episodes end. How they ended is known from `dones` and `timeouts`.
        schema |= {"reward": di_store.Spec((), "f4"), "truncated": di_store.Spec((), "?")}
        if given is not None:  # other processes read it, and it must tell all that is known of a step
            schema |= {"terminated": di_store.Spec((), "?"), "slot": di_store.Spec((2,), "i4")}
        view = di_store.Transition(n_step=1, gamma=1.0)
        options: dict[str, Any] = {"capacity": capacity, "view": view, "schema": schema, "lanes": self._n_envs}
        if given is not None:
            return given, table_of(given, name, "buffer_size=", **options)
        needed = di_store.needed_memory(**options)
        # A last observation takes a row of its own, so episodes of one step take twice as many.
        what = f"buffer_size={capacity:,} transitions of these spaces"
        store = own_store(needed, what, "buffer_size=", spare=needed)
        return store, store.create_table(name, **options)

    def _take_over(self) -> None:
        """Find the slots of the steps that the table holds, and what is kept of them here."""
        held = held_rows(self.table, ("reward", "terminated", "truncated"))
        keys, slots = held.keys, held.slots
        if not len(keys):
            return
        episodes = self._found(held)
        newest = int(slots[-1, 0])
        partial = keys[-self._n_envs :][slots[-self._n_envs :, 0] == newest]
        if len(partial) < self._n_envs:  # its writer was killed between two environments
            self.table.delete(partial)
            self.keys[newest] = NO_KEY
            self.rewards[newest] = self.dones[newest] = self.timeouts[newest] = 0
            newest -= 1
        self.newest, self._last = newest, self.keys[newest]
        self.count = len(self.keys) if (self.keys != NO_KEY).all() else newest + 1
        # An episode that goes on in no row is cut off, also that of the newest step: its writer is gone.
        order = (np.arange(self.count) + newest + 1 - self.count) % len(self.keys)
        cut_off = np.ones((self.count, self._n_envs), bool)
        cut_off[:-1] = episodes[order[:-1]] != episodes[order[1:]]
        self.timeouts[order] = np.where(cut_off & (self.dones[order] == 0), 1, self.timeouts[order])

    def _found(self, held: Held) -> Array:
        """Keep what belongs to the steps that the table holds: their episodes, by slot."""
        slots = held.slots
        if slots[:, 0].max() >= len(self.keys) or slots[:, 1].max() + 1 != self._n_envs:
            raise ValueError(
                f"table {self.table.name!r} holds steps of {slots[:, 1].max() + 1} environments, and n_envs= is "
                f"{self._n_envs}: give as many as it was made with, or table= another name"
            )
        data, where, episodes = held.data, tuple(slots.T), np.zeros(self.keys.shape, np.int64)
        self.keys[where], self.rewards[where], episodes[where] = held.keys, data["reward"], held.episodes
        self.dones[where], self.timeouts[where] = data["terminated"] | data["truncated"], data["truncated"]
        return episodes

    def _stage(self) -> None:
        """Arrays that gather steps: ``[rows, n_envs, …]``."""
        specs = [*self._specs.values()] * 2 + [self._action]
        row = sum(self._zeros(spec, 1).nbytes for spec in specs)
        most = 1 if self.given or row > MOST_COPIED else STAGED_BYTES // max(row, 1)
        self._rows = min(MOST_STAGED, most, len(self.keys))
        self._obs = {key: self._zeros(spec, self._rows) for key, spec in self._specs.items()}
        self._next = {key: self._zeros(spec, self._rows) for key, spec in self._specs.items()}
        self._actions = self._zeros(self._action, self._rows)
        # Views of each row: numpy assigns to all of a view faster than to a row by number.
        self._obs_rows = {key: list(each) for key, each in self._obs.items()}
        self._next_rows = {key: list(each) for key, each in self._next.items()}
        self._plain, self._plain_next = (next(iter(each.values())) for each in (self._obs_rows, self._next_rows))
        self._action_rows = list(self._actions)
        self._plain_dtype, self._plain_shape = self._plain[0].dtype, self._plain[0].shape
        self._ended = np.zeros((self._rows, self._n_envs), bool)
        self._terminated, self._slots = self._ended.copy(), np.zeros((self._rows, self._n_envs, 2), np.int32)
        self._slots[..., 1] = np.arange(self._n_envs)
        self._one = self._columns(0), {"obs": self._named(self._next, 0)}
        self._ends: list[tuple[int, Any, Any]] = []

    def _zeros(self, spec: di_store.Spec, rows: int) -> Array:
        return zeros((rows, self._n_envs), spec)

    def _named(self, obs: dict[str, Array], part: Any) -> Any:
        """Observations under the names of their columns."""
        return {self._names[key]: value[part] for key, value in obs.items()} if self._dict else obs[""][part]

    def _columns(self, part: Any) -> dict[str, Any]:
        """Gathered rows, except for their rewards."""
        columns = {"obs": self._named(self._obs, part), "action": self._actions[part]}
        columns["truncated"] = self._ended[part]
        return columns | {"terminated": self._terminated[part], "slot": self._slots[part]} if self.given else columns

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, time: int, obs: Any, next_obs: Any, action: Any, reward: Any, ends: Any) -> None:
        """Add one row per environment. Values are cast as `casts.assign` does.

        Args:
            time: time of the ring: the one after the last.
            obs: observations of all environments.
            next_obs: as `obs`.
            action: actions of all environments.
            reward: rewards of all environments.
            ends: whether episodes ended, and whether they were cut off; None: none ended.

        Raises:
            di_store.SchemaMismatch: a number that its column cannot hold.
        """
        if self._rows == 1:
            self._append_now(time, obs, next_obs, action, reward, ends)
            return
        row = self.staged
        if self._dict:
            for key, staged in self._obs_rows.items():
                assign(staged[row], obs[key], "observation")
                assign(self._next_rows[key][row], next_obs[key], "observation")
        else:
            dtype = self._plain_dtype  # asked here, because a call costs more than all of it
            if type(obs) is np.ndarray and obs.dtype is dtype:
                self._plain[row][...] = obs
            else:
                assign(self._plain[row], obs, "observation")
            if type(next_obs) is np.ndarray and next_obs.dtype is dtype:
                self._plain_next[row][...] = next_obs
            else:
                assign(self._plain_next[row], next_obs, "observation")
        if action.dtype is self._actions.dtype:
            self._action_rows[row][...] = action
        else:
            assign(self._action_rows[row], action, "action")
        self.rewards[time] = reward
        if ends is not None:
            self._note_end(time, ends)
        self.staged = row = row + 1
        if row == 1:
            self._first = time
        if row == self._rows or time + 1 == len(self.keys):
            self.flush()

    def _append_now(self, time: int, obs: Any, next_obs: Any, action: Any, reward: Any, ends: Any) -> None:
        """As `append`: the step is in the table when it returns, so no copy of what was given is needed."""
        step, following = self._one
        if self._dict:
            step["obs"] = _whole(self._obs, obs, self._names)
            following["obs"] = _whole(self._next, next_obs, self._names)
        else:
            dtype, shape = self._plain_dtype, self._plain_shape  # asked here, as in `append`
            if type(obs) is np.ndarray and obs.dtype is dtype and obs.shape == shape:
                step["obs"] = obs
            else:
                step["obs"] = whole(self._plain[0], obs, "observation")
            if type(next_obs) is np.ndarray and next_obs.dtype is dtype and next_obs.shape == shape:
                following["obs"] = next_obs
            else:
                following["obs"] = whole(self._plain_next[0], next_obs, "observation")
        step["action"] = whole(self._action_rows[0], action, "action")
        self.rewards[time] = reward
        self._ends.clear()  # of a step whose write failed
        if ends is not None:
            self._note_end(time, ends)
        self.staged, self._first = 1, time
        self.flush()

    def _note_end(self, time: int, ends: Any) -> None:
        done, cut_off = np.empty((2, self._n_envs), np.float32)
        done[:], cut_off[:] = ends  # of a wrong shape: refused here, not when they are written
        self._ends.append((time, done, cut_off))

    def flags(self) -> tuple[Array, Array]:
        """`dones` and `timeouts` of all steps."""
        self.flush()
        return self.dones, self.timeouts

    def flush(self) -> None:
        """Write the gathered steps."""
        count, first = self.staged, self._first
        if count == 0:
            return
        if count > 1 or self._ends or self.given:
            self._set_flags(count, slice(first, first + count))
        else:
            self._flags[first] = self._no_flags
        step, following = self._one
        try:
            if count == 1:
                step["reward"] = self.rewards[first]
                self._last = self.keys[first] = self._written(step, following, times=False)
            else:
                times = slice(first, first + count)
                step = self._columns(slice(count)) | {"reward": self.rewards[times]}
                following = {"obs": self._named(self._next, slice(count))}
                self._note(times, self._written(step, following))
        except ValueError:  # observations do not follow those before
            forget_failure(self._writer)
            if count == 1:
                step, following = cut(step, None), cut(following, None)
            self.extend(np.arange(first, first + count), step, following["obs"])
        if self._ends:
            self._ended[:count] = self._terminated[:count] = False
            self._ends.clear()
        self.staged = 0
        if first + count > self.count:
            self.count = first + count

    def _set_flags(self, count: int, times: slice) -> None:
        self._flags[times] = 0
        if self._ends:
            for time, done, timeout in self._ends:
                self.dones[time] = done
                self.timeouts[time] = timeout
            if self.given:
                np.not_equal(self.timeouts[times], 0, out=self._ended[:count])
                np.logical_and(self.dones[times], ~self._ended[:count], out=self._terminated[:count])
            else:
                np.not_equal(self.dones[times] + self.timeouts[times], 0, out=self._ended[:count])
        if self.given:
            self._slots[:count, :, 0] = np.arange(times.start, times.stop)[:, None]

    def extend(self, times: Array, rows: dict[str, Any], following: Any) -> None:
        """Write many rows, leaves ``[times, n_envs, …]``. Some rows may not follow the rows before them.

        At such gaps the episode ends, and `timeouts` is set to 1, so that sums of rewards stop.

        Args:
            times: times of the ring.
            rows: all columns.
            following: the next observations.
        """
        ended = rows["truncated"] | rows.get("terminated", False)
        broken = differ(cut(following, slice(0, -1)), cut(rows["obs"], slice(1, None)), 2) & ~ended[:-1]
        self.timeouts[times[:-1]] = np.where(broken, 1, self.timeouts[times[:-1]])
        begin = 0
        for end in [*(np.flatnonzero(broken.any(axis=1)) + 1), len(times)]:
            part = slice(begin, end)
            if (jumped := self._end_jumped(cut(rows["obs"], begin))) is not None:
                self.timeouts[times[begin] - 1, jumped] = 1
            keys = self._written(cut(rows, part), {"obs": cut(following, part)})
            self._note(times[part], keys)
            self.count, begin = max(self.count, int(times[part].max()) + 1), end

    def restore_flags(self, rewards: Array, dones: Array, timeouts: Array) -> None:
        """Set the flags and rewards that `rewards` and `flags` of another ring returned."""
        self.rewards[:], self.dones[:], self.timeouts[:] = rewards, dones, timeouts

    def restore(self, times: Array, data: dict[str, Any]) -> None:
        """Write the steps of these times, as `read_times` of another ring returned them."""
        every = slice(None)
        obs, following = (
            self._named(each if self._dict else {"": each}, every) for each in (data["obs"], data["next_obs"])
        )
        dones, timeouts = self.dones[times], self.timeouts[times]
        rows = {"obs": obs, "action": data["action"], "reward": self.rewards[times]}
        if self.given:
            slots = np.stack(np.broadcast_arrays(times[:, None], np.arange(self._n_envs)), axis=-1)
            rows |= {"truncated": timeouts != 0, "terminated": (dones != 0) & (timeouts == 0), "slot": slots}
        else:
            rows["truncated"] = dones + timeouts != 0
        self.extend(times, rows, following)

    def clear(self) -> None:
        """Remove all rows."""
        self._writer.end_episode()
        self.table.reset()
        self.keys.fill(NO_KEY)
        self.count = self.staged = 0
        self._ends.clear()
        self._ended[:] = False

    def _written(self, rows: dict[str, Any], following: dict[str, Any], times: bool = True) -> Array:
        """The keys of rows, which have an axis of `times` or not.

        A thread that takes over from another gets a writer of its own.
        """
        try:
            write = self._writer.extend if times else self._writer.append
            keys: Array = write(rows, next=following).keys
        except di_store.WriterClosed:
            if os.getpid() != self._pid:
                raise
            self._writer = self.table.writer(lanes=self._n_envs)
            write = self._writer.extend if times else self._writer.append
            keys = write(rows, next=following).keys
        return keys

    def _note(self, times: Any, keys: Array) -> None:
        """Keep keys, which are sorted by lane."""
        self.keys[times] = by_time = keys.reshape(self._n_envs, -1).T
        self._last = by_time[-1]

    def _end_jumped(self, obs: Any) -> Array | None:
        """End the episodes that `obs`, the next observations, do not continue: bool[n_envs]; None: there are none."""
        if self.count == 0:
            return None
        flags = ("truncated", "terminated") if self.given else ("truncated",)
        last = self.table.peek(self._last, columns=("next_obs", *flags)).data
        jumped: Array = differ(last["next_obs"], obs, 1) & ~np.logical_or.reduce([last[name] for name in flags])
        if not jumped.any():
            return None
        self._writer.end_episode(lane=jumped)
        return jumped

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, slots: Array, columns: Iterable[str]) -> dict[str, Any]:
        """Columns of slots, leaves ``[n, …]``. Slots number all environments of a time, then those of the next time."""
        if self.staged:
            self.flush()
        return self.read_keys(self.keys.take(slots), columns)

    def read_times(self, times: Array) -> dict[str, Any]:
        """``obs``, ``action`` and ``next_obs`` of all environments at these times: leaves ``[times, n_envs, …]``."""
        self.flush()
        data = self.read_keys(self.keys[times].reshape(-1), DRAWN)
        shape = (len(times), self._n_envs)
        return {
            name: {key: each.reshape(*shape, *each.shape[1:]) for key, each in value.items()}
            if isinstance(value, dict)
            else value.reshape(*shape, *value.shape[1:])
            for name, value in data.items()
        }

    def read_keys(self, keys: Array, columns: Iterable[str]) -> dict[str, Any]:
        """Columns of items of the table; zeros for keys of no item, as in an array that is not filled.

        Raises:
            di_store.CapacityError: steps were evicted before the ring overwrites them. di_store.StoreError: others
            removed steps.
        """
        batch = self.table.peek(keys, columns=columns)
        if self.given:
            check_rows_are_there(self.table, keys, batch.live)
        elif batch.live is not None and not batch.live.all() and self.table.stats()["evicted_for_room"]:
            raise di_store.CapacityError(
                "the buffer's oldest steps were evicted: the last observations of short episodes need more memory than "
                "this machine has",
                remedy='lower buffer_size=, or give a store with a disk tier: store={"disk": "/data/replay"}',
            )
        data: dict[str, Any] = batch.data
        if self._dict:
            for name in ("obs", "next_obs"):
                if name not in data:
                    continue
                read = data[name]
                data[name] = {key: read[column] for key, column in self._names.items() if column in read}
        return data

    def column(self, name: str) -> Any:
        """A column that is indexed like an array; for observations of a `Dict` space, a dict of such columns."""
        if name == "action":
            return Column(self, name, (), self._action)
        if not self._dict:
            return Column(self, name, (), self._specs[""])
        return {key: Column(self, f"{name}/{self._names[key]}", (key,), spec) for key, spec in self._specs.items()}


class Column(StoredArray):
    """One column of all slots, ``[size, n_envs, …]``."""

    def __init__(self, rows: Ring, name: str, path: tuple[str, ...], spec: di_store.Spec) -> None:
        self._rows, self._name, self._path = rows, name, path
        super().__init__(spec.dtype, (*rows.keys.shape, *spec.shape))

    def __getitem__(self, index: Any) -> Array:
        inner: tuple[Any, ...] = ()
        if isinstance(index, tuple):
            if any(each is Ellipsis or each is None for each in index):
                return self[:][index]
            index, inner = index[:2], index[2:]
        self._rows.flush()
        keys = np.asarray(self._rows.keys[index])
        data = self._rows.read_keys(keys.reshape(-1), (self._name,))[self._name.partition("/")[0]]
        for key in self._path:
            data = data[key]
        found: Array = data.reshape(*keys.shape, *self.shape[2:])
        return found[(slice(None),) * keys.ndim + inner] if inner else found


def _whole(staged: dict[str, Array], obs: dict[str, Any], names: dict[str, str]) -> dict[str, Array]:
    """An observation of a Dict space under the names of its columns: what was given, if it has the types of these."""
    return {names[key]: whole(each[0], obs[key], "observation") for key, each in staged.items()}


def pieces(order: Array, n_envs: int) -> Iterator[Array]:
    """The times, in pieces that are read or written at once."""
    step = max(1, _AT_ONCE // n_envs)
    return (order[begin : begin + step] for begin in range(0, len(order), step))
