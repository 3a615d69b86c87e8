"""Tables of this store that another node has taken over: every process with a handle of such a table gets an error.

The directory then names the other node, so later rows here would be lost silently. The other node cannot notify a store
that is cut off. So the process that serves that store asks the directory, and so does `ClusterStore.sync`. If nobody
serves the store any more, one of the processes that are attached to it as a node asks. They mark the table's header:
the core then refuses rows, draws and priorities in every process of this machine, and a process that is attached as a
node ends its handles of the table.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref

from di_store import _core
from di_store.base.errors import NodeUnavailable, StoreClosed, StoreError, TableNotFound
from di_store.checkpoint.store import durable
from di_store.checkpoint.store.home import read_home
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import TABLE, TableEntry, unpacked
from di_store.cluster.directory_entries import keep_entry, own_entries
from di_store.replay.local_table import local_table
from di_store.replay.outdated import why_outdated
from di_store.runtime import chores
from di_store.runtime.waits import logger
from di_store.session import Session

LOOK_SECONDS = 3.0
"""How often the process that serves a store asks the directory."""
ASK_SECONDS = 2.0
"""How long the directory may take to answer."""
UNASKED_SECONDS = 8.0
"""If nobody has asked for so long, nobody serves the store: any process of it asks."""
ASKED = "directory.asked"
"""A file in the folder of durable tables, touched by who asks."""
_LOCK_SECONDS = 10.0


class Watch:
    """Ends the handles that a process has of tables that were taken over, and asks the directory if nobody else does.

    Its work is done by the background thread of the store, from `begin` on and as long as the watch is referred to.

    Args:
        session: session of the handles; the store has a disk tier.
        cluster: cluster of the store.
    """

    def __init__(self, session: Session, cluster: Cluster) -> None:
        self._session, self._cluster = session, cluster
        self._due, self._told = 0.0, False
        _watches.add(self)

    def begin(self) -> None:
        """Called with the first handle of a table, and with each other one."""
        chores.run_ahead(self._session.arena)

    def is_of(self, arena: _core.Arena) -> bool:
        """Whether this is the store's attachment."""
        try:
            return self._session.arena is arena
        except StoreClosed:
            return False

    def look(self, arena: _core.Arena) -> None:
        """Do what is due. Called several times a second."""
        self._session.end_some(why_outdated)
        if (now := time.monotonic()) >= self._due:
            self._due = now + LOOK_SECONDS
            if _unasked(arena) > UNASKED_SECONDS:
                chores.run_beside(arena, _ask)

    def ask(self) -> None:
        """Ask the directory; what goes wrong is logged once."""
        try:
            ask(self._session, self._cluster)
        except (NodeUnavailable, StoreClosed):
            pass  # who takes over needs the directory too
        except (StoreError, OSError) as error:
            if not self._told:
                logger.warning("this process cannot check whether other nodes have taken over its tables: %s", error)
            self._told = True


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


def _of(arena: _core.Arena) -> list[Watch]:
    return [each for each in list(_watches) if each.is_of(arena)]


def _look(arena: _core.Arena) -> None:
    for each in _of(arena):
        each.look(arena)


def _ask(arena: _core.Arena) -> None:
    for each in _of(arena)[:1]:
        each.ask()


chores.on_look(_look)


def _unasked(arena: _core.Arena) -> float:
    """Seconds since somebody asked; 0: the store has never written a durable table, so nobody can have taken it."""
    folder = durable.folder_of(arena.disk)
    try:
        return abs(time.time() - os.stat(folder.at(ASKED)).st_mtime)
    except OSError:
        return float("inf") if os.path.isdir(folder.path) else 0.0


def ask(session: Session, cluster: Cluster) -> None:
    """`give_up`, for all processes of the store: none of them needs to ask for a while. Raises as `give_up`."""
    if disk := session.arena.disk:
        with contextlib.suppress(OSError):  # nothing was written yet, or the disk is full
            durable.folder_of(disk).touch(ASKED)
    give_up(session, cluster, ASK_SECONDS)


def taken_over(session: Session) -> set[str]:
    """The tables of a store that another node has taken over. Makes no call."""
    arena = session.arena
    tables = {name: arena.table(name) for name in arena.tables()}
    return {name for name, table in tables.items() if table is not None and table.taken_over}


def give_up(session: Session, cluster: Cluster, timeout: float | None) -> None:
    """Refuse rows, draws and priorities for tables of this store that, in the directory, belong to another node.

    Raises:
        NodeUnavailable: the directory does not answer.
    """
    kept = {key: entry for key, entry in own_entries(session).items() if key.startswith(TABLE)}
    if not kept:
        return
    now = cluster.directory.listed(TABLE, timeout)
    uuids = {session.uuid}
    if disk := session.arena.disk:
        uuids.update(read_home(durable.folder_of(disk)).uuids)
    for key, entry in kept.items():
        was = unpacked(entry, TableEntry)
        if key not in now or not _is_elsewhere(unpacked(now[key], TableEntry), was, uuids):
            continue
        _give_up(session, key.removeprefix(TABLE), was.maker)
        # Else a directory whose entries are lost is made from this one too.
        with contextlib.suppress(StoreError):  # the agent is away: the next look does it
            keep_entry(
                cluster.sessions,
                cluster.here,
                key,
                None,
                timeout,
                what="directory entry of a table that another node has",
                only=entry,
            )


def _is_elsewhere(now: TableEntry, was: TableEntry, uuids: set[str]) -> bool:
    """Whether the directory names other nodes; `uuids`: of this store and of stores whose tables it took over.

    A missing entry decides nothing: the table was dropped, or the directory has lost its entries.
    """
    return not now.dropped and (now.maker != was.maker or uuids.isdisjoint(now.shards))


def _give_up(session: Session, name: str, maker: str) -> None:
    try:
        handle = local_table(session, name, 0).open()
    except TableNotFound:  # it was dropped here
        return
    if handle.identity == maker and not handle.native.taken_over:
        handle.native.give_up(_LOCK_SECONDS)
        logger.warning(
            "another node has taken over table %r: it lacks the rows that were written to this store since then", name
        )
