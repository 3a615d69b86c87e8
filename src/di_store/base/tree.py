"""Nested dicts and their flat form: a leaf's name is its path joined by ``/``.

``{"obs": {"pixels": p, "speed": s}, "reward": r}`` is ``{"obs/pixels": p, "obs/speed": s, "reward": r}``. Everything
that is not a mapping is a leaf. An inner node's name (``"obs"``) means all leaves below it.

A key may itself contain a ``/`` (``"walker/pos"``). In names this character is written as `SLASH`, which no key
contains. So ``{"a/b": x}`` and ``{"a": {"b": x}}`` have different names, and each can be restored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from di_store.base.errors import SchemaMismatch, shown

SEPARATOR = "/"
SLASH = "\u2215"
"""Stands in names for a "/" of a key: a division slash, which reads as one."""
MAX_DEPTH = 32


def flatten(tree: Mapping[str, Any], *, what: str = "step") -> dict[str, Any]:
    """The leaves of `tree` by path, in the order of the dicts.

    Args:
        tree: nested mappings with text keys.
        what: name of the tree, for the error texts.

    Raises:
        TypeError: `tree` is not a mapping, or a key is not text.
        ValueError: an empty mapping, an empty key or one with `SLASH`, more than 32 levels. SchemaMismatch: a key that
            UTF-8 cannot hold.
    """
    if not isinstance(tree, Mapping):
        raise TypeError(
            f'a {what} is a dict of columns, such as {{"obs": …, "reward": …}}, not a {type(tree).__name__}'
        )
    leaves: dict[str, Any] = {}
    _collect(tree, "", leaves, what, 0)
    return leaves


def _collect(tree: Mapping[Any, Any], prefix: str, leaves: dict[str, Any], what: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"{what} {prefix[:80]!r}… is nested more than {MAX_DEPTH} deep; does a dict hold itself?")
    if not tree:
        place = f"{what} at {prefix[:-1]!r}" if prefix else f"this {what}"
        raise ValueError(f"{place} is an empty dict, which holds no column: give it one, or leave the empty dict out")
    for key, value in tree.items():
        if type(key) is not str:
            key = _checked_type(key, prefix, what)
        if not key or not key.isascii() or SEPARATOR in key:
            key = _part(key, prefix, what)
        if isinstance(value, Mapping):
            _collect(value, f"{prefix}{key}{SEPARATOR}", leaves, what, depth + 1)
        else:
            leaves[prefix + key] = value


def _part(key: str, prefix: str, what: str) -> str:
    """A key in the form that names have."""
    if not key or SLASH in key:
        raise ValueError(
            f"key {shown(key)} in {what} {prefix or 'root'!r}: a key must not be empty or contain {SLASH!r} "
            '(U+2215), which replaces a "/" of a key in column names; a plain "/" is allowed'
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise SchemaMismatch(
            f"key {shown(key)} in {what} {prefix or 'root'!r} contains a lone surrogate, which UTF-8 cannot "
            "encode: a column's name must be valid UTF-8"
        ) from None
    return key.replace(SEPARATOR, SLASH)


def path_of(name: str) -> tuple[str, ...]:
    """The keys that lead to the leaf of that name."""
    parts = name.split(SEPARATOR)
    return tuple(part.replace(SLASH, SEPARATOR) for part in parts) if SLASH in name else tuple(parts)


def name_of(path: Iterable[str]) -> str:
    """The name of the leaf to which these keys lead."""
    return SEPARATOR.join(key.replace(SEPARATOR, SLASH) for key in path)


def _checked_type(key: object, prefix: str, what: str) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"key {shown(key)} in {what} {prefix or 'root'!r} is a {type(key).__name__}: column names must be text"
        )
    return str(key)


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dicts that `flatten` would turn into `leaves`.

    Raises:
        ValueError: one name is both a leaf and an inner node, or a path has an empty part.
    """
    root: dict[str, Any] = {}
    nodes: dict[str, dict[str, Any]] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split(SEPARATOR)
        if not last or not all(parents):
            raise ValueError(f"{path!r} has an empty part: names are parts joined by single {SEPARATOR!r}")
        node, name = root, ""
        for part in parents:
            name = f"{name}{SEPARATOR}{part}" if name else part
            if name in leaves:
                raise _leaf_and_node(name)
            if name not in nodes:
                nodes[name] = node[part.replace(SLASH, SEPARATOR)] = {}
            node = nodes[name]
        node[last.replace(SLASH, SEPARATOR)] = leaf
    return root


def _leaf_and_node(path: str) -> ValueError:
    return ValueError(f"{path!r} is both a column and a group of columns: rename one of them")


def is_below(path: str, node: str) -> bool:
    """Whether `node` is `path` itself or one of the inner nodes above it."""
    return path == node or path.startswith(node + SEPARATOR)


def select(paths: Iterable[str], wanted: str | Iterable[str], *, option: str = "columns") -> tuple[str, ...]:
    """The `paths` that `wanted` names, directly or by an inner node above them, in the order of `paths`.

    Args:
        paths: all column names.
        wanted: a name or several; an inner node's name means all below. The "/" of a key may be written as "/", unless
            this gives the name of another leaf.
        option: the argument's name, for the error text.

    Raises:
        ValueError: a name in `wanted` matches no column.
        TypeError: a name is not text.
    """
    known = tuple(paths)
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    chosen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{option}: {shown(name)} is a {type(name).__name__}; column names must be text")
        found = [path for path in known if is_below(path, name)]
        found = found or [path for path in known if is_below(path.replace(SLASH, SEPARATOR), name)]
        if not found:
            raise ValueError(f"{option}: no column {name!r}{did_you_mean(name, known)}")
        chosen.update(found)
    return tuple(path for path in known if path in chosen)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error text: known names similar to `name`, or else the first 12 names."""
    names = list(known)
    groups = {path[:cut] for path in names for cut in range(len(path)) if path[cut] == SEPARATOR}
    close = difflib.get_close_matches(name, [*names, *sorted(groups)], n=3)
    if close:
        return ", did you mean " + " or ".join(repr(match) for match in close) + "?"
    shown = ", ".join(repr(path) for path in names[:12])
    return f"; there are: {shown}" + (", …" if len(names) > 12 else "")
