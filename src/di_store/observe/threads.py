"""The threads of a store's processes, as the kernel shows them: processor time, sleeps, and waits for Python's lock."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

TIMES_SECONDS = 0.5
"""How often the times of all threads are read; threads that compute or sleep often are looked at each time."""
CALLS = "call:"
"""How the name of an agent's thread begins that answers the calls of a connection; the client's port follows."""
_OFTEN, _COMPUTES = 5.0, 0.03  # sleeps a second; share of a processor, few on a busy machine
_SHORT_SECONDS = 0.006  # a thread that waits for Python's lock asks for it after `sys.getswitchinterval()`, 5 ms
_TICKS = os.sysconf("SC_CLK_TCK")
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine)
_ABSOLUTE, _REAL = 9, 0x100  # FUTEX_WAIT_BITSET; FUTEX_CLOCK_REALTIME
_TIMESPEC = struct.Struct("qq")


class ThreadTimes(NamedTuple):
    """What a thread has used since it began."""

    name: str
    cpu: float  # seconds
    sleeps: int  # how often it gave its processor up, to wait


class ThreadUse(NamedTuple):
    """What a thread did in a time."""

    thread: int
    name: str
    cpu: float  # share of one processor
    sleeps: float  # per second
    runs: float  # share of the looks at which it ran, or would have if a processor had been free
    gil: float  # share of the looks at which it waited as threads do for Python's lock: for some milliseconds


class Threads:
    """The threads of some processes, over the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._times: deque[tuple[float, dict[int, dict[int, ThreadTimes]]]] = deque()
        self._looks: deque[tuple[float, dict[tuple[int, int], str]]] = deque()  # what each thread does
        self._active: list[tuple[int, int]] = []  # threads to look at

    def look(self, now: float, pids: Iterable[int]) -> None:
        """Look at these processes now; `now`: of `time.monotonic`."""
        if not self._times or now - self._times[-1][0] >= TIMES_SECONDS:
            self._times.append((now, {pid: dict(_times(pid)) for pid in pids}))
            start = max(0, len(self._times) - 2)
            self._active = [
                (pid, use.thread)
                for pid in self._times[-1][1]
                for use in self._uses(pid, start)
                if use.sleeps >= _OFTEN or use.cpu >= _COMPUTES
            ]
        self._looks.append((now, {each: _does(*each) for each in self._active}))
        while self._times and now - self._times[0][0] > self._seconds:
            self._times.popleft()
        while self._looks and now - self._looks[0][0] > self._seconds:
            self._looks.popleft()

    def uses(self, pid: int) -> list[ThreadUse]:
        """The threads of a process that were there at the first look and at the last one."""
        return self._uses(pid, 0) if self._times else []

    def _uses(self, pid: int, start: int) -> list[ThreadUse]:
        (began, first), (ended, last) = self._times[start], self._times[-1]
        before, seconds = first.get(pid, {}), max(ended - began, 1e-9)
        did = Counter((each[1], what) for _, looks in self._looks for each, what in looks.items() if each[0] == pid)
        uses = []
        for thread, times in last.get(pid, {}).items():
            if thread not in before or began == ended:
                continue
            looks = max(1, sum(did[thread, what] for what in (_RUNS, _BRIEF, _OTHER)))
            uses.append(
                ThreadUse(
                    thread,
                    times.name,
                    (times.cpu - before[thread].cpu) / seconds,
                    (times.sleeps - before[thread].sleeps) / seconds,
                    did[thread, _RUNS] / looks,
                    did[thread, _BRIEF] / looks,
                )
            )
        return uses


_RUNS, _BRIEF, _OTHER = "runs", "waits briefly", ""


def _times(pid: int) -> Iterator[tuple[int, ThreadTimes]]:
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(folder):
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
                with open(f"{folder}/{thread}/stat") as file:
                    head, _, rest = file.read().rpartition(")")
                with open(f"{folder}/{thread}/status") as file:
                    sleeps = int(file.read().partition("\nvoluntary_ctxt_switches:")[2].split("\n")[0])
                words = rest.split()
                cpu = (int(words[11]) + int(words[12])) / _TICKS
                yield int(thread), ThreadTimes(head.partition("(")[2], cpu, sleeps)


def _does(pid: int, thread: int) -> str:
    """What a thread does now.

    Whether it waits briefly is known only with the right to trace the process (`ptrace_scope`).
    """
    folder = f"/proc/{pid}/task/{thread}"
    with contextlib.suppress(OSError):
        with open(f"{folder}/stat") as file:
            if file.read().rpartition(") ")[2][:1] == "R":
                return _RUNS
        with open(f"{folder}/syscall") as file:
            words = file.read().split()
        if len(words) > 4 and words[0] == _FUTEX and words[4] != "0x0":
            return _BRIEF if _seconds_left(pid, int(words[2], 16), int(words[4], 16)) <= _SHORT_SECONDS else _OTHER
    return _OTHER


def _seconds_left(pid: int, operation: int, address: int) -> float:
    """Until a futex wait gives up; `address`: of its time limit."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        seconds, nanoseconds = _TIMESPEC.unpack(memory.read(_TIMESPEC.size))
    limit = float(seconds + nanoseconds / 1e9)
    if operation & 0x7F != _ABSOLUTE:
        return limit
    return limit - time.clock_gettime(time.CLOCK_REALTIME if operation & _REAL else time.CLOCK_MONOTONIC)


def name_thread(name: str) -> None:
    """Name the calling thread for `top -H`, `ps -L` and `di-store why`: 15 bytes at most."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write(name[:15])
