"""New processes that start in milliseconds: a server that has imported all, and holds no store, forks them.

For tests that don't ask how a process started: a new interpreter takes half a second of a processor.
"""

from __future__ import annotations

import multiprocessing as mp
from contextlib import suppress
from pathlib import Path
from typing import Any

WARM = mp.get_context("forkserver")
WARM.set_forkserver_preload(["numpy", "pytest", "di_store"])


def stopped_at_its_fault(child: Any) -> bool:
    """Wait until a process has stopped, or ended: whether it has stopped, with all its threads."""
    while child.exitcode is None:
        if _states(child.pid) == {"T"}:
            return True
        child.join(0.002)
    return False


def _states(pid: int) -> set[str]:
    states = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            states.add((thread / "stat").read_text().rpartition(") ")[2][0])
    return states
