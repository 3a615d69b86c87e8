"""The benchmark of the disk tier runs, judges its lines, and the page shows what the results it names hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cluster.__main__ import PAGE as NETWORK
from bench.tier.lines import Line, alone, beside, block

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parents[2]


def tier(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m bench.tier` with these arguments."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "bench.tier", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )


def test_a_quick_run_measures_the_requested_line(tmp_path: Path) -> None:
    """Figures of the line asked for, in a result that says how to repeat them."""
    done = tier("--lines", "items", "--scale", "0.001", "--out", str(tmp_path), "--folder", str(tmp_path / "disk"))
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.json")
    result = json.loads(file.read_text())
    assert result["lines"][0]["case"] == "1,000 items, uniform: slots and trees"
    assert all(line["ours"] > 0 for line in result["lines"])
    assert result["command"].startswith("python -m bench.tier --lines items")
    assert not list((tmp_path / "disk").iterdir()), "a store's folder was left behind"


def test_an_unknown_line_is_refused() -> None:
    done = tier("--lines", "nothing")
    assert done.returncode == 2
    assert "rivals" in done.stderr


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (beside("a", "GB/s", [3.0, 1.0, 9.0], [4.0, 2.0, 9.0], "b", 0.75), "ok"),
        (beside("a", "GB/s", [3.0, 1.0, 9.0], [4.0, 2.0, 9.0], "b", 0.8), "MISSED"),
        (beside("a", "µs", [3.0], [1.0], "b", 2.0, most=True), "MISSED"),
        (beside("a", "GB/s", [3.0], [], "b", 0.8), "not measured"),
        (alone("a", "times", [1.01, 2.0, 1.0], 1.02, most=True), "ok"),
        (Line("a", "times", None, bar=1.02, at_most=True), "not measured"),
        (alone("a", "times", [5.0], None), ""),
    ],
)
def test_verdicts_use_the_median_ratio(line: Line, verdict: str) -> None:
    """A ratio is the median of the rounds' ratios, and what was not measured is not met."""
    assert line.verdict == verdict
    assert line.met == (verdict in ("ok", ""))


def test_the_page_shows_its_results() -> None:
    done = tier("--doc-check")
    assert done.returncode == 0, done.stderr or "docs/disk_figures.md differs from the results that it names"


def test_the_page_between_machines_shows_its_results() -> None:
    assert NETWORK.blocks() == ["objects", "rows", "versions"]
    assert NETWORK.holds(lambda part: block(part, "cluster"))
