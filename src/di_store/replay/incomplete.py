"""Groups of a table that cannot be drawn yet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from di_store.base.dtypes import Array
from di_store.columns.schema import Schema
from di_store.policy.views import Group, View
from di_store.replay.handle import TableHandle


class IncompleteGroup(NamedTuple):
    """A group of a table with the view `Group` that cannot be drawn yet.

    Attributes:
        value: the group's value in the column `by`.
        missing: number of answers that the group lacks; 0: only late columns are missing.
        late: whether an earlier group of this value had already ended (see `Group`). Only for groups that lack answers.
        keys: keys of the answers so far, uint64[m], in order of arrival.
        age: seconds since its first answer, or since the store was restored.
    """

    value: int
    missing: int
    late: bool
    keys: Array
    age: float

    @property
    def answers(self) -> int:
        """Number of answers so far."""
        return len(self.keys)


Found = tuple[Array, Array, Array, Array, Array]
"""By group its value, the number of its answers, whether it came late, and its age; then the keys of all answers."""


def without_groups(name: str, view: View) -> ValueError:
    """The error for a table of another view, which has no such groups."""
    return ValueError(f"table {name!r} has view={view!r}: incomplete() lists groups, of tables with view=Group(…)")


def check_grouped(name: str, view: View) -> Group:
    """The view of a table of groups; ValueError: the table has another view."""
    if not isinstance(view, Group):
        raise without_groups(name, view)
    return view


def found_incomplete(handle: TableHandle, seconds: float) -> Found:
    """The groups of a local table that cannot be drawn yet, oldest first."""
    view = check_grouped(handle.name, handle.settings.view)
    values, answers, late, ages, keys = handle.native.incomplete(seconds)
    return _as_declared(values, view.by, handle.schema), answers, late, ages, keys


def listed_incomplete(view: Group, found: Found) -> list[IncompleteGroup]:
    """The same as text, group by group."""
    values, answers, late, ages, keys = found
    each = np.split(keys, np.cumsum(answers)[:-1])
    columns = zip(values.tolist(), answers.tolist(), late.tolist(), ages.tolist(), each, strict=False)
    return [IncompleteGroup(value, view.size - here, bool(was), own, age) for value, here, was, age, own in columns]


def _as_declared(values: Array, by: str, schema: Schema | None) -> Array:
    """The core's values in the type of the column; the core gives the column's bytes, padded with zeros."""
    if schema is None:
        return values
    dtype = np.dtype(schema[by].dtype)
    raw = np.ascontiguousarray(values.reshape(-1, 1)).view(np.uint8)[:, : dtype.itemsize]
    found: Array = np.ascontiguousarray(raw).view(dtype).reshape(-1)
    return found
