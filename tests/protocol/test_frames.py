"""Whatever comes over the wire is a message or a documented error, and takes no more memory than it has bytes."""

from __future__ import annotations

import random
import re
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.messages import (
    BODY_BYTES,
    MAX_GREETING_BYTES,
    MAX_PAYLOAD_BYTES,
    MESSAGES,
    PLAIN,
    RAGGED,
    READ,
    Sent,
    array,
    batch,
    frame,
    framed,
    heads,
    joined,
    leased,
    opaque,
    reader_of,
    received,
)
from foreign_values import REFUSED, Bomb
from hypothesis import given
from hypothesis import strategies as st
from objects.test_codec import same

from di_store import _core
from di_store.base.errors import AccessDenied, CorruptData, LayoutMismatch
from di_store.objects import codec
from di_store.protocol import batches, rows, values
from di_store.protocol.connection import MAX_CALL_BYTES, PIECE_BYTES, STALLED_SECONDS, Disconnected
from di_store.protocol.frame import MAX_META_BYTES, Kind
from di_store.protocol.handshake import NEWEST, decoded
from di_store.server import greetings, server

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / f"wire_{NEWEST}.txt"
PAGE = GOLDEN.parent.parent.parent / "docs" / "wire_format.md"
MOST_BYTES = 64 << 20
REFUSALS = (CorruptData, AccessDenied, Disconnected)
VALUE_REFUSALS = (*REFUSALS, LayoutMismatch, TypeError)
"""`codec.decode` tells of a class that is not there by a TypeError, and of another form by a LayoutMismatch."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# --- the bytes --------------------------------------------------------------------------------------------------------


def test_frames_have_the_golden_bytes() -> None:
    """Another layout needs another version in protocol/handshake.py, and a new golden file beside the old one."""
    found = [f"{name} {framed(message).hex()}" for name, message in MESSAGES.items()]
    assert found == GOLDEN.read_text().splitlines()
    for older in range(1, NEWEST):  # each protocol adds to the one before
        assert GOLDEN.read_text().startswith(GOLDEN.with_name(f"wire_{older}.txt").read_text())


def test_the_page_lists_all_kinds_and_limits() -> None:
    page = PAGE.read_text()
    found = {int(number): name for number, name in re.findall(r"^\| (\d+) \| ([A-Z]+) \|", page, re.M)}
    assert found == {kind.value: kind.name for kind in Kind}
    assert f"at most 1 MiB ({MAX_META_BYTES:,})" in page
    assert f"at most 16 MiB ({MAX_PAYLOAD_BYTES:,})" in page
    limits = re.findall(r"^\| (.*) \| (\d[\d,]*)(?: \w+)?(?:;.*)? \| .* \|$", page.partition("## Limits")[2], re.M)
    assert [int(number.replace(",", "")) for _, number in limits] == [
        MAX_GREETING_BYTES >> 10,
        0,
        MAX_CALL_BYTES >> 30,
        server.GREETING_SECONDS,
        greetings.MAX_GREETINGS,
        server.MAX_CONNECTIONS,
        STALLED_SECONDS,
    ]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_arrives_as_it_was_sent(name: str) -> None:
    sent = MESSAGES[name]
    assert [(m.kind, m.meta, m.body.tobytes(), m.request, m.flags) for m in received(framed(sent, sent))] == [
        (sent.kind, sent.meta, sent.body, sent.request, sent.flags)
    ] * 2


@pytest.mark.parametrize("data", [PLAIN, RAGGED, opaque([1, np.arange(3)], None), {}])
def test_a_batch_arrives_as_it_was_sent(data: Any) -> None:
    sent = leased(batch(data, 2), 2**64 - 1)
    meta, body = batches.pack_batch(sent, draws=5)
    found, draws, leases = batches.unpack_batch(meta, array(joined(body)), trusted=False)
    assert (draws, leases, found.table_size, found.live, found.source) == (5, {0: 2**64 - 1}, 7, None, None)
    for name in ("keys", "priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts"):
        assert same(getattr(found, name), getattr(sent, name))
    if isinstance(data, tuple):
        assert same(found.data, [[1, np.arange(3)], None])
    elif data is RAGGED:
        assert [row.tolist() for row in found.data["tokens"]] == [[0, 1], [2, 3, 4]]
    else:
        assert same(found.data, data)


def test_a_batch_of_a_mixture_names_the_draw_of_each_table() -> None:
    sent = leased(batch(PLAIN, 2), (2**64 - 1, 0, 7))
    sent.source = np.array([0, 2], np.int32)
    meta, body = batches.pack_batch(sent)
    whole = joined(body)
    assert batches.unpack_batch(meta, array(whole), trusted=False)[2] == {0: 2**64 - 1, 2: 7}
    before, source, after = whole.rpartition(sent.source.tobytes())
    with pytest.raises(CorruptData, match="several draws"):
        batches.unpack_batch(meta, array(before + bytes(len(source)) + after), trusted=False)


@given(
    st.sampled_from([kind for kind in Kind if kind != Kind.PIECE]),
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=99),
    st.lists(st.binary(max_size=99), max_size=3),
)
def test_frame_headers_come_back(kind: Kind, flags: int, request: int, meta: bytes, body: list[bytes]) -> None:
    whole = b"".join(body)
    sent = _core.Outgoing(kind, request, flags, meta, body)
    assert bytes(sent.front()) == frame(kind, meta, whole, request=request, seq=len(whole), flags=flags)
    (found,) = received(bytes(sent.front()))
    assert (found.kind, found.flags, found.request, found.meta) == (kind, flags, request, meta)
    assert found.body.tobytes() == whole


@pytest.mark.parametrize("name", ["call", "hello", "ping", "acknowledge"])
def test_every_flipped_byte_is_refused(name: str, count: Callable[[int, int], int]) -> None:
    """Of header, meta and body."""
    sent = framed(MESSAGES[name])
    for at in range(len(sent)):
        for bits in range(1, 256, count(85, 1)):
            broken = bytearray(sent)
            broken[at] ^= bits
            with pytest.raises((CorruptData, Disconnected)):
                received(bytes(broken))


def test_lengths_above_the_limits_take_no_memory() -> None:
    """They are refused by what the header says: nothing is allocated, and nothing behind the header is read."""
    limits = [(MAX_META_BYTES + 1, 0, 0), (0, MAX_PAYLOAD_BYTES + 1, MAX_PAYLOAD_BYTES + 1), (2**32 - 1, 2**32 - 1, 0)]
    for meta, payload, seq in [*limits, (0, 0, BODY_BYTES + 1), (0, 0, 2**64 - 1), (0, 9, 0)]:
        data = frame(Kind.CALL, request=1, seq=seq, lengths=(meta, payload))
        if (meta, payload) not in [(0, 0), (0, 9)]:
            with pytest.raises(CorruptData, match="at most 1048576 \\+ 16777216 are allowed"):
                received(data)
        assert peak(lambda data=data: refused(received, data)) < 1 << 20
    with pytest.raises(ValueError, match="meta of 1048577 bytes is above"):
        framed(Sent(Kind.CALL, bytes(MAX_META_BYTES + 1)))


def test_messages_before_the_handshake_must_be_small() -> None:
    small = Sent(Kind.HELLO, bytes(MAX_GREETING_BYTES))
    assert len(received(framed(small), most_bytes=0)) == 1
    for large in (Sent(Kind.HELLO, bytes(MAX_GREETING_BYTES + 1)), Sent(Kind.HELLO, b"", b"x")):
        assert len(received(framed(large))) == 1
        with pytest.raises(CorruptData, match="are allowed here"):
            received(framed(large), most_bytes=0)


def test_a_message_in_pieces_arrives_whole() -> None:
    body = np.random.default_rng(1).integers(0, 256, PIECE_BYTES * 2 + 5, np.uint8).tobytes()
    sent = framed(Sent(Kind.CALL, b"meta", body, 3))
    assert heads(sent) == [(6, len(body), PIECE_BYTES), (7, 0, PIECE_BYTES), (7, 0, 5)]
    assert heads(framed(Sent(Kind.PIECE, b"", body))) == [(7, 0, PIECE_BYTES), (7, 0, PIECE_BYTES), (7, 0, 5)]


def test_unexpected_pieces_are_refused() -> None:
    first = frame(Kind.CALL, payload=b"1234", seq=8)
    piece = frame(Kind.PIECE, payload=b"5678")
    assert received(first + piece)[0].body.tobytes() == b"12345678"
    other, long = frame(Kind.PING), frame(Kind.PIECE, payload=b"56789")
    for wrong in (piece, first + other, first + long, first + frame(Kind.PIECE), first):
        with pytest.raises((CorruptData, Disconnected)):
            received(wrong)


# --- what nobody of ours sends ----------------------------------------------------------------------------------------


def refused(act: Callable[..., Any], *given: Any) -> None:
    with pytest.raises(REFUSALS):
        act(*given)


def peak(act: Callable[[], Any]) -> int:
    """Bytes of Python and numpy that are there at once while it acts."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


ODD = [
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
]
ODD += [
    b"\xc6\x7f\xff\xff\xff",
    b"\xce\xff\xff\xff\xff",
    b"\x91" * 3000,
    b"\xc0",
    b"\xa2\xff\xfe",
    b"\xcb\x7f\xf8" + bytes(6),
]
ODD += [b"\xff" * 8, bytes(8), (2**63 - 1).to_bytes(8, "little"), b"\xd6\xff\xff\xff\xff\xff", b"\xa3|O8", b"\xa3|S0"]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with one to four changes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(found) + 1), rng.randrange(len(found) + 1)
        what = rng.randrange(7)
        if what == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(found):
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xDC, 0xDE, 0xFF))
        elif what == 2:
            odd = rng.choice(ODD)
            found[at : at + rng.choice((0, 1, len(odd)))] = odd
        elif what == 3:
            del found[at : at + rng.randint(1, 16)]
        elif what == 4:
            found[at:at] = found[other : other + rng.randint(1, 64)]
        elif what == 5:
            del found[at:]
        else:
            found[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(found)


@pytest.fixture(autouse=True)
def _no_bounds_of_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def hammer(rounds: int, seed: int, once: Callable[[random.Random], None]) -> None:
    """Make many attempts; each ends well or with a documented error, and takes little memory."""
    tracemalloc.start()
    try:
        for number in range(rounds):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                once(random.Random(seed * 1_000_003 + number))
            except VALUE_REFUSALS:
                pass
            except BaseException as error:
                error.add_note(f"round {number} of seed {seed}") if hasattr(error, "add_note") else None
                raise
            assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES, (number, seed)
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(7200)
def test_invalid_frames_are_refused(count: Callable[[int, int], int]) -> None:
    """Random, or frames with some bytes changed: the checksums are wrong, the lengths anything."""
    whole = [framed(each) for each in MESSAGES.values()]

    def once(rng: random.Random) -> None:
        data = rng.randbytes(rng.randint(1, 200)) if rng.random() < 0.2 else mutated(rng.choice(whole), rng)
        with pytest.raises(REFUSALS):
            if not data:
                raise Disconnected
            received(data)
            raise Disconnected  # what was changed is the same

    hammer(count(2_000, 510_000), 1, once)


@pytest.mark.timeout(7200)
def test_frames_with_wrong_lengths_are_refused(count: Callable[[int, int], int]) -> None:
    """Headers with a right checksum, and any numbers."""

    def once(rng: random.Random) -> None:
        def size(most: int) -> int:
            return rng.choice((0, rng.randrange(200), most, most + 1, 2**32 - 1, rng.randrange(2**32))) % 2**32

        meta, payload = rng.randbytes(rng.randrange(100)), rng.randbytes(rng.randrange(100))
        meta_bytes, payload_bytes = rng.choice((len(meta), size(MAX_META_BYTES))), size(MAX_PAYLOAD_BYTES)
        seq = rng.choice((0, payload_bytes, BODY_BYTES, BODY_BYTES + 1, 2**63, rng.randrange(2**64)))
        received(
            frame(
                rng.randrange(18),
                meta,
                payload,
                request=rng.randrange(2**64),
                seq=seq,
                flags=rng.randrange(256),
                lengths=(meta_bytes, payload_bytes),
            )
        )

    hammer(count(1_000, 100_000), 2, once)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", READ)
def test_messages_with_arbitrary_contents_are_refused(name: str, count: Callable[[int, int], int]) -> None:
    """Meta or body changed, with right checksums: by whoever knows the token, or has broken into the other side."""
    sent, read = MESSAGES[name], reader_of(name)
    read(sent.meta, array(sent.body))

    def once(rng: random.Random) -> None:
        meta, body = sent.meta, sent.body
        if body and rng.random() < 0.3:
            body = mutated(body, rng)
        else:
            meta = mutated(meta, rng)
        read(meta, array(body))

    hammer(count(1_000, 30_000), 3, once)


@pytest.mark.parametrize("deep", [b"\x91" * 500_000, b"\x81\xa1a" * 300_000])
def test_endless_nesting_is_refused(deep: bytes) -> None:
    record = b"\x93\x00\x00\x91\x97\x01\xa1a\x90\x80\xc0"
    with pytest.raises(CorruptData, match="received an invalid Records message"):
        decoded(rows.Records, record + deep)
    with pytest.raises(CorruptData):
        batches.unpack_batch(b"\x97\x91\x93\x90" + deep, array(b""), trusted=False)


# --- pickles ----------------------------------------------------------------------------------------------------------


def test_no_value_of_a_message_is_unpickled(tmp_path: Path) -> None:
    """Arguments, results and rows; as they are, and deep in something else."""
    made = tmp_path / "made"
    for bomb in (Bomb(made), {"a": [{Bomb(made)}]}, [np.arange(3), Bomb(made)]):
        size, body = values.laid_out(codec.encode(bomb))
        with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
            values.unpacked(size, array(joined(body)))
        meta, body = batches.pack_batch(batch(opaque(1, bomb), 2))
        for _ in range(3):
            with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
                batches.unpack_batch(meta, array(joined(body)), trusted=False)
    assert not made.exists()
    batches.unpack_batch(meta, array(joined(body)), trusted=True)  # who trusts the other machine
    assert made.exists()


def test_long_errors_and_warnings_are_cut() -> None:
    """They are cut, and what is no text is written as numbers."""
    told = ["x" * 10**7, "\udcff"] * 20
    for error in (ValueError("\ud800" + "y" * 10**7), CorruptData("z" * 10**7), KeyError("a"), SystemError("odd")):
        meta = values.failure_of(error, told)
        assert len(meta) <= MAX_META_BYTES
        assert type(values.error_of(meta, "node")).__name__ in str(type(error).__mro__) + "StoreError"
    assert len(values.answer_meta(0, told)) <= MAX_META_BYTES
