"""Dopamine's replay buffer with its data in a Di-store table.

`ReplayBuffer` replaces `dopamine.jax.replay_memory.replay_buffer.ReplayBuffer`. The accumulator and the sampling
distribution are Dopamine's own: with the same seed, a training run is the same.
"""

from importlib.metadata import version

try:
    from dopamine.jax.replay_memory import replay_buffer as _theirs  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"di_store.adapters.dopamine needs Dopamine and what it imports ({error}): pip install di-store[dopamine]"
    ) from error
if not version("dopamine-rl").startswith("4.1."):
    raise ImportError(
        f"di_store.adapters.dopamine was tested with Dopamine 4.1 and this is {version('dopamine-rl')}: "
        "pip install di-store[dopamine]"
    )

from di_store.adapters.dopamine.buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
