"""The benchmark of scale runs, judges its figures, and the page shows what the result it names holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parents[2]


def scale(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m bench.scale` with these arguments."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "bench.scale", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )


def test_a_quick_run_measures_the_requested_part(tmp_path: Path) -> None:
    """Figures of the part asked for; with --check what was not measured counts as missed."""
    done = scale("tables", "--scale", "0.01", "--seconds", "0.01", "--rounds", "1", "--check", "--out", str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "not measured" in done.stdout
    (file,) = tmp_path.iterdir()
    result = json.loads(file.read_text())
    assert {row["part"] for row in result["figures"]} == {"tables"}
    assert all([at for at, _ in row["values"]] == [1, 2, 4, 8, 16] for row in result["figures"])
    assert all(value > 0 for row in result["figures"] for _, value in row["values"])
    assert result["command"].startswith("python -m bench.scale tables")


def test_an_unknown_part_is_refused() -> None:
    done = scale("everything")
    assert done.returncode == 2
    assert "capacity" in done.stderr


def test_the_page_shows_its_result() -> None:
    """`--doc` with that result would change nothing."""
    done = scale("--doc-check")
    assert done.returncode == 0, done.stderr or "docs/performance.md differs from the result that it names"
