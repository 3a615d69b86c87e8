"""The demo: actors and a learner in separate processes train through one store.

Torch, Gymnasium and the ALE are imported only when `run` is called: the rest of the package does not need them.
"""

from __future__ import annotations

import sys

from di_store.demo.config import DemoConfig
from di_store.demo.interrupt import Interrupt

__all__ = ["DemoConfig", "run"]


def run(config: DemoConfig) -> int:
    """Run the demo described by `config` and return the exit status: 0 for success (also after Ctrl-C), 1 for failure.

    Call it last in a process: afterwards the process ignores Ctrl-C and SIGTERM.
    """
    interrupt = Interrupt()
    # Importing torch takes seconds, and Ctrl-C may come during that time.
    interrupt.take()
    try:
        from di_store.demo.job import run_job

        return run_job(config, interrupt)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "di_store":
            raise
        print(f"di-store demo needs {missing.name}; install it with: pip install 'di-store[demo]'", file=sys.stderr)
        return 1
    finally:
        interrupt.ignore()
