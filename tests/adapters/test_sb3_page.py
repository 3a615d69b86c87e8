"""What the page of the SB3 adapter says: its programs, and the versions that it names."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")

ROOT = Path(__file__).resolve().parents[2]


def test_another_major_version_of_sb3_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing says which one works."""
    monkeypatch.setattr(stable_baselines3, "__version__", "3.0.1")
    for name in [name for name in sys.modules if name.startswith("di_store.adapters.sb3")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"works with stable_baselines3 >=2\.3,<3, and 3\.0\.1 is installed"):
        importlib.import_module("di_store.adapters.sb3")


@pytest.mark.extended
def test_programs_of_the_sb3_page_run() -> None:
    """The programs of the page run."""
    page = (ROOT / "docs/adapters/sb3.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert programs
    for program in programs:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
