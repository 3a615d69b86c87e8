"""The pages of docs/ say what is so: error texts exist, the API page is fresh, decisions are named and dated."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from di_store.cli import group

ROOT = Path(__file__).resolve().parents[2]


def _sources() -> str:
    """All sources, with adjacent pieces of text joined, as the compilers join them."""
    paths = [*(ROOT / "native").rglob("*.cc"), *(ROOT / "native").rglob("*.h"), *(ROOT / "src").rglob("*.py")]
    text = "\n".join(path.read_text() for path in sorted(paths))
    return re.sub(r"\"\s*\n\s*[rf]*\"", "", text)


def test_error_texts_in_the_docs_exist() -> None:
    """Every text in the tables of docs/errors.md stands in a source file."""
    tables = (ROOT / "docs/errors.md").read_text().split("<!-- errors -->\n")[1:]
    rows = [row for table in tables for row in table.split("\n\n")[0].rstrip("\n").split("\n")[2:]]
    texts = [found[1] for row in rows if (found := re.search(r"\| `([^`]+)` \| [^|]*\|$", row))]
    assert len(tables) == 4
    assert len(texts) == len(rows) > 90
    sources = _sources()
    assert not (missing := [text for text in texts if text not in sources]), missing


def test_api_page_is_fresh() -> None:
    """docs/api.md is what tools/api_reference.py makes of the docstrings."""
    tool = ROOT / "tools" / "api_reference.py"
    made = subprocess.run([sys.executable, str(tool)], check=True, capture_output=True, text=True).stdout
    assert made == (ROOT / "docs" / "api.md").read_text(), "run: python tools/api_reference.py --write"


def test_the_commands_page_names_what_is_there() -> None:
    """Each command and option of docs/commands.md exists; `tools/cli_reference.py --write` adds new ones."""
    sections = (ROOT / "docs" / "commands.md").read_text().split("\n## `di-store ")[1:]
    assert len(sections) > 10
    for section in sections:
        command = group.get_command(click.Context(group), re.match(r"[\w-]+", section)[0])  # type: ignore[index]
        assert command is not None, section.partition("\n")[0]
        there = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        assert set(re.findall(r"^\| `(--[\w-]+)", section, re.M)) <= there, command.name


def test_decisions_are_numbered_and_dated() -> None:
    """One number each without a gap, a title with the number, a date below it."""
    paths = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:3]) for path in paths] == list(range(1, len(paths) + 1))
    for path in paths:
        lines = path.read_text().split("\n")
        assert lines[0].startswith(f"# {path.name[:3]} "), path.name
        assert re.match(r"20\d\d-\d\d-\d\d · (holds|reversed)", lines[2]), path.name
