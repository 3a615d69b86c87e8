"""Every file under examples/ runs as a user would run it: from a folder of their own, and to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
LIMIT_SECONDS = 240


def test_there_are_examples() -> None:
    """So that the tests below can't pass by finding nothing."""
    assert EXAMPLES


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path, store_dir: str) -> None:
    """It exits 0, says something, and prints no traceback from any of its processes."""
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr, done.stderr
