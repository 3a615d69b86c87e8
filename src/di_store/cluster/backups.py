"""Backups: the durable tables of this machine's store, on the disks of other nodes. `ClusterStore.sync` makes them.

A backup is the files of the checkpoint that the store keeps in its own folder. Files that a peer already has are not
sent again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, NodeUnavailable, StoreError, TableNotFound, Timeout
from di_store.checkpoint.helpers import THREADS, with_helpers
from di_store.checkpoint.store import durable
from di_store.checkpoint.store.files import one_at_a_time, reading
from di_store.checkpoint.store.home import NAME, Home, read_home, write_home
from di_store.checkpoint.store.manifest import StoreManifest
from di_store.checkpoint.tree.folder import MANIFEST, Folder
from di_store.client.backup import PART_BYTES, Backup, BackupFile
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import TABLE, TableEntry, unpacked
from di_store.cluster.directory_entries import own_entries
from di_store.cluster.node import Node
from di_store.cluster.objects import ranked
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.cluster.taken_over import give_up, taken_over
from di_store.runtime.deadline import Deadline
from di_store.session import Session

LOCK = "backup.lock"
"""Locked by the process that sends the folder's files."""
_JUST_NOW_SECONDS = 1.0
"""A file that has changed within this time may change again and keep the same time of change."""
_RETURN_SECONDS = 5.0  # how long `copies` waits for nodes that do not answer now


class Backups:
    """Makes the backups of one store. Thread-safe."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session
        self._last: set[str] = set()  # uuids of the nodes that this process made the last ones on
        self._lost = taken_over(session)  # of which this handle's user knows that another node has them

    def sync(self, copies: int, timeout: float | None) -> None:
        """`ClusterStore.sync`."""
        arena, deadline = self._session.writable(), Deadline(timeout)
        durable.sync(arena, deadline.left)
        if not arena.sync_every_ms:
            return
        folder = durable.folder_of(arena.disk)
        with one_at_a_time(folder, LOCK, deadline.left, "sends backups", "raise timeout="):
            home = self.note_home(folder)
            if copies > 1:
                self._send_all(folder, home, copies - 1, deadline)
        self._check_own(deadline)

    def _send_all(self, folder: Folder, home: Home, wanted: int, deadline: Deadline) -> None:
        nodes = self._nodes(wanted, deadline)
        with reading(folder):
            files = _Files(folder)
            backup = Backup(
                home.uuids,
                socket.gethostname(),
                self._cluster.here.address,
                files.manifest.number,
                files.manifest.made,
                files.versions(),
            )
            for node in nodes:
                self._send(node, files, backup, deadline)
        self._drop_others(nodes, home, deadline)

    def _check_own(self, deadline: Deadline) -> None:
        """Check last that no other node has these tables: rows that its table lacks must not count as safe.

        Raises:
            TableNotFound: another node has a table of this store now.
        """
        # If the directory is away this does not wait for it: who takes over needs it too.
        with suppress(NodeUnavailable):
            give_up(self._session, self._cluster, deadline.at_most(LOOK_SECONDS))
        if lost := taken_over(self._session) - self._lost:
            self._lost |= lost
            raise TableNotFound(
                f"another node of the cluster has table {', '.join(map(repr, sorted(lost)))} now, and lacks "
                "the rows that were written here since then",
                remedy="store.table() opens it there; di_store.attach(NAME).table() reads the rows here",
            )

    def note_home(self, folder: Folder, *, settled: bool = False) -> Home:
        """Write beside these tables the data with which they rejoin the cluster, wherever they are restored.

        `settled`: whether the directory has all these tables on this node. The caller holds the folder's `LOCK`.
        """
        before, uuid, entries = read_home(folder), self._session.uuid, own_entries(self._session)
        pending = not settled and bool(before.entries) and (before.pending or before.uuids[0] != uuid)
        if pending:
            entries = {**before.entries, **entries}
        makers = {
            key.removeprefix(TABLE): unpacked(entry, TableEntry).maker
            for key, entry in entries.items()
            if key.startswith(TABLE)
        }
        uuids = before.uuids if uuid in before.uuids else (uuid, *before.uuids)
        home = Home(uuids, entries, makers, pending)
        write_home(folder, home)
        return home

    def _nodes(self, wanted: int, deadline: Deadline) -> list[Node]:
        """The wanted number of other nodes that answer and have a disk; mostly the same ones each time.

        Raises:
            CapacityError: there are fewer such nodes.
        """
        returning = Deadline(_RETURN_SECONDS)
        while True:
            others = self._cluster.others(deadline.left, fresh=True)
            found = [each for each in others if self._has_disk(each, deadline)]
            if len(found) >= wanted:
                return ranked(found, self._cluster.here.address.encode())[:wanted]
            if wanted >= self._cluster.count_seen() or deadline.left == 0 or not returning.pause():
                raise CapacityError(
                    f"copies={wanted + 1}: besides this node, only {len(found)} nodes that answer have a disk",
                    remedy=(
                        "run `di-store serve --disk` on more nodes; sync(copies=1) needs only this node's own disk"
                    ),
                )

    def _has_disk(self, node: Node, deadline: Deadline) -> bool:
        try:
            with self._cluster.sessions.calling(node, deadline.at_most(LOOK_SECONDS)) as session:
                return session.channel.welcome.tiered
        except (NodeUnavailable, Timeout):
            return False

    def _send(self, node: Node, files: _Files, backup: Backup, deadline: Deadline) -> None:
        """Have a node keep a backup. The node keeps the previous one until this one is complete."""
        what, packed, uuid = "sync", backup.pack(), backup.uuids[0]
        with self._cluster.sessions.calling(node, deadline.left) as session:
            begun = session.call("backup_begin", {"backup": packed}, timeout=deadline.left, what=what)
            token = begun["token"]

            def send(some: Iterator[tuple[str, int]]) -> None:
                for name, at in some:
                    data = files.part(name, at, backup.files[name].bytes)
                    if data.any():  # files have all their blocks from the start
                        part = {"uuid": uuid, "token": token, "name": name, "at": at, "data": data}
                        session.call("backup_part", part, timeout=deadline.left, what=what)

            with_helpers(backup.parts(begun["missing"]), send, THREADS)
            session.call(
                "backup_commit", {"backup": packed, "token": token}, timeout=deadline.left, what=what, once=True
            )

    def _drop_others(self, nodes: list[Node], home: Home, deadline: Deadline) -> None:
        """Have nodes that are no longer chosen drop their backup, which would become outdated."""
        chosen = {node.uuid for node in nodes}
        if chosen == self._last:
            return
        for node in self._cluster.last_seen():
            if node.uuid not in chosen:
                seconds = deadline.at_most(LOOK_SECONDS)
                try:
                    with self._cluster.sessions.calling(node, seconds) as session:
                        session.call("backup_drop", {"uuids": list(home.uuids)}, timeout=seconds, what="sync")
                except (StoreError, TypeError):  # TypeError: an older agent has no such call
                    pass  # it is away, and may have an old one: whoever looks for the newest takes the one of `nodes`
        self._last = chosen


class _Files:
    """The files of one checkpoint, as they are sent. The folder's `READING` lock keeps the files.

    The manifest is read once, because the next checkpoint may replace it at any time with one that names other files.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._texts = {name: folder.small(name) or b"" for name in (MANIFEST, NAME)}
        self.manifest = StoreManifest.unpack(folder.at(MANIFEST), self._texts[MANIFEST])

    def versions(self) -> dict[str, BackupFile]:
        """All files by name."""
        texts = {name: BackupFile(len(text), "") for name, text in self._texts.items()}
        return texts | {name: self._version(name) for name in sorted(self.manifest.files())}

    def part(self, name: str, at: int, size: int) -> Array:
        """The bytes at a place of a file of this length, at most `PART_BYTES`."""
        wanted = min(PART_BYTES, size - at)
        if (text := self._texts.get(name)) is not None:
            return np.frombuffer(text, np.uint8, wanted, at)
        with open(self._folder.at(name), "rb", buffering=0) as file:
            data = np.fromfile(file, np.uint8, wanted, offset=at)
        if len(data) < wanted:
            raise StoreError(
                "a file of the durable tables became shorter while it was sent", remedy="call sync() again"
            )
        return data

    def _version(self, name: str) -> BackupFile:
        """Of a file.

        The bytes sent later contain at least the file's present bytes. Files shared with the store's disk tier still
        grow, after the part that the checkpoint needs; all other files never change.
        """
        status = os.stat(self._folder.at(name))
        if time.time() - status.st_mtime < _JUST_NOW_SECONDS and name.startswith("disk-"):
            return BackupFile(status.st_size, "")
        return BackupFile(status.st_size, f"{status.st_ino:x}-{status.st_mtime_ns:x}")
