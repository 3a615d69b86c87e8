"""The parts of a store's checkpoint: the manifest and the files that it names. See docs/checkpoint_format.md."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, LayoutMismatch
from di_store.checkpoint.tree import file_format
from di_store.checkpoint.tree.file_format import STORE_FORMAT

VERSION = 1
REMEDY = "restore another checkpoint, or make this one again"


def damaged(path: str, why: str) -> CorruptData:
    """The error for a file that is damaged or not one of ours."""
    return CorruptData(f"{path!r} {why}", remedy=REMEDY)


U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Exponent = Annotated[float, Meta(ge=0)]
Uuid = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
ObjectId = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
FILE = re.compile(r"(items|chunks)-[0-9a-f]{8}-[0-9a-f]{8}|segment-[0-9a-f]{8}|disk-[0-9a-f]{8}-[0-9a-f]+")
"""Names of all files of checkpoints except the manifest."""


class ArrayFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of arrays: its name, bytes, and CRC-32C of all of it."""

    file: str
    bytes: U64
    crc: U32


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rows or objects (docs/segment_format.md).

    Attributes:
        file: its name.
        uuid: 32 hexadecimal digits: uuid of the checkpoint, or of the folder of the store's disk tier.
        bytes: size of the file, if it was written for a checkpoint; 0: it is one of the store's own files.
        records: number of records in it, if `bytes` is not 0.
    """

    file: str
    uuid: Uuid
    bytes: U64
    records: U64


class TableCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The counts of a table (native/snapshot/snapshot.h: TableCounts)."""

    next_number: U64
    rng_counter: U64
    epoch: U64
    latest_epoch: U64
    finished: U64
    inserts: U64
    samples: U64
    removed: U64
    updates: U64
    stale_updates: U64
    evicted_for_room: U64
    stale_dropped: U64
    episodes_cut: U64
    groups_dropped: U64
    late_answers: U64
    steps_left_out: U64
    max_priority: float
    groups_short: U64 = 0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The numbers of a limiter, and its counts. `since`: of a `Pace`: the version from which it counts."""

    ratio: float
    min_diff: float
    max_diff: float
    min_size: I64
    inserts: I64
    samples: I64
    queue: U64
    since: I64 = 0


class TableState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table: its settings at its creation, later changes, and the files of its items.

    Attributes: index, generation: the table's name in heads of chunks.
        item_bytes: bytes charged for each held draw of a process; for Python values, this is their estimated size. At
            most 2^32 - 1.
        states: files of `items`: first all of them, then the changes from checkpoint to checkpoint.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    index: U32
    generation: U32
    config: str
    schema: str
    capacity: U64
    max_bytes: U64
    alpha: Exponent
    beta: Exponent | None
    max_staleness: I64
    counts: TableCounts
    limiter: Limits
    dense_left: U64
    removed_left: U64
    item_bytes: U32
    states: Annotated[list[ArrayFile], Meta(min_length=1)]


class WeightsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published weights: the numbers of versions, and the saved ids of existing versions, in hexadecimal digits."""

    name: str
    newest: I64
    oldest: I64
    versions: list[tuple[I64, ObjectId]]


class StoreManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest.

    Attributes:
        number: number of the checkpoint, from 1 on in this folder.
        made: seconds since 1970.
        store: uuid of the store; only its own next checkpoint adds to this one.
        uuid: uuid of the files that were written for checkpoints in this folder, 32 hexadecimal digits.
        next_segment: number of the next such file.
        chunks: `CHUNKS`, by chunk.
        objects: segment and page of each record of objects.
        layouts: the layouts of rows in chunks, as `CHUNKS` numbers them.
    """

    number: U32
    made: float
    store: str
    name: str
    seed: U64
    uuid: Uuid
    next_segment: U32
    next_stream: U64
    next_uid: U64
    tables: list[TableState]
    weights: list[WeightsState]
    segments: list[Segment]
    chunks: ArrayFile
    objects: list[tuple[U32, U32]]
    layouts: list[bytes]

    def files(self) -> set[str]:
        """Names of all files that it needs."""
        states = [state for table in self.tables for state in table.states]
        return {each.file for each in [self.chunks, *states]} | {segment.file for segment in self.segments}

    def pack(self) -> bytes:
        """The text of the manifest: one JSON object."""
        plain: dict[str, Any] = {"format": STORE_FORMAT, "version": VERSION, **msgspec.to_builtins(self)}
        plain["crc"] = _core.crc32c(msgspec.json.encode(plain))
        return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"

    @classmethod
    def unpack(cls, path: str, text: bytes) -> StoreManifest:
        """The manifest of a text.

        Raises:
            CorruptData: the text is no manifest, or is damaged. LayoutMismatch: another version.
        """
        try:
            plain: Any = msgspec.json.decode(text)
        except ValueError:
            raise damaged(path, "is not the manifest of a checkpoint, or is damaged") from None
        form = plain.get("format") if isinstance(plain, dict) else None
        if form == file_format.FORMAT:
            raise CorruptData(f"{path!r} is the checkpoint of a tree", remedy="read it with di_store.load()")
        if form != STORE_FORMAT:
            raise damaged(path, "is not the manifest of a checkpoint, or is damaged")
        if plain.pop("version", None) != VERSION:
            text_ = f"{path!r} has another format version, this process reads version {VERSION}"
            raise LayoutMismatch(text_, remedy="use the version of di-store that wrote it")
        crc = plain.pop("crc", None)
        del plain["format"]
        if crc != _core.crc32c(msgspec.json.encode({"format": STORE_FORMAT, "version": VERSION, **plain})):
            raise damaged(path, "does not match its checksum")
        try:
            made = msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise damaged(path, f"is not a manifest: {error}") from None
        if not all(FILE.fullmatch(name) for name in made.files()):
            raise damaged(path, "names files that do not belong to a checkpoint")
        if len({table.name for table in made.tables}) < len(made.tables):
            raise damaged(path, "has two tables of the same name")
        return made


CHUNKS = {
    "uid": np.uint64,
    "chunk": np.uint32,
    "next": np.uint32,
    "layout": np.uint32,
    "rows": np.uint32,
    "closed": np.uint32,
    "head_crc": np.uint32,
    "segment": np.uint32,
    "page": np.uint32,
    "body_segment": np.uint32,
    "body_page": np.uint32,
}
"""Arrays of the file of chunks. `segment`, `page`: where the record with the head is; `body_segment` and `body_page`:
where the body begins, if it is another record's; else `NOWHERE`. `head_crc`: of the head, if it may change (late
columns)."""
NOWHERE = 2**32 - 1


def pack_arrays(arrays: dict[str, Array]) -> bytes:
    """A file of arrays: a msgpack map of each name to the values' dtype and bytes."""
    return msgspec.msgpack.encode({name: (array.dtype.str, array.tobytes()) for name, array in arrays.items()})


def unpack_arrays(path: str, state: ArrayFile, text: bytes, dtypes: dict[str, Any]) -> dict[str, Array]:
    """The arrays of a file. Raises CorruptData if the file was changed since it was written."""
    if len(text) != state.bytes or _core.crc32c(text) != state.crc:
        raise damaged(path, "does not match its checksum")
    try:
        plain = msgspec.msgpack.decode(text, type=dict[str, tuple[str, bytes]])
        return {name: np.frombuffer(plain[name][1], dtype) for name, dtype in dtypes.items()}
    except (msgspec.DecodeError, KeyError, ValueError):
        raise damaged(path, "does not match the manifest") from None
