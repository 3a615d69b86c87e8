"""Tests of the public interface pass unchanged with other kinds of stores: behind an agent, a node, tables in parts.

`make far` runs more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.conformance import LONG, OF_KIND, QUICK, apart, every_file, files_of

ROOT = Path(__file__).resolve().parent.parent.parent

GROUPS = {**QUICK, **LONG}

pytestmark = [pytest.mark.extended, pytest.mark.memory_only]


def run(*arguments: str, transport: str = "tcp") -> str:
    """What pytest says of these files, of which there is at least one, whose stores are far; the run must succeed."""
    assert arguments
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DI_STORE_", "PYTEST_"))}
    environment = {**kept, "DI_STORE_TEST_FAR": transport, "DI_STORE_WINDOW": "1"}
    done = subprocess.run(
        [sys.executable, *"-P -m pytest -q --disable-warnings -p no:cacheprovider --timeout 120".split(), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8_000:]
    return done.stdout


@pytest.mark.parametrize(
    ("group", "transport"),
    [
        ("core", "tls"),
        *(
            (group, transport)
            for transport, groups in (("tcp", QUICK), ("cluster", GROUPS), ("sharded", GROUPS))
            for group in groups
            if files_of(GROUPS[group], transport)
        ),
    ],
)
def test_other_kinds_of_stores_pass_the_tests_of_a_local_one(group: str, transport: str) -> None:
    last = run(*files_of(GROUPS[group], transport), transport=transport).splitlines()[-1]
    assert " passed" in last
    assert "skipped" not in last


def test_excluded_tests_exist() -> None:
    """Each entry matches a test, or a file, and each file that is run has tests that are not left out."""
    files = {path for kind in OF_KIND for path in every_file(kind)}
    for left_out in OF_KIND.values():
        assert {f"tests/{entry.partition('::')[0]}" for entry, _ in left_out} <= files
        assert len({entry for entry, _ in left_out}) == len(left_out)
        assert all(reason for _, reason in left_out)
    for kind in ("tcp", "cluster", "sharded"):
        run("--collect-only", *every_file(kind), transport=kind)


def test_exclusion_entries_and_files_are_checked() -> None:
    """An entry that matches no test is an error, as is a file of which no test runs; not where tests are chosen."""

    def config(*files: str, keyword: str = "") -> Any:
        return SimpleNamespace(args=list(files), option=SimpleNamespace(keyword=keyword))

    def items(*nodes: str) -> Any:
        return [SimpleNamespace(nodeid=f"tests/{node}") for node in nodes]

    entry = "observe/test_stats.py::test_bytes_add_up_to_the_arena"
    both = items(entry, "observe/test_stats.py::test_other")
    assert apart(config("tests/observe/test_stats.py"), both) == [both[0]]
    with pytest.raises(pytest.UsageError, match=r"no such test: observe/test_stats\.py::test_bytes"):
        apart(config("tests/observe/test_stats.py"), both[1:])
    with pytest.raises(pytest.UsageError, match=r"no test runs of tests/observe/test_stats\.py"):
        apart(config("tests/observe/test_stats.py"), both[:1])
    assert apart(config("tests/observe/test_stats.py", keyword="other"), both[1:]) == []
