"""CPU time and memory of a run's processes, from /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """`pid` and all processes that descend from it."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(folder / "stat")):
            children[int(fields[1])].append(int(folder.name))
    found, open_ = [], [pid]
    while open_:
        found.append(open_.pop())
        open_ += children[found[-1]]
    return found


def _stat(path: Path) -> list[str]:
    """Fields of a stat file after the name; [] if the process is gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time of a process: of all its threads, and of its main thread; zeros if it is gone."""
    seconds = []
    for path in (Path(f"/proc/{pid}/stat"), Path(f"/proc/{pid}/task/{pid}/stat")):
        fields = _stat(path)
        seconds.append((int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0)
    return seconds[0], seconds[1]


def pss_bytes(pid: int) -> int:
    """Memory of a process, pages it shares counted by its share of them; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far by role: whole processes, and their main threads."""

    seconds: dict[str, float]
    main_seconds: dict[str, float]

    def since(self, earlier: Usage) -> dict[str, dict[str, float]]:
        """CPU seconds by role between two moments: of all threads, and of those that are not a main thread."""
        result = {}
        for role, seconds in self.seconds.items():
            whole = seconds - earlier.seconds.get(role, 0.0)
            main = self.main_seconds[role] - earlier.main_seconds.get(role, 0.0)
            result[role] = {"all": whole, "other_threads": max(0.0, whole - main)}
        return result


def role_of(pid: int, actors: list[int]) -> str:
    """What a process of this process's family is in the run."""
    return "learner" if pid == os.getpid() else "actors" if pid in actors else "others"


def usage(actors: list[int]) -> Usage:
    """Usage of this process (the learner), the actors, and all others of the family (servers, helpers)."""
    whole: defaultdict[str, float] = defaultdict(float)
    main: defaultdict[str, float] = defaultdict(float)
    for pid in family(os.getpid()):
        role = role_of(pid, actors)
        all_threads, main_thread = cpu_seconds(pid)
        whole[role] += all_threads
        main[role] += main_thread
    return Usage(dict(whole), dict(main))


def memory(actors: list[int]) -> dict[str, int]:
    """PSS in bytes by role."""
    found: defaultdict[str, int] = defaultdict(int)
    for pid in family(os.getpid()):
        found[role_of(pid, actors)] += pss_bytes(pid)
    return dict(found)
