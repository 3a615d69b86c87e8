"""The mutants of `make mutants` fit the sources and the docs as they are; running them takes too long for here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.__main__ import failed
from mutants.catalogue import MUTANTS
from mutants.mutant import NATIVE, Mutant, marked_files

ROOT = Path(__file__).resolve().parent.parent

PROMISES = [
    *("kills", "stops", "liveness", "cgroup", "standstill", "autoreset", "laws", "model", "handles", "input"),
    *("checkpoint", "store-checkpoint", "tier", "disk", "disk-forward", "durable", "objects-away", "foreign"),
    *("wire", "door", "remote", "chain", "shards", "backups"),
    *(f"pain-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 14, 15, 16, 17, 20)),
]


PLACES = marked_files()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    """Its text follows its mark, and the tests that are to notice it are there."""
    text = PLACES[mutant.name].read_text()
    assert mutant.broken(text) != text
    for test in mutant.tests:
        if test.startswith(NATIVE):
            assert (ROOT / "tests" / "native" / f"{test.removeprefix(NATIVE)}.cc").exists(), test
            continue
        path, _, function = test.partition("::")
        assert not function or f"def {function.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_every_mark_has_its_mutant() -> None:
    assert set(PLACES) == {mutant.name for mutant in MUTANTS}


def test_a_place_is_marked_once(tmp_path: Path) -> None:
    for name in ("one.cc", "other.cc"):
        (tmp_path / "native").mkdir(exist_ok=True)
        (tmp_path / "native" / name).write_text("  // mutant: same\n  act();\n")
    with pytest.raises(ValueError, match="same is marked twice"):
        marked_files(tmp_path)


def test_the_text_begins_near_its_mark() -> None:
    mutant = Mutant("lost", "kills", "act();", "", ())
    assert mutant.broken("  // mutant: lost\n  // mutant: other\n  act();\n  act();\n").count("act();") == 1
    for far in ("act();\n  // mutant: lost\n  wait();\n", "  // mutant: lost\n" + "  wait();\n" * 6 + "  act();\n"):
        with pytest.raises(ValueError, match="does not follow its mark"):
            mutant.broken(far)


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


def test_tests_that_did_not_run_have_seen_nothing() -> None:
    """Pytest ends with 4 or 5 then, as for a test that is not there: that would look as if each mutant was caught."""
    assert failed(0, "3 passed") == []
    assert failed(1, "FAILED tests/test_a.py::test_b - AssertionError\n") == ["test_a.py::test_b"]
    assert failed(None, "") == ["pytest ended with None (hang)"]
    assert failed(-11, "") == ["pytest ended with -11"]
    for status in (4, 5):
        with pytest.raises(SystemExit, match="no test"):
            failed(status, "ERROR: not found: tests/test_a.py::test_b")
