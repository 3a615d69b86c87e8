"""Stable-Baselines3's replay and rollout buffers with their steps in a Di-store table.

`ReplayBuffer` draws the same steps as SB3's own buffer: with the same seed, a training run is the same. Each
observation is stored once, even if it is also the next observation of the previous step.
"""

from di_store.adapters.framework import require

require("sb3", "stable_baselines3 torch", ">=2.3,<3")

from di_store.adapters.sb3.hindsight import HerReplayBuffer
from di_store.adapters.sb3.replay import NStepReplayBuffer, ReplayBuffer, convert_what_is_loaded
from di_store.adapters.sb3.rollout import RolloutBuffer

__all__ = ["HerReplayBuffer", "NStepReplayBuffer", "ReplayBuffer", "RolloutBuffer"]

convert_what_is_loaded()
