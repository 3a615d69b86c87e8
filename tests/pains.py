"""What the tests of pains share: programs in processes of their own, and what the kernel says of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any

import di_store

MIB = 1 << 20
BOUND_SECONDS = 120.0
"""A generous bound: nothing here needs a tenth of it."""


class Program:
    """A Python program in a process of its own; killed when the `with` ends.

    Args:
        text: the program; its arguments are in sys.argv.
        prefix: words before the interpreter, such as `unshare -m`.
    """

    def __init__(self, text: str, *arguments: object, prefix: tuple[str, ...] = (), **options: Any) -> None:
        command = [*prefix, sys.executable, "-c", text, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        self.pid = self.process.pid

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        with suppress(ValueError):
            self.process.communicate()

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            assert self.process.stderr is not None
            raise AssertionError(f"the program ended: {self.process.stderr.read()}")
        return text.rstrip("\n")

    def say(self, text: str = "") -> None:
        """A line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal; for SIGSTOP, wait until it has stopped."""
        if number == signal.SIGSTOP:
            stop(self.pid)
        else:
            self.process.send_signal(number)

    def finish(self, seconds: float = BOUND_SECONDS) -> tuple[str, str]:
        """Its stdout and stderr, after it ended well."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, f"exit {self.process.returncode}\n{out}\n{err}"
        return out, err


def until(condition: Callable[[], Any], what: str, seconds: float = BOUND_SECONDS) -> None:
    """Look again and again until it holds."""
    end, pause = time.monotonic() + seconds, Event()
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        pause.wait(0.005)


def stop(pid: int) -> None:
    """SIGSTOP, and wait until all threads have stopped: each of them runs on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid), f"process {pid} to stop")


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    try:
        return all(status(thread)["State"].startswith("T") for thread in threads_of(pid))
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
        return False


def threads_of(pid: int) -> list[int]:
    """The kernel's numbers of a process's threads."""
    return [int(each) for each in os.listdir(f"/proc/{pid}/task")]


def is_removed(folder: Path, name: str) -> bool:
    """Whether a store that was closed has no files.

    A dashboard of another test may have it open at that moment. That process then removes the files, and lets the store
    go after that.
    """
    others = others_with(name)
    left = [*folder.glob("segment-*"), *folder.glob("objects-*")]
    assert others or not left
    return not left


def is_gone(name: str) -> bool:
    """Whether there is no store of this name, once all its processes are dead; as `is_removed`."""
    others = others_with(name)
    try:
        di_store.attach(name).close()
    except di_store.StoreNotFound:
        return True
    assert others or others_with(name)
    return False


def others_with(name: str) -> set[int]:
    """Other processes that have the store open."""
    return {pid for info in di_store.list_stores() if info.name == name for pid in info.pids} - {os.getpid()}


def status(pid: int) -> dict[str, str]:
    """`/proc/<pid>/status` by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def private_bytes(pid: int) -> int:
    """RssAnon: what the process has for itself, without what it shares."""
    return int(status(pid)["RssAnon"].split()[0]) * 1024


def shm_files() -> set[str]:
    """Names in /dev/shm, but for the semaphores of `multiprocessing`, which tests beside this one come and go with."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}
