"""Opening, attaching to and listing stores."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from di_store import _core
from di_store._core import Mode
from di_store.base import config
from di_store.base.disk import budget_of_writes, disk_folder
from di_store.base.errors import AccessDenied, StoreError, StoreNotFound, Timeout, shown
from di_store.base.frozen import dataclass
from di_store.base.sizes import budget_bytes, format_size, parse_size
from di_store.checkpoint.store import durable
from di_store.observe.machine import Holders, pids_of, session_stats
from di_store.observe.stats import StoreStats
from di_store.runtime import waits
from di_store.runtime.waits import Wait, check_timeout
from di_store.session import Session
from di_store.store.handle import Store
from di_store.store.local import LocalStore, session_of

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MODES = {"rw": Mode.OPEN, "x": Mode.NEW, "r": Mode.ATTACH}
_LOOK_SECONDS = 0.05
LOCK_SECONDS = 5.0
"""How long attaching with a timeout of 0 may still wait for the folder's lock, or a store that is being made."""


@dataclass(frozen=True)
class StoreInfo:
    """A store of this machine.

    Attributes:
        name: as `open` takes it.
        pids: live processes that have the store open.
        bytes: memory that the store has committed.
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
        memory: hard limit on the memory that the store commits, metadata included: bytes, "4GiB", or a share of the
            memory that machine and cgroup allow. "fit": 256 MiB for objects and weights, plus the reserve of each new
            table. An existing store keeps its own limit.
        mode: "rw" opens the store or creates it; "x" creates it and fails if it exists; "r" opens it and only reads.
        seed: seed of all random choices in the store; None: a random seed.
        disk: folder on a local drive for data that exceeds memory; it belongs to one store. It is created if its parent
            exists. None: everything stays in memory. An existing store keeps its own folder. If an earlier store used
            the folder, its tables, objects and weights with ``durability="disk"`` are restored.
        disk_capacity: limit on the files in `disk`: bytes, "100GiB", or a share of the space that is free there. Files
            that the folder already holds count as free. None: half of the free space.
        staging: limit on the bytes of batches that all loaders of this handle prefetch together, "1GiB"; each loader
            holds at least one batch. Only for a store with a disk tier. None: 256 MiB, or an eighth of the store's
            memory if that is less.
        write_budget: bytes of rows that may be written to disk per day, "100GB", to spare the drive; up to an hour's
            share may be written at once. When the budget is used up, inserts that need room wait, and no item is
            evicted. Checkpoints do not wait. An existing store keeps its own budget; `Store.resize` changes it. None:
            no limit.

    If another process is still creating the store, for example with `restore`, this call waits until the store is
    complete.

    Raises:
        StoreNotFound: the store does not exist, with mode "r". AccessDenied: a process that this one cannot inspect may
        hold the store. CapacityError: the machine does not have that much memory. StoreError: a store of that name
        exists, with mode "x"; or the process has no file descriptor left (ulimit -n). Timeout: the process that creates
        the store is stopped, or is this process, and takes longer than 60 s.
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
    """`open`; if the call creates the store, `fill` fills it before other processes can find it."""
    folder, capacity = disk_folder(disk, disk_capacity)
    writes = budget_of_writes(folder, write_budget)
    ahead = _staging_bytes(staging)
    if ahead is not None and mode == "r":
        raise ValueError('staging= is for loaders, and mode="r" has none: leave it out')
    config.choice("mode", mode, _MODES)
    number = _MODES[mode]
    if name is None:
        if mode == "r":
            raise ValueError('mode="r" opens an existing store: give its name')
        name, number = f"store-{os.getpid()}-{os.urandom(4).hex()}", Mode.FRESH
    else:
        check_name(name)
    if seed is not None:
        seed = config.count("seed", seed, minimum=0, maximum=2**63 - 1)
    if mode == "x":
        durable.refuse_old(folder)
    budget = 0 if isinstance(memory, str) and memory == "fit" else budget_bytes(memory)
    own = int.from_bytes(os.urandom(8), "little") >> 1 if seed is None else seed

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
            fill(session)
            arena.announce()
    except BaseException:  # also Ctrl-C: nobody finds a store that is not whole
        if arena.hidden:
            arena.abandon()
        raise
    return Store(LocalStore(session))


def _once_made(attempt: Callable[[float], _core.Arena], seconds: float) -> _core.Arena:
    """The store, once its maker has completed it, which may take minutes.

    Raises:
        Timeout: the maker is stopped, or is this process. StoreNotFound, AccessDenied: there is no such store.
    """
    while True:
        try:
            return attempt(seconds)
        except StoreNotFound as error:
            raise explained(error) from None
        except Timeout as error:
            mine = error.culprit == f"pid {_core.proc_pid()}"
            if mine or "is still being made by" not in error.message or "stopped" in (error.culprit or ""):
                raise
            waits.logger.warning("%s", error.message)


def attach(name: str, *, timeout: float | None = 0, staging: int | str | None = None) -> Store:
    """A handle of an existing store.

    Args:
        name: name of the store.
        timeout: seconds to wait for the store; None: no limit.
        staging: limit for this handle's loaders, as in `open`.

    Raises:
        StoreNotFound: the store does not exist within `timeout` seconds. Timeout: another process is still creating the
        store, for example from a checkpoint. LayoutMismatch: another version of Di-store made the store. AccessDenied:
        a process that this one cannot inspect may hold the store.
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
            return Store(LocalStore(Session(arena, staging=ahead)))
        except StoreNotFound as error:
            if wait.left <= 0:
                raise explained(error) from None
            why = f"no live process holds a store named {name!r}"
        except Timeout as error:
            if wait.left <= 0:
                raise
            why = error.message
        wait.sleep(_LOOK_SECONDS, why)


def _staging_bytes(staging: Any) -> int | None:
    return None if staging is None else parse_size(staging, option="staging")


def _check_staging(staging: int | None, arena: _core.Arena) -> None:
    """Refuse `staging=` if it would have no effect."""
    if staging is not None and not arena.disk:
        raise ValueError(
            f"staging={format_size(staging)} is for loaders that read ahead from disk, and store {arena.name!r} has no "
            "disk tier: leave it out (prefetch= says how many batches they hold), or open the store with disk=PATH"
        )


def explained(error: StoreNotFound) -> StoreNotFound | AccessDenied:
    """The error for a store that was not found; it names processes that may hold it but cannot be inspected."""
    hidden = _core.hidden_holders()
    mine = [each.pid for each in hidden if each.uid == os.geteuid()]
    if mine:
        pids = ", ".join(map(str, mine))
        return AccessDenied(
            f"{error.message}, but pid {pids} of this user holds one and cannot be inspected (another "
            "group, or not dumpable)",
            remedy="run all processes as the same user and group, or let `di-store hold NAME` hold the store too; "
            + error.remedy,
        )
    if hidden:
        theirs = holders_text([(each.pid, each.uid) for each in hidden])
        return StoreNotFound(
            f"{error.message}; {theirs} holds a store that this user may not see",
            remedy=f"all processes of a store must run as the same user. {error.remedy}",
        )
    return error


def hidden_holders() -> list[tuple[int, int | None]]:
    """Processes that hold stores which this process may not see: pid, and uid (None: another user's, not known)."""
    return [(each.pid, each.uid) for each in _core.hidden_holders()]


def holders_text(hidden: list[tuple[int, int | None]]) -> str:
    """What `hidden_holders` gives, in words."""
    return ", ".join(f"pid {pid} of {'another user' if uid is None else f'uid {uid}'}" for pid, uid in hidden)


def list_stores() -> list[StoreInfo]:
    """Stores that live processes of this user hold, sorted by name. Stores that were removed by force are left out."""
    found: dict[tuple[str, str], list[_core.Holder]] = {}
    for holder in _core.list_holders():
        if not holder.removed:
            found.setdefault((holder.name, holder.uuid), []).append(holder)
    return [
        StoreInfo(name, pids_of(holders), max(each.committed for each in holders))
        for (name, _), holders in sorted(found.items())
    ]


def attach_held(name: str, holders: Holders, timeout: float) -> Store:
    """A handle that only reads, without a look through all processes of the machine, which `attach` takes.

    Args:
        name: name of the store.
        holders: the processes that hold it, as `held_stores` has found them.
        timeout: seconds to wait for locks.

    Raises:
        StoreNotFound: none of these processes holds that store any more. StoreError: it cannot be attached to.
    """
    return Store(LocalStore(Session(_core.Arena.attach(name, holders, timeout), readonly=True)))


def remove(store: Store) -> None:
    """Remove a store that other processes may still hold: their calls raise `StoreClosed`."""
    session_of(store).arena.remove()


def is_made_here(store: Store) -> bool:
    """Whether this process has made the store."""
    return session_of(store).arena.created


def pins(store: Store) -> list[tuple[int, bytes, bool, int, int]]:
    """The objects that processes are reading: client slot, id, whether it is weights, bytes, and number of pins."""
    return session_of(store).arena.pins()


def stats_without_locks(store: Store) -> StoreStats:
    """`Store.stats` without what takes a lock: the masses of tables, and the lengths of ragged values."""
    return session_stats(session_of(store), locks=False)


def weights(store: Store) -> list[tuple[str, int, int, list[tuple[int, bytes, int | None]]]]:
    """Published weights: name, newest and oldest version; number, id and bytes of the newest 16 versions.

    Bytes are 0 for a version that is gone, and None while another process holds the heap's lock.
    """
    return session_of(store).arena.weights()


def check_held(store: Store) -> None:
    """Raise `StoreClosed` if the store was removed."""
    session_of(store).arena.enter()


def other_pids(pids: Iterable[int]) -> list[int]:
    """The pids in `pids`, as `list_stores` gives them, sorted and without this process's pid."""
    return sorted(set(pids) - {_core.proc_pid()})


def check_name(name: Any) -> None:
    """ValueError unless `name` can name a store."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.strip("."):
        raise ValueError(
            f"name={shown(name)}: a store's name is 1 to 100 letters, digits, '.', '_' or '-', and no path"
        )
