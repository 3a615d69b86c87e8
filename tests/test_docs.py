"""The docs run: every ```python and ```console block of the README files, docs/ and examples/, as a reader runs it.

A block that is not meant to run carries another language (```text for output) or has a line `<!-- not run: reason -->`
right above it; `<!-- continues -->` puts the python block above in front of this one. In a console block the lines
with `$ ` are commands (`> ` continues one), all others are output. Commands that would set up the machine (make, pip,
git) are held against what they name instead of run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import di_store

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^ *```[ \t]*$", re.M | re.S)
LIMIT_SECONDS = 240


@dataclass
class Block:
    """One block of code of a page."""

    page: str
    line: int
    language: str
    code: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks() -> list[Block]:
    blocks: list[Block] = []
    for page in PAGES:
        text = page.read_text()
        for found in FENCE.finditer(text):
            above = text[: found.start()].rstrip().rpartition("\n")[2].strip()
            mark = above[4:-3].strip() if above.startswith("<!--") and above.endswith("-->") else ""
            code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.M)
            line = text.count("\n", 0, found.start()) + 1
            blocks.append(Block(str(page.relative_to(ROOT)), line, found["language"], code, mark))
    return blocks


def _programs() -> list[Block]:
    programs: list[Block] = []
    last = ""
    for block in _blocks():
        if block.language == "python" and not block.mark.startswith("not run:"):
            last = last + "\n" + block.code if block.mark == "continues" else block.code
            programs.append(Block(block.page, block.line, "python", last, block.mark))
    return programs


def _consoles() -> list[Block]:
    return [b for b in _blocks() if b.language in ("console", "sh", "bash") and not b.mark.startswith("not run:")]


def _commands(code: str) -> list[str]:
    lines = re.findall(r"^\$ (.*(?:\n> .*|(?<=\\)\n.*)*)", code, re.M)
    return [line.replace("\n> ", "\n") for line in lines]


def _run(argv: list[str], folder: Path) -> None:
    """Run it to exit 0. What it leaves in the background ends with it, and holds up nobody who reads its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        program = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, "PATH": path}, stdout=said, stderr=said, start_new_session=True
        )
        try:
            ended = f"exit {program.wait(LIMIT_SECONDS)}"
        except subprocess.TimeoutExpired:
            ended = f"not ended after {LIMIT_SECONDS} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        said.seek(0)
        assert ended == "exit 0", f"{ended}\n{said.read()[-8000:]}"


def _check_setup(command: str) -> bool:
    """Whether a command sets up the machine; then what it names must exist."""
    words = command.split()
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] == "pip" or words[:3] == ["python", "-m", "pip"]:
        for name, extras in re.findall(r"\b(di-store|\.)\[([\w,]+)\]", command):
            text = (ROOT / "pyproject.toml").read_text()
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", text, re.M), f"{name}[{extra}]: no such extra"
        assert "di-store" in command or re.search(r"install (-e )?'?\.", command), command
    elif words[0] not in ("git", "cd"):
        return False
    return True


def _as_parameters(blocks: list[Block]) -> list[Any]:
    """With those of the README alone for `make test`; `make check` and `make docs` run all."""
    extended = [pytest.mark.extended]
    return [pytest.param(block, marks=extended * (block.page != "README.md"), id=str(block)) for block in blocks]


def test_the_readme_holds_a_program() -> None:
    """The README holds a program, so that the tests below can't pass by finding nothing."""
    assert any(block.page == "README.md" for block in _programs())


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("block", _as_parameters(_programs()))
def test_python_blocks_run(block: Block, tmp_path: Path, store_dir: str) -> None:
    """The program runs and exits 0, from a file, in an empty folder."""
    program = tmp_path / "program.py"
    program.write_text(block.code)
    _run([sys.executable, str(program)], tmp_path)


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("block", _as_parameters(_consoles()))
def test_console_blocks_run(block: Block, tmp_path: Path, store_dir: str) -> None:
    """The commands run one after the other in one shell; each must exit 0."""
    commands = _commands(block.code)
    assert commands, "no line starts with '$ '"
    script = "\n".join(command for command in commands if not _check_setup(command))
    _run(["bash", "-euc", script], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to a file, every `#part` of a page to a heading; all others have the form of https."""
    text = FENCE.sub("", page.read_text())
    faults = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[\w./#-]*)?", target):
                faults.append(target)
            continue
        name, _, part = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists():
            faults.append(target)
        elif part and there.suffix == ".md" and part not in _anchors(there.read_text()):
            faults.append(target)
    assert not faults, faults


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ +(.*?)\s*$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_architecture_names_every_folder() -> None:
    """Each folder of the package and of the core stands in the drawing and in the tables of docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text()
    drawing, _, tables = text.partition("## The core")
    for top in ("native", "src/di_store"):
        folders = {path.parent.name for suffix in ("py", "h") for path in (ROOT / top).glob(f"*/*.{suffix}")}
        assert folders, f"no folder in {top}"
        missing = [
            name for name in sorted(folders) if f"`{name}/`" not in tables or not re.search(rf"  .*\b{name}\b", drawing)
        ]
        assert not missing, f"{top}: {missing}"


def test_the_architecture_names_files_that_exist() -> None:
    """Each `folder/file` in docs/architecture.md is a file or a package of the core or of the Python package."""
    named = set(re.findall(r"`([a-z_]+/[a-z_]+)`", (ROOT / "docs/architecture.md").read_text())) - {"src/di_store"}
    assert len(named) > 20
    tops = (ROOT / "native", ROOT / "src/di_store")
    there = {str(path.relative_to(top).with_suffix("")) for top in tops for path in top.glob("*/*")}
    assert named <= there, sorted(named - there)


@pytest.mark.parametrize("page", ["docs/ideas.md", "docs/ideas.zh-CN.md"])
def test_the_ideas_name_every_policy(page: str) -> None:
    """All views, samplers and limiters; and no processor that the build refuses, or fewer."""
    text = (ROOT / page).read_text()
    policies = [name for name in dir(di_store) if getattr(di_store, name).__class__ is type]
    policies = [name for name in policies if getattr(di_store, name).__module__.startswith("di_store.policy.")]
    assert len(policies) > 15
    assert not (missing := [name for name in policies if f"`{name}`" not in text and name != "Compress"]), missing
    processors = re.search(r"MATCHES \"\^\((.*)\)\$\"", (ROOT / "CMakeLists.txt").read_text())
    assert processors is not None
    assert processors[1].replace("_", "-").split("|") == ["x86-64", "aarch64"]
    assert all("aarch64" in line for line in text.splitlines() if "x86-64" in line)


def test_every_block_names_its_language() -> None:
    """Every block says what it is: one without a language would silently not run."""
    unknown = [str(block) for block in _blocks() if not block.language]
    assert not unknown, unknown


def test_translations_hold_the_same_programs() -> None:
    """A page NAME.zh-CN.md runs the same code as NAME.md, comments apart."""
    code: defaultdict[str, str] = defaultdict(str)
    for block in _blocks():
        if block.language in ("python", "console"):
            code[block.page] += re.sub(r"\s*#[^\n]*", "", block.code)
    translated = [page for page in code if page.endswith(".zh-CN.md")]
    assert len(translated) == 3
    for page in translated:
        assert code[page] == code[page.replace(".zh-CN", "")], page


def test_the_pages_of_users_are_short() -> None:
    """Tutorial, guides and frameworks have at most 25,000 words in all: the rest is reference or explanation.

    Translations do not count: nobody reads a page twice.
    """
    index = (ROOT / "docs/site/index.rst").read_text()
    words: dict[str, int] = {}
    for caption in ("Tutorial", "Guides", "Frameworks"):
        listed = index.partition(f":caption: {caption}\n")[2].partition(".. toctree")[0]
        pages = re.findall(r"^   /(\S+)$", listed, re.M)
        assert pages, caption
        words |= {page: len((ROOT / f"docs/{page}.md").read_text().split()) for page in pages if "zh-CN" not in page}
    assert sum(words.values()) <= 25_000, sorted(words.items(), key=lambda each: -each[1])
