"""cpprb's replay buffers over a Di-store table, which any number of processes may fill and sample.

`ReplayBuffer` and `PrioritizedReplayBuffer` take the arguments of cpprb's classes of the same names, and return the
same results. One class serves one process and many: a buffer may be passed to other processes (fork, spawn, Ray), as
cpprb's `MPReplayBuffer` can.

A buffer is a table that evicts its oldest items first. cpprb's index is a place in a ring: transition number s since
the last `clear` has the index ``s % size``. The adapter computes that number from the insertion order.
"""

from di_store.adapters.framework import require

require("cpprb", "cpprb", ">=11,<12", package="cpprb")

from di_store.adapters.cpprb.buffers import (
    MPPrioritizedReplayBuffer,
    MPReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    create_buffer,
)

__all__ = ["MPPrioritizedReplayBuffer", "MPReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer", "create_buffer"]
