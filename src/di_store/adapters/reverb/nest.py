"""Nested structures in Reverb's order: the leaves of dicts are ordered by key, those of sequences by position.

Dicts and other mappings, lists, tuples and named tuples are structure. Everything else is a leaf, including None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]
"""Where a leaf is: keys of mappings, positions in sequences, names in named tuples."""


def is_leaf(node: Any) -> bool:
    """Whether a node has no parts."""
    return not isinstance(node, (Mapping, list, tuple))


def parts(node: Any) -> list[tuple[Any, Any]]:
    """The parts of an inner node, each with its key, position or name."""
    if isinstance(node, Mapping):
        return [(key, node[key]) for key in sorted(node)]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return [(name, getattr(node, name)) for name in node._fields]
    return list(enumerate(node))


def flatten_with_path(tree: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """All leaves with their paths."""
    if is_leaf(tree):
        return [(path, tree)]
    return [found for key, part in parts(tree) for found in flatten_with_path(part, (*path, key))]


def flatten(tree: Any) -> list[Any]:
    """All leaves."""
    if type(tree) is dict and not any(isinstance(part, (Mapping, list, tuple)) for part in tree.values()):
        return [tree[key] for key in sorted(tree)]
    return [leaf for _, leaf in flatten_with_path(tree)]


def rebuilt(node: Any, found: Iterable[Any]) -> Any:
    """A node of the same kind with other parts, in the order of `parts`."""
    if isinstance(node, Mapping):
        new = dict(zip(sorted(node), found, strict=True))
        ordered = {key: new[key] for key in node}
        return ordered if type(node) is dict else type(node)(ordered)  # type: ignore[call-arg]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*found)
    return type(node)(found)


def unflatten_as(structure: Any, leaves: Iterable[Any]) -> Any:
    """A tree like `structure` with these leaves.

    Raises:
        ValueError: the number of leaves differs.
    """
    given = list(leaves)
    rest = iter(given)
    try:
        found = _filled(structure, rest)
    except StopIteration:
        raise _wrong_count(structure, given) from None
    if next(rest, _END) is not _END:
        raise _wrong_count(structure, given)
    return found


_END = object()


def _wrong_count(structure: Any, leaves: list[Any]) -> ValueError:
    wanted = len(flatten(structure))
    return ValueError(f"the structure has {wanted} leaves and the item has {len(leaves)} columns: {structure}")


def _filled(structure: Any, leaves: Iterator[Any]) -> Any:
    if is_leaf(structure):
        return next(leaves)
    return rebuilt(structure, [_filled(part, leaves) for _, part in parts(structure)])


def map_structure(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same structure, with each leaf replaced by ``function(leaf)``."""
    if is_leaf(tree):
        return function(tree)
    return rebuilt(tree, [map_structure(function, part) for _, part in parts(tree)])


def union(first: Any, second: Any) -> Any:
    """The structure with all leaves of both trees. Leaves that are in both are taken from `first`.

    Raises:
        TypeError: a node has another kind in `second` than in `first`.
    """
    if is_leaf(first):
        return first
    if is_leaf(second) or isinstance(first, Mapping) != isinstance(second, Mapping):
        raise TypeError(f"a step has {type(second).__name__} where earlier ones have {type(first).__name__}")
    mine, theirs = dict(parts(first)), dict(parts(second))
    found = {key: union(part, theirs[key]) if key in theirs else part for key, part in mine.items()}
    found |= {key: part for key, part in theirs.items() if key not in mine}
    if isinstance(first, Mapping):
        return found if type(first) is dict else type(first)(found)  # type: ignore[call-arg]
    return type(first)(*found.values()) if hasattr(first, "_fields") else type(first)(found.values())
