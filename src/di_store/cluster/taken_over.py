"""Tables of this store that another node has taken over: every process with a handle of such a table gets an error.

The directory then names the other node, so later rows here would be lost silently. The other node cannot notify a store
that is cut off. So the process that serves that store asks the directory, and so does `ClusterStore.sync`. They mark
the table's header, and every process of this machine gets `TableNotFound` from its next call.
"""

from __future__ import annotations

import contextlib

from di_store.base.errors import StoreError, TableNotFound
from di_store.checkpoint.store import durable
from di_store.checkpoint.store.home import read_home
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import TABLE, TableEntry, unpacked
from di_store.cluster.directory_entries import keep_entry, own_entries
from di_store.replay.local_table import local_table
from di_store.runtime.waits import logger
from di_store.session import Session

_LOCK_SECONDS = 10.0


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
