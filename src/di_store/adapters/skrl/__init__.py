"""skrl's `RandomMemory` with its samples in a Di-store table.

`Memory` draws the same samples as skrl's own memory: with the same seed, a training run is the same.
"""

from di_store.adapters.framework import require

require("skrl", "skrl torch", ">=2,<3")

from di_store.adapters.skrl.memory import Memory

__all__ = ["Memory"]
