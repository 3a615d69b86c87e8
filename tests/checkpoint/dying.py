"""A save that dies at its n-th step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

import di_store
from di_store import _core
from di_store.checkpoint.tree import folder

CALLS = (
    *((os, name) for name in ("replace", "fsync", "unlink", "open", "listdir")),
    (_core, "sync_folder"),
    (folder, "FileIO"),
)
VALUES = 3_000_000  # int32: three pieces
FEW = 1_000


def tree(value: int, values: int = VALUES) -> dict[str, Any]:
    return {"a": np.full(values, value, "i4"), "step": value}


def die_at(step: int) -> None:
    """Kill this process when it makes its `step`-th call, before the call has any effect."""
    left = [step]

    def counted(call: Any) -> Any:
        def instead(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return instead

    for module, name in CALLS:
        setattr(module, name, counted(getattr(module, name)))


def main(path: str, value: int, rank: int, ranks: int, fault: str, step: int) -> None:
    """Save, and die at a step of `fault`: a fault point of the core, or "python" for the package's own system calls.

    One of several ranks saves little. Exit status 3: the other ranks did not come.
    """
    if fault == "python":
        die_at(step)
    elif fault:
        _core.arm_fault(f"{fault}:{step}")
    try:
        di_store.save(
            path, tree(value, VALUES if ranks == 1 else FEW), shard=(rank, ranks), timeout=0.4 if fault else 60
        )
    except di_store.Timeout:
        sys.exit(3)
