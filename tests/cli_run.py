"""Runs `di-store`, in processes of their own or in this one."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from di_store.cli import main

Done = subprocess.CompletedProcess[str]


def command(*arguments: str) -> list[str]:
    """How a command is started."""
    return [sys.executable, "-m", "di_store", *arguments]


def run(*arguments: str) -> Done:
    """Run a command to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)


def call(*arguments: str) -> Done:
    """Run a command in this process: no interpreter starts for it. Signals and the timer are as before afterwards."""
    timer = signal.getitimer(signal.ITIMER_REAL)  # of pytest-timeout; commands use it too
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            status = main(arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in handlers.items():  # `demo` ignores both from its end on
            signal.signal(number, handler)
    return Done(arguments, status, out.getvalue(), err.getvalue())


def read_json(*arguments: str, by: Callable[..., Done] = run) -> Any:
    """Run a command that works, with --json; what it printed."""
    done = by(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def fails(status: int, *arguments: str, by: Callable[..., Done] = run) -> str:
    """Run a command that fails; what it says."""
    done = by(*arguments)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) >= 1
    return " ".join(done.stderr.split())


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
