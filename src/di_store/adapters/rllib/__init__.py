"""RLlib's episode replay buffers, for its new API stack, with their steps in a Di-store table.

`config.training(replay_buffer_config={"type": EpisodeReplayBuffer, "capacity": 100_000})`. With the same seed they draw
the same steps as RLlib's own buffers.
"""

from __future__ import annotations

try:
    import ray
    import ray.rllib
except ImportError as error:
    raise ImportError("di_store.adapters.rllib needs Ray RLlib: pip install di-store[rllib]") from error

if ray.__version__.split(".")[0] != "2" or int(ray.__version__.split(".")[1]) < 60:
    raise ImportError(
        f"di_store.adapters.rllib works with Ray 2.60 and later versions of Ray 2, and {ray.__version__} is installed: "
        "pip install 'ray[rllib]>=2.60,<3'"
    )

from di_store.adapters.rllib.buffer import EpisodeReplayBuffer
from di_store.adapters.rllib.prioritized import PrioritizedEpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]
