"""Restores the tables of a lost node in a store that takes its place (docs/backups.md).

`fetch` copies a backup from the node that has it into the folder of a store that does not exist yet, as if the folder
had always belonged to that store. So `di_store.open` restores the tables. `settling` makes the directory point to this
node. If either is killed, the next start of the node continues.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from di_store.base.errors import CorruptData, NodeUnavailable, StoreClosed, StoreError, shown
from di_store.checkpoint.helpers import THREADS, with_helpers
from di_store.checkpoint.store import durable
from di_store.checkpoint.store.files import full_is_told, one_at_a_time
from di_store.checkpoint.store.home import Home, read_home, write_home
from di_store.checkpoint.tree.folder import MANIFEST, Folder
from di_store.client.backup import PART_BYTES, Backup
from di_store.client.sessions import Credentials
from di_store.cluster.backups import LOCK
from di_store.cluster.directory import TABLE, Directory, TableEntry, unpacked
from di_store.cluster.joining import attach
from di_store.cluster.node import Node
from di_store.cluster.session_pool import LOOK_SECONDS, SessionPool
from di_store.cluster.static import StaticDirectory
from di_store.cluster.store import ClusterStore
from di_store.runtime.background import look_again
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import logger
from di_store.server.supervisor import Serving, addresses_of, credentials_of

FIND_SECONDS = 60.0
"""How long a node that has a backup may take to answer."""
OTHERS_SECONDS = 5.0
"""After a backup was found: how long to wait for other nodes, which may have a newer one."""
CALL_SECONDS = 60.0
SETTLE_SECONDS = 10.0
_PAUSE_SECONDS = 0.5

Found = tuple[Backup, Node]


def fetch(disk: str, wanted: str, serving: Serving, timeout: float = FIND_SECONDS) -> bool:
    """Copy the tables of a lost node into the folder of a store that will be opened.

    Returns whether there was a backup.

    Args:
        disk: the folder. If the folder already has tables, these are the newest ones, and nothing is done.
        wanted: the node, as in ``node=``: its machine, its store, its ``host:port`` or its uuid.
        serving: how the new node will be served.
        timeout: seconds to wait for an answer from a node with a backup.

    Raises:
        ValueError: several nodes have that name; or no cluster is named. NodeUnavailable: no node that answers has a
        backup. StoreError: the node is not lost. StoreFull: no room. CorruptData: the backup is incomplete.
    """
    folder = durable.folder_of(os.path.abspath(disk))
    if os.path.exists(folder.at(MANIFEST)):
        return False
    sessions = SessionPool(Credentials(*credentials_of(serving)))
    directory = directory_of(serving, sessions)
    deadline = Deadline(timeout)
    try:
        while True:
            backup, node = _found(directory, sessions, wanted, len(serving.peers), deadline)
            try:
                _copy(sessions, backup, node, folder)
            except NodeUnavailable as error:
                if deadline.left == 0:
                    raise
                logger.warning("the backup of node %s could not be copied: %s", wanted, error.message)
            else:
                return True
    finally:
        directory.close()
        sessions.close()


def has_directory(serving: Serving) -> bool:
    """Whether the store is a node of a cluster in which a node may take over another one: not in a Ray cluster."""
    return bool(serving.peers) or (serving.join or "").startswith("etcd://")


def directory_of(serving: Serving, sessions: SessionPool) -> Directory:
    """The directory of the node's cluster.

    Raises:
        ValueError: the store has no cluster, or its cluster is Ray's.
    """
    if serving.peers:
        return StaticDirectory(addresses_of(serving.peers), sessions)
    kind, _, where = (serving.join or "").partition("://")
    if kind != "etcd":
        raise ValueError("--rejoin is for a node of a cluster: give --peers, or --join etcd://...")
    from di_store.cluster.etcd import EtcdDirectory  # a package that only this kind needs

    return EtcdDirectory(where)


def _found(directory: Directory, sessions: SessionPool, wanted: str, listed: int, deadline: Deadline) -> Found:
    """The newest backup of a node, and the nodes that have it.

    `listed`: number of nodes, including this one; 0: unknown.
    """
    others = Deadline(OTHERS_SECONDS)
    while True:
        found: list[Found] = []
        nodes = directory.nodes(deadline.left)
        answered = 0
        for node in nodes:
            with suppress(NodeUnavailable, TimeoutError):
                found += [(each, node) for each in _backups(sessions, node) if _node(each).is_called(wanted)]
                answered += 1
        if found and (answered + 1 >= listed > 0 or others.left == 0 or deadline.left == 0):
            return _newest(found, sessions, wanted)
        if not deadline.pause(_PAUSE_SECONDS):
            raise NodeUnavailable(
                f"none of the nodes that answer has a backup of node {shown(wanted)}",
                remedy=(
                    "start the nodes that hold its backups; `store.sync()` makes backups; without --rejoin "
                    "this node starts empty"
                ),
            )


def _backups(sessions: SessionPool, node: Node) -> list[Backup]:
    with sessions.calling(node, LOOK_SECONDS) as session:
        return [Backup.unpack(each) for each in session.call("backups", timeout=LOOK_SECONDS, what="rejoin")]


def _node(backup: Backup) -> Node:
    return Node(backup.uuids[0], backup.machine, backup.address)


def _newest(found: list[Found], sessions: SessionPool, wanted: str) -> Found:
    """The newest of the backups of one node and of nodes whose tables it took over."""
    before = {uuid for backup, _ in found for uuid in backup.uuids[1:]}
    left = [each for each in found if each[0].uuids[0] not in before]
    if len({backup.address for backup, _ in left}) > 1:
        which = ", ".join(sorted({_node(backup).place for backup, _ in left}))
        raise ValueError(f"--rejoin {wanted} is the name of several nodes: give one of {which}")
    chosen = max(left, key=lambda each: (each[0].made, each[0].number))
    lost = _node(chosen[0])
    if _answers(sessions, lost):  # also one that the directory does not list
        raise StoreError(f"node {lost.place} answers: it is not lost", remedy="stop it before another node takes over")
    return chosen


def _answers(sessions: SessionPool, node: Node) -> bool:
    try:
        sessions.of(node, LOOK_SECONDS)
    except StoreError:
        return False
    return True


def _copy(sessions: SessionPool, backup: Backup, node: Node, to: Folder) -> None:
    """Copy a backup into a folder, which gets its name once it is complete."""
    partial = Folder(to.path + ".partial")
    with full_is_told(partial.path):
        shutil.rmtree(partial.path, ignore_errors=True)
        partial.make()
        for name, each in backup.files.items():
            partial.create(name)
            os.truncate(partial.at(name), each.bytes)

        def copy(some: Iterator[tuple[str, int]]) -> None:
            for name, at in some:
                _copy_part(sessions, backup, node, name, at, partial)

        with_helpers(backup.parts(backup.files), copy, THREADS)
        for name in backup.files:
            with open(partial.at(name), "rb") as file:
                os.fsync(file.fileno())
        partial.sync()
        shutil.rmtree(to.path, ignore_errors=True)  # a folder without tables
        os.rename(partial.path, to.path)
        Folder(os.path.dirname(to.path)).sync()


def _copy_part(sessions: SessionPool, backup: Backup, node: Node, name: str, at: int, to: Folder) -> None:
    what = f"rejoin from {node.place}"
    wanted = min(PART_BYTES, backup.files[name].bytes - at)
    asked = {"uuid": backup.uuids[0], "number": backup.number, "name": name, "at": at}
    with sessions.calling(node, CALL_SECONDS) as session:
        data = session.call("backup_read", asked, timeout=CALL_SECONDS, what=what)
    if len(data) != wanted:
        raise CorruptData(f"{what}: the file {name} became shorter during the copy", remedy="take another backup")
    if data.any():
        with open(to.at(name), "r+b") as file:
            file.seek(at)
            file.write(data)


# -- when it is served ------------------------------------------------------------------------------------------------


@contextmanager
def settling(name: str, disk: str | None, serving: Serving) -> Iterator[threading.Event]:
    """While the block runs, a thread registers in the directory that this node has the tables in its folder.

    It does so only if the store's folder has tables. It tries until the directory and this node's agent answer; then
    the event is set.
    """
    stopped, settled = threading.Event(), threading.Event()
    if has_directory(serving) and disk is not None and read_home(durable.folder_of(os.path.abspath(disk))).entries:
        failed = "the tables that this node had before have not rejoined the cluster yet:"
        given = partial(_settle, name, serving, settled), stopped, _PAUSE_SECONDS, failed, (StoreClosed,)
        threading.Thread(target=look_again, args=given, name="di-store rejoin", daemon=True).start()
    else:
        settled.set()
    try:
        yield settled
    finally:
        stopped.set()


def _settle(name: str, serving: Serving, settled: threading.Event) -> bool:
    store = attach(name, token=credentials_of(serving)[0], timeout=SETTLE_SECONDS)
    try:
        took = _settled(store)
    finally:
        store.close()
    if took:
        logger.warning("this node has taken over the tables of a lost node: %s", ", ".join(took))
    settled.set()
    return True


def _settled(store: ClusterStore) -> list[str]:
    """The names of the tables that were taken over.

    Raises:
        StoreError: the directory, or the agent of this machine, does not answer.
    """
    disk = store.node.session.arena.disk
    folder = durable.folder_of(disk)
    if not disk or not read_home(folder).entries:
        return []
    with one_at_a_time(folder, LOCK, SETTLE_SECONDS, "sends backups", "it is tried again"):
        return _settled_alone(store, folder)


def _settled_alone(store: ClusterStore, folder: Folder) -> list[str]:
    home, uuid = read_home(folder), store.node.session.uuid
    if home.uuids[0] == uuid and not home.pending:
        return []
    # First: if this process dies after the change in the directory, the next store finds that these were its own.
    uuids = home.uuids if uuid in home.uuids else (uuid, *home.uuids)
    write_home(folder, Home(uuids, home.entries, home.makers, pending=True))
    directory, took = store.node.cluster.directory, []
    entries_lost = isinstance(directory, StaticDirectory) and directory.lies_with(store.node.cluster.here)
    for key, entry in home.entries.items():
        name = key.removeprefix(TABLE)
        if key.startswith(TABLE) and store.node.session.arena.table(name) is not None:
            was = unpacked(entry, TableEntry)
            if store.node.tables.take_over(name, was, home.uuids, entries_lost, SETTLE_SECONDS):
                took.append(name)
    store.node.backups.note_home(folder, settled=True)
    return sorted(took)
