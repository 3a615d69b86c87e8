"""The spaces whose values a table can hold."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

import di_store

_STORED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_spaces(observations: Any, actions: Any) -> None:
    """Raise ValueError for spaces that a table has no columns for."""
    inner = observations.spaces if isinstance(observations, spaces.Dict) else {"": observations}
    named = {f"observation space {key!r}" if key else "the observation space": each for key, each in inner.items()}
    for what, space in {**named, "the action space": actions}.items():
        if not isinstance(space, _STORED):
            raise ValueError(
                f"{what} is {type(space).__name__}: ReplayBuffer stores Box, Discrete, MultiDiscrete and "
                "MultiBinary, and observations also as one Dict of these"
            )


def column_of(space: Any, shape: Any) -> Any:
    """Type of the column of a space, or a dict of types by key.

    Args:
        space: the space.
        shape: shape of its values in SB3's buffers, or a dict of shapes.
    """
    if isinstance(space, spaces.Dict):
        return {key: column_of(each, shape[key]) for key, each in space.spaces.items()}
    return di_store.Spec(shape, space.dtype)
