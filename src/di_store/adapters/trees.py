"""Columns under names: dicts of arrays, which may be nested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.adapters.casts import cast, zeros
from di_store.adapters.stored_array import Array

Tree: TypeAlias = "di_store.Spec | dict[str, Tree]"


def cut(rows: Any, part: Any) -> Any:
    """Some rows of a tree of arrays; None: all rows as one row. None stays None."""
    if isinstance(rows, dict):
        return {name: cut(value, part) for name, value in rows.items()}
    return None if rows is None else rows[part]


def any_nan(values: Any) -> bool:
    """Whether an array of numbers, or an array in a tree of them, has a NaN. False for None."""
    if isinstance(values, dict):
        return any(any_nan(each) for each in values.values())
    return values is not None and values.dtype.kind == "f" and bool(np.isnan(values).any())


def differ(these: Any, others: Any, lead: int) -> Array:
    """Where observations differ, bool of the shape of their first `lead` axes. NaN equals NaN."""
    if isinstance(these, dict):
        found: Array = np.logical_or.reduce([differ(value, others[name], lead) for name, value in these.items()])
        return found
    other = these != others
    if these.dtype.kind in "fc":
        other &= (these == these) | (others == others)
    found = other.any(axis=tuple(range(lead, other.ndim)))
    return found


def shaped(data: Any, lead: tuple[int, ...]) -> Any:
    """Arrays ``[n, …]`` as arrays ``[*lead, …]``."""
    if isinstance(data, dict):
        return {key: shaped(value, lead) for key, value in data.items()}
    return data if len(lead) == 1 else data.reshape((*lead, *data.shape[1:]))[()]


def zeros_of(specs: Any, lead: tuple[int, ...]) -> Any:
    """Arrays ``[*lead, …]`` of these types."""
    if isinstance(specs, dict):
        return {name: zeros_of(spec, lead) for name, spec in specs.items()}
    return zeros(lead, specs)


def leaves(tree: Any) -> Iterator[Any]:
    """The arrays, or types, of a tree."""
    if isinstance(tree, dict):
        for each in tree.values():
            yield from leaves(each)
    else:
        yield tree


def leaf_of(tree: Any, path: Iterable[str]) -> Any:
    """The leaf to which these keys lead."""
    for key in path:
        tree = tree[key]
    return tree


def named_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays, or types, of a tree, with their names."""
    for name, each in tree.items():
        if isinstance(each, dict):
            yield from named_leaves(each, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", each


def flat(value: Any, like: Tree, what: str) -> list[Any]:
    """The leaves of a value that is indexed by the same keys as `like`, in their order.

    Raises:
        ValueError: `value` has other keys.
    """
    if not isinstance(like, dict):
        return [value]
    if (found := set(value.keys())) != set(like):
        raise ValueError(f"{what} has the keys {sorted(found)}, and the first step that was added had {sorted(like)}")
    return [leaf for key, inner in like.items() for leaf in flat(value[key], inner, f"{what}.{key}")]


def tree_of(like: Any, found: Iterator[Any]) -> Any:
    """A tree like another one, with these leaves."""
    return {name: tree_of(each, found) if isinstance(each, dict) else next(found) for name, each in like.items()}


def fitted(value: Any, spec: Tree, what: str) -> Any:
    """Values as arrays of their columns' types."""
    if isinstance(spec, dict):
        return {key: fitted(value[key], inner, f"{what}.{key}") for key, inner in spec.items()}
    return np.ascontiguousarray(cast(value, np.dtype(spec.dtype), what))


def joined(pieces: list[Any]) -> Any:
    """Trees of arrays ``[n, …]``, concatenated."""
    if isinstance(pieces[0], dict):
        return {name: joined([each[name] for each in pieces]) for name in pieces[0]}
    return np.concatenate(pieces)
