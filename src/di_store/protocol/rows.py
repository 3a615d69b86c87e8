"""Calls of a writer as they are sent: rows of known columns, one after the other, without types.

Both sides know the columns. A record lists the given columns; their arrays follow in the body in this order, each at a
multiple of 16 bytes. Calls of one form share a record, which gives their number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from di_store._core import RowForm, RowsMade
from di_store.base import tree
from di_store.base.dtypes import Array, DType
from di_store.base.errors import CorruptData
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.protocol.frame import Buffer
from di_store.protocol.values import texts

ALIGNMENT = 16
_MOST_ROWS = 2**31
_MOST_STRIDE = 2**40  # no message is so long
_ZEROS = bytes(ALIGNMENT)
_MADE = (np.dtype(np.uint64), np.dtype(np.int32), np.dtype(np.int64))  # keys, lanes, starts
_MOST_PLANS = 64
_AT_ONCE = 256  # calls whose arrays are made together
_ARGUMENTS = ("step", "steps", "next", "final")
_APPENDED = ({"step"}, {"step", "next"})


Groups: TypeAlias = "dict[str, list[int]]"


class Record(msgspec.Struct, array_like=True):
    """One call, or several of one form.

    Attributes:
        seq: its number, from 1; for several calls, the number of the first.
        method: "append", "extend" or "end_episode".
        lead: leading axes of its leaves.
        groups: by argument ("step", "steps", "next", "final") the numbers of its columns.
        lane: None: all lanes; a number; or several.
        priority: priorities of the call, as numbers, lists of them, or a dict by table.
        discard: argument of `end_episode`.
        count: number of calls in the record; their numbers are consecutive. The arrays of each call follow those of the
            previous one. Above 1 only for calls that have arrays.
    """

    seq: int
    method: str
    lead: list[int]
    groups: Groups
    lane: int | list[int] | None = None
    priority: Any = None
    discard: bool = False
    count: int = 1

    def text(self) -> bytes:
        """The part of a message between `seq` and `count`, the same for all calls of its form."""
        form = [self.method, self.lead, self.groups, self.lane, self.priority, self.discard]
        return msgspec.msgpack.encode(form)[1:]

    def lane_array(self) -> Any:
        """`lane` in the writer's form; CorruptData if `lane` is no number of a lane."""
        try:
            return np.asarray(self.lane, np.int64) if isinstance(self.lane, list) else self.lane
        except OverflowError:
            raise CorruptData("received a row with a lane number above 2**63", remedy="") from None


class Records(msgspec.Struct, array_like=True):
    """Several calls.

    Attributes:
        epoch: number of failed calls that the client knows of. Calls that it sent after a failed one are not done.
        acknowledged: number of the last call whose acknowledgement the client has.
    """

    epoch: int
    acknowledged: int
    records: list[Record]


class Acknowledgement(msgspec.Struct, array_like=True):
    """The results of calls.

    Attributes:
        last: number of the last call; all earlier calls are done too.
        epoch: epoch of the session after this call.
        counts: for each call that was done, the number of items in each table.
        failure: a `Failure`: the error of call `last`; empty: no error.
        warnings: texts of the warnings of the calls.
    """

    last: int
    epoch: int
    counts: list[list[int]]
    failure: bytes
    warnings: list[str]

    @classmethod
    def of(cls, last: int, epoch: int, made: list[Any], failure: bytes, told: list[str]) -> tuple[bytes, list[Buffer]]:
        """Meta and body. `made`: keys, lanes and starts of each call by table; or the `RowsMade` of several calls."""
        counts: list[list[int]] = []
        parts: list[tuple[Array, Array, Array]] = []
        for each in made:
            if type(each) is RowsMade:
                counts += each.counts
                parts.append((each.keys, each.lanes, each.starts))
            else:
                counts.append([len(keys) for keys, _, _ in each])
                parts += each
        found = cls(last, epoch, counts, failure, texts(told))
        if not parts:
            return msgspec.msgpack.encode(found), []
        raw: list[bytes] = []
        for column in zip(*parts, strict=True):
            raw.append((column[0] if len(column) == 1 else np.concatenate(column)).tobytes())
            raw.append(_ZEROS[: -len(raw[-1]) % ALIGNMENT])
        return msgspec.msgpack.encode(found), [b"".join(raw)]

    def made(self, body: Array) -> Made:
        """The items that the calls have made.

        Raises:
            CorruptData: the body is too short.
        """
        total = 0
        for call in self.counts:
            for count in call:
                if count < 0:
                    raise _no_keys()
                total += count
        at, columns = 0, []
        for dtype in _MADE:
            size = total * dtype.itemsize
            if at + size > len(body):
                raise _no_keys()
            columns.append(np.ndarray(total, dtype, body, at) if total else np.empty(0, dtype))
            at += -(-size // ALIGNMENT) * ALIGNMENT
        return Made(self.counts, columns)


class Made:
    """The items of an acknowledgement's calls. They are divided among the calls at the first use, which is rare."""

    def __init__(self, counts: list[list[int]], columns: list[Array]) -> None:
        self._counts = counts
        self._columns = columns
        self._firsts: list[int] = []

    def of(self, place: int) -> list[tuple[Array, Array, Array]]:
        """Keys, lanes and starts of one call, by table."""
        if len(self._firsts) != len(self._counts):  # two threads would find the same
            self._firsts = list(itertools.accumulate(map(sum, self._counts[:-1]), initial=0))
        first, (keys, lanes, starts), found = self._firsts[place], self._columns, []
        for count in self._counts[place]:
            cut = slice(first, first + count)
            found.append((keys[cut], lanes[cut], starts[cut]))
            first += count
        return found


def _no_keys() -> CorruptData:
    return CorruptData("received an acknowledgement without its keys", remedy="")


def stride_of(sizes: Iterable[int]) -> int:
    """Bytes of a call whose arrays have these sizes."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


class _LeafPlace(NamedTuple):
    """The place of a value in each call: its argument, its column and path, its offset in the call."""

    argument: str
    number: int
    path: list[str]
    column: Column
    shape: tuple[int, ...]
    dtype: DType
    at: int


class _Plan:
    """The layout of the arrays of calls of one form in a body."""

    def __init__(self, columns: list[tuple[list[str], Column]], lead: tuple[int, ...], groups: Groups) -> None:
        if len(lead) > 2 or any(not 0 < size < _MOST_ROWS for size in lead):
            raise CorruptData("received a row with invalid leading axes", remedy="")
        self._leaves: list[_LeafPlace] = []
        self._empty: dict[str, Any] = {}
        self.stride = 0
        for argument, numbers in groups.items():
            if argument not in _ARGUMENTS:
                raise CorruptData(f"received a row with an unknown argument {argument[:40]!r}", remedy="")
            self._empty[argument] = None
            for number in numbers:
                if not 0 <= number < len(columns):
                    raise CorruptData("received a row with an unknown column", remedy="")
                path, column = columns[number]
                if column.ragged:
                    raise _cut_short()
                shape, dtype = lead + column.shape, column.value_dtype
                self._leaves.append(_LeafPlace(argument, number, path, column, shape, dtype, self.stride))
                self.stride += stride_of([math.prod(shape) * dtype.itemsize])
        self.form = self._form(lead)
        flat = all(len(leaf.path) == 1 for leaf in self._leaves)
        self._flat = [leaf.path[0] for leaf in self._leaves] if flat else []
        self._only = next(iter(groups)) if len(groups) == 1 else ""

    def _form(self, lead: tuple[int, ...]) -> RowForm | None:
        """The same in the form that the core reads, for an `append`; None: some values must be checked here."""
        places: dict[str, list[tuple[int, int]]] = {argument: [] for argument in self._empty}
        for leaf in self._leaves:
            if leaf.column.extension or not leaf.column.element_bytes:
                return None
            places[leaf.argument].append((leaf.number, leaf.at))
        if len(lead) > 1 or not 0 < self.stride < _MOST_STRIDE or places.keys() not in _APPENDED:
            return None
        return RowForm(places["step"], places.get("next", []), self.stride, lead[0] if lead else 0)

    def read(self, body: Array, at: int, count: int) -> Iterator[dict[str, Any]]:
        """The arguments of `count` calls whose arrays begin at `at`; the body is long enough."""
        for first in range(0, count, _AT_ONCE):
            yield from self._some(body, at + first * self.stride, min(_AT_ONCE, count - first))

    def _some(self, body: Array, at: int, count: int) -> Iterator[dict[str, Any]]:
        values = [_values(leaf, body, at, count, self.stride) for leaf in self._leaves]
        if self._flat and self._only:
            for row in zip(*values, strict=True):
                yield {self._only: dict(zip(self._flat, row, strict=True))}
            return
        for row in zip(*values, strict=True) if values else [()] * count:
            found: dict[str, Any] = {argument: {} for argument in self._empty}
            for leaf, value in zip(self._leaves, row, strict=True):
                node = found[leaf.argument]
                for name in leaf.path[:-1]:
                    node = node.setdefault(name, {})
                node[leaf.path[-1]] = value
            yield found


def _values(leaf: _LeafPlace, body: Array, at: int, count: int, stride: int) -> list[Any]:
    """One value of each of `count` calls, in place."""
    if count == 1:
        return [np.ndarray(leaf.shape, leaf.dtype, body, at + leaf.at)]
    inner = np.ndarray(leaf.shape, leaf.dtype, body, at + leaf.at).strides
    every: Array = np.ndarray((count, *leaf.shape), leaf.dtype, body, at + leaf.at, (stride, *inner))
    if leaf.shape or (leaf.dtype.kind in "biufc" and not leaf.column.extension):
        return list(every)
    return [every[place, ...] for place in range(count)]  # as arrays: text as a scalar would lose its zeros


def _cut_short() -> CorruptData:
    return CorruptData("received a row with missing bytes", remedy="")


class CallRun(NamedTuple):
    """The calls of a record, whose arrays lie in a body.

    Attributes:
        plan: the layout of a call's arrays.
        body: the body that holds the arrays.
        at: offset of the first call.
        total: number of calls.
    """

    plan: _Plan
    body: Array
    at: int
    total: int

    @property
    def end(self) -> int:
        """The offset at which the calls end."""
        return self.place(self.total)

    def place(self, number: int) -> int:
        """The offset at which a call begins."""
        return self.at + number * self.plan.stride

    def calls(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """The arguments of the calls from a given one on."""
        return self.plan.read(self.body, self.place(first), self.total - first)


class RowReader:
    """Reads the arrays of records."""

    def __init__(self, schema: Schema) -> None:
        self._columns = [(list(tree.path_of(column.name)), column) for column in schema]
        self._plans: dict[Any, _Plan] = {}

    def find(self, record: Record, body: Array, at: int) -> CallRun:
        """The calls of a record whose arrays begin at `at`.

        Raises:
            CorruptData: the record does not fit the columns or the body.
        """
        key = (*record.lead, *((name, *numbers) for name, numbers in record.groups.items()))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = _Plan(self._columns, tuple(record.lead), record.groups)
        if record.count < 1 or (record.count > 1 and not plan.stride):
            raise CorruptData(f"received a row that stands for {record.count} calls", remedy="")
        run = CallRun(plan, body, at, record.count)
        if run.end > len(body):
            raise _cut_short()
        return run
