"""Benchmarks, one module per question; run them from the repository root (``python -m bench``)."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def import_path(python: str) -> list[Path]:
    """`PYTHONPATH` of a process of that interpreter: our own gets this process's build, a peer's environment none."""
    spec = importlib.util.find_spec("di_store") if python == sys.executable else None
    return [ROOT] if spec is None or spec.origin is None else [Path(spec.origin).parent.parent, ROOT]
