"""A small process with everything imported that forks the processes of a crash test: clean ones, in milliseconds.

The test's own process is no good parent: it may hold stores and run threads. `Crew` talks to the zygote over a socket,
learns from it who ended or stopped, and keeps what each child printed.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

BOUND_SECONDS = 120.0
"""How long anything may take before it counts as stuck: far more than it needs, also on a busy machine."""

KILLED = -signal.SIGKILL


def _resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def _run(function: str, args: tuple[Any, ...], output: str) -> None:
    """The child's whole life."""
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    code = 0
    try:
        code = _resolve(function)(*args) or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _report(connection: Connection) -> None:
    """Send on what happened to children since the last look."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        stopped = os.WIFSTOPPED(status)
        connection.send(("stopped", pid, 0) if stopped else ("ended", pid, os.waitstatus_to_exitcode(status)))


def serve(number: int, modules: list[str]) -> None:
    """The zygote's loop; ends when the test's process does, and takes its children along."""
    connection = Connection(number)
    for name in modules:
        importlib.import_module(name)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: set[int] = set()
    while True:
        ready = wait([connection, reader])
        if reader in ready:
            with suppress(BlockingIOError):
                os.read(reader, 4096)
            _report(connection)
        if connection not in ready:
            continue
        try:
            function, args, output = connection.recv()
        except EOFError:
            break
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            os.close(reader)
            os.close(writer)
            _run(function, args, output)
        pids.add(pid)
        connection.send(("started", pid, 0))
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Hand:
    """One child of the zygote.

    Attributes:
        pid: its process.
        status: exit code once it ended, `-signal` if one killed it; None while it lives.
        stopped: whether it was seen stopped.
    """

    def __init__(self, crew: Crew, what: str, output: str) -> None:
        self.pid = 0
        self.status: int | None = None
        self.stopped = False
        self.what = what
        self._crew = crew
        self._output = output

    def printed(self) -> str:
        """Everything it wrote to stdout and stderr so far."""
        try:
            with open(self._output, errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def signal(self, number: int) -> None:
        """Send a signal, unless it ended already."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        if number == signal.SIGCONT:
            self.stopped = False

    def join(self, seconds: float = BOUND_SECONDS) -> int:
        """Wait for its end; the exit status."""
        self._crew.until(lambda: self.status is not None, f"{self.what} (pid {self.pid}) to end", seconds)
        assert self.status is not None
        return self.status

    def finish(self, seconds: float = BOUND_SECONDS) -> None:
        """Wait for its end, which must be a good one."""
        status = self.join(seconds)
        assert status == 0, f"{self.what} ended with {status}:\n{self.printed()}"

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.join()


class Crew:
    """The children of one zygote.

    Args:
        modules: imported before any child is forked.
    """

    def __init__(self, modules: list[str]) -> None:
        self._folder = tempfile.mkdtemp(dir=os.environ.get("DI_STORE_TEST_ROOT"))
        ours, theirs = Pipe()
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), OPENBLAS_NUM_THREADS="1")
        program = f"from crash.zygote import serve; serve({theirs.fileno()}, {modules!r})"
        self._zygote = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._connection = ours
        self._hands: dict[int, Hand] = {}
        self._starting: list[Hand] = []
        self._count = 0

    def start(self, function: str, *args: Any) -> Hand:
        """Fork a child that calls `module:function` with `args`."""
        self._count += 1
        hand = Hand(self, function.partition(":")[2], os.path.join(self._folder, f"{self._count}.txt"))
        self._starting.append(hand)
        self._connection.send((function, args, hand._output))
        self.until(lambda: hand.pid != 0, "the zygote to fork")
        return hand

    def pump(self, seconds: float) -> None:
        """Take in what the zygote reports, for at most so long."""
        while self._connection.poll(seconds):
            what, pid, status = self._connection.recv()
            seconds = 0
            if what == "started":
                hand = self._starting.pop(0)
                hand.pid = pid
                self._hands[pid] = hand
            elif what == "stopped":
                self._hands[pid].stopped = True
            else:
                self._hands.pop(pid).status = status

    def until(self, condition: Callable[[], Any], what: str, seconds: float = BOUND_SECONDS) -> None:
        """Wait until `condition()`; fails with `what` it waited for."""
        end = time.monotonic() + seconds
        while True:
            self.pump(0)
            if condition():
                return
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds:.0f} s for {what}; children:\n{self.describe()}")
            self.pump(0.002)

    def describe(self) -> str:
        """The living children, and what they printed."""
        lines = []
        for hand in self._hands.values():
            lines.append(f"{hand.what} pid {hand.pid}{' stopped' if hand.stopped else ''}: {hand.printed()[-6000:]}")
        return "\n".join(lines)

    def kill_all(self) -> None:
        """SIGKILL every child that still lives, and wait until they are gone."""
        for hand in list(self._hands.values()):
            hand.kill()

    def close(self) -> None:
        """End the zygote and all its children."""
        with suppress(AssertionError, EOFError, OSError):
            self.kill_all()
        self._connection.close()
        self._zygote.kill()
        self._zygote.wait()
