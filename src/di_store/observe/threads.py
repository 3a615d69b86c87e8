"""The threads of a store's processes, as the kernel shows them: processor time, sleeps, and waits for Python's lock."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

TIMES_SECONDS = 0.5
"""How often the times of all threads are read; the waits of those that sleep often are read at each look."""
SWITCH_SECONDS = 0.005
"""A thread that waits for Python's lock wakes up this often to ask for it (`sys.getswitchinterval`)."""
CALLS = "call:"
"""How the name of an agent's thread begins that answers the calls of a connection; the client's port follows."""
_OFTEN = 0.2 / SWITCH_SECONDS  # sleeps a second of a thread that waits for Python's lock a fifth of its time
_TICKS = os.sysconf("SC_CLK_TCK")
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine)


class ThreadTimes(NamedTuple):
    """What a thread has used since it began."""

    name: str
    cpu: float  # seconds
    sleeps: int  # how often it gave its processor up, to wait


class ThreadUse(NamedTuple):
    """What a thread has used in a time."""

    thread: int
    name: str
    cpu: float  # share of one processor
    sleeps: float  # per second
    gil: float  # share of the time in which it waited for Python's lock, or for another process's thread, briefly


class Threads:
    """The threads of some processes, over the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._times: deque[tuple[float, dict[int, dict[int, ThreadTimes]]]] = deque()
        self._looks: deque[tuple[float, set[tuple[int, int]]]] = deque()  # threads in a short wait
        self._often: list[tuple[int, int]] = []  # threads that sleep often

    def look(self, now: float, pids: Iterable[int]) -> None:
        """Look at these processes now; `now`: of `time.monotonic`."""
        if not self._times or now - self._times[-1][0] >= TIMES_SECONDS:
            self._times.append((now, {pid: dict(_times(pid)) for pid in pids}))
            self._often = [
                (pid, use.thread)
                for pid in self._times[-1][1]
                for use in self._uses(pid, max(0, len(self._times) - 2))
                if use.sleeps >= _OFTEN
            ]
        self._looks.append((now, {each for each in self._often if _waits_briefly(*each)}))
        for kept in (self._times, self._looks):
            while now - kept[0][0] > self._seconds:
                kept.popleft()

    def uses(self, pid: int) -> list[ThreadUse]:
        """The threads of a process that were there at the first look and at the last one."""
        return self._uses(pid, 0) if self._times else []

    def _uses(self, pid: int, start: int) -> list[ThreadUse]:
        (began, first), (ended, last) = self._times[start], self._times[-1]
        seconds = ended - began
        if seconds <= 0:
            return []
        waits = Counter(thread for _, found in self._looks for owner, thread in found if owner == pid)
        before, uses = first.get(pid, {}), []
        for thread, times in last.get(pid, {}).items():
            if thread not in before:
                continue
            sleeps = (times.sleeps - before[thread].sleeps) / seconds
            gil = min(waits[thread] / max(1, len(self._looks)), sleeps * SWITCH_SECONDS)
            uses.append(ThreadUse(thread, times.name, (times.cpu - before[thread].cpu) / seconds, sleeps, gil))
        return uses


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


def _waits_briefly(pid: int, thread: int) -> bool:
    """Whether a thread is in a futex wait with a time limit, as a thread that waits for Python's lock is.

    False as well if the kernel does not say: this takes the right to trace the process (`ptrace_scope`).
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/syscall") as file:
        words = file.read().split()
        return len(words) > 4 and words[0] == _FUTEX and words[4] != "0x0"
    return False


def name_thread(name: str) -> None:
    """Name the calling thread for `top -H`, `ps -L` and `di-store why`: 15 bytes at most."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write(name[:15])
