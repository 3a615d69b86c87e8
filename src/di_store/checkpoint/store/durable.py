"""Data with `durability="disk"`. For tables, a checkpoint in the folder of the disk tier is renewed every few seconds.

Any process that writes to or draws from a table of the store may renew it, one at a time: the background thread of each
process checks the checkpoint's age. `open` with the folder of an ended store restores the tables. Objects and weights
lie in files of their own there (docs/object_log.md), which the core writes and reads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import time
import warnings
import weakref

from di_store import _core
from di_store.base.errors import StoreClosed, StoreError, TableNotFound, Timeout
from di_store.checkpoint.store import capture
from di_store.checkpoint.store.files import full_is_told, locked
from di_store.checkpoint.store.home import read_home
from di_store.checkpoint.store.loading import StoreLoad, read_manifest
from di_store.checkpoint.tree.folder import DURABLE, MANIFEST, Folder
from di_store.policy.settings import Settings
from di_store.replay.local_table import LocalTable
from di_store.replay.serving import settle
from di_store.runtime import chores
from di_store.runtime.waits import CALL_SECONDS, lock_seconds
from di_store.session import Session

_LOG = re.compile(r"objects-[0-9a-f]{8}")
LEAVING_SECONDS = 60.0


def folder_of(disk: str) -> Folder:
    """The folder of a store's durable tables, inside the folder of its disk tier."""
    return Folder(os.path.join(disk, DURABLE))


def refuse_old(disk: str) -> None:
    """StoreError if the folder of a disk tier holds durable data of an earlier store."""
    if not disk:
        return
    tables = os.path.exists(folder_of(disk).at(MANIFEST))
    if tables or (os.path.isdir(disk) and any(_LOG.fullmatch(name) for name in os.listdir(disk))):
        text = f"{disk!r} holds the durable {'tables' if tables else 'objects'} of a store"
        raise StoreError(text, remedy='mode="rw" restores them; or choose another folder')


def begin(arena: _core.Arena) -> None:
    """Called after tables were made: have the durable ones written as often as they require."""
    every = [settings.sync_every for settings in _durable(arena).values()]
    if every:
        arena.sync_every_ms = round(min(every) * 1000)
        _live.add(arena)


def made(session: Session, name: str, settings: Settings, exist_ok: bool, timeout: float | None) -> LocalTable:
    """`Store.create_table` with checked settings."""
    table = settle(session, name, settings, exist_ok, timeout)
    if settings.durability == "disk":
        begin(session.arena)
    return table


def _durable(arena: _core.Arena) -> dict[str, Settings]:
    """The settings of the durable tables, by name."""
    found = {}
    for name in arena.tables():
        table = arena.table(name)
        with contextlib.suppress(TableNotFound):  # dropped meanwhile
            if table is not None and (settings := Settings.from_text(table.config())).durability == "disk":
                found[name] = settings
    return found


def sync(arena: _core.Arena, timeout: float | None) -> None:
    """`Store.sync`."""
    arena.sync_objects(CALL_SECONDS)
    if arena.sync_every_ms:
        folder = folder_of(arena.disk)
        with full_is_told(folder.path):
            folder.make()
        capture.write_locked(arena, folder, timeout, None, lambda: list(_durable(arena)))


def reopen(session: Session) -> None:
    """Restore the durable tables of the store that had this new store's folder before, if there are any.

    Objects and weights are already there. A single warning says how many of them were damaged.

    Raises:
        CapacityError: the tables do not fit. CorruptData: the data in the folder are damaged.
    """
    arena = session.arena
    if arena.damaged_objects:
        text = f"{arena.damaged_objects} durable objects in {arena.disk!r} are damaged and were not restored"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    if arena.foreign_logs:
        text = (
            f"{arena.foreign_logs} files of durable objects in {arena.disk!r} belong to another folder and "
            "were not restored"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    if not arena.tiered or not os.path.exists(folder_of(arena.disk).at(MANIFEST)):
        return
    folder, manifest = read_manifest(folder_of(arena.disk).path)
    StoreLoad(folder, manifest, {}, read_home(folder).makers, own=True).fill(session, None)
    begin(arena)


def before_close(session: Session) -> None:
    """Write durable data before a handle ends: it may be the last one."""
    if not session.ended() and not session.readonly:
        _sync_at_end(session.arena)


def _sync_at_end(arena: _core.Arena) -> None:
    try:
        sync(arena, LEAVING_SECONDS)
    except StoreClosed:
        return
    except (StoreError, OSError) as error:
        text = f"the durable data of store {arena.name!r} was not written when it was closed: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


# -- in the background ------------------------------------------------------------------------------------------------

_live: weakref.WeakSet[_core.Arena] = weakref.WeakSet()
"""Stores in which this process made durable tables, wrote or drew. When the process ends, it writes what is left."""


def _look(arena: _core.Arena) -> None:
    """Start writing if the interval is over. Called now and then by the background thread of each process."""
    if not arena.sync_every_ms:
        return
    _live.add(arena)
    if _age(arena) < arena.sync_every_ms / 1000:
        return
    chores.run_beside(arena, _renew)


def _age(arena: _core.Arena) -> float:
    """Seconds since the durable part was written; a clock that was set back counts as a long time."""
    try:
        age = time.time() - os.stat(folder_of(arena.disk).at(MANIFEST)).st_mtime
    except OSError:
        return float("inf")
    return age if age >= 0 else float("inf")


def _renew(arena: _core.Arena) -> None:
    folder = folder_of(arena.disk)
    try:
        arena.sync_objects(CALL_SECONDS)  # raises if the folder is not in its place any more
        folder.make()
        with locked(folder, 0):
            if _age(arena) >= arena.sync_every_ms / 1000:  # nobody did meanwhile
                capture.write(arena, folder, lock_seconds(CALL_SECONDS), None, list(_durable(arena)))
    except Timeout:  # another process is at it
        return
    except (StoreError, OSError, RuntimeError) as error:
        if not isinstance(error, StoreClosed) and arena not in _warned:
            _warned.add(arena)
            chores.log.warning("the durable tables of store %r cannot be written: %s", arena.name, error)


_warned: weakref.WeakSet[_core.Arena] = weakref.WeakSet()


def _at_exit() -> None:
    for arena in list(_live):
        _sync_at_end(arena)


chores.on_look(_look)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_live.clear)
