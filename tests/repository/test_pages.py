"""The pages of docs/ say what is so: error texts exist, the API page is fresh, decisions are named and dated."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _sources() -> str:
    """All sources, with adjacent pieces of text joined, as the compilers join them."""
    paths = [*(ROOT / "native").rglob("*.cc"), *(ROOT / "native").rglob("*.h"), *(ROOT / "src").rglob("*.py")]
    text = "\n".join(path.read_text() for path in sorted(paths))
    return re.sub(r"\"\s*\n\s*[rf]*\"", "", text)


@pytest.mark.parametrize(
    ("name", "least"), [("operations.md", 20), ("machines.md", 15), ("cluster.md", 10), ("backups.md", 8)]
)
def test_error_texts_in_the_docs_exist(name: str, least: int) -> None:
    """Every text in the table of errors stands in a source file."""
    page = (ROOT / "docs" / name).read_text()
    rows = page.partition("<!-- errors -->\n")[2].split("\n\n")[0].split("\n")[2:]
    texts = [found[1] for row in rows if (found := re.search(r"\| `([^`]+)` \| [^|]*\|$", row))]
    assert len(texts) == len(rows) > least
    sources = _sources()
    assert not (missing := [text for text in texts if text not in sources]), missing


def test_api_page_is_fresh() -> None:
    """docs/api.md is what tools/api_reference.py makes of the docstrings."""
    tool = ROOT / "tools" / "api_reference.py"
    made = subprocess.run([sys.executable, str(tool)], check=True, capture_output=True, text=True).stdout
    assert made == (ROOT / "docs" / "api.md").read_text(), "run: python tools/api_reference.py --write"


def test_decisions_are_numbered_and_dated() -> None:
    """One number each without a gap, a title with the number, a date below it."""
    paths = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:3]) for path in paths] == list(range(1, len(paths) + 1))
    for path in paths:
        lines = path.read_text().split("\n")
        assert lines[0].startswith(f"# {path.name[:3]} "), path.name
        assert re.match(r"20\d\d-\d\d-\d\d · (holds|reversed)", lines[2]), path.name
