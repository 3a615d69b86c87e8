"""Calls of a writer on their way: rows of known columns, one after the other, without a word on types.

Both sides know the columns. A record says which of them are there; their arrays follow in the body, in that order, each
at a multiple of 16 bytes.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from di_store.base import tree
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.columns.schema import Schema
from di_store.wire.frame import Buffer
from di_store.wire.values import padded, texts

ALIGNMENT = 16
_MOST_ROWS = 2**31


class Record(msgspec.Struct, array_like=True):
    """One call.

    Attributes:
        seq: its number, from 1.
        method: "append", "extend" or "end_episode".
        lead: leading axes of its leaves.
        groups: by argument ("step", "steps", "next", "final") the numbers of its columns.
        lane: None: all; a number; or several.
        priority: as the call has it, as numbers, lists of them, or a dict by table.
        discard: of `end_episode`.
    """

    seq: int
    method: str
    lead: list[int]
    groups: dict[str, list[int]]
    lane: int | list[int] | None = None
    priority: Any = None
    discard: bool = False

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
        arrays = [np.concatenate(each) for each in zip(*parts, strict=True)]
        return msgspec.msgpack.encode(found), padded(arrays, ALIGNMENT)

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


class RowReader:
    """Reads the arrays of records."""

    def __init__(self, schema: Schema) -> None:
        self._columns = [(column.name.split(tree.SEPARATOR), column) for column in schema]

    def read(self, record: Record, body: Array, at: int) -> tuple[dict[str, Any], int]:
        """The arguments of a record whose arrays begin at `at`, and where they end.

        Raises:
            CorruptData: the record does not fit the columns or the body.
        """
        lead = tuple(record.lead)
        if len(lead) > 2 or any(not 0 < size < _MOST_ROWS for size in lead):
            raise CorruptData("a row with no leading axes came", remedy="")
        found: dict[str, Any] = {}
        for argument, numbers in record.groups.items():
            if argument not in ("step", "steps", "next", "final"):
                raise CorruptData(f"a row with an argument {argument[:40]!r} came", remedy="")
            leaves: dict[str, Any] = {}
            for number in numbers:
                if not 0 <= number < len(self._columns):
                    raise CorruptData("a row with a column that is none came", remedy="")
                path, column = self._columns[number]
                full, dtype = lead + column.shape, column.value_dtype
                size = math.prod(full) * dtype.itemsize
                if column.ragged or at + size > len(body):
                    raise CorruptData("a row without all its bytes came", remedy="")
                node = leaves
                for name in path[:-1]:
                    node = node.setdefault(name, {})
                node[path[-1]] = np.ndarray(full, dtype, body, at)
                at += -(-size // ALIGNMENT) * ALIGNMENT
            found[argument] = leaves
        return found, at
