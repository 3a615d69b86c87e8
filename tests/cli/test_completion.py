"""Names that a shell completes: commands, options, stores, tables, workloads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_run import command
from click.shell_completion import ShellComplete

import di_store
from di_store.cli import group


def told(*words: str) -> list[str]:
    """What bash is told for the last of these words, in a process of its own: a kind and a value per line."""
    asked = {"_DI_STORE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(command(), env={**os.environ, **asked}, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout.splitlines()


def completed(*words: str) -> list[str]:
    """The same in this process, as values."""
    shell = ShellComplete(group, {}, "di-store", "_DI_STORE_COMPLETE")
    return [each.value for each in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def name(store_dir: str, store_name: Callable[[], str]) -> str:
    return store_name()


def test_names_of_stores_and_tables_are_completed(name: str) -> None:
    with di_store.open(name, memory="64MiB") as store:
        for table in ("replay", "requests", "demo", "two words", "$(id)", "a\nplain,evil", "\x1b[31m"):
            store.create_table(table, capacity=5)
        assert told("di-store", "inspect", name[:-1]) == [f"plain,{name}"]
        for words in ("inspect", "top", "why", "check", "rm", "checkpoint", "hold", "serve", "dashboard"):
            assert completed(words, name[:-1]) == [name], words
        assert completed("inspect", name, "re") == ["replay", "requests"]
        assert completed("inspect", name, "") == ["demo", "replay", "requests"]
    assert completed("inspect", name) == []
    assert completed("inspect", name, "re") == []


def test_commands_options_and_workloads_are_completed() -> None:
    assert completed("che") == ["check", "checkpoint"]
    assert completed("inspect", "--va") == ["--values"]
    assert completed("bench", "S1-") == ["S1-dqn-qbert"]
    assert told("di-store", "plan", "job") == ["file,job"]


BASH = """
source <(_DI_STORE_COMPLETE=bash_source di-store) 2>/dev/null
COMP_WORDS=(di-store inspect "$1" de) COMP_CWORD=3
_di_store_completion di-store
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_by_the_script_that_the_command_prints(name: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with di_store.open(name, memory="64MiB") as store:
        store.create_table("demo", capacity=5)
        words = ["bash", "-c", BASH, "bash", name]
        done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("demo\n", "")
