"""RLlib's episode replay buffers, for its new API stack, with their steps in a Di-store table.

`config.training(replay_buffer_config={"type": EpisodeReplayBuffer, "capacity": 100_000})`. With the same seed they draw
the same steps as RLlib's own buffers.
"""

from di_store.adapters.framework import require

require("rllib", "ray ray.rllib", ">=2.60,<3")

from di_store.adapters.rllib.buffer import EpisodeReplayBuffer
from di_store.adapters.rllib.prioritized import PrioritizedEpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]
