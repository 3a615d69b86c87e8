"""The folder of a checkpoint: names of files, small files that are written atomically, and removal of old files."""

from __future__ import annotations

import os
import re
from io import FileIO

from di_store import _core
from di_store.base.disk import core_path
from di_store.base.errors import CorruptData, StoreError
from di_store.checkpoint.tree.file_format import FORMAT, STORE_FORMAT, TreeManifest, damaged

MANIFEST = "manifest.json"
DURABLE = "durable"
"""The folder of durable tables, inside the folder of a disk tier."""
_TIER = ("epoch", "alive.lock")
"""What lies in the folder of a disk tier (native/tier/folder.h)."""
_HELD = {FORMAT: "a tree saved by di_store.save()", STORE_FORMAT: "the checkpoint of a store"}
_FORMAT = re.compile(rb'"format":\s*"([^"]*)"')
CALL = "call.json"
"""Written by rank 0: the id of the save that it is making, which the others answer."""
FILE = re.compile(r"rank-(\d{5})\.([0-9a-f]{16}\.tree|answer\.json)(\.partial)?")
_MOST_BYTES = 16 << 20


class Folder:
    """A checkpoint's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = core_path(path)

    def at(self, name: str) -> str:
        """The path of a file."""
        return os.path.join(self.path, name)

    def make(self) -> None:
        """Create the folder and its parents if they do not exist. StoreError: the path names something else."""
        at, made = os.path.abspath(self.path), []
        while not os.path.exists(at):
            made.append(at := os.path.dirname(at))
        try:
            os.makedirs(self.path, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StoreError(f"{self.path!r} is not a folder", remedy="save to another path") from None
        for above in made:
            _core.sync_folder(above)

    def refuse_others(self, wanted: str, files: re.Pattern[str]) -> None:
        """Raise StoreError if the folder holds anything but a checkpoint of this format.

        A folder with an unreadable manifest counts as a damaged checkpoint if `files` of such checkpoints lie beside
        it.
        """
        own = os.path.realpath(self.path)
        of_tier = os.path.dirname(own) if os.path.basename(own) == DURABLE else own
        if any(os.path.exists(os.path.join(at, name)) for at in (own, of_tier) for name in _TIER):
            what = "is the folder of a store's disk tier"
        elif os.path.lexists(self.at(MANIFEST)):
            found = _FORMAT.search((self.small(MANIFEST) or b"") if os.path.isfile(self.at(MANIFEST)) else b"")
            held = found[1].decode(errors="replace") if found else ""
            if held == wanted or (not held and any(map(files.fullmatch, os.listdir(self.path)))):
                return
            what = f"holds {_HELD.get(held, f'a file {MANIFEST} that Di-store did not write')}"
        else:
            return
        raise StoreError(f"{self.path!r} {what}", remedy="choose another folder, preferably a new one next to it")

    def create(self, name: str) -> None:
        """Make an empty file with this process's usual permissions for new files."""
        FileIO(self.at(name), "x").close()

    def manifest(self) -> TreeManifest | None:
        """The manifest of the newest complete save. Raises CorruptData, LayoutMismatch, OSError."""
        text = self.small(MANIFEST)
        return None if text is None else TreeManifest.unpack(self.at(MANIFEST), text)

    def kept(self) -> TreeManifest | None:
        """Like `manifest`, for a save that replaces it: None also if it is damaged."""
        try:
            return self.manifest()
        except CorruptData:
            return None

    def remove_all(self, rank: int, kept: set[str]) -> None:
        """Remove the files of a rank's earlier saves, except these files."""
        for name in os.listdir(self.path):
            match = FILE.fullmatch(name)
            if match is not None and int(match[1]) == rank and name not in kept:
                self.remove(name)

    def small(self, name: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        try:
            with open(self.at(name), "rb") as file:
                text = file.read(_MOST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(text) > _MOST_BYTES:
            raise damaged(self.at(name), "is too long")
        return text

    def write(self, name: str, text: bytes) -> None:
        """Write a small file. Readers find the old text or the new one, even after a power cut."""
        partial = self.at(name + ".partial")
        with open(partial, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.publish(name)

    def publish(self, name: str) -> None:
        """Rename a complete file from `name`.partial to `name`."""
        os.replace(self.at(name + ".partial"), self.at(name))
        self.sync()

    def sync(self) -> None:
        """Make new and removed names survive a power cut."""
        _core.sync_folder(self.path)

    def touch(self, name: str) -> None:
        """Create an empty file, or set the time at which it was changed to now."""
        with open(self.at(name), "a") as file:
            os.utime(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            os.unlink(self.at(name))
        except FileNotFoundError:
            pass

    def ranks(self) -> set[int]:
        """The ranks that have files."""
        return {int(match[1]) for name in os.listdir(self.path) if (match := FILE.fullmatch(name)) is not None}


def tree_name(rank: int) -> str:
    """A fresh name for a rank's file."""
    return f"rank-{rank:05d}.{os.urandom(8).hex()}.tree"


def answer_name(rank: int) -> str:
    """The name of a rank's answer to the call."""
    return f"rank-{rank:05d}.answer.json"
