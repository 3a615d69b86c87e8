"""The house rules for names: each says one thing. The tables on top are meant to be edited; the checks are not."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import tidy_scan

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/di_store"

# By folder of src/di_store/adapters: names that the framework has given, which classes of others may share.
OF_FRAMEWORKS = {
    "reverb": set("Client Fifo Lifo MinSize Prioritized Queue Stack Table Uniform Writer".split()),
    "cpprb": {"PrioritizedReplayBuffer", "ReplayBuffer"},
    "dopamine": {"ReplayBuffer"},
    "sb3": {"ReplayBuffer"},
    "tianshou": {"PrioritizedReplayBuffer", "ReplayBuffer"},
    "torchrl": {"ReplayBuffer"},
}
MOST_SECOND_MEANINGS = 5  # rows of the table in docs/architecture.md; the number can only fall


# Folders of tests beside those of the package's rooms; and the files outside of all folders, which read the repository.
OTHER_FOLDERS = {"arguments", "benchmarks", "crash", "disk", "model", "repository", "soak"}
TOP_FILES = {f"test_{each}.py" for each in "algorithms docs mutants names tidy tidy_scan tutorial".split()}


def _several(names: dict[str, list[str]], most: int) -> dict[str, list[str]]:
    assert len(names) > 100
    return {name: places for name, places in names.items() if len(places) > most}


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        given = OF_FRAMEWORKS.get(parts[1], set()) if parts[0] == "adapters" else set()
        for name, _ in tidy_scan.python_classes(path):
            if name not in given:
                places[name].append("/".join(parts))
    assert not (faults := _several(places, 1)), faults


def test_no_file_name_stands_three_times() -> None:
    """But in the adapters, whose folders have the same parts."""
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "adapters" and path.name != "__init__.py":
            places[path.name].append("/".join(parts))
    assert not (faults := _several(places, 2)), faults


def test_few_words_have_a_second_meaning() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.partition("### Words with a second meaning")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(rows) <= MOST_SECOND_MEANINGS, len(rows)


def test_tests_lie_in_the_folder_of_their_package() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {path.stem for path in PACKAGE.glob("*.py")}
    found = {path.relative_to(ROOT / "tests").parts for path in (ROOT / "tests").rglob("test_*.py")}
    assert {parts[0] for parts in found if len(parts) == 1} == TOP_FILES
    assert {parts[0] for parts in found if len(parts) > 1} <= rooms | OTHER_FOLDERS
