"""Tianshou's replay buffers with their observations and actions in a Di-store table.

They draw the same steps as Tianshou's own buffers: with the same seed, a training run is the same. Each observation is
stored once, even if it is also the next observation of the previous step.
"""

try:
    import tianshou as tianshou
except ImportError as error:
    raise ImportError("di_store.adapters.tianshou needs Tianshou: pip install di-store[tianshou]") from error

if tianshou.__version__.partition(".")[0] != "2":
    raise ImportError(
        f"di_store.adapters.tianshou works with Tianshou 2, and {tianshou.__version__} is installed: "
        "pip install 'tianshou>=2,<3'"
    )

from di_store.adapters.tianshou.buffers import (
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)

__all__ = ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer", "ReplayBuffer", "VectorReplayBuffer"]
