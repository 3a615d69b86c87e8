"""Measures where a parallel training run spends its time: the demo's job on four data planes.

The planes are Di-store, a buffer in the learner's process that is fed through a queue, Reverb, and Ray. Actors,
environments, networks and learner are those of `di_store.demo`. Options: `python -m bench.bottlenecks --help`.
"""

from __future__ import annotations

import importlib.util
import sys
import types

from bench import ROOT

if importlib.util.find_spec("di_store") is None:
    # In a peer's environment our store is not installed. Only the demo's environments and learner are needed there:
    # an empty package of the same name makes it possible to import `di_store.demo` alone.
    _empty = types.ModuleType("di_store")
    _empty.__path__ = [str(ROOT / "src" / "di_store")]
    sys.modules["di_store"] = _empty
