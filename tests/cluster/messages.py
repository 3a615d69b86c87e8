"""One message of each layout, and what the other side does with messages: for the tests of the wire."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import Timeout
from di_store.client.objects import blocks_of
from di_store.columns.ragged import Ragged
from di_store.columns.schema import Schema, Spec
from di_store.protocol import batches, handshake, rows, values
from di_store.protocol.connection import Connection, Message
from di_store.protocol.frame import MAGIC, Kind, view
from di_store.replay.batch import Batch, encode_blob

BODY_BYTES = 1 << 20
"""Of a message that `received` accepts."""
SCHEMA = Schema.from_tree(
    {"obs": {"image": Spec((4, 4), np.uint8), "text": Spec((), "U3")}, "reward": Spec((), np.float32)}
)


class Sent(NamedTuple):
    """A message that is to be sent."""

    kind: Kind
    meta: bytes
    body: bytes = b""
    request: int = 0
    flags: int = 0


def framed(*messages: Sent) -> bytes:
    """The bytes that go over the wire."""
    found = bytearray()
    for each in messages:
        message = _core.Outgoing(each.kind, each.request, each.flags, each.meta, [each.body])
        while not message.done:
            found += (front := message.front())
            message.took(len(front))
    return bytes(found)


_HEAD = struct.Struct("<4sBBHQQIII")  # 36 bytes, then the checksum of these and meta
HEADER_BYTES = _HEAD.size + 4
MAX_PAYLOAD_BYTES = 16 << 20
MAX_GREETING_BYTES = 16 << 10
"""Of the meta of a message before the handshake is over."""


def frame(
    kind: int,
    meta: bytes = b"",
    payload: bytes = b"",
    *,
    request: int = 0,
    seq: int = 0,
    flags: int = 0,
    lengths: tuple[int, int] | None = None,
) -> bytes:
    """One frame, as docs/wire_format.md draws it; `lengths`: that it claims for meta and payload."""
    sizes = lengths or (len(meta), len(payload))
    head = _HEAD.pack(MAGIC, kind, flags, 0, request, seq, *sizes, _core.crc32c(payload))
    return head + struct.pack("<I", _core.crc32c(meta, _core.crc32c(head))) + meta + payload


def heads(data: bytes) -> list[tuple[int, int, int]]:
    """Kind, bytes of the whole body and of the payload, of each frame in `data`."""
    found, at = [], 0
    while at < len(data):
        _, kind, _, _, _, seq, meta, payload, _ = _HEAD.unpack_from(data, at)
        found.append((kind, seq, payload))
        at += HEADER_BYTES + meta + payload
    return found


def joined(buffers: Any) -> bytes:
    """Buffers as one."""
    return b"".join(bytes(view(each)) for each in buffers)


def array(data: bytes) -> Array:
    """Bytes as a body comes."""
    return np.frombuffer(bytearray(data), np.uint8)


def received(data: bytes, most_bytes: int = BODY_BYTES) -> list[Message]:
    """The messages in what comes over a socket, until the other side closes it. Raises what `receive` raises else."""
    near, far = socket.socketpair()
    with near, far:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        connection, found = Connection(far), []
        connection.most_bytes = most_bytes
        while len(data):
            found.append(connection.receive())
            if not connection.has_something() and not _more(far):
                break
    return found


def _more(sock: socket.socket) -> bool:
    return bool(sock.recv(1, socket.MSG_PEEK))


# --- the messages -----------------------------------------------------------------------------------------------------


def _parts(n: int) -> list[Any]:
    numbers = np.arange(n)
    kinds = [np.uint64, np.float64, np.float64, np.float32, np.int32, np.int64, np.int64, np.int64]
    return [numbers.astype(kind) for kind in kinds]


def batch(data: Any, n: int) -> Batch:
    """A batch as an agent draws it."""
    return Batch(data, *_parts(n), 7, None)


PLAIN = {"obs": {"image": np.arange(24, dtype=np.uint8).reshape(2, 12)}, "reward": np.float32([1, 2])}
RAGGED = {"tokens": Ragged(np.arange(5, dtype=np.int32), np.array([0, 2, 5]), (2,)), "done": np.array([True, False])}


def opaque(*given: Any) -> tuple[Array, Array]:
    """Values as the batch of an opaque table holds them."""
    blobs = [encode_blob(value) for value in given]
    return np.concatenate(blobs), np.cumsum([0, *map(len, blobs)])


def leased(found: Batch, number: Any) -> Batch:
    """The batch, drawn with a lease of this number."""
    found._lease = cast("Any", None), number
    return found


def _batch(found: Batch) -> Sent:
    meta, body = batches.pack_batch(found, draws=3, told=["told"])
    return Sent(Kind.ANSWER, meta, joined(body), 9)


def _mixed() -> Sent:
    """Of protocol 5."""
    found = leased(batch(PLAIN, 2), (1 << 63, 0, 7))
    found.source = np.int32([0, 2])
    return _batch(found)


def _leased_draw() -> Sent:
    """Of protocol 5."""
    draw = {"n": 2, "timeout": None, "replace": True, "now": True, "columns": None, "draws": 9, "mixture": 0}
    arguments = {**draw, "loader": 8, "turn": 1, "ours": [7], "lease": 60.0}
    meta, body = values.call_of("draw", "t", arguments, once=True)
    return Sent(Kind.CALL, meta, joined(body), 7)


def _call() -> Sent:
    meta, body = values.call_of("keys", "t", {"keys": np.arange(3, dtype=np.uint64), "timeout": 1.5}, once=False)
    return Sent(Kind.CALL, meta, joined(body), 7)


def _plain_call() -> Sent:
    meta, body = values.call_of("keys", "t", {"n": 3, "timeout": None}, once=True)
    return Sent(Kind.CALL, meta, joined(body), 7)


def _watch() -> Sent:
    """Of protocol 2."""
    meta, body = values.call_of("watch_versions", "", {"known": {"policy": 3, "value": -1}}, once=False)
    return Sent(Kind.CALL, meta, joined(body), 7)


def _news() -> Sent:
    """Of protocol 2."""
    meta, body = values.answer_of({"policy": 4, "value": 0}, [])
    return Sent(Kind.ANSWER, meta, joined(body), 7)


def _ack() -> Sent:
    """Of protocol 3."""
    arguments = {"keys": np.arange(3, dtype=np.uint64), "number": 1 << 63, "timeout": 1.5}
    meta, body = values.call_of("ack", "t", arguments, once=True)
    return Sent(Kind.CALL, meta, joined(body), 7)


def _many() -> Sent:
    """Of protocol 4."""
    meta, body = values.call_of("get_many", "", {"ids": bytes(range(60))}, once=False)
    return Sent(Kind.CALL, meta, joined(body), 7)


def _blocks() -> Sent:
    """Of protocol 4."""
    blocks = [np.arange(100, dtype=np.uint8), np.arange(64, dtype=np.uint8)]
    body = values.padded([np.array([100, 0, 64], np.int64), *blocks])
    return Sent(Kind.ANSWER, values.answer_meta(3, ["told"]), joined(body), 7)


def _answer() -> Sent:
    size, body = values.packed([1, {"a": np.arange(4, dtype=np.int16)}, "text", (None, 2.5)])
    return Sent(Kind.ANSWER, values.answer_meta(size, ["told"]), joined(body), 7)


def _gone() -> Sent:
    size, body = values.packed([[2**56 - 1, 5], None, ["stale", "used_up"]])
    return Sent(Kind.ANSWER, values.answer_meta(size, []), joined(body), 7)


def _error() -> Sent:
    error = Timeout("get did not come through", "no room", "pid 7")
    return Sent(Kind.ERROR, values.failure_of(error, []), request=7)


def _append() -> Sent:
    """Calls of several forms; the last two share a record."""
    image, text = np.arange(32, dtype=np.uint8), np.array(["a", "bc"], "U3")
    found = rows.Records(
        2,
        40,
        [
            rows.Record(41, "append", [2], {"step": [0, 1, 2]}, [0, 1], {"t": [0.5, 1.0]}),
            rows.Record(42, "end_episode", [], {"final": [0]}, 1, None, True),
            rows.Record(43, "append", [], {"step": [1, 2]}, 0, count=2),
        ],
    )
    both = [text[:1], np.float32([3]), text[1:], np.float32([4])]
    body = values.padded([image, text, np.float32([1, 2]), image[:16], *both], rows.ALIGNMENT)
    return Sent(Kind.APPEND, msgspec.msgpack.encode(found), joined(body))


def _acknowledge() -> Sent:
    items = [(np.arange(n, dtype=np.uint64), np.zeros(n, np.int32), np.arange(n, dtype=np.int64)) for n in (2, 0, 1)]
    meta, body = rows.Acknowledgement.of(42, 2, [items[:2], items[2:]], b"", ["told"])
    return Sent(Kind.ACKNOWLEDGE, meta, joined(body))


def _greetings() -> dict[str, Sent]:
    nonce, link = bytes(range(32)), bytes(range(16))
    encode = msgspec.msgpack.encode
    hello = handshake.Hello(1, 1, nonce, link, "call", "store", "pid 7 on host")
    welcome = handshake.Welcome(nonce, "store", "ab" * 16, "node", link, 7, True, False)
    refusal = handshake.Refusal("AccessDenied", "the client does not know the token", "give it")
    return {
        "hello": Sent(Kind.HELLO, encode(hello)),
        "challenge": Sent(Kind.CHALLENGE, encode(handshake.Challenge(1, nonce))),
        "proof": Sent(Kind.PROOF, encode(handshake.Proof(nonce))),
        "welcome": Sent(Kind.WELCOME, encode(welcome)),
        "refuse": Sent(Kind.REFUSE, encode(refusal)),
    }


MESSAGES: dict[str, Sent] = {
    **_greetings(),
    "call": _call(),
    "plain call": _plain_call(),
    "answer": _answer(),
    "error": _error(),
    "waiting": Sent(Kind.WAITING, msgspec.msgpack.encode(values.Waiting("no room")), request=7),
    "append": _append(),
    "acknowledge": _acknowledge(),
    "ping": Sent(Kind.PING, b""),
    "pong": Sent(Kind.PONG, b""),
    "batch": _batch(batch(PLAIN, 2)),
    "ragged": _batch(batch(RAGGED, 2)),
    "opaque": _batch(batch(opaque({"a": np.arange(3)}, "b"), 2)),
    "watch": _watch(),
    "news": _news(),
    "leased": _batch(leased(batch(PLAIN, 2), 1 << 63)),
    "ack": _ack(),
    "gone": _gone(),
    "many": _many(),
    "blocks": _blocks(),
    "mixed": _mixed(),
    "leased draw": _leased_draw(),
}

_STRUCTS: dict[str, type[Any]] = {
    "hello": handshake.Hello,
    "challenge": handshake.Challenge,
    "proof": handshake.Proof,
    "welcome": handshake.Welcome,
    "refuse": handshake.Refusal,
    "waiting": values.Waiting,
}


def _read_rows(meta: bytes, body: Array) -> Any:
    reader, at, found = rows.RowReader(SCHEMA), 0, []
    for record in handshake.decoded(rows.Records, meta).records:
        run = reader.find(record, body, at)
        at = run.end
        for seq, arguments in enumerate(run.calls(), record.seq):
            found.append((seq, record.method, arguments, record.lane_array(), record.priority))
    return found


def _read_acknowledgement(meta: bytes, body: Array) -> Any:
    done = handshake.decoded(rows.Acknowledgement, meta)
    made = done.made(body)
    return [made.of(place) for place in range(len(done.counts))]


def _read_call(meta: bytes, body: Array) -> Any:
    call = handshake.decoded(values.Call, meta)
    return call, call.arguments(body)


def reader_of(name: str) -> Callable[[bytes, Array], Any]:
    """What makes something of meta and body of the message of this name."""
    if name in _STRUCTS:
        return lambda meta, body: handshake.decoded(_STRUCTS[name], meta)
    readers: dict[str, Callable[[bytes, Array], Any]] = {
        "call": _read_call,
        "plain call": _read_call,
        "append": _read_rows,
        "watch": _read_call,
        "ack": _read_call,
        "many": _read_call,
        "leased draw": _read_call,
        "blocks": lambda meta, body: list(blocks_of(body, handshake.decoded(values.Answer, meta).header_bytes)),
        "news": lambda meta, body: values.value_of(Message(Kind.ANSWER, 7, 0, meta, body)),
        "gone": lambda meta, body: values.value_of(Message(Kind.ANSWER, 7, 0, meta, body)),
        "answer": lambda meta, body: values.value_of(Message(Kind.ANSWER, 7, 0, meta, body)),
        "error": lambda meta, body: values.error_of(meta, "node"),
        "acknowledge": _read_acknowledgement,
    }
    return readers.get(name, lambda meta, body: batches.unpack_batch(meta, body, trusted=False))


READ = [name for name, each in MESSAGES.items() if each.meta]
