"""Where a parallel training run spends its time: the demo's job on four data planes.

The planes are Di-store, a buffer in the learner's process fed through a queue, Reverb and Ray; actors, environments,
networks and learner are those of `di_store.demo`. The command and its options: `python -m bench.bottlenecks --help`.
"""

from __future__ import annotations

import importlib.util
import sys
import types

from bench import ROOT

if importlib.util.find_spec("di_store") is None:
    # The environment of a peer: our store cannot be loaded there and is not needed, the demo's environments and
    # learner are. An empty package of the same name lets `di_store.demo` be imported alone.
    _empty = types.ModuleType("di_store")
    _empty.__path__ = [str(ROOT / "src" / "di_store")]
    sys.modules["di_store"] = _empty
