"""Calls of a writer on their way: rows of known columns, one after the other, without a word on types.

Both sides know the columns. A record says which of them are there; their arrays follow in the body, in that order, each
at a multiple of 16 bytes. Calls of one form share a record: it says how many follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from di_store.base import tree
from di_store.base.dtypes import Array, DType
from di_store.base.errors import CorruptData
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.wire.frame import Buffer
from di_store.wire.values import texts

ALIGNMENT = 16
_MOST_ROWS = 2**31
_ZEROS = bytes(ALIGNMENT)
_MOST_PLANS = 64
_AT_ONCE = 256  # calls whose arrays are made together
_ARGUMENTS = ("step", "steps", "next", "final")


Groups: TypeAlias = "dict[str, list[int]]"


class Record(msgspec.Struct, array_like=True):
    """One call, or several of one form.

    Attributes:
        seq: its number, from 1; that of the first of several.
        method: "append", "extend" or "end_episode".
        lead: leading axes of its leaves.
        groups: by argument ("step", "steps", "next", "final") the numbers of its columns.
        lane: None: all; a number; or several.
        priority: as the call has it, as numbers, lists of them, or a dict by table.
        discard: of `end_episode`.
        count: how many calls it stands for, with numbers that follow each other. The arrays of each follow those of
            the one before. Above 1 only for calls that have arrays.
    """

    seq: int
    method: str
    lead: list[int]
    groups: Groups
    lane: int | list[int] | None = None
    priority: Any = None
    discard: bool = False
    count: int = 1

    def lane_array(self) -> Any:
        """`lane` as the writer takes it; CorruptData if it is no number of a lane."""
        try:
            return np.asarray(self.lane, np.int64) if isinstance(self.lane, list) else self.lane
        except OverflowError:
            raise CorruptData("a row of a lane beyond 2**63 came", remedy="") from None


class Records(msgspec.Struct, array_like=True):
    """Several calls.

    Attributes:
        epoch: how often the client has heard of a call that failed: what it had sent behind that one is not done.
        acknowledged: the last call whose acknowledgement the client has.
    """

    epoch: int
    acknowledged: int
    records: list[Record]


class Acknowledgement(msgspec.Struct, array_like=True):
    """What calls have made.

    Attributes:
        last: number of the last one; all before it are done too.
        epoch: of the session, after it.
        counts: of each call that was done, the items in each table.
        failure: a `Failure`: what the call `last` raised; empty: nothing.
        warnings: texts that the calls warned of.
    """

    last: int
    epoch: int
    counts: list[list[int]]
    failure: bytes
    warnings: list[str]

    @classmethod
    def of(cls, last: int, epoch: int, made: list[Any], failure: bytes, told: list[str]) -> tuple[bytes, list[Buffer]]:
        """Meta and body. `made`: by call and table, keys, lanes and starts."""
        found = cls(last, epoch, [[len(keys) for keys, _, _ in call] for call in made], failure, texts(told))
        parts = [part for call in made for part in call]
        if not parts:
            return msgspec.msgpack.encode(found), []
        raw: list[bytes] = []
        for each in zip(*parts, strict=True):
            raw.append((each[0] if len(each) == 1 else np.concatenate(each)).tobytes())
            raw.append(_ZEROS[: -len(raw[-1]) % ALIGNMENT])
        return msgspec.msgpack.encode(found), [b"".join(raw)]

    def split(self, body: Array) -> list[list[tuple[Array, Array, Array]]]:
        """By call and table, keys, lanes and starts.

        Raises:
            CorruptData: the body is too short.
        """
        total = sum(sum(call) for call in self.counts)
        at, columns = 0, []
        for dtype in (np.uint64, np.int32, np.int64):
            size = total * np.dtype(dtype).itemsize
            if min((count for call in self.counts for count in call), default=0) < 0 or at + size > len(body):
                raise CorruptData("an acknowledgement without its keys came", remedy="")
            columns.append(np.ndarray(total, dtype, body, at) if total else np.empty(0, dtype))
            at += -(-size // ALIGNMENT) * ALIGNMENT
        keys, lanes, starts = columns
        found, first = [], 0
        for call in self.counts:
            tables = []
            for count in call:
                cut = slice(first, first + count)
                tables.append((keys[cut], lanes[cut], starts[cut]))
                first += count
            found.append(tables)
        return found


def stride_of(sizes: Iterable[int]) -> int:
    """Bytes of a call whose arrays have these sizes."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


class _Leaf(NamedTuple):
    """Where a value of each call lies: its argument, its path there, and its place behind the call's beginning."""

    argument: str
    path: list[str]
    column: Column
    shape: tuple[int, ...]
    dtype: DType
    at: int


class _Plan:
    """How the arrays of one form of calls lie in a body."""

    def __init__(self, columns: list[tuple[list[str], Column]], lead: tuple[int, ...], groups: Groups) -> None:
        if len(lead) > 2 or any(not 0 < size < _MOST_ROWS for size in lead):
            raise CorruptData("a row with no leading axes came", remedy="")
        self._leaves: list[_Leaf] = []
        self._empty: dict[str, Any] = {}
        self.stride = 0
        for argument, numbers in groups.items():
            if argument not in _ARGUMENTS:
                raise CorruptData(f"a row with an argument {argument[:40]!r} came", remedy="")
            self._empty[argument] = None
            for number in numbers:
                if not 0 <= number < len(columns):
                    raise CorruptData("a row with a column that is none came", remedy="")
                path, column = columns[number]
                if column.ragged:
                    raise _cut_short()
                shape, dtype = lead + column.shape, column.value_dtype
                self._leaves.append(_Leaf(argument, path, column, shape, dtype, self.stride))
                self.stride += stride_of([math.prod(shape) * dtype.itemsize])
        flat = all(len(leaf.path) == 1 for leaf in self._leaves)
        self._flat = [leaf.path[0] for leaf in self._leaves] if flat else []
        self._only = next(iter(groups)) if len(groups) == 1 else ""

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


def _values(leaf: _Leaf, body: Array, at: int, count: int, stride: int) -> list[Any]:
    """One value of each of `count` calls, in place."""
    if count == 1:
        return [np.ndarray(leaf.shape, leaf.dtype, body, at + leaf.at)]
    inner = np.ndarray(leaf.shape, leaf.dtype, body, at + leaf.at).strides
    every: Array = np.ndarray((count, *leaf.shape), leaf.dtype, body, at + leaf.at, (stride, *inner))
    if leaf.shape or (leaf.dtype.kind in "biufc" and not leaf.column.extension):
        return list(every)
    return [every[place, ...] for place in range(count)]  # as arrays: text as a scalar would lose its zeros


def _cut_short() -> CorruptData:
    return CorruptData("a row without all its bytes came", remedy="")


class RowReader:
    """Reads the arrays of records."""

    def __init__(self, schema: Schema) -> None:
        self._columns = [(column.name.split(tree.SEPARATOR), column) for column in schema]
        self._plans: dict[Any, _Plan] = {}

    def read(self, record: Record, body: Array, at: int) -> tuple[Iterator[dict[str, Any]], int]:
        """The arguments of the calls of a record whose arrays begin at `at`, and where they end.

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
            raise CorruptData(f"a row that stands for {record.count} came", remedy="")
        end = at + plan.stride * record.count
        if end > len(body):
            raise _cut_short()
        return plan.read(body, at, record.count), end
