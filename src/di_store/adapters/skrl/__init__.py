"""skrl's `RandomMemory` with its samples in a Di-store table.

`Memory` draws the same samples as skrl's own memory: with the same seed, a training run is the same.
"""

try:
    import skrl as skrl
    import torch as torch
except ImportError as error:
    raise ImportError("di_store.adapters.skrl needs skrl and PyTorch: pip install di-store[skrl]") from error

if skrl.__version__.partition(".")[0] != "2":
    raise ImportError(
        f"di_store.adapters.skrl works with skrl 2, and {skrl.__version__} is installed: pip install 'skrl>=2,<3'"
    )

from di_store.adapters.skrl.memory import Memory

__all__ = ["Memory"]
