"""Every file under examples/ runs as a user would run it: from a folder of their own, and to its end."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.ray_starts import LATE, TRIES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LIMIT_SECONDS = 900


def test_there_are_examples() -> None:
    """So that the tests below can't pass by finding nothing."""
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_page_of_examples_names_each_and_its_packages(page: str, path: Path) -> None:
    """The table links the file and names the packages that its docstring names, which it imports."""
    lines = (ROOT / "examples" / page).read_text().splitlines()
    (row,) = [line for line in lines if f"]({path.name})" in line]
    listed = set(re.findall(r"`([\w-]+)`", row.split("|")[3]))
    tree = ast.parse(path.read_text())
    said = (ast.get_docstring(tree) or "").splitlines()[-1].partition("pip install ")[2].split()
    assert set(said) == {"di-store"} | listed
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"numpy", "di_store"}
    assert imported == listed


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.extended] * (path.stem in ("ray_apex", "torch_loader")))
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_examples_run(path: Path, tmp_path: Path, store_dir: str, count: Callable[[int, int], int]) -> None:
    """It exits 0, says something, and prints no traceback from any of its processes, nor that one failed."""
    arguments = ["--seconds", str(count(10, 120))] if path.stem == "ray_apex" else []
    command = [sys.executable, str(path), *arguments]
    for _ in range(TRIES):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        if LATE not in done.stderr:
            break
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr, done.stderr
    assert "will be retried" not in done.stdout + done.stderr, "by Ray, of an actor that was killed"
