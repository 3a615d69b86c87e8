"""Numbered places whose rows lie in a table. Each lane has a ring of its own, which may move independently.

It is the base of adapters for libraries that number the steps of several environments, and add to some of them at a
time. The adapter decides which place is written, drawn or followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import di_store
from di_store.adapters.casts import whole
from di_store.adapters.stored_array import Array, StoredArray
from di_store.adapters.stores import (
    MOST_COPIED,
    MOST_STAGED,
    NO_KEY,
    STAGED_BYTES,
    Held,
    check_rows_are_there,
    forget_failure,
    held_rows,
    own_store,
    table_of,
)
from di_store.adapters.trees import Tree, any_nan, assign, cut, differ, fitting, leaves, one_lane, shaped, zeros_of

_AT_ONCE = 4_096
_FLAGS = ("reward", "terminated", "truncated")


class Slots:
    """Rows at numbered places, in a table.

    A place that is written again loses its old row. In a store of its own, rows are gathered and written together. In a
    given store, each row is in the table when `commit` returns, with its place. Two consecutive rows of a lane share
    the observation between them.

    Args:
        specs: types of the columns; for nested columns, dicts by key.
        follows: whether `stage` is given next observations, of the type of ``obs``.
        lanes: number of streams of rows.
        size: number of places of all lanes together; each lane has equally many.
        option: the argument that sets the size, which errors name.
        store: store of the table; None: a store of its own.
        table: name of the table.

    Attributes:
        keys: uint64[size]: which item of the table each place holds.
        has_nan: whether a row written since the last `clear` has a NaN in a column of `specs`, even if the row is gone.
        store: store of the table.
        table: table of the rows.
        given: whether the store was given.
    """

    def __init__(
        self,
        specs: Mapping[str, Tree],
        follows: bool,
        lanes: int,
        size: int,
        *,
        option: str,
        store: di_store.Store | None = None,
        table: str = "replay",
    ) -> None:
        self.keys, self._specs = np.full(size, NO_KEY), dict(specs)
        self._follows, self._lanes, self._pid = follows, lanes, os.getpid()
        self.has_nan, self.given = False, store is not None
        self._stage()
        self.store, self.table = self._make(size, option, store, table)
        self._writer = self.table.writer(lanes=lanes)

    def _make(
        self, size: int, option: str, store: di_store.Store | None, name: str
    ) -> tuple[di_store.Store, di_store.Table]:
        schema: dict[str, Any] = dict(self._specs)
        view: Any = di_store.Step()
        if self._follows:
            flag = di_store.Spec((), "?")
            schema |= {"reward": di_store.Spec((), "f4"), "terminated": flag, "truncated": flag}
            view = di_store.Transition(n_step=1, gamma=1.0)
        # Of several lanes, a row that is replaced is removed behind the one that replaces it.
        capacity = size if self._lanes == 1 else size + self._rows * self._lanes
        options: dict[str, Any] = {"capacity": capacity, "view": view, "schema": schema, "lanes": self._lanes}
        if store is not None:
            schema["slot"] = di_store.Spec((2,), "i4")
            return store, table_of(store, name, option, **options)
        needed = di_store.needed_memory(**options)
        # A last observation takes a row of its own, so episodes of one step take twice as many.
        store = own_store(needed, f"{option}{size:,} steps", option, spare=needed)
        return store, store.create_table(name, **options)

    def take_over(self) -> tuple[Array, Held]:
        """Find the places of the rows that the table already holds. Returns the places, oldest first, and the rows.

        Raises:
            ValueError: the rows are from a buffer of other sizes. di_store.StoreError: some rows are missing.
        """
        held = held_rows(self.table, ("step",))
        each = len(self.keys) // self._lanes
        index, lane = held.slots.astype(np.int64).T if len(held.keys) else np.zeros((2, 0), np.int64)
        if len(held.keys) and (index.max() >= each or lane.max() >= self._lanes):
            raise ValueError(
                f"table {self.table.name!r} holds {index.max() + 1} steps of {lane.max() + 1} environments, and the "
                f"buffer has {self._lanes} with {each} each: give its sizes, or table= another name"
            )
        places = lane * each + index
        self.keys.fill(NO_KEY)
        self.keys[places] = held.keys
        live = self.keys[places] == held.keys
        if not live.all():  # its writer was killed before it removed what it had replaced
            self.table.delete(held.keys[~live])
            held, places = held.of(live), places[live]
        floats = self._floats()
        parts = (held.keys[part] for part in pieces(len(places)))
        self.has_nan = bool(floats) and any(any_nan(self.table.peek(part, columns=floats).data) for part in parts)
        return places, held

    def _floats(self) -> list[str]:
        """Columns that may have a NaN."""
        kinds = {name: {leaf.dtype.kind for leaf in leaves(zeros_of(spec, (1,)))} for name, spec in self._specs.items()}
        return [name for name, kind in kinds.items() if "f" in kind]

    def _stage(self) -> None:
        """Arrays that gather rows: ``[rows, lanes, …]``."""
        specs = self._specs | ({"next_obs": self._specs["obs"]} if self._follows else {})
        row = sum(leaf.nbytes for leaf in leaves(zeros_of(specs, (1, self._lanes))))
        most = 1 if self.given or row > MOST_COPIED else STAGED_BYTES // max(row, 1)
        self._rows = max(1, min(MOST_STAGED, most, len(self.keys) // self._lanes))
        self._steps: dict[str, Any] = zeros_of(specs, (self._rows, self._lanes))
        self._next = self._steps.pop("next_obs", None)
        if self._follows:
            for name in _FLAGS:
                self._steps[name] = np.zeros((self._rows, self._lanes), np.float32 if name == "reward" else np.bool_)
            self._last = np.full(self._lanes, NO_KEY)
            self._open = np.zeros(self._lanes, np.bool_)  # lanes whose next row must begin where `_last` ends
        self._places = np.zeros((self._rows, self._lanes), np.int64)
        self._written: list[Array | None] = []
        self._one = self._views = cut(self._steps, 0), cut(self._next, 0)

    # -- writing ------------------------------------------------------------------------------------------------

    def stage(self, values: Mapping[str, Any], lanes: Any) -> None:
        """Gather one row for some lanes; it counts when `commit` follows. Values are cast as `casts.cast` does.

        Args:
            values: values of all columns, ``[len(lanes), …]``; with `follows` also next_obs and flags. A nested value
                is anything that is indexed by its keys.
            lanes: numbers of lanes, an int for one without that axis, or None for all lanes.

        Raises:
            ValueError: a value has another shape. di_store.SchemaMismatch: a number that its column cannot hold.
        """
        if self._rows == 1:
            if lanes is None:
                self._take(values)
                return
            self._one = self._views
        row = len(self._written)
        where = row if lanes is None else (row, lanes)
        for name, staged in self._steps.items():
            if type(staged) is dict:
                assign(staged, where, values[name], name)
            else:
                value = values[name]
                staged[where] = value if name in _FLAGS else fitting(value, staged.dtype, name)
        if self._next is not None:
            if type(self._next) is dict:
                assign(self._next, where, values["next_obs"], "obs_next")
            else:
                self._next[where] = fitting(values["next_obs"], self._next.dtype, "obs_next")

    def _take(self, values: Mapping[str, Any]) -> None:
        """As `stage` of all lanes, where `commit` writes each row: no copy of large columns is needed."""
        views, following = self._views
        steps = dict(views)
        for name, staged in views.items():
            if type(staged) is dict:
                assign(staged, ..., values[name], name)
            elif name in _FLAGS:
                staged[...] = values[name]
            else:
                steps[name] = whole(staged, values[name], name)
        if type(following) is dict:
            assign(following, ..., values["next_obs"], "obs_next")
        elif following is not None:
            following = whole(following, values["next_obs"], "obs_next")
        self._one = steps, following

    def commit(self, places: Any, lanes: Any) -> None:
        """Put the staged row at these places."""
        row = len(self._written)
        if lanes is None or self._lanes == 1:
            self._places[row] = places
            self._written.append(None)
        else:
            lanes = np.atleast_1d(lanes)
            self._places[row, lanes] = places
            self._written.append(None if len(lanes) == self._lanes else np.sort(lanes))
        if row + 1 == self._rows:
            self.flush()

    def flush(self) -> None:
        """Write the gathered rows."""
        written = self._written
        if not written:
            return
        self._written = []
        if len(written) == 1 and written[0] is None:
            self._write_one()
            return
        begin = 0
        for end in range(1, len(written) + 1):
            if end == len(written) or not _same(written[end], written[begin]):
                lanes = written[begin]
                part = (slice(begin, end),) if lanes is None else (slice(begin, end), lanes)
                self._write(self._places[part], lanes, cut(self._steps, part), cut(self._next, part))
                begin = end

    def write(self, places: Array, lane: int, values: Mapping[str, Any]) -> None:
        """Write many rows of one lane, leaves ``[n, …]``, oldest first."""
        self.flush()
        for part in pieces(len(places)):
            steps = {name: one_lane(values[name], part, spec) for name, spec in self._columns()}
            following = None
            if self._follows:
                following = one_lane(values["next_obs"], part, self._specs["obs"])
            self._write(places[part, None], np.array([lane]), steps, following)

    def _columns(self) -> Iterator[tuple[str, Tree]]:
        yield from self._specs.items()
        if self._follows:
            for name in _FLAGS:
                yield name, di_store.Spec((), "f4" if name == "reward" else "?")

    def clear(self) -> None:
        """Remove all rows."""
        self._with_writer(lambda writer: writer.end_episode())
        self.table.reset()
        self.keys.fill(NO_KEY)
        self._written, self.has_nan = [], False
        if self._follows:
            self._open[:] = False

    def _write_one(self) -> None:
        """One row of every lane, which is what a program that trains at every step writes."""
        steps, following = self._one
        places = self._places[0]
        self._look_for_nan(steps, following)
        old = self._replaced(places)
        try:
            keys = self._with_writer(
                lambda writer: (
                    writer.append(
                        self._placed(steps, places), next=None if following is None else {"obs": following}
                    ).keys
                )
            )
        except ValueError:  # an observation does not follow the one before
            forget_failure(self._writer)
            self._write(self._places[:1], None, cut(steps, None), cut(following, None))
            return
        self.keys[places] = keys
        self._remove(old)
        if self._follows:
            self._note_last(keys, steps, slice(None))

    def _write(self, places: Array, lanes: Array | None, steps: dict[str, Any], following: Any) -> None:
        """Write rows ``[T, lanes, …]``, some of which may not follow those before: there an episode ends."""
        self._look_for_nan(steps, following)
        old = self._replaced(places)
        selected: Any = slice(None) if lanes is None else lanes
        try:
            self._extend(places, lanes, steps, following)
        except ValueError:
            if not self._follows:
                raise
            forget_failure(self._writer)
            self._write_broken(places, lanes, steps, following)
        self._remove(old)
        if self._follows:
            self._note_last(self.keys[places[-1]], cut(steps, -1), selected)

    def _look_for_nan(self, steps: dict[str, Any], following: Any) -> None:
        """Let `has_nan` count these rows, which do not change later."""
        if not self.has_nan:
            self.has_nan = any(any_nan(steps[name]) for name in self._specs) or any_nan(following)

    def _note_last(self, keys: Array, steps: dict[str, Any], lanes: Any) -> None:
        """Keep which rows the next rows of these lanes follow."""
        self._last[lanes] = keys
        self._open[lanes] = ~(steps["terminated"] | steps["truncated"])

    def _write_broken(self, places: Array, lanes: Array | None, steps: dict[str, Any], following: Any) -> None:
        numbers = np.arange(self._lanes) if lanes is None else lanes
        jumped = self._jumped(numbers, cut(steps["obs"], 0))
        ended = (steps["terminated"] | steps["truncated"])[:-1]
        broken = differ(cut(following, slice(0, -1)), cut(steps["obs"], slice(1, None)), 2) & ~ended
        begin = 0
        for end in [*(np.flatnonzero(broken.any(axis=1)) + 1), len(places)]:
            if jumped.any():
                stopped = numbers[jumped]
                self._with_writer(lambda writer, stopped=stopped: writer.end_episode(lane=stopped))
            part = slice(begin, end)
            self._extend(places[part], lanes, cut(steps, part), cut(following, part))
            if end < len(places):
                jumped = broken[end - 1]
            begin = end

    def _jumped(self, lanes: Array, obs: Any) -> Array:
        """Which of these lanes are in an episode that these observations do not continue."""
        if not self._open[lanes].any():
            return np.zeros(len(lanes), np.bool_)
        last = self.table.peek(self._last[lanes], columns=("next_obs",))
        gone = np.zeros(len(lanes), np.bool_) if last.live is None else ~last.live
        jumped: Array = (differ(last.data["next_obs"], obs, 1) | gone) & self._open[lanes]
        return jumped

    def _extend(self, places: Array, lanes: Array | None, steps: dict[str, Any], following: Any) -> None:
        ahead = None if following is None else {"obs": following}
        steps = self._placed(steps, places)
        keys = self._with_writer(lambda writer: writer.extend(steps, next=ahead, lane=lanes).keys)
        self.keys[places] = keys.reshape(places.shape[::-1]).T  # keys are sorted by lane

    def _placed(self, steps: dict[str, Any], places: Array) -> dict[str, Any]:
        """The rows, with the places that others find them by."""
        if not self.given:
            return steps
        lane, index = np.divmod(places, len(self.keys) // self._lanes)
        return steps | {"slot": np.stack((index, lane), axis=-1).astype(np.int32)}

    def _replaced(self, places: Array) -> Array:
        """The rows that lie at these places. The table removes them itself if one lane fills it in order."""
        if self._lanes == 1:
            return self.keys[:0]
        old: Array = self.keys[places].reshape(-1)
        found: Array = old[old != NO_KEY]
        return found

    def _remove(self, keys: Array) -> None:
        if len(keys):
            self.table.delete(keys)

    def _with_writer(self, call: Any) -> Any:
        """What `call` returns for the writer; a thread that takes over from another gets a writer of its own."""
        try:
            return call(self._writer)
        except di_store.WriterClosed:
            if os.getpid() != self._pid:
                raise
            self._writer = self.table.writer(lanes=self._lanes)
            if self._follows:
                self._open[:] = False
            return call(self._writer)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, index: Any, columns: tuple[str, ...]) -> dict[str, Any]:
        """Columns of the places that `index` selects, as numpy indexing does: new arrays ``[*selected, …]``.

        Places that were never written read as zeros.

        Raises:
            di_store.CapacityError: rows were evicted before their places were written again.
            di_store.StoreError: others removed rows.
        """
        if self._written:
            self.flush()
        plain = type(index) is np.ndarray and index.dtype.kind == "i"
        keys = self.keys.take(index) if plain else np.asarray(self.keys[index])
        flat = keys if keys.ndim == 1 else keys.reshape(-1)
        batch = self.table.peek(flat, columns=columns)
        if self.given:
            check_rows_are_there(self.table, flat, batch.live)
        elif batch.live is not None and not batch.live.all() and self.table.stats()["evicted_for_room"]:
            raise di_store.CapacityError(
                "the buffer's oldest steps were evicted: the last observations of short episodes need more memory than "
                "this machine has",
                remedy='lower the size of the buffer, or give a store with a disk tier: store={"disk": "/data/replay"}',
            )
        return {name: shaped(batch.data[name], keys.shape) for name in columns}

    def specs(self, name: str) -> Tree:
        """The types of a column, by the keys that were given."""
        return self._specs["obs" if name == "next_obs" else name]


class Column(StoredArray):
    """A column of all places, or of a part of them."""

    def __init__(self, rows: Slots, name: str, path: tuple[str, ...], spec: di_store.Spec, part: slice) -> None:
        self._rows, self._name, self._path, self._spec = rows, name, path, spec
        self._numbers = np.arange(len(rows.keys))[part]
        super().__init__(spec.dtype, (len(self._numbers), *spec.shape))

    def part(self, part: slice) -> Column:
        """The column of a part of these places, without reading it."""
        numbers = self._numbers[part]
        where = slice(numbers[0], numbers[-1] + 1) if len(numbers) else slice(0, 0)
        return Column(self._rows, self._name, self._path, self._spec, where)

    def __getitem__(self, index: Any) -> Any:
        inner: tuple[Any, ...] = ()
        if isinstance(index, tuple):
            if any(each is Ellipsis or each is None for each in index):
                return self[:][index]
            index, inner = index[0], index[1:]
        elif index is Ellipsis:
            index = slice(None)
        numbers = self._numbers[index]
        data = self._rows.read(numbers, (self._name,))[self._name]
        for key in self._path:
            data = data[key]
        return data[(slice(None),) * np.ndim(numbers) + inner] if inner else data

    def __repr__(self) -> str:
        return f"<{'/'.join((self._name, *self._path))}: {self.dtype}{list(self.shape)} in a Di-store table>"


def columns(rows: Slots, name: str) -> Any:
    """The `Column` of this name, or a nested dict of them."""
    every = slice(None)

    def made(spec: Tree, path: tuple[str, ...]) -> Any:
        if isinstance(spec, dict):
            return {key: made(inner, (*path, key)) for key, inner in spec.items()}
        return Column(rows, name, path, spec, every)

    return made(rows.specs(name), ())


def pieces(n: int) -> Iterator[slice]:
    """The numbers 0 … n-1 in pieces that are read or written at once."""
    return (slice(begin, min(begin + _AT_ONCE, n)) for begin in range(0, n, _AT_ONCE))


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
