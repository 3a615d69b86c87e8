"""Converts the sequences of RLlib's episodes to columns of a table and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tree
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from di_store.adapters.stored_array import Array

Name: TypeAlias = "str | tuple[str, Any]"
"""The name of a sequence of an episode: obs, action, reward, or ("extra", key) for the model output of that key."""

_DTYPES: dict[type, Any] = {float: np.float64, int: np.int64, bool: np.bool_}
_ADVICE = (
    "flatten or pad it with a connector or a Gymnasium wrapper (numbers, arrays of one shape, and dicts and tuples of "
    "these can be stored)"
)


class PartLeaf(NamedTuple):
    """One column."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    python: type | None
    """The type of a list's items, if it is one of Python's."""


class Part:
    """The form of one sequence of an episode (observations, actions, rewards, an extra model output).

    Attributes:
        finalized: whether the sequence consists of arrays, as after `SingleAgentEpisode.to_numpy()`, or is a list of
            items.
        structure: an item's nesting, with 0 in place of arrays; None: an item is one array or number.
        leaves: leaves of an item.
        key: equal for equal parts.
    """

    def __init__(self, finalized: bool, structure: Any, leaves: tuple[PartLeaf, ...]) -> None:
        self.finalized, self.structure, self.leaves = finalized, structure, leaves
        self.key = finalized, repr(structure), leaves

    def items(self, columns: Sequence[Array]) -> list[Any]:
        """The items of rows, in the form of an episode's single items.

        Args:
            columns: columns of the leaves, ``[n, …]``.
        """
        found = [
            list(column) if leaf.python is None else column.tolist()
            for leaf, column in zip(self.leaves, columns, strict=True)
        ]
        if self.structure is None:
            return found[0]
        return [tree.unflatten_as(self.structure, list(each)) for each in zip(*found, strict=True)]

    def whole(self, columns: Sequence[Array]) -> Any:
        """Rows in the form of an episode's whole sequence: arrays, or a list."""
        if not self.finalized:
            return self.items(columns)
        return columns[0] if self.structure is None else tree.unflatten_as(self.structure, list(columns))


class Content(NamedTuple):
    """One sequence of an episode or chunk."""

    part: Part
    columns: list[Array]
    """Columns of its leaves, ``[lookback + n, …]``, which are not copies."""
    lookback: int
    """Items before the first step."""


def contents(episode: SingleAgentEpisode) -> dict[Name, Content]:
    """The sequences of an episode of at least one step as columns, without `infos`.

    Raises:
        TypeError: a table has no columns for these values.
    """
    found: dict[Name, Any] = {"obs": episode.observations, "action": episode.actions, "reward": episode.rewards}
    found |= {("extra", key): value for key, value in episode.extra_model_outputs.items()}
    return {name: content(buffer, name) for name, buffer in found.items()}


def content(buffer: InfiniteLookbackBuffer, name: Name) -> Content:
    """One sequence as columns; TypeError if a table has none for it."""
    data = buffer.data
    if isinstance(data, np.ndarray):
        _check(data, name)
        leaf = PartLeaf(data.dtype, data.shape[1:], None)
        return Content(Part(True, None, (leaf,)), [data], buffer.lookback)
    if buffer.finalized:
        columns = tree.flatten(data)
        for column in columns:
            _check(column, name)
        leaves = tuple(PartLeaf(column.dtype, column.shape[1:], None) for column in columns)
        return Content(Part(True, _nesting(data), leaves), columns, buffer.lookback)
    if not tree.is_nested(data[0]):
        column, leaf = _listed(data, name)
        return Content(Part(False, None, (leaf,)), [column], buffer.lookback)
    structure = _nesting(data[0])
    try:
        for item in data:
            tree.assert_same_structure(structure, item)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{_title(name)} of an episode differ in their nesting: {_ADVICE}") from error
    pairs = [_listed(each, name) for each in zip(*map(tree.flatten, data), strict=True)]
    part = Part(False, structure, tuple(leaf for _, leaf in pairs))
    return Content(part, [column for column, _ in pairs], buffer.lookback)


def _nesting(data: Any) -> Any:
    return tree.map_structure(lambda _: 0, data)


def _title(name: Name) -> str:
    known = {"obs": "observations", "action": "actions", "reward": "rewards"}
    return known[name] if isinstance(name, str) else f"the model outputs {name[1]!r}"


def _listed(items: Sequence[Any], name: Name) -> tuple[Array, PartLeaf]:
    """Numbers or arrays of one shape as a column."""
    kinds = set(map(type, items))
    python: type | None = None
    if kinds <= _DTYPES.keys():  # numbers of several types become the widest of them
        python = float if float in kinds else int if int in kinds else bool
    try:
        column = np.array(items, None if python is None else _DTYPES[python])
    except (ValueError, OverflowError) as error:
        raise TypeError(f"{_title(name)} of an episode differ in their shape, or are not numbers: {_ADVICE}") from error
    _check(column, name)
    return column, PartLeaf(column.dtype, column.shape[1:], python)


def _check(column: Any, name: Name) -> None:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
        kind = f"{column.dtype}{list(column.shape[1:])}" if isinstance(column, np.ndarray) else type(column).__name__
        raise TypeError(f"{_title(name)} are {kind}, and a table has no columns for that: {_ADVICE}")
