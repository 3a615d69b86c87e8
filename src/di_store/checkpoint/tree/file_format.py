"""The content of a checkpoint's files: the head of a rank's file, and the manifest. See docs/checkpoint_format.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, LayoutMismatch

FORMAT, STORE_FORMAT = "di-store checkpoint", "di-store store checkpoint"
"""The formats that manifests name: of a tree and of a store (docs/checkpoint_format.md)."""
MAGIC = b"DStree\r\n"
VERSION = 1
PAGE = 4096
PIECE_BYTES = 4 << 20
REMEDY = "load another checkpoint, or save this one again"
_FIXED = struct.Struct("<8sIIQQQQQ16sII")
_CRC_AT = 12
MOST_HEAD_BYTES = 1 << 30


def damaged(path: str, why: str) -> CorruptData:
    """The error for a file that is damaged or not one of ours."""
    return CorruptData(f"{path!r} {why}", remedy=REMEDY)


class Head(msgspec.Struct, frozen=True):
    """The head of a rank's file: the structure of its tree, and the place of its payload.

    Attributes:
        header: as `codec.Encoded.header`.
        payload_bytes: bytes of the payload.
        piece_bytes: bytes of a piece; each piece has a checksum.
        crcs: CRC-32C of each piece, uint32.
        token: 16 random bytes, different in each file.
        rank, ranks: the rank that wrote the file, and the number of ranks.
    """

    header: bytes
    payload_bytes: int
    piece_bytes: int
    crcs: Array
    token: bytes
    rank: int
    ranks: int

    @property
    def begin(self) -> int:
        """Where the payload begins in the file."""
        return begin_of(len(self.header), self.payload_bytes, self.piece_bytes)

    def pack(self) -> bytes:
        """The bytes of the head. Their CRC-32C lies among them, and counts as 0 in the checksum."""
        body = self.header + np.asarray(self.crcs, "<u4").tobytes()
        sizes = (_FIXED.size + len(body), self.begin, self.payload_bytes, self.piece_bytes, len(self.header))
        fixed = _FIXED.pack(MAGIC, VERSION, 0, *sizes, self.token, self.rank, self.ranks)
        crc = _core.crc32c(fixed + body)
        return fixed[:_CRC_AT] + crc.to_bytes(4, "little") + fixed[_CRC_AT + 4 :] + body

    @staticmethod
    def crc_of(packed: bytes) -> int:
        """The checksum in a packed head."""
        return int.from_bytes(packed[_CRC_AT : _CRC_AT + 4], "little")

    @classmethod
    def read(cls, path: str) -> tuple[Head, int]:
        """The head of a file, and its checksum.

        Raises:
            CorruptData: the file is missing or damaged. LayoutMismatch: another version. OSError: an error of the file
            system.
        """
        with open(path, "rb") as file:
            raw = file.read(PAGE)
            if len(raw) < _FIXED.size or not raw.startswith(MAGIC):
                raise damaged(path, "is not a file of a checkpoint")
            _, version, crc, size, begin, payload, piece, header, token, rank, ranks = _FIXED.unpack_from(raw)
            if version != VERSION:
                text = f"{path!r} has format version {version}, this process reads version {VERSION}"
                raise LayoutMismatch(text, remedy="use the version of di-store that wrote it")
            if not _FIXED.size <= size <= MOST_HEAD_BYTES:
                raise damaged(path, f"has a header of {size} bytes, which is not possible")
            raw = (raw + file.read(max(size - PAGE, 0)))[:size]
            end = file.seek(0, 2)
        if len(raw) < size or _core.crc32c(raw[:_CRC_AT] + bytes(4) + raw[_CRC_AT + 4 :]) != crc:
            raise damaged(path, "has a header that does not match its checksum")
        sums_at = _FIXED.size + header
        if piece == 0 or piece % PAGE or size != sums_at + 4 * -(-payload // piece) or begin != -(-size // PAGE) * PAGE:
            raise damaged(path, "has a header with inconsistent sizes")
        sums = np.frombuffer(raw, "<u4", offset=sums_at)
        head = cls(raw[_FIXED.size : sums_at], payload, piece, sums, token, rank, ranks)
        if end < begin + payload:
            raise damaged(path, f"is cut off after {end} of {begin + payload} bytes")
        return head, crc


def begin_of(header_bytes: int, payload_bytes: int, piece_bytes: int) -> int:
    """The offset of a payload after a head with this header."""
    used = _FIXED.size + header_bytes + 4 * -(-payload_bytes // piece_bytes)
    return -(-used // PAGE) * PAGE


class RankFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's file, as the manifest names it.

    Attributes:
        file: its name in the folder.
        crc: checksum of its head, which covers the whole file.
    """

    file: str
    crc: int


class TreeManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest: the list of files that are the checkpoint.

    Attributes:
        id: id of the save, the same for all its ranks.
        parts: parts by rank.
    """

    id: str
    parts: list[RankFile]

    def pack(self) -> bytes:
        """The text of the manifest: one JSON object."""
        plain = {"format": FORMAT, "version": VERSION, "id": self.id, "parts": self.parts}
        plain["crc"] = _core.crc32c(msgspec.json.encode(plain))
        return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"

    @classmethod
    def unpack(cls, path: str, text: bytes) -> TreeManifest:
        """The manifest of a text. Raises as `Head.read`."""
        try:
            plain: Any = msgspec.json.decode(text)
            if isinstance(plain, dict) and plain.get("format") == STORE_FORMAT:
                raise CorruptData(f"{path!r} is the checkpoint of a store", remedy="read it with di_store.restore()")
            if not isinstance(plain, dict) or plain.get("format") != FORMAT:
                raise ValueError("not ours")
        except ValueError:
            raise damaged(path, "is not the manifest of a checkpoint, or is damaged") from None
        if plain.get("version") != VERSION:
            found = f"{path!r} has format version {plain.get('version')!r}, this process reads version {VERSION}"
            raise LayoutMismatch(found, remedy="use the version of di-store that wrote it")
        crc = plain.pop("crc", None)
        if crc != _core.crc32c(msgspec.json.encode(plain)):
            raise damaged(path, "does not match its checksum")
        try:
            made = msgspec.convert({"id": plain.get("id"), "parts": plain.get("parts")}, cls)
        except msgspec.ValidationError as error:
            raise damaged(path, f"is not a manifest: {error}") from None
        if not made.parts or any("/" in part.file or not part.file.startswith("rank-") for part in made.parts):
            raise damaged(path, "names files that do not belong to a checkpoint")
        return made


def extents(parts: Sequence[tuple[int, int, int]]) -> Array:
    """Address, offset and bytes of the parts of a payload in memory, by their offset, as the core takes them."""
    ordered = sorted((part for part in parts if part[2]), key=lambda part: part[1])
    return np.array(ordered, np.uint64).reshape(-1, 3)
