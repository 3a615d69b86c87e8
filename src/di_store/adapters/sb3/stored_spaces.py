"""The spaces whose values a table can hold."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

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
