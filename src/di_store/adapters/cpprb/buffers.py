"""The buffers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import cpprb
import numpy as np
from cpprb.multiprocessing import try_start

import di_store
from di_store.adapters.casts import cast
from di_store.adapters.cpprb.columns import Rows, TransitionColumns
from di_store.adapters.cpprb.episode import OpenEpisode
from di_store.adapters.cpprb.nsteps import NSteps, waiting
from di_store.adapters.cpprb.ring import ItemRing
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import StoreLike, given_store
from di_store.adapters.trees import cut

_FLOAT = np.dtype(np.float32)
_BACKENDS = ("sharedctypes", "SharedMemory")


class ReplayBuffer(cpprb.ReplayBuffer):  # type: ignore[misc]  # cpprb has no types
    """cpprb's `ReplayBuffer` and `MPReplayBuffer`: transitions, sampled with equal probability.

    It is a subclass of cpprb's class, so `cpprb.train` and `isinstance` accept it, but the transitions lie in the
    table. `save_transitions` and `load_transitions` are cpprb's own.

    Args:
        size: number of transitions that it holds.
        env_dict: by name, ``{"shape": …, "dtype": …}`` of each value; defaults 1 and `default_dtype`.
        next_of: names whose next values are stored once and come back as ``next_<name>``.
        stack_compress: names whose last axis is a stack of frames, each of which is stored once.
        default_dtype: float32 if None.
        Nstep: n-step returns, computed by cpprb's own code in the process that adds.
        store: the store of the table, see `adapters.stores.StoreLike`; None: a store of its own, which grows as needed.
        table: name of the table in `store`. If the table exists, this buffer is another handle of it; None: a new
            table.
        others: cpprb's `ctx` and `backend`. They are checked and have no effect.

    Attributes:
        store: the store of the transitions.
        table: their table, for features that cpprb's interface lacks: loaders, limits, statistics.
    """

    def __new__(cls, *_: Any, **__: Any) -> ReplayBuffer:
        """An object whose cpprb base class has room for one number."""
        return super().__new__(cls, 1, {"unused": {}})  # type: ignore[no-any-return]

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, Any] | None = None,
        *,
        next_of: Any = None,
        stack_compress: Any = None,
        default_dtype: Any = None,
        Nstep: Mapping[str, Any] | None = None,
        store: StoreLike = None,
        table: str | None = None,
        **others: Any,
    ) -> None:
        _check_others(others)
        env = {name: dict(each) for name, each in (env_dict or {}).items()}
        following, stacked = _names(next_of), _names(stack_compress)
        nstep = None
        if Nstep:
            nstep = {"Nstep": dict(Nstep), "env_dict": env, "default_dtype": default_dtype, "next_of": following}
            env = {**env, **{"next_" + name: env[name] for name in following if name in env}}
            following = []  # as cpprb: n steps apart, a next value is not the following one
        columns = TransitionColumns(env, default_dtype or np.float32, following, stacked)
        if table is not None and store is None:
            raise ValueError(f"table={table!r} names a table of a store: give store= too")
        place = given_store(store) or di_store.open(memory="fit")
        made = _table(place, table, int(size), columns, self._sampler())
        if made.capacity != int(size):
            raise ValueError(f"size={int(size)}: table {table!r} of the store holds {made.capacity} transitions")
        self._begin(place, made, int(size), columns, nstep)

    def _begin(
        self,
        store: di_store.Store,
        table: di_store.Table,
        size: int,
        columns: TransitionColumns,
        nstep: dict[str, Any] | None,
    ) -> None:
        self.store, self.table, self._size, self._columns, self._nstep_arguments = store, table, size, columns, nstep
        self._ring = ItemRing(table, size)
        self._pid = 0
        self._enter()

    def _enter(self) -> None:
        """In a forked process: forget the parent's open episode and waiting steps."""
        if self._pid == os.getpid():
            return
        self._episode: OpenEpisode | None = None
        self._episode_len = 0
        nstep = self._nstep_arguments
        self._nstep = None if nstep is None else NSteps(nstep, self._columns)
        self._pid = os.getpid()

    def _sampler(self) -> Any:
        return di_store.Uniform()

    def __reduce__(self) -> tuple[Any, ...]:
        kept = (self.store, self.table, self._size, self._columns, self._nstep_arguments)
        return _restored, (type(self), kept, self._settings())

    def _settings(self) -> dict[str, Any]:
        """Attributes of a subclass that are pickled for other processes."""
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.table!r}, {self.get_stored_size()} of {self._size} transitions>"

    def add(self, **kwargs: Any) -> int | None:
        """Add one transition or, with a leading axis, several. Returns the index of the first one.

        With `Nstep`, the result is None while all given steps still wait for later ones.

        Raises:
            KeyError: a value of `env_dict` is missing. ValueError: a value does not fit its shape.
        """
        self._enter()
        if self._nstep is not None:
            ready = self._nstep.add(kwargs)
            return None if ready is None else self._add(ready, None)
        return self._add(self._columns.rows(kwargs), None)

    def _add(self, rows: Rows, priority: Any) -> int:
        n = len(next(iter(rows.values())))
        if n == 0:
            return self.get_next_index()
        if n > self._size:  # one call inserts at most what the table holds
            parts = [slice(begin, begin + self._size) for begin in range(0, n, self._size)]
            some = [priority[part] if isinstance(priority, np.ndarray) else priority for part in parts]
            first, *_ = [self._add(cut(rows, part), each) for part, each in zip(parts, some, strict=True)]
            return first
        self._episode_len += n
        if self._columns.windowed:
            if self._episode is None:
                self._episode = OpenEpisode(self.table, self._columns)
            first = self._episode.add(rows, priority)
        elif n == 1:
            row = self._columns.placed({name: each[0] for name, each in rows.items()})
            first = self.table.insert(row, priority=priority)[0]
        else:
            first = self.table.extend(self._columns.placed(rows), priority=priority)[0]
        return self._ring.index(int(first))

    def sample(self, batch_size: int) -> Rows:
        """Draw transitions with equal probability; one may come more than once.

        Raises:
            ValueError: the buffer is empty.
        """
        self._check_filled()
        return self._columns.values(self.table.sample(batch_size).data)

    def _check_filled(self) -> None:
        if not len(self.table):
            raise ValueError("the buffer is empty: add() a transition before sample()")

    def get_all_transitions(self, shuffle: bool = False) -> Rows:
        """All transitions, in the order of their indexes or shuffled."""
        keys = self.table.keys()
        keys = keys[np.argsort(self._ring.indexes(keys))] if len(keys) else keys
        if shuffle:
            np.random.shuffle(keys)
        while not np.all((batch := self.table.peek(keys)).live):  # other processes overwrote some meanwhile
            keys = keys[batch.live]
        return self._columns.values(batch.data)

    def _encode_sample(self, idx: Any) -> Rows:
        """The transitions at these indexes, as cpprb's own `_encode_sample` returns them; programs call it."""
        while not np.all((batch := self.table.peek(self._ring.keys(idx)[0])).live):
            pass  # another process overwrote some meanwhile: what lies there now
        return self._columns.values(batch.data)

    def clear(self) -> None:
        """Remove all transitions. With priorities, new transitions keep getting the largest priority ever given."""
        self._enter()
        if self._episode is not None:
            self._episode.end()
        self.table.reset()
        self._ring.forget()
        self._episode_len = 0
        if self._nstep is not None:
            self._nstep.clear()

    def on_episode_end(self) -> None:
        """End the episode: add the steps that still wait for later ones."""
        self._enter()
        if self._nstep is not None:
            self._add_waiting(self._nstep.on_episode_end())
        if self._episode is not None:
            self._episode.end()
        self._episode_len = 0

    def _add_waiting(self, rows: Rows) -> None:
        self._add(rows, None)

    def _load_transitions_v1(self, data: Any) -> None:
        """Add transitions of a file, which are already n-step transitions. cpprb's `load_transitions` calls this."""
        nstep: Any = self._nstep
        self._nstep = None
        try:
            super()._load_transitions_v1(data)
        finally:
            self._nstep = nstep

    def get_stored_size(self) -> int:
        """Number of transitions stored."""
        return len(self.table)

    def get_buffer_size(self) -> int:
        """Number of transitions that the buffer can hold."""
        return self._size

    def get_next_index(self) -> int:
        """The index that the next transition gets."""
        return int(self.table.stats()["inserts"]) % self._size

    def get_current_episode_len(self) -> int:
        """Number of transitions that this process has added since `on_episode_end`."""
        return self._episode_len

    def is_Nstep(self) -> bool:
        """Whether `Nstep` was given."""
        return self._nstep_arguments is not None


class PrioritizedReplayBuffer(ReplayBuffer, cpprb.PrioritizedReplayBuffer):  # type: ignore[misc]
    """cpprb's `PrioritizedReplayBuffer` and `MPPrioritizedReplayBuffer`.

    A transition of priority p is drawn with probability in proportion to (p + eps)^alpha, stratified as in cpprb.
    `update_priorities` with indexes of the last batch updates exactly the transitions of that batch: a transition that
    was overwritten meanwhile is left out.

    Args:
        size: number of transitions that it holds.
        env_dict: as `ReplayBuffer`.
        alpha: exponent of the priorities.
        eps: added to every priority.
        check_for_update: update no transition that was added after the last `sample` of this process.
        others: the other arguments of `ReplayBuffer`.
    """

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, Any] | None = None,
        *,
        alpha: float = 0.6,
        eps: float = 1e-4,
        check_for_update: bool = False,
        **others: Any,
    ) -> None:
        self._alpha, self._eps, self._check = float(alpha), float(eps), bool(check_for_update)
        self._drawn: tuple[Array, Array] | None = None  # indexes and keys of the last batch
        self._newest = -1  # number of the newest transition at the last sample; of use with check_for_update
        super().__init__(size, env_dict, **others)

    def _enter(self) -> None:
        if self._pid == os.getpid():
            return
        super()._enter()
        nstep, kinds = self._nstep_arguments, {"priorities": {"dtype": np.float32}, "done": {}}
        self._waiting: Any = nstep and waiting({"Nstep": {"size": nstep["Nstep"]["size"]}, "env_dict": kinds})

    def _sampler(self) -> Any:
        return di_store.Prioritized(self._alpha, 0.4, stratified=True, normalize="table")

    def _settings(self) -> dict[str, Any]:
        return {"_alpha": self._alpha, "_eps": self._eps, "_check": self._check, "_drawn": None, "_newest": -1}

    def add(self, *, priorities: Any = None, **kwargs: Any) -> int | None:
        """As `ReplayBuffer.add`, with a priority for each transition; None: the largest priority ever given."""
        given = None if priorities is None else cast(priorities, _FLOAT, "priorities").reshape(-1)
        self._enter()
        if self._nstep is None:
            rows = self._columns.rows(kwargs)
        else:
            done = np.array(kwargs["done"])
            n = done.size
            if given is not None and len(given) != n:
                raise ValueError(f"priorities has {len(given)} values for {n} steps")
            filled = np.full(n, self.get_max_priority(), np.float32) if given is None else given
            moved = self._nstep.add(kwargs)
            ready = self._waiting.add(priorities=filled, done=done)
            if moved is None:
                return None
            given, rows = np.asarray(ready["priorities"]).reshape(-1), moved
        n = len(next(iter(rows.values())))
        if given is None:
            return self._add(rows, None)
        if len(given) != n:
            raise ValueError(f"priorities has {len(given)} values for {n} transitions")
        wanted = given.astype(np.float64) + self._eps
        return self._add(rows, float(wanted[0]) if n == 1 else wanted)

    def _add_waiting(self, rows: Rows) -> None:
        wanted = np.asarray(self._waiting.on_episode_end()["priorities"], np.float64).reshape(-1) + self._eps
        self._add(rows, float(wanted[0]) if len(wanted) == 1 else wanted)

    def sample(self, batch_size: int, beta: float = 0.4) -> Rows:
        """Draw transitions by priority. The result also has ``weights`` float32[n] and ``indexes`` uint64[n].

        Raises:
            ValueError: the buffer is empty.
        """
        self._check_filled()
        batch = self.table.sample(batch_size, beta=float(beta))
        indexes = self._ring.indexes(batch.keys)
        self._drawn = indexes.copy(), batch.keys
        if self._check:
            self._newest = self.table.stats()["inserts"] - 1
        found = dict(self._columns.values(batch.data))
        found["weights"], found["indexes"] = batch.weights, indexes
        return found

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Set the priorities of transitions, by indexes that `sample` returned. A single priority applies to all.

        Raises:
            TypeError: an argument is None. IndexError: nothing is stored at an index.
        """
        if indexes is None or priorities is None:
            raise TypeError("update_priorities() needs indexes and priorities, not None")
        wanted = np.asarray(indexes).reshape(-1).astype(np.uint64)
        new = np.asarray(priorities, np.float64).reshape(-1) + self._eps
        if len(new) == 1:
            new = np.repeat(new, len(wanted))
        if len(new) != len(wanted):
            raise ValueError(f"{len(wanted)} indexes and {len(new)} priorities: give one for each, or one for all")
        drawn = self._drawn
        if drawn is not None and np.array_equal(wanted, drawn[0]):
            self.table.update_priorities(drawn[1], new)
            return
        keys, new = self._keys(wanted, new)
        self.table.update_priorities(keys, new)

    def _keys(self, wanted: Array, new: Array) -> tuple[Array, Array]:
        """The transitions to update. Those of the last batch are found by key, all others by index."""
        keys, known = np.zeros(len(wanted), np.uint64), np.zeros(len(wanted), np.bool_)
        if self._drawn is not None:
            order = np.argsort(self._drawn[0])
            places = order[np.searchsorted(self._drawn[0], wanted, sorter=order).clip(max=len(order) - 1)]
            known = self._drawn[0][places] == wanted
            keys[known] = self._drawn[1][places[known]]
        if known.all():
            return keys, new
        keys[~known], numbers = self._ring.keys(wanted[~known])
        if self._check:
            known[~known] = numbers <= self._newest
            return keys[known], new[known]
        return keys, new

    def clear(self) -> None:
        """As `ReplayBuffer.clear`."""
        super().clear()
        self._drawn, self._newest = None, -1
        if self._waiting is not None:
            self._waiting.clear()

    def get_max_priority(self) -> float:
        """The largest priority ever given, at least 1."""
        return max(1.0, float(np.float32(self.table.stats()["max_priority"] - self._eps)))


MPReplayBuffer = ReplayBuffer
"""One class serves one process and many."""


class MPPrioritizedReplayBuffer(PrioritizedReplayBuffer):
    """`PrioritizedReplayBuffer` with check_for_update=True, like cpprb's class of this name."""

    def __init__(self, size: float, env_dict: Mapping[str, Any] | None = None, **others: Any) -> None:
        super().__init__(size, env_dict, check_for_update=True, **others)


def create_buffer(
    size: float, env_dict: Mapping[str, Any] | None = None, *, prioritized: bool = False, **others: Any
) -> ReplayBuffer:
    """A `PrioritizedReplayBuffer` or a `ReplayBuffer`."""
    return (PrioritizedReplayBuffer if prioritized else ReplayBuffer)(size, env_dict, **others)


def _table(
    store: di_store.Store, name: str | None, size: int, columns: TransitionColumns, sampler: Any
) -> di_store.Table:
    """The table `name` of the store, which may exist; None: a new one."""
    options: Any = {"capacity": size, "schema": columns.schema(), "view": columns.view(), "sampler": sampler}
    if name is not None:
        return store.create_table(name, exist_ok=True, **options)
    number = 0
    while True:
        try:
            return store.create_table(f"cpprb-{number}" if number else "cpprb", **options)
        except di_store.TableExists:
            number += 1


def _restored(kind: type[ReplayBuffer], kept: tuple[Any, ...], settings: dict[str, Any]) -> ReplayBuffer:
    """Unpickle a buffer, in the process that loads it."""
    buffer = kind.__new__(kind)
    for name, value in settings.items():
        setattr(buffer, name, value)
    buffer._begin(*kept)
    return buffer


def _check_others(others: Mapping[str, Any]) -> None:
    if others.get("mmap_prefix") is not None:
        raise ValueError("mmap_prefix= is not supported: the buffer lies in memory")
    if unknown := sorted(set(others) - {"ctx", "backend", "logger", "mmap_prefix"}):
        raise TypeError(f"{', '.join(unknown)}: not an argument of this buffer")
    if others.get("backend", "SharedMemory") not in _BACKENDS:
        raise ValueError(f"backend={others['backend']!r}: cpprb knows {' and '.join(_BACKENDS)}; they have no effect")
    if others.get("ctx") is not None:
        try_start(others["ctx"])


def _names(names: Any) -> list[str]:
    if names is None:
        return []
    return [names] if isinstance(names, str) else [str(name) for name in np.atleast_1d(names)]
