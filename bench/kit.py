"""The measuring kit of this checkout, `src/di_store/workloads/kit.py`.

It is loaded by its path: a peer's environment has no `di_store`, and `bench.pairs` imports older builds of it.
"""

import importlib.util
import sys

from bench import ROOT

_file = ROOT / "src" / "di_store" / "workloads" / "kit.py"
_spec = importlib.util.spec_from_file_location(__name__, _file)
assert _spec
assert _spec.loader
_spec.loader.exec_module(sys.modules[__name__])
