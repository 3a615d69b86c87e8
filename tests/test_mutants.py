"""The mutants of `make mutants` fit the sources and the docs as they are; running them takes too long for here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.__main__ import failed
from mutants.catalogue import MUTANTS
from mutants.mutant import NATIVE, Mutant

ROOT = Path(__file__).resolve().parent.parent

PROMISES = [
    *(
        "kills",
        "stops",
        "liveness",
        "cgroup",
        "standstill",
        "autoreset",
        "laws",
        "model",
        "handles",
        "input",
        "leases",
        "pace",
    ),
    *("checkpoint", "store-checkpoint", "tier", "disk", "disk-forward", "durable", "objects-away", "foreign"),
    *("wire", "door", "remote", "chain", "shards", "backups"),
    *(f"pain-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 14, 15, 16, 17, 20)),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    """Its text stands once at its place, Python can still be parsed, and the tests that must notice it are there."""
    broken = mutant.broken()
    assert broken != (ROOT / mutant.file).read_text()
    if mutant.file.endswith(".py"):
        ast.parse(broken)
    for test in mutant.tests:
        if test.startswith(NATIVE):
            assert (ROOT / "tests" / "native" / f"{test.removeprefix(NATIVE)}.cc").exists(), test
            continue
        path, _, function = test.partition("::")
        assert not function or f"def {function.partition('[')[0]}(" in (ROOT / path).read_text(), test


CORE = """
namespace di {
class Door {
 public:
  void open() { wake(); }
  struct Hinge { void turn(); };
};
// act() and wake()
void Door::Hinge::turn() { act(); }
void Door::close(int hard) { act(); act(); }
void Door::close() { wake(); }
void act() {}
}  // namespace di
"""
PACKAGE = """
class Door:
    def open(self):
        wake()
        def inner(): act()
        return inner
    @property
    def wide(self): return 1
def open():
    act()
"""


def test_a_mutant_changes_the_text_in_its_function(tmp_path: Path) -> None:
    for file, text in (("door.cc", CORE), ("door.py", PACKAGE)):
        (tmp_path / file).write_text(text)
    for place, old, before, behind in (
        ("door.cc::Door::open", "wake();", "open() { ", " }\n  struct"),
        ("door.cc::Door::Hinge::turn", "act();", "turn() { ", " }\nvoid Door::close(int"),
        ("door.cc::Door::close", "wake();", "close() { ", " }\nvoid act"),
        ("door.py::Door.open", "wake()", "self):\n        ", "\n        def inner"),
        ("door.py::Door.open.inner", "act()", "inner(): ", "\n        return"),
        ("door.py::Door.wide", "@property", "inner\n    ", "\n    def wide"),
        ("door.py::open", "act()", "open():\n    ", "\n"),
    ):
        broken = Mutant("odd", "kills", place, old, "BROKEN", ()).broken(tmp_path)
        assert before + "BROKEN" + behind in broken, place
        assert broken.replace("BROKEN", old) == (tmp_path / place.partition("::")[0]).read_text()


@pytest.mark.parametrize(
    ("place", "old", "reason"),
    [
        ("gone.cc::Door::open", "wake();", "there is no file gone.cc"),
        ("door.cc::Door::shut", "wake();", "door.cc has no function or class Door::shut"),
        ("door.cc::Door::open", "act();", "its text is 0 times in door.cc::Door::open"),
        ("door.cc::Door::close", "act();", "its text is 2 times in door.cc::Door::close"),
        ("door.py::shut", "act()", "door.py has no function or class shut"),
        ("door.py::Door.open", "()", "its text is 3 times in door.py::Door.open"),
    ],
)
def test_a_missing_place_is_named(tmp_path: Path, place: str, old: str, reason: str) -> None:
    """Who renames a file or a function reads which mutant must be adapted."""
    for file, text in (("door.cc", CORE), ("door.py", PACKAGE)):
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=f"mutant odd-doors: {re.escape(reason)}"):
        Mutant("odd-doors", "kills", place, old, "", ()).broken(tmp_path)


def test_every_promise_has_mutants_and_its_line_in_the_docs() -> None:
    assert {mutant.promise for mutant in MUTANTS} == set(PROMISES)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    lines = {line.split("|")[1].strip(" `"): line for line in page() if line.startswith("| `")}
    assert set(lines) == set(PROMISES)
    for promise, line in lines.items():
        mine = {mutant.name for mutant in MUTANTS if mutant.promise == promise}
        assert {word for word in line.split("|")[-2].strip().split(", ") if word} == mine, promise


def page() -> list[str]:
    """Lines of the page on tests."""
    return (ROOT / "docs" / "testing.md").read_text().splitlines()


def test_files_named_by_the_page_are_there() -> None:
    named = re.findall(r"tests/[\w/.]*\w", "\n".join(page()))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_command_lists_its_mutants_and_knows_no_others() -> None:
    command = [sys.executable, "-m", "mutants"]
    out = subprocess.run(
        [*command, "--list", "kills"], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    ).stdout
    assert len(out.splitlines()) == sum(mutant.promise == "kills" for mutant in MUTANTS)
    wrong = subprocess.run([*command, "--list", "no-such"], capture_output=True, text=True, cwd=ROOT / "tests")
    assert wrong.returncode != 0
    assert "no-such" in wrong.stderr


def test_tests_that_did_not_run_detect_no_mutant() -> None:
    """Pytest ends with 4 or 5 then, as for a test that is not there: that would look as if each mutant was caught."""
    assert failed(0, "3 passed") == []
    assert failed(1, "FAILED tests/test_a.py::test_b - AssertionError\n") == ["test_a.py::test_b"]
    assert failed(None, "") == ["pytest ended with None (hang)"]
    assert failed(-11, "") == ["pytest ended with -11"]
    for status in (4, 5):
        with pytest.raises(SystemExit, match="no test"):
            failed(status, "ERROR: not found: tests/test_a.py::test_b")
