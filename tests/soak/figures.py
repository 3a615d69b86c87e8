"""What processes and the store hold at a roll call, and which differences between two of them are too much."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pains import MIB, status

from soak.stamps import KEPT

SHARE = 0.05
"""How much more anything may be at the end, besides the floors below."""


@dataclass(frozen=True)
class Floors:
    """What may be added to the share, since small things come in whole pieces.

    Attributes:
        private: bytes of RssAnon of a process.
        tables: bytes of page tables of a process.
        descriptors: of a process.
        maps: of a process.
        meta: bytes of descriptors, indexes, ledgers, tables' slots and trees.
        kept: objects that nobody deletes.
    """

    private: int = 4 * MIB
    tables: int = 2 * MIB
    descriptors: int = 2
    maps: int = 20
    meta: int = 1 * MIB
    kept: int = 0


@dataclass
class Process:
    """One process, by /proc."""

    private: int
    tables: int
    descriptors: int
    maps: int

    @classmethod
    def take(cls, pid: int) -> Process:
        """Now."""
        found = status(pid)
        return cls(
            int(found["RssAnon"].split()[0]) * 1024,
            int(found["VmPTE"].split()[0]) * 1024,
            len(os.listdir(f"/proc/{pid}/fd")),
            Path(f"/proc/{pid}/maps").read_text().count("\n"),
        )


STORE = ("memory", "live", "pinned", "pending", "free", "committed", "present", "object_pages", "chunk_pages", "meta")
"""Bytes of `stats()` that a reading keeps."""


@dataclass
class Reading:
    """One roll call: everybody stands still and holds nothing.

    Attributes:
        seconds: since the beginning.
        processes: by name, those that live from the beginning to the end.
        store: bytes by their name in `stats()`.
        objects: how many the store counts.
        listed: how many it lists.
        kept: of those, how many nobody will delete.
        payload: bytes of all of them, which together with everything else fill the store to a certain share: less of
            it means that something else takes the room.
        blocks: bytes of the store's memory file, by the kernel.
        shmem: bytes of shared memory of the whole machine; told, not judged.
    """

    seconds: float
    processes: dict[str, Process]
    store: dict[str, int]
    objects: int
    listed: int
    kept: int
    payload: int
    blocks: int
    shmem: int

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def machine_shmem() -> int:
    """Bytes of shared memory on this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def file_bytes(pid: int, name: str) -> int:
    """Bytes that the kernel has given to the store's memory file, as process `pid` has it open."""
    for entry in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{entry}"
        with suppress(FileNotFoundError):  # the folder's own
            if f":{name}:" in os.readlink(path):
                return os.stat(path).st_blocks * 512
    raise AssertionError(f"process {pid} does not have store {name} open")


def is_kept(ref: Any) -> bool:
    """Whether nobody will delete it."""
    return int(ref.id[:2], 16) >= KEPT


def rises(early: Reading, late: Reading, floors: Floors) -> list[str]:
    """What is more at the end than near the beginning, a line each."""
    found = []

    def compare(what: str, before: float, now: float, floor: float) -> None:
        if now > before * (1 + SHARE) + floor:
            found.append(f"{what}: {before:,.0f} at {early.seconds:.0f} s, {now:,.0f} at {late.seconds:.0f} s")

    for name, process in late.processes.items():
        first = early.processes[name]
        compare(f"RssAnon of {name}", first.private, process.private, floors.private)
        compare(f"page tables of {name}", first.tables, process.tables, floors.tables)
        # No share of these: a few are a leak.
        compare(f"descriptors of {name}", first.descriptors / (1 + SHARE), process.descriptors, floors.descriptors)
        compare(f"maps of {name}", first.maps, process.maps, floors.maps)
    memory = early.store["memory"]
    compare("meta", early.store["meta"], late.store["meta"], floors.meta)
    compare("chunks", early.store["chunk_pages"], late.store["chunk_pages"], SHARE * memory)
    compare("kept objects", early.kept, late.kept, floors.kept)
    if late.payload < early.payload - SHARE * memory:
        found.append(f"the store carries {late.payload:,} bytes of objects, no longer {early.payload:,}")
    change = abs(late.store["live"] - early.store["live"])
    if change > SHARE * memory:
        found.append(f"live bytes: {early.store['live']:,} and {late.store['live']:,} of {memory:,}")
    return found
