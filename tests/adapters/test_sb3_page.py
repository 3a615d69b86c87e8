"""What the page of the SB3 adapter says: its programs, and the versions that it names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from adapter_pages import run_programs

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")
pytestmark = pytest.mark.extended


def test_another_major_version_of_sb3_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing says which one works."""
    monkeypatch.setattr(stable_baselines3, "__version__", "3.0.1")
    for name in [name for name in sys.modules if name.startswith("di_store.adapters.sb3")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"works with stable_baselines3 >=2\.3,<3, and 3\.0\.1 is installed"):
        importlib.import_module("di_store.adapters.sb3")


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("sb3", tmp_path)
