"""CPU time and memory of a run's processes, from /proc, by role: the learner (this process), actors, others."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str]:
    """Fields of a /proc stat file after the command's name; [] if the process has ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _family(actors: list[int]) -> list[tuple[int, str]]:
    """Pid and role of the calling process and of all its descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(folder / "stat")):
            children[int(fields[1])].append(int(folder.name))
    found, left = [], [os.getpid()]
    while left:
        pid = left.pop()
        left += children[pid]
        found.append((pid, "learner" if pid == os.getpid() else "actors" if pid in actors else "others"))
    return found


def _seconds(path: Path) -> float:
    """CPU time of a process or of one thread; 0 if it has ended."""
    fields = _stat(path)
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far by role: of whole processes, and of their main threads."""

    whole: dict[str, float]
    main: dict[str, float]

    def since(self, earlier: Usage) -> dict[str, dict[str, float]]:
        """CPU seconds by role between two moments: of all threads, and of those that are not a main thread."""
        found = {}
        for role, seconds in self.whole.items():
            all_threads = seconds - earlier.whole.get(role, 0.0)
            main = self.main[role] - earlier.main.get(role, 0.0)
            found[role] = {"all": all_threads, "other_threads": max(0.0, all_threads - main)}
        return found


def usage(actors: list[int]) -> Usage:
    found = Usage(defaultdict(float), defaultdict(float))
    for pid, role in _family(actors):
        found.whole[role] += _seconds(Path(f"/proc/{pid}/stat"))
        found.main[role] += _seconds(Path(f"/proc/{pid}/task/{pid}/stat"))
    return found


def memory(actors: list[int]) -> dict[str, int]:
    """PSS in bytes by role: of a page that n processes share, each has 1/n."""
    found: defaultdict[str, int] = defaultdict(int)
    for pid, role in _family(actors):
        with suppress(OSError):  # the process has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found[role] += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return dict(found)
