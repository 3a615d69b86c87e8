"""Backups of other nodes on this node's disk: the files of their durable tables, each set in a folder of its own.

`backups/UUID.NUMBER` in the folder of the disk tier is a checkpoint: UUID is that of the node's store, NUMBER that of
the checkpoint. `di_store.restore` reads it like any other checkpoint. A new backup is assembled in a folder that ends
in ``.partial``: files that the previous backup also has are linked, others are sent. In the last step the folder gets
its final name, and then the previous backup is removed. Whatever process is killed, one of the two backups is complete.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, StoreError, shown
from di_store.checkpoint.store.files import full_is_told
from di_store.checkpoint.tree.folder import Folder
from di_store.client.backup import PART_BYTES, Backup, is_file
from di_store.server.peer import Peer

FOLDER = "backups"
WORD = "backup.json"
"""The file of each folder that holds the `Backup`."""
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9]+)")
_PARTIAL = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{16}\.partial")

_lock = threading.Lock()
"""Guards the names of all folders, which the agent alone changes. Not held while bytes arrive or are written."""


def _root(peer: Peer) -> str:
    """The folder of all backups; StoreError: this node has no disk."""
    disk = peer.session.arena.disk
    if not disk:
        raise StoreError("this node has no disk to keep a backup on", remedy="di-store serve --disk")
    return os.path.join(disk, FOLDER)


def _whole(root: str) -> dict[str, int]:
    """The numbers of complete backups, by folder."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return {name: int(found[2]) for name in names if (found := _NAME.fullmatch(name)) is not None}


def _newest(root: str, uuid: str) -> tuple[Folder, Backup] | None:
    """The last complete backup of a node."""
    every = [(number, name) for name, number in _whole(root).items() if name.startswith(uuid + ".")]
    for _, name in sorted(every, reverse=True):
        folder = Folder(os.path.join(root, name))
        with contextlib.suppress(CorruptData):
            if (text := folder.small(WORD)) is not None:
                return folder, Backup.unpack(text)
    return None


def _begin(peer: Peer, backup: bytes) -> dict[str, Any]:
    """Begin a backup. Answers with a token for the calls that follow, and which files are missing."""
    coming, root = Backup.unpack(backup), _root(peer)
    uuid, token = coming.uuids[0], secrets.token_hex(8)
    path = os.path.join(root, f"{uuid}.{token}.partial")
    with full_is_told(root), _lock:
        Folder(root).make()
        for name in os.listdir(root):  # of one that was given up: its sender finds that out
            if (found := _PARTIAL.fullmatch(name)) is not None and found[1] == uuid:
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        os.mkdir(path)
        last = _newest(root, uuid)
        missing = [name for name in coming.files if not _taken_over(last, coming, name, path)]
    return {"token": token, "missing": missing}


def _taken_over(last: tuple[Folder, Backup] | None, coming: Backup, name: str, path: str) -> bool:
    """Whether the last backup has this very file; then the file is linked into the new backup."""
    if last is None or not coming.files[name].version or last[1].files.get(name) != coming.files[name]:
        return False
    try:
        os.link(last[0].at(name), os.path.join(path, name))
    except OSError:  # a filesystem without hard links, or the file is gone
        return False
    return True


def _partial(peer: Peer, uuid: Any, token: Any) -> Folder:
    """The folder of a backup that was begun."""
    if not isinstance(uuid, str) or not isinstance(token, str) or not _PARTIAL.fullmatch(f"{uuid}.{token}.partial"):
        raise TypeError("received a backup call without valid names")
    folder = Folder(os.path.join(_root(peer), f"{uuid}.{token}.partial"))
    if not os.path.isdir(folder.path):
        raise StoreError("another process has restarted this backup", remedy="call sync() again")
    return folder


def _part(peer: Peer, uuid: Any, token: Any, name: Any, at: Any, data: Any) -> None:
    """Write bytes of a file. The same call may arrive twice."""
    folder = _partial(peer, uuid, token)
    if not isinstance(name, str) or not is_file(name) or not isinstance(data, np.ndarray) or not isinstance(at, int):
        raise TypeError("received a part of a backup file with invalid arguments")
    with full_is_told(folder.path):
        descriptor = os.open(folder.at(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            left = np.ascontiguousarray(data).data.cast("B")
            while left:
                written = os.pwrite(descriptor, left, at)
                left, at = left[written:], at + written
        finally:
            os.close(descriptor)


def _commit(peer: Peer, backup: bytes, token: Any) -> None:
    """Called when all files have arrived: from now on this is the node's backup.

    Older backups of the node, and of nodes that it took over, are removed.
    """
    coming, root = Backup.unpack(backup), _root(peer)
    uuid = coming.uuids[0]
    folder = _partial(peer, uuid, token)
    with full_is_told(folder.path):
        for name, file in coming.files.items():
            _finish(folder, name, file.bytes)
        folder.write(WORD, backup)  # and the names of all files
        with _lock:
            number = max([coming.number, *(n + 1 for name, n in _whole(root).items() if name.startswith(uuid))])
            os.rename(folder.path, os.path.join(root, f"{uuid}.{number}"))
            Folder(root).sync()
            _drop_others(root, coming, number)


def _finish(folder: Folder, name: str, size: int) -> None:
    """Bring a file to disk, unless it is linked: a linked file is on disk already. Zeros were not sent."""
    descriptor = os.open(folder.at(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        status = os.fstat(descriptor)
        if status.st_nlink == 1:
            if status.st_size > size:
                raise CorruptData(f"the file {name} of a backup is too long", remedy="call sync() again")
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # nobody reads it soon
    finally:
        os.close(descriptor)


def _drop_others(root: str, kept: Backup, number: int) -> None:
    """Remove older backups of a node, of nodes that it took over, and of earlier stores at its address."""
    gone = set(kept.uuids[1:])
    for name, each in _whole(root).items():
        uuid = name.partition(".")[0]
        if uuid == kept.uuids[0]:
            if each < number:
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        elif (found := _newest(root, uuid)) is not None and found[1].address == kept.address:
            gone.add(uuid)
    _remove(root, gone)


def _remove(root: str, uuids: Container[str]) -> None:
    """Remove all backups of these nodes, also incomplete ones."""
    for name in os.listdir(root) if os.path.isdir(root) else []:
        found = _NAME.fullmatch(name) or _PARTIAL.fullmatch(name)
        if found is not None and found[1] in uuids:
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def _list(peer: Peer) -> list[bytes]:
    """The newest backup of each node."""
    if not peer.session.arena.disk:
        return []
    root = _root(peer)
    with _lock:
        found = [_newest(root, uuid) for uuid in sorted({name.partition(".")[0] for name in _whole(root)})]
    return [each[1].pack() for each in found if each is not None]


def _read(peer: Peer, uuid: Any, number: Any, name: Any, at: Any) -> Array:
    """Bytes of a file of a node's backup, at most `PART_BYTES`."""
    found = _newest(_root(peer), str(uuid))
    if found is None or found[1].number != number:
        raise StoreError(f"node {shown(uuid)} has another backup now", remedy="try again")
    if not isinstance(name, str) or name not in found[1].files or not isinstance(at, int) or at < 0:
        raise TypeError("received a request for a file that is not in the backup")
    with open(found[0].at(name), "rb") as file:
        return np.fromfile(file, np.uint8, PART_BYTES, offset=at)


def _drop(peer: Peer, uuids: Any) -> None:
    """Remove the backups of these nodes, because other nodes have newer ones."""
    if not isinstance(uuids, list):
        raise TypeError("expected a list of nodes whose backups to delete")
    if peer.session.arena.disk:
        with _lock:
            _remove(_root(peer), uuids)


BACKUP_CALLS: dict[str, Callable[..., Any]] = {
    "backup_begin": _begin,
    "backup_part": _part,
    "backup_commit": _commit,
    "backups": _list,
    "backup_read": _read,
    "backup_drop": _drop,
}
