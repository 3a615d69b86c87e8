"""Numbered places whose rows lie in a table: one ring for each lane, which need not move together.

Adapters of libraries that number the steps of several environments, and add to some of them at a time, build on it.
Which place is written, drawn or followed is theirs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.adapters.casts import cast, zeros
from di_store.adapters.stored_array import Array, StoredArray

Tree: TypeAlias = "di_store.Spec | dict[str, Tree]"

_NO_KEY = np.uint64(2**64 - 1)
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_LEAST_MEMORY = 8 << 20
_MOST_STAGED, _STAGED_BYTES = 64, 256 << 10
"""Adds that are gathered before they are written, and the most bytes they may take."""
_AT_ONCE = 4_096
_FLAGS = ("reward", "terminated", "truncated")


class Slots:
    """Rows at numbered places, in a table of a store of its own.

    A place that is written again loses its old row. Rows are gathered first, and written together. Two rows of a lane
    that follow each other share the observation between them.

    Args:
        specs: types of the columns: of nested ones, dicts by key.
        follows: whether `stage` is given next observations, of the type of ``obs``.
        lanes: streams of rows.
        size: places, of all lanes together; each lane has equally many.

    Attributes:
        keys: uint64[size]: which item of the table a place holds.
        has_nan: whether a row written since the last `clear` has a NaN in a column of `specs`, also if it is gone.
    """

    def __init__(self, specs: Mapping[str, Tree], follows: bool, lanes: int, size: int) -> None:
        self.keys = np.full(size, _NO_KEY)
        self._names: dict[str, dict[str, Any]] = {}
        self._specs = {name: _named(spec, self._names.setdefault(name, {})) for name, spec in specs.items()}
        if follows:
            self._names["next_obs"] = self._names["obs"]
        self._follows, self._lanes, self._pid = follows, lanes, os.getpid()
        self.has_nan = False
        self._store, self._table, self._tight = self._make(size)
        self._writer = self._table.writer(lanes=lanes)
        self._stage(size)

    def _make(self, capacity: int) -> tuple[di_store.Store, di_store.Table, bool]:
        """The store, the table, and whether its memory may not suffice for episodes of a few steps."""
        schema: dict[str, Any] = dict(self._specs)
        view: Any = di_store.Step()
        if self._follows:
            flag = di_store.Spec((), "?")
            schema |= {"reward": di_store.Spec((), "f4"), "terminated": flag, "truncated": flag}
            view = di_store.Transition(n_step=1, gamma=1.0)
        options: dict[str, Any] = {"capacity": capacity, "view": view, "schema": schema, "lanes": self._lanes}
        needed = max(di_store.needed_memory(**options), _LEAST_MEMORY)
        try:  # a last observation takes a row of its own, so episodes of one step take twice as many
            store, tight = di_store.open(memory=2 * needed), False
        except di_store.CapacityError:
            store, tight = _open_smaller(needed, capacity), True
        return store, store.create_table("replay", **options), tight

    def _stage(self, size: int) -> None:
        """Arrays that gather rows: ``[rows, lanes, …]``."""
        specs = self._specs | ({"next_obs": self._specs["obs"]} if self._follows else {})
        row = sum(leaf.nbytes for leaf in _leaves(_zeros(specs, (1, self._lanes))))
        self._rows = max(1, min(_MOST_STAGED, _STAGED_BYTES // max(row, 1), size // self._lanes))
        self._steps: dict[str, Any] = _zeros(specs, (self._rows, self._lanes))
        self._next = self._steps.pop("next_obs", None)
        if self._follows:
            for name in _FLAGS:
                self._steps[name] = np.zeros((self._rows, self._lanes), np.float32 if name == "reward" else np.bool_)
            self._last = _zeros(self._specs["obs"], (self._lanes,))
            self._open = np.zeros(self._lanes, np.bool_)  # lanes whose next row must begin with `_last`
        self._places = np.zeros((self._rows, self._lanes), np.int64)
        self._written: list[Array | None] = []
        self._one = cut(self._steps, 0), cut(self._next, 0)

    # -- writing ------------------------------------------------------------------------------------------------

    def stage(self, values: Mapping[str, Any], lanes: Any) -> None:
        """Gather one row for some lanes; it counts when `commit` follows. Values are cast as `casts.cast` does.

        Args:
            values: of all columns, ``[len(lanes), …]``; with `follows` also next_obs and flags. A nested one is
                anything that is indexed by its keys.
            lanes: numbers of lanes, an int for one without that axis, or None for all lanes.

        Raises:
            ValueError: a value is of another shape. di_store.SchemaMismatch: a number that its column cannot hold.
        """
        row = len(self._written)
        where = row if lanes is None else (row, lanes)
        for name, staged in self._steps.items():
            if type(staged) is dict:
                _assign(staged, where, values[name], self._names[name], name)
            else:
                value = values[name]
                staged[where] = value if name in _FLAGS else _fitting(value, staged.dtype, name)
        if self._next is not None:
            if type(self._next) is dict:
                _assign(self._next, where, values["next_obs"], self._names["obs"], "obs_next")
            else:
                self._next[where] = _fitting(values["next_obs"], self._next.dtype, "obs_next")

    def commit(self, places: Any, lanes: Any) -> None:
        """The row that was staged lies at these places."""
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
        """Write what was gathered."""
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
            steps = {name: _arranged(values[name], part, self._names.get(name), old) for name, old in self._columns()}
            following = None
            if self._follows:
                following = _arranged(values["next_obs"], part, self._names["obs"], self._specs["obs"])
            self._write(places[part, None], np.array([lane]), steps, following)

    def _columns(self) -> Iterator[tuple[str, Tree]]:
        yield from self._specs.items()
        if self._follows:
            for name in _FLAGS:
                yield name, di_store.Spec((), "f4" if name == "reward" else "?")

    def clear(self) -> None:
        """Remove all rows."""
        self._with_writer(lambda writer: writer.end_episode())
        self._table.reset()
        self.keys.fill(_NO_KEY)
        self._written, self.has_nan = [], False
        if self._follows:
            self._open[:] = False

    def _write_one(self) -> None:
        """One row of every lane, which is what a program that trains at every step writes."""
        steps, following = self._one
        places = self._places[0]
        self._look_for_nan(steps, following)
        self._remove(places)
        try:
            keys = self._with_writer(
                lambda writer: writer.append(steps, next=None if following is None else {"obs": following}).keys
            )
        except ValueError:  # an observation does not follow the one before
            self._write(self._places[:1], None, cut(self._steps, slice(1)), cut(self._next, slice(1)))
            return
        self.keys[places] = keys
        if self._follows:
            self._note_last(steps, following, slice(None))

    def _write(self, places: Array, lanes: Array | None, steps: dict[str, Any], following: Any) -> None:
        """Write rows ``[T, lanes, …]``, some of which may not follow those before: there an episode ends."""
        self._look_for_nan(steps, following)
        self._remove(places)
        selected: Any = slice(None) if lanes is None else lanes
        try:
            self._extend(places, lanes, steps, following)
        except ValueError:
            if not self._follows:
                raise
            self._write_broken(places, lanes, steps, following)
        if self._follows:
            self._note_last(cut(steps, -1), cut(following, -1), selected)

    def _look_for_nan(self, steps: dict[str, Any], following: Any) -> None:
        """Let `has_nan` count these rows, which do not change later."""
        if not self.has_nan:
            self.has_nan = any(any_nan(steps[name]) for name in self._specs) or any_nan(following)

    def _note_last(self, steps: dict[str, Any], following: Any, lanes: Any) -> None:
        """Keep what the next rows of these lanes must begin with."""
        _put(self._last, lanes, following)
        self._open[lanes] = ~(steps["terminated"] | steps["truncated"])

    def _write_broken(self, places: Array, lanes: Array | None, steps: dict[str, Any], following: Any) -> None:
        numbers = np.arange(self._lanes) if lanes is None else lanes
        jumped = _differ(cut(self._last, numbers), cut(steps["obs"], 0), 1) & self._open[numbers]
        ended = (steps["terminated"] | steps["truncated"])[:-1]
        broken = _differ(cut(following, slice(0, -1)), cut(steps["obs"], slice(1, None)), 2) & ~ended
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

    def _extend(self, places: Array, lanes: Array | None, steps: dict[str, Any], following: Any) -> None:
        ahead = None if following is None else {"obs": following}
        keys = self._with_writer(lambda writer: writer.extend(steps, next=ahead, lane=lanes).keys)
        self.keys[places] = keys.reshape(places.shape[::-1]).T  # keys are sorted by lane

    def _remove(self, places: Array) -> None:
        """Remove the rows that lie at these places. The table does so itself if one lane fills it in order."""
        if self._lanes == 1:
            return
        old = self.keys[places].reshape(-1)
        if len(old := old[old != _NO_KEY]):
            self._table.delete(old)

    def _with_writer(self, call: Any) -> Any:
        """What `call` returns for the writer; a thread that takes over from another gets a writer of its own."""
        try:
            return call(self._writer)
        except di_store.WriterClosed:
            if os.getpid() != self._pid:
                raise
            self._writer = self._table.writer(lanes=self._lanes)
            if self._follows:
                self._open[:] = False
            return call(self._writer)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, index: Any, columns: tuple[str, ...]) -> dict[str, Any]:
        """Columns of the places that `index` selects of all places, as numpy does: new arrays ``[*selected, …]``.

        Zeros where nothing was written.

        Raises:
            di_store.CapacityError: rows were evicted before their places were written again.
        """
        if self._written:
            self.flush()
        plain = type(index) is np.ndarray and index.dtype.kind == "i"
        keys = self.keys.take(index) if plain else np.asarray(self.keys[index])
        batch = self._table.peek(keys if keys.ndim == 1 else keys.reshape(-1), columns=columns)
        if self._tight and batch.live is not None and not batch.live.all() and self._table.stats()["evicted_for_room"]:
            raise di_store.CapacityError(
                "the buffer's oldest steps were evicted: the last observations of short episodes need more memory than "
                "this machine has",
                remedy="lower the size of the buffer",
            )
        return {name: self._shaped(batch.data[name], self._names[name], keys.shape) for name in columns}

    def _shaped(self, data: Any, names: dict[str, Any], lead: tuple[int, ...]) -> Any:
        if isinstance(data, dict):
            return {key: self._shaped(data[column], inner, lead) for key, (column, inner) in names.items()}
        return data if len(lead) == 1 else data.reshape((*lead, *data.shape[1:]))[()]

    def specs(self, name: str) -> Tree:
        """The types of a column, by the keys that were given."""
        return _original(self._specs["obs" if name == "next_obs" else name], self._names[name])


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


def cut(rows: Any, part: Any) -> Any:
    """Some rows of a tree of arrays; None of None."""
    if isinstance(rows, dict):
        return {name: cut(value, part) for name, value in rows.items()}
    return None if rows is None else rows[part]


def any_nan(values: Any) -> bool:
    """Whether an array of numbers, or one in a tree of them, has a NaN. None has not."""
    if isinstance(values, dict):
        return any(any_nan(each) for each in values.values())
    return values is not None and values.dtype.kind == "f" and bool(np.isnan(values).any())


def pieces(n: int) -> Iterator[slice]:
    """The numbers 0 … n-1 in pieces that are read or written at once."""
    return (slice(begin, min(begin + _AT_ONCE, n)) for begin in range(0, n, _AT_ONCE))


def _open_smaller(needed: int, capacity: int) -> di_store.Store:
    try:
        return di_store.open(memory=needed)
    except di_store.CapacityError as error:
        raise di_store.CapacityError(
            f"a buffer of {capacity:,} transitions of these shapes needs {needed / 2**30:.1f} GiB, more than this "
            "machine has",
            remedy="lower its size",
        ) from error


def _named(spec: Tree, names: dict[str, Any]) -> Tree:
    """A tree of types under names that columns can have; `names` gets these, and those of the inner nodes, by key."""
    if not isinstance(spec, dict):
        return spec
    found: dict[str, Tree] = {}
    for number, (key, inner) in enumerate(spec.items()):
        column = key if _PLAIN.fullmatch(key) else f"key{number}"
        names[key] = column, {}
        found[column] = _named(inner, names[key][1])
    return found


def _original(spec: Tree, names: dict[str, Any]) -> Tree:
    if not isinstance(spec, dict):
        return spec
    return {key: _original(spec[column], inner) for key, (column, inner) in names.items()}


def _zeros(specs: Any, lead: tuple[int, ...]) -> Any:
    if isinstance(specs, dict):
        return {name: _zeros(spec, lead) for name, spec in specs.items()}
    return zeros(lead, specs)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for each in tree.values():
            yield from _leaves(each)
    else:
        yield tree


def _assign(staged: dict[str, Any], where: Any, value: Any, names: dict[str, Any], what: str) -> None:
    if (found := set(value.keys())) != set(names):
        raise ValueError(f"{what} has the keys {sorted(found)}, and the first step that was added had {sorted(names)}")
    for key, (column, inner) in names.items():
        if inner:
            _assign(staged[column], where, value[key], inner, f"{what}.{key}")
        else:
            staged[column][where] = _fitting(value[key], staged[column].dtype, f"{what}.{key}")


def _fitting(value: Any, dtype: Any, what: str) -> Any:
    """`value`, whose numbers fit this type."""
    return value if getattr(value, "dtype", None) is dtype else cast(value, dtype, what)


def _arranged(value: Any, part: slice, names: Any, spec: Any) -> Any:
    """Rows of a column, ``[T, 1, …]``, of its type."""
    if isinstance(spec, dict):
        return {column: _arranged(value[key], part, inner, spec[column]) for key, (column, inner) in names.items()}
    return np.ascontiguousarray(cast(value[part], np.dtype(spec.dtype), "entry")[:, None])


def _put(arrays: Any, where: Any, values: Any) -> None:
    if isinstance(arrays, dict):
        for name, array in arrays.items():
            _put(array, where, values[name])
    else:
        arrays[where] = values


def _differ(these: Any, others: Any, lead: int) -> Array:
    """Where observations differ, bool of the shape of their first `lead` axes. NaN is equal to NaN."""
    if isinstance(these, dict):
        found: Array = np.logical_or.reduce([_differ(value, others[name], lead) for name, value in these.items()])
        return found
    other = (these != others) & ((these == these) | (others == others))
    found = other.any(axis=tuple(range(lead, other.ndim)))
    return found


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
