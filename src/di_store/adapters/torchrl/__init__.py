"""TorchRL's replay buffers with their rows in a Di-store table, which several processes share.

`Storage` replaces `LazyTensorStorage` and `LazyMemmapStorage` in any of TorchRL's buffers. `ReplayBuffer` is TorchRL's
`TensorDictReplayBuffer` over it; either TorchRL or the table draws.
"""

try:
    import tensordict  # noqa: F401
    import torchrl
except ImportError as error:
    raise ImportError("di_store.adapters.torchrl needs TorchRL and PyTorch: pip install di-store[torchrl]") from error

if torchrl.__version__.split(".")[:2] != ["0", "14"]:
    raise ImportError(
        f"di_store.adapters.torchrl works with torchrl 0.14, and {torchrl.__version__} is installed: "
        "pip install 'torchrl>=0.14,<0.15'"
    )

from di_store.adapters.torchrl.buffer import ReplayBuffer
from di_store.adapters.torchrl.storage import Storage

__all__ = ["ReplayBuffer", "Storage"]
