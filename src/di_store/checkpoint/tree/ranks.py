"""How the ranks of one save find each other, by files alone.

Rank 0 begins by writing a *call* with a new id. Each other rank, once its file is complete, answers the call that it
finds; its answer names the id and its file. If the call changes, the rank answers again, because the previous call came
from a save that did not finish. When rank 0 has all answers to its own call, it writes the manifest. A rank whose file
is in the manifest is saved. So a file of an interrupted save never becomes part of a later save: no rank of the later
save has answered with this file.

The protocol needs no locks, which network filesystems may lack. It only needs a rename that replaces a file atomically.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from di_store.checkpoint.tree.file_format import RankFile, TreeManifest
from di_store.checkpoint.tree.folder import CALL, MANIFEST, Folder, answer_name
from di_store.runtime.waits import Wait

_SECONDS = 0.02
"""Pause between two looks at the folder."""


class RankCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rank 0's request to the other ranks: write your part of this save, of that many ranks."""

    id: str
    ranks: int


class RankAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's answer: the call, and its file."""

    call: RankCall
    part: RankFile


_File = TypeVar("_File", RankCall, RankAnswer)


def _read(folder: Folder, name: str, kind: type[_File]) -> _File | None:
    text = folder.small(name)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None  # of another version, or damaged: as if it were not there, it will be replaced


def call(folder: Folder, ranks: int) -> RankCall:
    """Rank 0: begin a save."""
    made = RankCall(os.urandom(16).hex(), ranks)
    if ranks > 1:
        folder.write(CALL, msgspec.json.encode(made))
    return made


def kept_answer(folder: Folder, rank: int) -> str | None:
    """The file with which an earlier attempt of this rank answered the present call, which may still use the file."""
    given, called = _read(folder, answer_name(rank), RankAnswer), _read(folder, CALL, RankCall)
    return given.part.file if given is not None and given.call == called else None


def gather(folder: Folder, called: RankCall, own: RankFile, wait: Wait) -> TreeManifest:
    """Rank 0: wait for all answers, and write the manifest.

    Raises:
        Timeout: some ranks have not answered.
    """
    parts: dict[int, RankFile] = {0: own}
    while True:
        for rank in range(1, called.ranks):
            if rank not in parts:
                given = _read(folder, answer_name(rank), RankAnswer)
                if given is not None and given.call == called:
                    parts[rank] = given.part
        if len(parts) == called.ranks:
            break
        missing = [rank for rank in range(called.ranks) if rank not in parts]
        _sleep(wait, f"rank {missing[0]} and {len(missing) - 1} more of {called.ranks} have not saved their part")
    made = TreeManifest(called.id, [parts[rank] for rank in range(called.ranks)])
    folder.write(MANIFEST, made.pack())
    folder.remove(CALL)
    folder.remove(CALL + ".partial")
    return made


def answer(folder: Folder, rank: int, ranks: int, own: RankFile, wait: Wait) -> TreeManifest:
    """Another rank: answer the call, and wait for the manifest.

    Raises:
        Timeout: rank 0 made no call for this number of ranks, or other ranks have not answered.
    """
    answered: RankCall | None = None
    while True:
        # Reads the call first, then the manifest: rank 0 makes a new call only after it has written the manifest of
        # the previous one.
        called, made = _read(folder, CALL, RankCall), folder.kept()
        if made is not None and own in made.parts:
            return made
        if called is not None and called != answered and called.ranks == ranks:
            folder.write(answer_name(rank), msgspec.json.encode(RankAnswer(called, own)))
            answered = called
        if answered is None:
            other = "" if called is None else f": it was called for {called.ranks} ranks"
            _sleep(wait, f"rank 0 has not begun to save to {folder.path!r} as one of {ranks} ranks{other}")
        else:
            _sleep(wait, f"rank 0 still waits for another of the {ranks} ranks")


def _sleep(wait: Wait, reason: str) -> None:
    if wait.left <= 0:
        raise wait.failure(
            f"{reason}; all ranks must call save() at about the same time, each from its own process or thread"
        )
    wait.sleep(_SECONDS, reason)
