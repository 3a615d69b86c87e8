"""Lets SB3's `load_replay_buffer` load a pickle of SB3's own buffer into a model with a buffer of ours."""

from __future__ import annotations

import functools
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from di_store.adapters.sb3.replay import ReplayBuffer


def convert_what_is_loaded() -> None:
    """Let models whose ``replay_buffer_class`` is ours keep this class when they load a pickle of SB3's own buffer.

    SB3 would silently continue with its own class.
    """
    load = OffPolicyAlgorithm.load_replay_buffer

    @functools.wraps(load)
    def load_replay_buffer(self: Any, *args: Any, **options: Any) -> None:
        mine = getattr(self, "replay_buffer", None)
        load(self, *args, **options)
        if isinstance(mine, ReplayBuffer) and not isinstance(self.replay_buffer, ReplayBuffer):
            mine.take_over(self.replay_buffer)
            self.replay_buffer = mine

    OffPolicyAlgorithm.load_replay_buffer = load_replay_buffer
