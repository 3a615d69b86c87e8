"""Runs a program of TransferQueue's, or its tests, with Di-store in place of the backend that they ask for.

`python tests/adapters/transfer_queue_on_di_store.py tutorial/02_kv_interface.py`, or `… pytest tests/e2e`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import transfer_queue
from omegaconf import OmegaConf

from di_store.adapters.transfer_queue import BACKEND, register


def main() -> None:
    """Run the program that the command line names, as `python` or `python -m` would."""
    register()
    start = transfer_queue.init

    def init(conf: Any = None) -> Any:
        given = OmegaConf.create(conf or {}, flags={"allow_objects": True})
        given.backend = {"storage_backend": BACKEND, BACKEND: {"memory": "1GiB"}}
        return start(given)

    transfer_queue.init = transfer_queue.interface.init = init
    del sys.argv[0]
    if sys.argv[0].endswith(".py"):
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        sys.path[0] = ""
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
