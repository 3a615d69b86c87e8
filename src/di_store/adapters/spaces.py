"""Columns for the values of Gymnasium spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

import di_store
from di_store.adapters.casts import cast

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)

Convert = Callable[[Any], Any]
"""Turns a value of a space, or a batch of values, into the leaves of its columns: new arrays, or Python's int."""


def parts(space: Any, what: str) -> dict[str, Any] | None:
    """The spaces inside a `Dict` or `Tuple` by column name (in a `Tuple` "0", "1", …); None: another kind of space.

    Raises:
        TypeError: a table has no columns for such a space.
    """
    if isinstance(space, spaces.Dict):
        return {str(name): part for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(number): part for number, part in enumerate(space.spaces)}
    if isinstance(space, _LEAVES):
        return None
    raise TypeError(
        f"the {what} space holds a {type(space).__name__}, and a table has no columns for that: flatten or pad it with "
        "a Gymnasium wrapper (Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple can be stored)"
    )


def specs(space: Any, what: str) -> Any:
    """The columns of a space: a `Spec`, or a nested dict of them."""
    inner = parts(space, what)
    if inner is None:
        text = isinstance(space, spaces.Text)
        return di_store.Spec((), _text_type(space)) if text else di_store.Spec(space.shape, space.dtype)
    return {name: specs(part, what) for name, part in inner.items()}


def step_specs(observation_space: Any, action_space: Any) -> dict[str, Any]:
    """The columns of a step: ``obs``, ``action``, ``reward``, ``terminated``, ``truncated``."""
    return {
        "obs": specs(observation_space, "observation"),
        "action": specs(action_space, "action"),
        "reward": di_store.Spec((), np.float32),
        "terminated": di_store.Spec((), np.bool_),
        "truncated": di_store.Spec((), np.bool_),
    }


def converter(space: Any, what: str) -> Convert:
    """A function that copies values of `space` into arrays of its columns, with the types of the space."""
    inner = parts(space, what)
    if isinstance(space, spaces.Text):
        return _text_converter(_text_type(space), what)
    if inner is None:
        return _leaf_converter(space.dtype, what)
    keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
    converters = [(name, key, converter(part, what)) for (name, part), key in zip(inner.items(), keys, strict=True)]
    return lambda value: {name: convert(value[key]) for name, key, convert in converters}


def _leaf_converter(dtype: np.dtype[Any], what: str) -> Convert:
    whole = dtype.kind in "biu"
    plain = int if dtype == np.int64 else None  # what the usual action is: a table takes it as it is

    def convert(value: Any) -> Any:
        if type(value) is plain:
            return value
        found: Any = np.array(value)
        if found.dtype == dtype:
            return found
        if whole and found.dtype.kind not in "biu":
            raise TypeError(f"the {what} is {found.dtype}, and its space has {dtype}: it would be rounded")
        return cast(found, dtype, what)

    return convert


def _text_type(space: Any) -> np.dtype[Any]:
    return np.dtype(f"U{space.max_length}")


def _text_converter(dtype: np.dtype[Any], what: str) -> Convert:
    def convert(value: Any) -> Any:
        found: Any = np.array(value)
        if found.dtype.kind != "U":
            raise TypeError(f"the {what} is {found.dtype}, and its space has text")
        if (
            found.dtype.itemsize > dtype.itemsize
            and (longest := int(np.char.str_len(found).max())) * 4 > dtype.itemsize
        ):
            raise di_store.SchemaMismatch(
                f"the {what} is text of up to {dtype.itemsize // 4} characters, and was given {longest}",
                remedy="declare a longer Text space",
            )
        return found.astype(dtype, copy=False)

    return convert


def original(space: Any, leaves: Any) -> Any:
    """The leaves of a space's columns, nested as in the space: tuples for a `Tuple`, lists of text."""
    if isinstance(space, spaces.Dict):
        return {name: original(part, leaves[str(name)]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(original(part, leaves[str(number)]) for number, part in enumerate(space.spaces))
    return leaves.tolist() if isinstance(space, spaces.Text) else leaves


def mapped(function: Convert, leaves: Any) -> Any:
    """The same nesting, with each leaf replaced by ``function(leaf)``."""
    if isinstance(leaves, dict):
        return {name: mapped(function, leaf) for name, leaf in leaves.items()}
    return function(leaves)
