"""The programs of examples/moved: each runs before and after the move, and its page shows the lines that changed."""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/moved"
PAGES = {"pytorch_dqn": "docs/adapters/pytorch.md", "sb3_dqn": "docs/adapters/sb3.md"}
NEEDS = {"pytorch_dqn": "torch", "sb3_dqn": "stable_baselines3"}


def code(path: Path) -> list[str]:
    """The lines of a program, without its docstring and blank lines."""
    text = path.read_text()
    first = ast.parse(text).body[0]
    return [line for line in text.splitlines()[first.end_lineno :] if line.strip()]


def changed(name: str) -> list[str]:
    """The lines with a sign that a diff of both programs has."""
    diff = difflib.ndiff(code(FOLDER / f"{name}_before.py"), code(FOLDER / f"{name}.py"))
    return [line[0] + line[2:] for line in diff if line[0] in "+-"]


def test_every_program_has_a_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(PAGES) | {f"{name}_before" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_at_most_five_lines_are_written(name: str) -> None:
    lines = changed(name)
    assert 1 <= sum(line[0] == "+" for line in lines) <= 5
    page = (ROOT / PAGES[name]).read_text()
    shown = {line for block in page.split("```diff\n")[1:] for line in block.partition("```")[0].splitlines()}
    assert not [line for line in lines if line not in shown], "the page's diff is another one"
    assert f"examples/moved/{name}.py" in page


@pytest.mark.extended
@pytest.mark.parametrize("name", [stem for name in PAGES for stem in (f"{name}_before", name)])
def test_translated_programs_run(name: str, tmp_path: Path, store_dir: str) -> None:
    pytest.importorskip(NEEDS[name.removesuffix("_before")])
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "300"], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout
    assert "UserWarning" not in done.stderr, done.stderr
