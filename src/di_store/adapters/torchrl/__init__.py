"""TorchRL's replay buffers with their rows in a Di-store table, which several processes share.

`Storage` replaces `LazyTensorStorage` and `LazyMemmapStorage` in any of TorchRL's buffers. `ReplayBuffer` is TorchRL's
`TensorDictReplayBuffer` over it; either TorchRL or the table draws.
"""

from di_store.adapters.framework import require

require("torchrl", "torchrl tensordict", ">=0.14,<0.15")

from di_store.adapters.torchrl.buffer import ReplayBuffer
from di_store.adapters.torchrl.storage import Storage

__all__ = ["ReplayBuffer", "Storage"]
