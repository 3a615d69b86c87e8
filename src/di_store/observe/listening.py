"""Addresses at which a process of this machine listens, and the connections to them, from the kernel's tables."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shlex
import struct
from collections.abc import Iterator

_CONNECTED, _LISTENS = "01", "0A"  # states of a socket in /proc/net/tcp


def listening_places(pid: int) -> list[str]:
    """HOST:PORT of each TCP socket at which the process listens; empty also for ended and other users' processes."""
    return sorted({here for state, here, _ in _own_sockets(pid) if state == _LISTENS})


def connected_places(pid: int) -> list[str]:
    """HOST:PORT of the other end of each TCP connection to a port of the process; empty as in `listening_places`."""
    sockets = list(_own_sockets(pid))
    ports = {here.rpartition(":")[2] for state, here, _ in sockets if state == _LISTENS}
    return sorted(there for state, here, there in sockets if state == _CONNECTED and here.rpartition(":")[2] in ports)


def command_line(pid: int) -> str:
    """The command of a process, quoted for a shell, on one line; "": the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").split(b"\0")
        return " ".join(shlex.quote(_printable(word.decode(errors="replace"))) for word in words)
    return ""


def user_of(pid: int) -> str:
    """Name or number of the user that runs a process; "": the process has ended."""
    try:
        return _user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


@functools.cache
def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _printable(word: str) -> str:
    return word if word.isprintable() else word.encode("unicode_escape").decode()


def _own_sockets(pid: int) -> Iterator[tuple[str, str, str]]:
    """State, own address and peer's address of each TCP socket of a process."""
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        held = set()
        for each in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                held.add(os.readlink(f"{folder}/{each}"))
        yield from _sockets(pid, held)


def _sockets(pid: int, held: set[str]) -> Iterator[tuple[str, str, str]]:
    """State, own address and peer's address of the TCP sockets of a process, whose descriptors link to `held`."""
    for file in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{file}") as lines:
            next(lines, None)
            for line in lines:
                words = line.split()
                if words[3] in (_CONNECTED, _LISTENS) and f"socket:[{words[9]}]" in held:
                    yield words[3], _place(*words[1].split(":")), _place(*words[2].split(":"))


def _place(host: str, port: str) -> str:
    """An address as the kernel writes it: words of 32 bits in the order of this machine."""
    import socket  # takes a while, and only looks at a store need it

    raw = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
