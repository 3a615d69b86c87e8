"""Opening, attaching to and listing stores."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from di_store import _core
from di_store._core import Mode
from di_store.base import config
from di_store.base.disk import budget_of_writes, disk_folder
from di_store.base.errors import AccessDenied, StoreError, StoreNotFound, Timeout, shown
from di_store.base.sizes import budget_bytes, format_size, parse_size
from di_store.runtime import waits
from di_store.runtime.waits import Wait, check_timeout
from di_store.session import Session
from di_store.snapshot import durable
from di_store.store import Store

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MODES = {"rw": Mode.OPEN, "x": Mode.NEW, "r": Mode.ATTACH}
_LOOK_SECONDS = 0.05
LOCK_SECONDS = 5.0
"""How long attaching with a timeout of 0 may still wait for the folder's lock, or a store that is being made."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store of this machine.

    Attributes:
        name: as `open` takes it.
        pids: live processes that have it open.
        bytes: of memory that it has committed.
    """

    name: str
    pids: tuple[int, ...]
    bytes: int


def open(
    name: str | None = None,
    *,
    memory: int | float | str = "25%",
    mode: str = "rw",
    seed: int | None = None,
    disk: str | os.PathLike[str] | None = None,
    disk_capacity: int | str | None = None,
    staging: int | str | None = None,
    write_budget: int | str | None = None,
) -> Store:
    """Open a store; create it if it does not exist.

    Args:
        name: letters, digits, ".", "_", "-"; None: a new store with a generated name.
        memory: hard limit on what the store commits, metadata included: bytes, "4GiB", or a share of what machine
            and cgroup allow. "fit": 256 MiB for objects and weights, plus what each new table reserves. A store that
            exists keeps its own limit.
        mode: "rw" create or attach; "x" create, it must not exist; "r" attach and only read.
        seed: of all random choices in the store; None: a random seed.
        disk: folder for what memory does not hold, on a local drive; it belongs to one store. Made if its parent is
            there. None: everything stays in memory. A store that exists keeps its own folder. Tables,
            objects and weights with ``durability="disk"`` of the store that had it before are made again.
        disk_capacity: bytes that its files may take, "100GiB", or a share of what is free there, files that the folder
            has already counted as free; None: half of that.
        staging: bytes of batches that the loaders of this handle hold ahead together, "1GiB"; each holds at least one.
            Only of a store with a disk tier. None: the least of 256 MiB and an eighth of its memory.
        write_budget: bytes a day that rows may be written to disk, "100GB", to spare the drive; an hour's part of them
            at once. When it is used up, inserts that need room wait, and no item is evicted for that. Checkpoints do
            not wait. A store that exists keeps its own; `Store.resize` changes it. None: no limit.

    While another process makes the store, `restore` of a large checkpoint included, this waits as long as it runs.

    Raises:
        StoreNotFound: mode "r", and it does not exist. AccessDenied: it may exist, held by a process that this one may
        not look into. CapacityError: the machine does not have so much memory. StoreError: mode "x", and a store of
        that name exists; or no file descriptor is left to look for it (ulimit -n). Timeout: the process that makes the
        store is stopped, or it is this one, and takes longer than 60 s.
    """
    return open_filled(
        durable.reopen,
        name,
        memory=memory,
        mode=mode,
        seed=seed,
        disk=disk,
        disk_capacity=disk_capacity,
        staging=staging,
        write_budget=write_budget,
    )


def open_filled(
    fill: Callable[[Session], None],
    name: str | None,
    *,
    memory: int | float | str,
    mode: str,
    seed: int | None,
    disk: str | os.PathLike[str] | None,
    disk_capacity: int | str | None,
    staging: int | str | None = None,
    write_budget: int | str | None = None,
) -> Store:
    """`open`; if that makes the store, `fill` brings what it holds before others can find it."""
    folder, capacity = disk_folder(disk, disk_capacity)
    writes = budget_of_writes(folder, write_budget)
    ahead = _staging_bytes(staging)
    if ahead is not None and mode == "r":
        raise ValueError('staging= is for loaders, and mode="r" has none: leave it out')
    config.choice("mode", mode, _MODES)
    number = _MODES[mode]
    if name is None:
        if mode == "r":
            raise ValueError('mode="r" reads a store that is there: give its name')
        name, number = f"store-{os.getpid()}-{secrets.token_hex(4)}", Mode.FRESH
    else:
        check_name(name)
    if seed is not None:
        seed = config.count("seed", seed, minimum=0, maximum=2**63 - 1)
    if mode == "x":
        durable.refuse_old(folder)
    budget = 0 if isinstance(memory, str) and memory == "fit" else budget_bytes(memory)
    own = secrets.randbits(63) if seed is None else seed

    def attempt(seconds: float) -> _core.Arena:
        return _core.Arena.open(name, number, budget, own, seconds, folder, capacity, writes)

    arena = _once_made(attempt, LOCK_SECONDS if mode == "r" else waits.CALL_SECONDS)
    try:
        if folder and arena.disk != folder:
            there = f"its files in {arena.disk}" if arena.disk else "no disk tier"
            raise StoreError(
                f"store {name!r} exists already, with {there}",
                remedy="leave disk= out to attach to it, or choose another name",
            )
        _check_staging(ahead, arena)
        session = Session(arena, seed=seed, readonly=mode == "r", staging=ahead)
        if arena.hidden:
            # mutant: a-store-is-found-before-it-is-whole
            fill(session)
            arena.announce()
    except BaseException:  # also Ctrl-C: nobody finds a store that is not whole
        if arena.hidden:
            arena.abandon()
        raise
    return Store(session)


def _once_made(attempt: Callable[[float], _core.Arena], seconds: float) -> _core.Arena:
    """The store, once the process that makes it has done so: that may take minutes.

    Raises:
        Timeout: that process is stopped, or this one. StoreNotFound, AccessDenied: there is none.
    """
    while True:
        try:
            return attempt(seconds)
        except StoreNotFound as error:
            raise _explained(error) from None
        except Timeout as error:
            mine = error.culprit == f"pid {_core.proc_pid()}"
            if mine or "is still being made by" not in error.message or "stopped" in (error.culprit or ""):
                raise
            waits.logger.warning("%s", error.message)


def attach(name: str, *, timeout: float | None = 0, staging: int | str | None = None) -> Store:
    """A handle of an existing store.

    Args:
        name: the store's.
        timeout: seconds to wait for it; None: no limit.
        staging: of this handle's loaders, as `open` takes it.

    Raises:
        StoreNotFound: it does not exist within `timeout` seconds. Timeout: another process is still making it, from a
        checkpoint for example. LayoutMismatch: another version made it.
        AccessDenied: it may exist, held by a process that this one may not look into.
    """
    check_name(name)
    ahead = _staging_bytes(staging)
    seconds = check_timeout(timeout)
    wait = Wait(None, seconds, "attach")
    while True:
        try:
            left = min(max(0.0, wait.left) or LOCK_SECONDS, waits.LOG_SECONDS)
            arena = _core.Arena.open(name, Mode.ATTACH, 0, 0, left)
            _check_staging(ahead, arena)
            return Store(Session(arena, staging=ahead))
        except StoreNotFound as error:
            if wait.left <= 0:
                raise _explained(error) from None
            why = f"no live process holds a store named {name!r}"
        except Timeout as error:
            if wait.left <= 0:
                raise
            why = error.message
        wait.sleep(_LOOK_SECONDS, why)


def _staging_bytes(staging: Any) -> int | None:
    return None if staging is None else parse_size(staging, option="staging")


def _check_staging(staging: int | None, arena: _core.Arena) -> None:
    """Refuse `staging=` where nothing would heed it."""
    if staging is not None and not arena.disk:
        raise ValueError(
            f"staging={format_size(staging)} is for loaders that read ahead from disk, and store {arena.name!r} has no "
            "disk tier: leave it out, prefetch= says how many batches they hold; or open the store with disk=PATH"
        )


def _explained(error: StoreNotFound) -> StoreNotFound | AccessDenied:
    """The error for a store that was not found; it names processes that may hold it but cannot be inspected."""
    hidden = _core.hidden_holders()
    mine = [each.pid for each in hidden if each.uid == os.geteuid()]
    if mine:
        pids = ", ".join(map(str, mine))
        return AccessDenied(
            f"{error.message}, but pid {pids} of this user holds one and cannot be looked into (another group, or not "
            "dumpable)",
            remedy="run all processes as the same user and group, or let `di-store hold NAME` hold the store too",
        )
    if hidden:
        theirs = ", ".join(
            f"pid {each.pid} of {'another user' if each.uid is None else f'uid {each.uid}'}" for each in hidden
        )
        return StoreNotFound(
            f"{error.message}; {theirs} holds a store that this user may not see",
            remedy=f"a store serves one user: run all processes as that one. {error.remedy}",
        )
    return error


def list_stores() -> list[StoreInfo]:
    """Stores that live processes of this user hold, sorted by name; without those removed by force."""
    pids: dict[tuple[str, str], list[int]] = {}
    size: dict[str, int] = {}
    for holder in _core.list_holders():
        if not holder.removed:
            pids.setdefault((holder.name, holder.uuid), []).append(holder.pid)
            size[holder.uuid] = max(size.get(holder.uuid, 0), holder.committed)
    return [StoreInfo(name, tuple(sorted(set(holders))), size[uuid]) for (name, uuid), holders in sorted(pids.items())]


def remove(store: Store) -> None:
    """Remove a store that other processes may still hold: their calls raise `StoreClosed`."""
    store._session.arena.remove()


def is_made_here(store: Store) -> bool:
    """Whether this process has made the store."""
    return store._session.arena.created


def pins(store: Store) -> list[tuple[int, bytes, bool, int, int]]:
    """What processes are reading: client slot, id, whether it is weights, bytes, and how many pins it has."""
    return store._session.arena.pins()


def check_held(store: Store) -> None:
    """Raise `StoreClosed` if the store was removed."""
    store._session.arena.enter()


def other_pids(pids: Iterable[int]) -> list[int]:
    """The pids, as `list_stores` gives them, without this process's, sorted."""
    return sorted(set(pids) - {_core.proc_pid()})


def check_name(name: Any) -> None:
    """ValueError unless `name` can name a store."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.strip("."):
        raise ValueError(
            f"name={shown(name)}: a store's name is 1 to 100 letters, digits, '.', '_' or '-', and no path"
        )
