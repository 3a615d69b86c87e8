"""Where a parallel training run spends its time, and what the size of its replay buffer does to it.

One training program (`run.py`: actor processes, a learner) runs three loads through four data planes: Di-store, a
buffer in the learner's process fed through queues, Reverb and Ray. Environments, networks and the DQN learner are
those of `di_store.demo`. The command and its options: `python -m bench.bottlenecks --help`.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

if importlib.util.find_spec("di_store") is None:
    # A peer's environment: the demo's environments and learner are needed there, our store is not, and its module
    # need not load there. A bare package of the same name lets `di_store.demo` be imported without it.
    _bare = types.ModuleType("di_store")
    _bare.__path__ = [str(ROOT / "src" / "di_store")]
    sys.modules["di_store"] = _bare
