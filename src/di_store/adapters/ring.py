"""Rows of a table at numbered slots, for libraries whose buffers are arrays that are indexed by slot.

The library decides which slot is written, drawn or followed. A `Ring` records which item of the table each slot holds.
An adapter's subclass adds columns that the adapter keeps itself, and its reaction to each write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import di_store
from di_store.adapters.casts import cast
from di_store.adapters.stored_array import Array, StoredArray
from di_store.adapters.stores import MOST_STAGED, NO_KEY, StoreLike, given_store, own_store, rows_are_gone, table_of
from di_store.adapters.stream import Stream
from di_store.adapters.trees import (
    Tree,
    cut,
    fitted,
    joined,
    leaf_of,
    leaves,
    named_leaves,
    shaped,
    tree_of,
    zeros_of,
)
from di_store.base.tree import name_of

_MOST_COPIED = 16 << 10
"""If a step has more bytes, copying it twice costs more than is gained by writing several steps at once."""
_STAGED_BYTES = 256 << 10
"""The most bytes of writes that are gathered."""
_AT_ONCE = 4_096
"""Rows that are read or written in one call while a buffer is copied or found again."""
_FLAGS: dict[str, Tree] = {
    "reward": di_store.Spec((), "f4"),
    "terminated": di_store.Spec((), "?"),
    "truncated": di_store.Spec((), "?"),
}
"""Columns that every row with a next observation also has."""


class Held(NamedTuple):
    """The rows that a table of a given store holds, oldest first.

    Attributes:
        keys: uint64[n].
        slots: int64[n].
        last: bool[n]: whether no later row of its lane belongs to the row's episode.
        data: columns, leaves ``[n, …]``.
    """

    keys: Array
    slots: Array
    last: Array
    data: dict[str, Any]


class Ring:
    """Slots, each of which may hold a row of a table. Writing a slot again replaces its row.

    In a store of its own, rows are gathered and written together. In a given store, each row is in the table when
    `commit` or `flush` returns, with its slot, and `take_over` finds it again.

    Args:
        specs: types of the columns; for nested columns, dicts by key.
        slots: number of slots.
        lanes: number of environments, each of which is a stream of rows with episodes; None: rows in no stream.
        follows: whether rows have flags and next observations, of the type of ``obs``. The table then stores each
            observation once, and ends an episode where the next row does not begin with the observation that followed.
        chunk: rows that one call of `place` usually writes.
        option: the argument of the adapter that sets the size, which errors name.
        store: store of the table; None: a store of its own.
        table: name of the table.

    Attributes:
        keys: uint64[slots]: which item of the table each slot holds.
        limit: the most rows that one call of `place` takes.
        store: store of the table.
        table: table of the rows.
        given: whether the store was given.
        newest: slot of the newest row that `take_over` found; -1: none.
    """

    by_time = False
    """How lanes share the slots. True: all lanes are written together, and the slot of a row is time · lanes + lane.
    False: each lane has a ring of its own, and the slot is lane · (slots / lanes) + time."""
    late: frozenset[str] = frozenset()
    """Columns that `_completed` adds when rows are written."""

    def __init__(
        self,
        specs: Mapping[str, Tree],
        slots: int,
        *,
        lanes: int | None = None,
        follows: bool = False,
        chunk: int = 1,
        option: str,
        store: StoreLike = None,
        table: str = "replay",
    ) -> None:
        self.specs: dict[str, Any] = dict(specs)
        self.slots, self.keys = slots, np.full(slots, NO_KEY)
        given = given_store(store)
        self.given, self._streams, self._follows = given is not None, lanes is not None, follows
        self._lanes, self._chunk = lanes or 1, chunk
        # Whether rows are written in the order of the slots, in which the table evicts them.
        self._in_step = self.by_time or self._lanes == 1
        self._paths: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._allocate()
        self.newest = self._next = -1  # the next slot, if slots are written one after the other
        self._in_order = True  # whether they were until now
        self.store, self.table = self._make(given, option, table)
        self._stream = Stream(self.table, self._lanes) if self._streams else None

    def _make(self, given: di_store.Store | None, option: str, name: str) -> tuple[di_store.Store, di_store.Table]:
        schema: dict[str, Any] = dict(self.specs)
        view: Any = di_store.Step()
        if not self._streams:  # below a common name no column is one that tables treat in a special way, as "reward"
            schema = {"row": schema}
        if self._follows:
            schema, view = schema | _FLAGS, di_store.Transition(n_step=1, gamma=1.0)
        # Of lanes that move on their own, a row that is replaced is removed after the one that replaces it.
        capacity = self.slots if self._in_step else self.slots + self.limit * self._lanes
        options: dict[str, Any] = {"capacity": capacity, "view": view, "schema": schema, "lanes": self._lanes}
        if given is not None:
            schema["slot"] = di_store.Spec((2,), "i4") if self._streams else di_store.Spec((), "i8")
            return given, table_of(given, name, option, **options)
        needed = di_store.needed_memory(**options)
        # A last observation takes a row of its own, so episodes of one step take twice as many.
        store = own_store(needed, f"{self.slots:,} steps", option, spare=needed if self._follows else 0)
        return store, store.create_table(name, **options)

    def _allocate(self) -> None:
        """Arrays that gather rows: ``[rows, lanes, …]``, or ``[rows, …]`` of rows in no stream."""
        columns = self._columns()
        lead: tuple[int, ...] = (self._lanes,) if self._streams else (self._chunk,)
        sizes = {name: sum(leaf.nbytes for leaf in leaves(zeros_of(each, lead))) for name, each in columns.items()}
        staged = [name for name in columns if name not in self.late]
        most = min(MOST_STAGED, _STAGED_BYTES // max(sum(sizes.values()), 1), self.slots // (self._lanes * self._chunk))
        if self.given or sum(sizes[name] for name in staged) > _MOST_COPIED:
            most = 1
        self.limit = max(most, 1) * self._chunk
        lead = (self.limit, *lead) if self._streams else (self.limit,)
        self._staged: dict[str, Any] = zeros_of({name: columns[name] for name in staged}, lead)
        self._count = self._first = self._room = 0  # rows that are gathered, the slot of the first, rows until `flush`
        self._leaves = dict(named_leaves(self._staged))
        arrays = [*self._leaves.values()]
        self._kinds, self._shapes = [leaf.dtype for leaf in arrays], [leaf.shape[1:] for leaf in arrays]
        # Views of each row: numpy assigns to all of a view faster than to a row by number.
        self._views = [[leaf[row] for leaf in arrays] for row in range(self.limit)] if self._streams else []
        self._one: dict[str, Any] = {}
        self._slots, self._some = np.zeros(lead, np.int64), list[tuple[int, ...] | None]()  # of lanes out of step
        self._place = np.stack((np.zeros(self._lanes), np.arange(self._lanes)), axis=-1).astype(np.int32)

    def _columns(self) -> dict[str, Tree]:
        """The types of all that is written of a row."""
        return self.specs | ({**_FLAGS, "next_obs": self.specs["obs"]} if self._follows else {})

    # -- what an adapter adds -----------------------------------------------------------------------------------

    def _completed(self, slots: Any, rows: dict[str, Any], one: bool) -> dict[str, Any]:
        """All columns of rows that are written now. The arguments are as those of `_write`."""
        return rows

    def _cut_off(self, first: int, cut: Array) -> None:
        """Note the rows from slot `first` on, bool[n, lanes], before which an episode was ended."""

    # -- writing ------------------------------------------------------------------------------------------------

    def stage(self, values: Sequence[Any], lanes: tuple[int, ...] | None = None) -> None:
        """Gather one row for some lanes; it counts when `commit` follows. Values are cast as `casts.cast` does.

        Args:
            values: values of all leaves except late columns, in order, ``[len(lanes), …]``: those of `specs`, then
                reward, terminated, truncated and the next observations, if the ring has them.
            lanes: numbers of lanes; None: all.

        Raises:
            ValueError: a value has another shape. di_store.SchemaMismatch: a number that its column cannot hold.
        """
        if lanes is None and self.limit > 1:
            # Without strict=True, and asked here: a call for each value would take longer than all of it.
            for view, kind, name, value in zip(self._views[self._count], self._kinds, self._leaves, values):  # noqa: B905
                if type(value) is np.ndarray and value.dtype is kind:
                    view[...] = value
                else:
                    _assigned(view, ..., value, name)
            return
        if lanes is None:  # `commit` writes the row: large values need no copy
            one = self._one = {}
            found = zip(self._leaves.items(), self._kinds, self._shapes, values, strict=True)
            for (name, leaf), kind, shape, value in found:
                fits = type(value) is np.ndarray and value.dtype is kind and value.shape == shape
                one[name] = value if fits else _assigned(leaf[0], ..., value, name)
            if len(one) > len(self._staged):
                self._one = tree_of(self._staged, iter(one.values()))
            return
        self._one = {}
        where = self._count, list(lanes)
        for (name, leaf), value in zip(self._leaves.items(), values, strict=True):
            _assigned(leaf, where, value, name)

    def commit(self, slots: Any, lanes: tuple[int, ...] | None = None) -> None:
        """Put the staged row at these slots, ``[len(lanes)]``; for lanes in lockstep, give the first of the slots."""
        if not self._in_step:
            row = self._count
            self._slots[row if lanes is None else (row, list(lanes))] = slots
            self._some.append(None if lanes is None else tuple(sorted(lanes)))
            self._count, self._room = row + 1, self.limit
        elif self._count:
            self._count += 1
        else:
            self._count, self._first, self._room = 1, slots, min(self.limit, (self.slots - slots) // self._lanes)
        if self._count == self._room:
            self.flush()

    def place(self, slot: int, count: int) -> tuple[dict[str, Any], slice]:
        """Arrays of all columns, and the slice for `count` rows (at most `limit`) of the slots from `slot` on.

        For rows in no stream. In a given store, `flush` must follow.
        """
        begin = self._count
        if begin and (slot != self._first + begin or begin + count > self.limit):
            self.flush()
            begin = 0
        if begin == 0:
            self._first = slot
        self._count = begin + count
        return self._staged, slice(begin, begin + count)

    def write(self, slots: Array, values: Mapping[str, Any], lane: int | None = None) -> None:
        """Write many rows, oldest first. An episode ends before each row that does not follow the previous one.

        Args:
            slots: int64[n]; for lanes in lockstep, the first slot of each row.
            values: values of all columns except late ones, ``[n, …]``; for lanes in lockstep, ``[n, lanes, …]``.
            lane: the lane, if lanes are not in lockstep.
        """
        self.flush()
        columns = {name: spec for name, spec in self._columns().items() if name not in self.late}
        edges = np.flatnonzero(np.diff(slots) != self._lanes) + 1 if self._in_step else ()
        for run in np.split(np.arange(len(slots)), edges):
            for part in parts(len(run), self._lanes if lane is None else 1):
                chosen = run[part]
                rows = {name: fitted(cut(values[name], chosen), spec, name) for name, spec in columns.items()}
                if lane is not None:
                    rows = cut(rows, (slice(None), None))
                if self._in_step:
                    first = int(slots[chosen[0]])
                    self._write(slice(first, first + len(chosen) * self._lanes), None, rows, False)
                else:
                    self._write(slots[chosen, None], np.array([lane]), rows, False)

    def flush(self) -> None:
        """Write the gathered rows."""
        count = self._count
        if not count:
            return
        self._count = 0
        if not self._in_step:
            self._flush_lanes(count)
            return
        one = count == 1 and self._streams  # what a program that trains at every step writes
        rows = (self._one or cut(self._staged, 0)) if one else cut(self._staged, slice(count))
        try:
            self._write(slice(self._first, self._first + count * self._lanes), None, rows, one)
        except BaseException:  # also an interrupt: the next call writes what was gathered
            if self.limit > 1:
                self._count = count
            raise

    def _flush_lanes(self, count: int) -> None:
        """Write the gathered rows, in runs of the same lanes."""
        some, self._some, begin = self._some, [], 0
        while begin < count:
            lanes, end = some[begin], begin + 1
            while end < count and some[end] == lanes:
                end += 1
            if lanes is not None:
                part = slice(begin, end), list(lanes)
                self._write(self._slots[part], np.array(lanes), cut(self._staged, part), False)
            elif end - begin == 1:
                rows = self._one or cut(self._staged, begin)
                self._write(self._slots[begin], None, rows, True)
            else:
                self._write(self._slots[begin:end], None, cut(self._staged, slice(begin, end)), False)
            begin = end

    def _write(self, slots: Any, lanes: Array | None, rows: dict[str, Any], one: bool) -> None:
        """Write rows with the axes [n, lanes]; `one`: one row of each lane; for rows in no stream, [n].

        Args:
            slots: an array of these axes; for lanes in lockstep, a slice.
            lanes: numbers of the lanes; None: all.
            rows: columns of the rows.
            one: whether the axis of n is missing.
        """
        steps = self._completed(slots, rows, one)
        following = steps.pop("next_obs", None) if self._follows else None
        if not self._streams:
            steps = {"row": steps}
        if self.given:
            steps["slot"] = self._placed(slots, one)
        replaced = self._replaced(slots)
        if replaced is not None and self._in_step:
            self.table.delete(replaced)
        stream = self._stream
        if stream is None:
            keys = self.table.extend(steps)
        else:
            keys, cut_off = stream.write(steps, following, lanes, one)
            if cut_off is not None and self._in_step:
                self._cut_off(slots.start, cut_off)
            if self._lanes > 1 and not one:  # keys are sorted by lane
                keys = keys.reshape(self._lanes if lanes is None else len(lanes), -1).T
                keys = keys.reshape(-1) if self._in_step else keys
        self.keys[slots] = keys
        if replaced is not None and not self._in_step:
            self.table.delete(replaced)

    def _placed(self, slots: Any, one: bool) -> Array:
        """The time and lane by which other processes find rows: ``[…, 2]``; for rows in no stream, the slot."""
        if not self._streams:
            return np.arange(slots.start, slots.stop)
        if one and self._in_step:
            self._place[:, 0] = slots.start // self._lanes
            return self._place
        if self._in_step:
            time, lane = np.divmod(np.arange(slots.start, slots.stop).reshape(-1, self._lanes), self._lanes)
        else:
            lane, time = np.divmod(slots, self.slots // self._lanes)
        return np.stack((time, lane), axis=-1).astype(np.int32)

    def _replaced(self, slots: Any) -> Array | None:
        """The rows to delete at these slots; None: the table evicts them, as it does for slots written in order."""
        if self._in_step:
            if self._next != slots.start and self._next not in (-1, slots.start + self.slots):
                self._in_order = False
            self._next = slots.stop
            if self._in_order:
                return None
        old = self.keys[slots].reshape(-1)
        found: Array = old[old != NO_KEY]
        return found

    def clear(self) -> None:
        """Remove all rows."""
        if self._stream is not None:
            self._stream.clear()
        self.table.reset()
        self.keys.fill(NO_KEY)
        self._count, self._some, self._in_order, self._next = 0, [], True, -1

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, slots: Any, columns: tuple[Any, ...]) -> dict[str, Any]:
        """Columns of the slots that an index selects, as numpy indexing does: new arrays ``[*selected, …]``.

        Slots that hold nothing read as zeros.

        Args:
            slots: the index.
            columns: names; for a part of a nested column, a tuple of its keys.

        Raises:
            di_store.CapacityError: rows were evicted before their slots were written again.
            di_store.StoreError: another process removed rows.
        """
        return self.peek(slots, columns)[0]

    def peek(self, slots: Any, columns: tuple[Any, ...]) -> tuple[dict[str, Any], Array]:
        """As `read`; and bool[n], which of the slots hold a row."""
        if self._count:
            self.flush()
        keys = self.keys.take(slots) if type(slots) is np.ndarray and slots.dtype.kind == "i" else self.keys[slots]
        flat = keys if keys.ndim == 1 else keys.reshape(-1)
        batch = self.table.peek(flat, columns=self._chosen(columns))
        live: Any = batch.live
        if not live.all():
            self._check_gone(flat, live)
        data: dict[str, Any] = batch.data if self._streams else batch.data["row"]
        return data if keys.ndim == 1 else shaped(data, keys.shape), live

    def _chosen(self, columns: tuple[Any, ...]) -> tuple[str, ...]:
        """The places of columns, and of parts of nested ones, in the schema."""
        if (paths := self._paths.get(columns)) is None:
            below: tuple[str, ...] = () if self._streams else ("row",)
            named = [name if isinstance(name, tuple) else (name,) for name in columns]
            paths = self._paths[columns] = tuple(name_of((*below, *path)) for path in named)
        return paths

    def _check_gone(self, keys: Array, live: Array) -> None:
        """Check that the table still has these rows, on which the adapter relies; `NO_KEY` stands for no row."""
        gone = int(((keys != NO_KEY) & ~live).sum())
        if gone and self.given:
            raise rows_are_gone(gone, self.table.name)
        if gone and self._follows and self.table.stats()["evicted_for_room"]:
            raise di_store.CapacityError(
                "the buffer's oldest steps were evicted: the last observations of short episodes need more memory than "
                "this machine has",
                remedy='lower the size of the buffer, or give a store with a disk tier: store={"disk": "/data/replay"}',
            )

    def pieces(self, slots: Array, columns: tuple[str, ...]) -> Iterator[tuple[Array, dict[str, Any]]]:
        """The rows of these slots, in pieces, as `write` takes them. Slots that hold nothing are left out."""
        self.flush()
        slots = slots[self.keys[slots] != NO_KEY]
        return ((slots[part], self.read(slots[part], columns)) for part in parts(len(slots)))

    def column(self, name: str, slots: Array) -> Any:
        """A column of these slots (an array of any shape) as a `StoredArray`; a nested column as a dict of these."""

        def made(spec: Tree, path: tuple[str, ...]) -> Any:
            if isinstance(spec, dict):
                return {key: made(inner, (*path, key)) for key, inner in spec.items()}
            return StoredArray(lambda slots: leaf_of(self.read(slots, (path,)), path), slots, spec.dtype, spec.shape)

        return made(self.specs["obs" if name == "next_obs" else name], (name,))

    # -- a table that is there already --------------------------------------------------------------------------

    def take_over(self, columns: tuple[str, ...] = ()) -> Held:
        """Find the slots of the rows that the table of a given store holds. Returns these rows.

        Raises:
            ValueError: the rows are from a buffer of other sizes.
        """
        self.keys.fill(NO_KEY)
        keys, each = self.table.keys(), self.slots // self._lanes
        if not len(keys):
            return Held(keys, np.zeros(0, np.int64), np.zeros(0, np.bool_), {})
        batches = [self.table.peek(keys[part], columns=("slot", *columns)) for part in parts(len(keys))]
        data = joined([batch.data for batch in batches])
        slot = data.pop("slot").astype(np.int64)
        time, lane = slot.T if self._streams else (slot, np.zeros_like(slot))
        lanes = int(lane.max()) + 1
        if time.max() >= each or lanes > self._lanes or (self.by_time and lanes < self._lanes):
            raise ValueError(
                f"table {self.table.name!r} holds {time.max() + 1} steps of {lanes} environments, and the buffer has "
                f"{self._lanes} with {each} each: give its original sizes, or table= another name"
            )
        slots = time * self._lanes + lane if self.by_time else lane * each + time
        self.keys[slots] = keys
        known = self.keys[slots] == keys  # others are of a writer that was killed before it removed what it replaced
        if self.by_time and (slots[-self._lanes :] // self._lanes != time[-1]).any():  # killed between two lanes
            known &= time != time[-1]
            self.keys[slots[~known]] = NO_KEY
        if not known.all():
            self.table.delete(keys[~known])
        keys, slots, lane = keys[known], slots[known], lane[known]
        self._in_order = bool((np.diff(slots) % self.slots == 1).all())
        self.newest = int(slots[-1]) if len(slots) else -1
        self._next = self.newest + 1 if len(slots) else -1
        if self._stream is not None:
            self._stream.last[lane] = keys
        episodes = np.concatenate([batch.episodes for batch in batches])[known]
        return Held(keys, slots, _last_of(episodes, lane), cut(data, known))

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The table's name and the keys: a loaded ring reads and writes the same rows."""
        self.flush()
        gathered = ("_staged", "_leaves", "_views", "_slots", "_one", "_some", "_place", "_stream")
        return {name: value for name, value in self.__dict__.items() if name not in gathered}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._allocate()
        self._stream = Stream(self.table, self._lanes) if self._streams else None


def _assigned(target: Array, where: Any, value: Any, name: str) -> Array:
    """Write values to the array, cast to its type; returns the array."""
    plain = name in _FLAGS or getattr(value, "dtype", None) is target.dtype
    target[where] = value if plain else cast(value, target.dtype, name)
    return target


def _last_of(episodes: Array, lanes: Array) -> Array:
    """Whether no later row of its lane belongs to a row's episode, bool[n], of rows that are sorted by age."""
    order = np.argsort(lanes, kind="stable")
    found = np.ones(len(order), np.bool_)
    one, other = order[:-1], order[1:]
    found[one] = (lanes[one] != lanes[other]) | (episodes[one] != episodes[other])
    return found


def parts(count: int, each: int = 1) -> Iterator[slice]:
    """The numbers 0 … count-1 in pieces that are read or written at once, of `each` rows for a number."""
    step = max(1, _AT_ONCE // each)
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))
