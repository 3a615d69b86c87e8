"""What each thread of a process is at, in a shared file: a crash or hang is seen from outside with its call."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

SLOTS = 4
ROOM = 16 << 10
_HEAD = struct.Struct("<QQddI")


@dataclass(frozen=True)
class Entry:
    """One thread's last call.

    Attributes:
        number: of the calls it has begun.
        done: of those that have ended.
        began: monotonic time.
        deadline: seconds that it may take by its own timeout.
    """

    number: int
    done: int
    began: float
    deadline: float
    text: str

    @property
    def running(self) -> float:
        """Seconds that it has been under way; 0 between calls."""
        return time.monotonic() - self.began if self.number > self.done else 0.0


class Journal:
    """The file."""

    def __init__(self, path: str, *, create: bool = False) -> None:
        if create:
            with open(path, "wb") as file:
                file.truncate(SLOTS * ROOM)
        descriptor = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(descriptor, SLOTS * ROOM)
        os.close(descriptor)
        self._numbers = [0] * SLOTS

    def begin(self, slot: int, text: str, deadline: float) -> None:
        """A call begins."""
        raw = text.encode("utf-8", "backslashreplace")[: ROOM - _HEAD.size]
        self._numbers[slot] += 1
        number, at = self._numbers[slot], slot * ROOM
        self._map[at + _HEAD.size : at + _HEAD.size + len(raw)] = raw
        self._map[at : at + _HEAD.size] = _HEAD.pack(number, number - 1, time.monotonic(), deadline, len(raw))

    def end(self, slot: int) -> None:
        """It has ended."""
        struct.pack_into("<Q", self._map, slot * ROOM + 8, self._numbers[slot])

    def entries(self) -> list[Entry]:
        """Those of all threads that made a call."""
        found = []
        for at in range(0, SLOTS * ROOM, ROOM):
            number, done, began, deadline, size = _HEAD.unpack_from(self._map, at)
            if number:
                text = self._map[at + _HEAD.size : at + _HEAD.size + size].decode(errors="replace")
                found.append(Entry(number, done, began, deadline, text))
        return found
