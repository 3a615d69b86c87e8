"""Names that a shell completes: commands, options, stores, tables, workloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_run import command

import di_store


def completed(*words: str) -> list[str]:
    """What bash is told for the last of these words: a kind and a value per line."""
    told = {"_DI_STORE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(command(), env={**os.environ, **told}, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.fixture
def name(store_dir: str, store_name: Callable[[], str]) -> str:
    return store_name()


def test_names_of_stores_and_tables_are_completed(name: str) -> None:
    with di_store.open(name, memory="64MiB") as store:
        for table in ("replay", "requests", "demo", "two words", "$(id)", "a\nplain,evil", "\x1b[31m"):
            store.create_table(table, capacity=5)
        for words in (("inspect",), ("top",), ("check",), ("rm", "--force"), ("checkpoint",), ("hold",), ("serve",)):
            assert completed("di-store", *words, name[:-1]) == [f"plain,{name}"], words
        assert completed("di-store", "inspect", name, "re") == ["plain,replay", "plain,requests"]
        assert completed("di-store", "inspect", name, '""') == ["plain,demo", "plain,replay", "plain,requests"]
    assert completed("di-store", "inspect", name) == [""]
    assert completed("di-store", "inspect", name, "re") == [""]


def test_commands_options_and_workloads_are_completed() -> None:
    assert completed("di-store", "che") == ["plain,check", "plain,checkpoint"]
    assert completed("di-store", "inspect", "--va") == ["plain,--values"]
    assert completed("di-store", "bench", "S1-") == ["plain,S1-dqn-qbert"]
    assert completed("di-store", "plan", "job") == ["file,job"]


BASH = """
source <(_DI_STORE_COMPLETE=bash_source di-store) 2>/dev/null
COMP_WORDS=(di-store inspect "$1" de) COMP_CWORD=3
_di_store_completion di-store
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_by_the_script_that_the_command_prints(name: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with di_store.open(name, memory="64MiB") as store:
        store.create_table("demo", capacity=5)
        words = ["bash", "-c", BASH, "bash", name]
        done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("demo\n", "")
