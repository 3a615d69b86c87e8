"""Runs `di-store`, mostly in processes of their own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from di_store.cli import main


def command(*arguments: str) -> list[str]:
    """How a command is started."""
    return [sys.executable, "-m", "di_store", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)


def read_json(*arguments: str) -> Any:
    """Run a command that works, with --json; what it printed."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def fails(status: int, *arguments: str) -> str:
    """Run a command that fails; what it says."""
    done = run(*arguments)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) >= 1
    return " ".join(done.stderr.split())


def fails_here(status: int, *arguments: str) -> str:
    """The same in this process: for several that differ in their arguments alone."""
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        assert main(arguments) == status, (arguments, errors.getvalue())
    assert errors.getvalue().strip()
    return " ".join(errors.getvalue().split())


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, whatever state it is in."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
