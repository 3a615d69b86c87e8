"""Ids of the objects that hold samples.

An id has 40 hex digits: 12 for the TransferQueue, 13 for the field, 15 for the sample. So the ids of one TransferQueue
are consecutive in `Store.keys`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import di_store

_OWNER, _FIELD, _INDEX = 12, 13, 15
_DIGITS = _OWNER + _FIELD + _INDEX
_MOST = 19
"""An index with fewer decimal digits than this always fits 15 hex digits."""
_AT_ONCE = 1_000


class Ids(list[str]):
    """Ids of objects. `indexes` and `fields` belong to the samples, whose ids follow each other field by field."""

    def __init__(self, owner: str, fields: list[str], indexes: list[int]) -> None:
        numbers = [f"{index:0{_INDEX}x}" for index in indexes]
        super().__init__(
            prefix + number for prefix in (_prefix(owner, field) for field in fields) for number in numbers
        )
        self.fields, self.indexes = fields, indexes


class QueueIds:
    """The objects of one TransferQueue in a store.

    Attributes:
        digits: the beginning of their ids.
    """

    def __init__(self, name: str) -> None:
        self.digits = _digest(name, _OWNER)

    def ids(self, keys: list[str]) -> list[str]:
        """The ids of the objects of these keys."""
        return keys if type(keys) is Ids else [self._id(key) for key in keys]

    def _id(self, key: str) -> str:
        """The id for a key `index@field`, as TransferQueue makes them. Other keys are allowed."""
        index, at, field = key.partition("@")
        if at and index.isdecimal() and str(int(index)) == index and len(index) < _MOST:
            return f"{_prefix(self.digits, field)}{int(index):0{_INDEX}x}"
        return self.digits + _digest(key, _DIGITS - _OWNER)

    def pages(self, store: di_store.Store) -> Iterator[list[di_store.Ref]]:
        """The ids of all objects that were put on this store's machine, a thousand at a time."""
        before = int(self.digits, 16) * 16 ** (_DIGITS - _OWNER) - 1
        last: str | None = None if before < 0 else f"{before:0{_DIGITS}x}"
        while refs := store.keys(last, _AT_ONCE):
            ours = [ref for ref in refs if ref.id.startswith(self.digits)]
            if ours:
                yield ours
            if len(ours) < len(refs):
                return
            last = refs[-1].id


def key_at(keys: list[str], at: int) -> str:
    """The key at a place, for an error text."""
    if type(keys) is not Ids:
        return keys[at]
    return f"{keys.indexes[at % len(keys.indexes)]}@{keys.fields[at // len(keys.indexes)]}"


@functools.lru_cache(maxsize=4_096)
def _prefix(owner: str, field: str) -> str:
    """The prefix of the ids of a field's values."""
    return owner + _digest(field, _FIELD)


def _digest(text: str, digits: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()[:digits]
