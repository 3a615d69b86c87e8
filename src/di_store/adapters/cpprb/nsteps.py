"""Makes n-step transitions from steps with cpprb's own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cpprb.PyReplayBuffer import NstepBuffer

from di_store.adapters.cpprb.columns import Rows, TransitionColumns


class NSteps:
    """cpprb's buffer of the steps that wait for later ones. It casts silently, so it gets values already cast."""

    def __init__(self, arguments: Mapping[str, Any], columns: TransitionColumns) -> None:
        self._columns = columns
        env = {name: each for name, each in arguments["env_dict"].items() if name not in columns.empty}
        following = [name for name in arguments["next_of"] if name not in columns.empty]
        self._buffer = waiting({**arguments, "env_dict": env, "next_of": following})

    def add(self, values: Mapping[str, Any]) -> Rows | None:
        """Add steps. Returns the transitions that they complete; None if there is none.

        Raises:
            As `TransitionColumns.rows`; then nothing was added.
        """
        rows = self._columns.rows(values)
        made = self._buffer.add(**{name: each for name, each in rows.items() if name not in self._columns.empty})
        return None if made is None else self._whole(made)

    def on_episode_end(self) -> Rows:
        """The transitions of the steps that still wait."""
        return self._whole(self._buffer.on_episode_end())

    def clear(self) -> None:
        """Forget the steps that wait."""
        self._buffer.clear()

    def _whole(self, made: Mapping[str, Any]) -> Rows:
        """Add the values without elements, which cpprb's buffer does not take."""
        n = len(next(iter(made.values())))
        empty = {name: np.zeros((n, *self._columns.shapes[name])) for name in self._columns.empty}
        return self._columns.rows({**made, **empty})


def waiting(arguments: Mapping[str, Any]) -> Any:
    """A buffer of cpprb's class for the waiting steps, made with these arguments."""
    env = {name: dict(each) for name, each in arguments["env_dict"].items()}  # it writes into this
    return NstepBuffer(**{**arguments, "env_dict": env, "next_of": arguments.get("next_of") or None})
