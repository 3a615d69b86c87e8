"""Runs `di-store`, in processes of their own or in this one."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
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


class Terminal:
    """A command on a terminal of its own. `environment`: variables that differ from those of this process."""

    def __init__(self, *arguments: str, columns: int = 160, **environment: str) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def type(self, keys: str) -> None:
        """Keys, as a person types them."""
        os.write(self._mine, keys.encode())

    def shows(self, words: str) -> bool:
        """Whether the screen has shown this by now."""
        self.read(0.05)
        return words in self.text

    def read(self, seconds: float) -> bool:
        """Read what has come, until nothing comes for so long. Returns whether the command is still there."""
        while select.select([self._mine], [], [], seconds)[0]:
            try:
                self.text += os.read(self._mine, 65536).decode(errors="replace")
            except OSError:  # the other end was closed
                return False
        return True

    def finish(self) -> int:
        """Read to the end. Returns the exit status."""
        while self.read(1):
            pass
        return self.process.wait(60)
