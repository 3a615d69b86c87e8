"""Resolves ``disk=`` and ``disk_capacity=`` on this machine."""

from __future__ import annotations

import os
from typing import Any

from di_store import _core
from di_store.base.errors import StoreError, shown
from di_store.base.sizes import format_size, parse_size

LEAST_BYTES = 64 << 20
"""The least `disk_capacity`: sixteen files of the least size."""

LEAST_WRITES = 10**9
"""The least `write_budget`. With it, the budget for one piece of a write accumulates in ten minutes."""

_MOST_PATH = 1000


def path_text(path: Any, option: str = "path") -> str:
    """A path as text, as it was given.

    Raises:
        TypeError: the value is no path. ValueError: nothing can have that name.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"{option}={shown(path)}: give a path, as text or as a pathlib.Path") from None
    try:
        name = os.fsencode(text)
    except UnicodeError:
        raise ValueError(f"{option}={shown(path)} is not a path: it cannot be encoded") from None
    if not name:
        raise ValueError(f'{option}="" is empty: give a path')
    if b"\0" in name:
        raise ValueError(f"{option}={shown(path)} is not a path: it contains a NUL character")
    return str(text)  # no subclass of str, whose bytes a pattern may take for a buffer


def core_path(path: Any, option: str = "path") -> str:
    """As `path_text`, for files that the core opens: its paths are UTF-8."""
    text = path_text(path, option)
    try:
        text.encode()
    except UnicodeError:
        raise ValueError(f"{option}={shown(path)}: give a path that is valid UTF-8") from None
    return text


def disk_folder(disk: Any, disk_capacity: Any) -> tuple[str, int]:
    """The folder of a store's files as an absolute path, and the limit on their bytes; "" and 0: no disk tier.

    Args:
        disk: the folder, created if its parent exists; None: no disk tier.
        disk_capacity: bytes, "100GiB", or a share such as "80%" of the space that is free on its filesystem. Files that
            the folder already holds count as free. None: half of the free space.

    Raises:
        ValueError, TypeError: no path, no size, or less than `LEAST_BYTES`. StoreError: the parent does not exist.
    """
    if disk is None:
        if disk_capacity is not None:
            raise ValueError("disk_capacity= limits the files in the folder disk=: give disk=PATH too")
        return "", 0
    folder = os.path.abspath(core_path(disk, "disk"))
    if not folder.strip("/"):
        raise ValueError(f"disk={shown(disk)} is the root of the filesystem: give a folder that only this store uses")
    if len(os.fsencode(folder)) > _MOST_PATH:
        raise ValueError(f"disk={shown(disk)} is longer than {_MOST_PATH} bytes: give a shorter path")
    parent = folder if os.path.isdir(folder) else os.path.dirname(folder)
    if not os.path.isdir(parent):
        raise StoreError(f"disk={folder}: the folder {parent} does not exist", remedy="make it, or choose another path")
    return folder, _capacity(parent, disk_capacity)


def new_capacity(folder: str, disk_capacity: Any) -> int:
    """`disk_capacity` in bytes, for a store whose files lie in `folder`. ValueError if `folder` is ""."""
    if not folder:
        raise ValueError("disk_capacity= is for a store with a disk tier: open it with disk=PATH")
    return _capacity(folder, disk_capacity)


def budget_of_writes(folder: str, write_budget: Any) -> int:
    """`write_budget` in bytes per day, for a store whose files lie in `folder`; None: 0, no limit.

    Raises:
        ValueError, TypeError: no size, less than `LEAST_WRITES`, or `folder` is "", without a disk tier.
    """
    if write_budget is None:
        return 0
    if not folder:
        raise ValueError("write_budget= is for a store with a disk tier: open it with disk=PATH")
    budget = parse_size(write_budget, option="write_budget")
    if budget < LEAST_WRITES:
        raise ValueError(
            f"write_budget={shown(write_budget)} is {format_size(budget)} a day; the minimum is "
            f"{format_size(LEAST_WRITES)}"
        )
    return budget


def _capacity(folder: str, given: Any) -> int:
    # Files that the store has there already count as free: opened again, it gets as much as before.
    room = _core.disk_room(folder)
    capacity = room // 2 if given is None else parse_size(given, total=max(1, room), option="disk_capacity")
    if capacity < LEAST_BYTES:
        least = f"the files of a store need at least {format_size(LEAST_BYTES)}"
        if given is None:
            raise ValueError(
                f"the filesystem of {folder!r} has only {format_size(room)} free: by default a store takes "
                f"half of the free space, and {least}; free space, raise disk_capacity=, or give disk= a "
                "folder on another filesystem"
            )
        raise ValueError(f"disk_capacity={shown(given)} is {format_size(capacity)}; {least}")
    return capacity
