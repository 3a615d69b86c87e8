"""Messages between nodes about a version, and about the nodes' progress with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, shown
from di_store.client.address import Address
from di_store.objects import codec
from di_store.objects.weights import check_own_name
from di_store.protocol.handshake import decoded

MOST_BEFORE, MOST_AFTER = 8, 8
"""How many nodes before and after its receiver a note names, so that it stays small in a group of any size."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class Note(msgspec.Struct, array_like=True, frozen=True):
    """A version, and the chain that it travels along.

    Attributes:
        name: name of the weights.
        epoch: epoch of the publisher: a later one has a higher epoch.
        version: its number.
        keep: number of newest versions that stay readable.
        size: bytes of the payload; -1: the version has no value.
        check: CRC-32C of the header and the payload after it.
        chain: addresses, the publisher first; only those that concern the receiver.
        place: place of the receiver in the chain; the chain's length: the receiver is not in it.
        header: header of the object.
    """

    name: str
    epoch: Number
    version: Count
    keep: Count
    size: Annotated[int, msgspec.Meta(ge=-1, le=2**46)]
    check: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    chain: list[str]
    place: Number
    header: bytes

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: of two notes of a name, the higher one counts."""
        return self.epoch, self.version

    def seen(self, chain: Sequence[str], place: int) -> Note:
        """A note of the same version, along another chain."""
        return msgspec.structs.replace(self, chain=list(chain), place=place)

    def packed(self) -> Array:
        """The note as an argument of a call: an array, since a header may be larger than a frame's meta."""
        return np.frombuffer(msgspec.msgpack.encode(self), np.uint8)


def note_of(data: Any) -> Note:
    """The note that another node sent.

    Raises: TypeError, ValueError, CorruptData: the data are no note.
    """
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise TypeError("received an invalid note")
    note = decoded(Note, data.tobytes())
    check_own_name(note.name)
    check_addresses(note.chain)
    if note.place > len(note.chain):
        raise CorruptData("received a note with a place beyond its chain", remedy="")
    return note


def check_addresses(given: Any) -> list[str]:
    """ValueError or TypeError unless these are addresses of stores."""
    if not isinstance(given, list):
        raise TypeError(f"{shown(given)}: give a list of addresses, di-store://HOST:PORT/NAME")
    for each in given:
        Address.parse(each)
    return given


def near(chain: Sequence[str], place: int) -> tuple[list[str], int]:
    """The part of a chain that the node at `place` (from 1) must know, and the node's place in this part."""
    first = max(1, place - MOST_BEFORE)
    return [chain[0], *chain[first : place + 1 + MOST_AFTER]], place - first + 1


class SourceProgress(msgspec.Struct, array_like=True):
    """The progress of a source, sent before each piece and while the source waits.

    Attributes:
        have: bytes that the source has.
        fallen: bytes by which the source has fallen behind its own source while it was less than half as fast; 0
            otherwise.
        size: bytes of the piece that follows; 0: no piece follows.
    """

    have: Number
    fallen: Number
    size: Number


def parts_of(block: Array) -> tuple[bytes, Array]:
    """Header and payload of a value's block, as docs/object_format.md draws it.

    An array in the short form gets its header of the long form.
    """
    form = block[:4].tobytes()
    if form == b"DSA1":
        dimensions, kind, size = int(block[4]), chr(block[5]), int(block[6])
        shape = block[16:56].view(np.int64)[:dimensions].tolist()
        # These pages are never touched: the codec only needs to know what lies where.
        encoded = codec.encode(np.empty(shape, np.dtype(f"{kind}{size}")))
        return encoded.header, block[64 : 64 + encoded.payload_bytes]
    if form not in (b"DSP1", b"DSF1"):
        raise CorruptData(f"a block of the format {form!r} is not a value", remedy="")
    header, payload = int(block[4:8].view(np.uint32)[0]), int(block[8:16].view(np.uint64)[0])
    start = -(-(16 + header) // 64) * 64
    return block[16 : 16 + header].tobytes(), block[start : start + payload]
