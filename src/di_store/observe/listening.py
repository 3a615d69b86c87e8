"""Where a process of this machine listens, as the kernel tells it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

_LISTENS = "0A"  # state of a socket in /proc/net/tcp


def listening_places(pid: int) -> list[str]:
    """HOST:PORT of each TCP socket that it listens at; empty: none, or it is gone or another user's."""
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        held = set()
        for each in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                held.add(os.readlink(f"{folder}/{each}"))
        return sorted({place for inode, place in _sockets(pid) if f"socket:[{inode}]" in held})
    return []


def _sockets(pid: int) -> Iterator[tuple[str, str]]:
    """Inode and place of all that listen in the network of a process."""
    for file in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{file}") as lines:
            next(lines, None)
            for line in lines:
                words = line.split()
                if words[3] == _LISTENS:
                    yield words[9], _place(*words[1].split(":"))


def _place(host: str, port: str) -> str:
    """An address as the kernel writes it: words of 32 bits in the order of this machine."""
    raw = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
