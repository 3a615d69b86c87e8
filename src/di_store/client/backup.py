"""Backups: the durable tables of a node, as files on another node's disk. The messages between the two nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from di_store.base.errors import CorruptData
from di_store.checkpoint.store.home import NAME
from di_store.checkpoint.store.manifest import FILE
from di_store.checkpoint.tree.folder import MANIFEST

PART_BYTES = 4 << 20
"""Bytes of a file that one call sends."""
_UUID = re.compile(r"[0-9a-f]{32}")


class BackupFile(msgspec.Struct, frozen=True):
    """A file as it was sent.

    Attributes:
        bytes: its length.
        version: files of the same name and version have the same bytes; "": not known, so the file is sent again.
    """

    bytes: int
    version: str


Files = dict[str, BackupFile]


class Backup(msgspec.Struct, frozen=True):
    """The durable tables of a node at one time.

    Attributes:
        uuids: as in `Home`.
        machine: name of the node's machine, for people.
        address: address of the node's agent.
        number: number of the checkpoint; it rises while the node lives.
        made: seconds since 1970.
        files: files by name.
    """

    uuids: tuple[str, ...]
    machine: str
    address: str
    number: int
    made: float
    files: Files

    def pack(self) -> bytes:
        """The description in the form that is sent and written to disk."""
        return msgspec.json.encode(self)

    def parts(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """The parts in which these files are sent, by name and place."""
        return [(name, at) for name in names for at in range(0, self.files[name].bytes, PART_BYTES)]

    @classmethod
    def unpack(cls, text: bytes) -> Backup:
        """The description that `pack` packed.

        Raises:
            CorruptData: the data are no such description.
        """
        try:
            made = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            raise CorruptData("the description of a backup cannot be read", remedy="call sync() again") from None
        if not made.uuids or not all(_UUID.fullmatch(each) for each in made.uuids):
            raise CorruptData("received a backup that names no node", remedy="")
        if not all(is_file(name) and each.bytes >= 0 for name, each in made.files.items()):
            raise CorruptData("received a backup with files that do not belong to a checkpoint", remedy="")
        return made


def is_file(name: str) -> bool:
    """Whether a file of a backup may have this name; a path is refused."""
    return name in (MANIFEST, NAME) or FILE.fullmatch(name) is not None
