"""The rows of a remote writer as the core makes them, against the interpreter, which can do it too."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from cluster import messages
from cluster.messages import Sent, array, framed, joined
from pains import until

import di_store
from di_store.base.dtypes import Array
from di_store.protocol.connection import Connection, Disconnected, Message
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import decoded
from di_store.protocol.rows import Acknowledgement, Record, Records
from di_store.protocol.values import call_of
from di_store.replay.serving import RowService
from di_store.server.conversation import Conversation
from di_store.server.peer import Peer
from di_store.server.writing import WriterSession, serve_writer

SCHEMA = {
    "obs": di_store.Spec((5_000,), np.uint8),
    "reward": di_store.Spec((), np.float32),
    "terminated": di_store.Spec((), np.bool_),
    "truncated": di_store.Spec((), np.bool_),
}
NAMES = list(SCHEMA)
IN_CORE = Connection.in_core


class Writing(NamedTuple):
    """A writer that is served in this process, and the client's end of its connection."""

    store: di_store.Store
    client: Connection
    sock: socket.socket
    peer: Peer
    columns: list[int]  # of `NAMES`

    @property
    def session(self) -> WriterSession:
        """The only one."""
        (found,) = self.peer.writers.values()
        return found


@contextmanager
def writing(lanes: int | None, **options: Any) -> Iterator[Writing]:
    """A table and a writer of it."""
    with di_store.open(memory="64MiB") as store:
        store.create_table("t", schema=SCHEMA, **{"capacity": 3_000, "lanes": 8, **options})
        peer = Peer(bytes(16), "test", store._backend.session, trusted=False, parts=None)  # type: ignore[arg-type]
        near, far = socket.socketpair()
        here, there = Connection(near), Connection(far)
        here.most_bytes = there.most_bytes = 1 << 30
        talk = Conversation(here, peer, list, lambda: None)
        arguments = {"tables": ["t"], "single": True, "lanes": lanes, "autoreset": None, "session": b"s" * 16}
        arguments.update(begins=True, acknowledged=0)
        meta, body = call_of("open_writer", "", arguments, once=False)
        thread = threading.Thread(target=serve_writer, args=(talk, Message(Kind.CALL, 1, 0, meta, array(joined(body)))))
        thread.start()
        try:
            answer = there.receive()
            assert answer.kind == Kind.ANSWER
            (session,) = peer.writers.values()
            assert session._rows is not None
            order = [path[0] for path, _ in session._rows._columns]
            yield Writing(store, there, far, peer, [order.index(name) for name in NAMES])
        finally:
            there.close()
            for each in list(peer.writers.values()):
                each.end()
            thread.join(30)


def frame(epoch: int, acknowledged: int, records: list[Record], body: bytes) -> bytes:
    """Calls as they are sent."""
    return framed(Sent(Kind.APPEND, msgspec.msgpack.encode(Records(epoch, acknowledged, records)), body))


def padded(value: Array) -> bytes:
    """As it lies in a body."""
    raw = value.tobytes()
    return raw + bytes(-len(raw) % 16)


def call(rng: random.Random, lanes: int | None, count: int, columns: list[int]) -> tuple[Record, bytes]:
    """Some calls of one form; their number is to be set."""
    which: Any = None if lanes is None else rng.choice([None, 1, [0, 2]])
    lead = [] if lanes is None or isinstance(which, int) else [lanes if which is None else len(which)]
    if rng.random() < 0.1:
        return Record(0, "end_episode", [], {}, which), b""
    groups = {"step": columns}
    if rng.random() < 0.2:
        groups["next"] = columns[:1]
    priority = 2.0 if rng.random() < 0.1 else None
    body = b""
    for _ in range(count):
        rows = {
            "obs": np.full((*lead, 5_000), rng.randrange(256), np.uint8),
            "reward": np.full(lead, rng.randrange(1000), np.float32),
            "terminated": np.full(
                lead, "next" in groups or rng.random() < 0.1
            ),  # else what follows would have to be the same
            "truncated": np.zeros(lead, np.bool_),
        }
        body += b"".join(padded(rows[name]) for name in NAMES)
        if "next" in groups:
            body += padded(np.full((*lead, 5_000), rng.randrange(256), np.uint8))
    return Record(0, "append", lead, groups, which, priority, count=count), body


def stream(rng: random.Random, lanes: int | None, columns: list[int], frames: int) -> list[bytes]:
    """Frames of calls, some of which were sent before, or in an epoch that is over."""
    made, seq, usual = list[bytes](), 1, call(rng, lanes, 3, columns)
    while usual[0].method != "append" or usual[0].priority is not None:
        usual = call(rng, lanes, 3, columns)
    for _ in range(frames):
        records, bodies = list[Record](), b""
        for _ in range(rng.choice([1, 1, 1, 1, 2])):
            record, body = usual if rng.random() < 0.6 else call(rng, lanes, rng.randrange(1, 7), columns)
            record = msgspec.structs.replace(record, seq=seq)
            seq += record.count + (rng.random() < 0.1)  # a call that was interrupted leaves a gap
            records.append(record)
            bodies += body
        made.append(frame(0, max(0, seq - 40), records, bodies))
        if rng.random() < 0.1:
            made.append(rng.choice(made[-3:]))
    return made


def answers(running: Writing, data: bytes, count: int, rng: random.Random) -> list[Any]:
    """What is acknowledged, when the bytes come in parts."""

    def send() -> None:
        at = 0
        while at < len(data):
            size = rng.choice([1, 30, 100, 5_000, 200_000])
            running.sock.sendall(data[at : at + size])
            at += size

    thread = threading.Thread(target=send)
    thread.start()
    found = list[Any]()
    for _ in range(count):
        message = running.client.receive()
        assert message.kind == Kind.ACKNOWLEDGE
        told = decoded(Acknowledgement, message.meta)
        made = told.made(message.body)
        items = [[column.tolist() for column in made.of(place)[0]] for place in range(len(told.counts))]
        found.append((told.last, told.epoch, told.failure, [each[1:] for each in items]))
        keys = [key for each in items for key in each[0]]
        assert keys == sorted(set(keys))
    thread.join(30)
    return found


def rows_of(store: di_store.Store) -> dict[str, Any]:
    """All that is in the table."""
    table = store.table("t")
    batch = table.peek(table.keys())
    return {name: values.tolist() for name, values in batch.data.items()}


@pytest.mark.parametrize("lanes", [None, 4])
def test_the_core_and_python_write_the_same_rows(
    lanes: int | None, monkeypatch: pytest.MonkeyPatch, count: Callable[[int, int], int]
) -> None:
    """Calls of known and of other forms, sent again, in parts, and with gaps."""
    in_core, serve = list[int](), RowService.serve

    def counted(*given: Any, **more: Any) -> Any:
        served = serve(*given, **more)
        in_core.append(served.calls)
        return served

    monkeypatch.setattr(RowService, "serve", counted)
    for seed in range(count(4, 100)):
        made = []
        for plain in (True, False):
            monkeypatch.setattr(Connection, "in_core", IN_CORE if plain else None)
            with writing(lanes) as running:
                data = stream(random.Random(seed), lanes, running.columns, 60)
                found = answers(running, b"".join(data), len(data), random.Random(seed + 1))
                assert len(running.session._acknowledged) < 60
                made.append((found, rows_of(running.store)))
            assert (sum(in_core) > 20) == plain
            in_core.clear()
        assert made[0] == made[1]


def test_calls_sent_after_a_refused_one_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch rises; calls of the one before are looked at, and not made."""
    made = []
    for plain in (True, False):
        monkeypatch.setattr(Connection, "in_core", IN_CORE if plain else None)
        with writing(4) as running:
            record, body = call(random.Random(1), None, 1, running.columns)
            one = msgspec.structs.replace(record, lane=1)
            data = [frame(0, 0, [msgspec.structs.replace(one, seq=seq)], body) for seq in (1, 2, 3)]
            data.append(frame(0, 0, [msgspec.structs.replace(record, seq=4, lane=9)], body))  # there is no such lane
            data.append(frame(0, 3, [msgspec.structs.replace(one, seq=5)], body))
            data.append(frame(1, 5, [msgspec.structs.replace(one, seq=6)], body))
            found = answers(running, b"".join(data), len(data), random.Random(2))
            assert [bool(failure) for _, _, failure, _ in found] == [False, False, False, True, False, False]
            assert [epoch for _, epoch, _, _ in found] == [0, 0, 0, 1, 1, 1]
            made.append((found, rows_of(running.store)))
    assert made[0] == made[1]
    assert len(made[0][1]["reward"]) == 4


def test_blocked_rows_are_written_in_order() -> None:
    """The core makes those for which there is room; those behind wait for draws."""
    with writing(None, limiter=di_store.Queue(3), view=di_store.Step()) as running:
        record, body = call(random.Random(1), None, 1, running.columns)
        record = msgspec.structs.replace(record, count=4)
        for seq in (1, 5, 9):
            running.sock.sendall(frame(0, 0, [msgspec.structs.replace(record, seq=seq)], body * 4))
        table = running.store.table("t")
        taken = [key for _ in range(4) for key in table.sample(3, timeout=60).keys.tolist()]
        lasts, keys = [], []
        while len(lasts) < 3:
            message = running.client.receive()
            if message.kind == Kind.ACKNOWLEDGE:
                told = decoded(Acknowledgement, message.meta)
                lasts.append(told.last)
                made = told.made(message.body)
                keys += [int(key) for place in range(len(told.counts)) for key in made.of(place)[0][0]]
        assert lasts == [4, 8, 12]
        assert keys == taken


def test_a_corrupted_frame_writes_no_row(count: Callable[[int, int], int]) -> None:
    """A frame with a byte that was changed on its way ends the connection: nothing of it is made or acknowledged."""
    rng = random.Random(3)
    for _ in range(count(60, 1_000)):
        with writing(None) as running:
            record, body = call(random.Random(1), None, 1, running.columns)
            first, second = (frame(0, 0, [msgspec.structs.replace(record, seq=seq)], body) for seq in (1, 2))
            running.sock.sendall(first)
            assert running.client.receive().kind == Kind.ACKNOWLEDGE
            changed = bytearray(second)
            at = rng.choice([rng.randrange(60), rng.randrange(len(changed))])
            changed[at] ^= 1 << rng.randrange(8)
            running.sock.sendall(changed)
            running.sock.shutdown(socket.SHUT_WR)
            with pytest.raises(Disconnected):
                running.client.receive()
            assert len(running.store.table("t")) == 1


def test_a_client_that_reads_nothing_blocks_nobody() -> None:
    """Acknowledgements that do not fit the socket are sent when it has room, and each comes as a whole."""
    with writing(None) as running:
        running.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        record, body = call(random.Random(1), None, 1, running.columns)
        sent = threading.Event()

        def send() -> None:
            for seq in range(1, 2_001):
                running.sock.sendall(frame(0, 0, [msgspec.structs.replace(record, seq=seq)], body))
            sent.set()

        thread = threading.Thread(target=send)
        thread.start()
        seen = len(running.store.table("t"))
        until(lambda: len(running.store.table("t")) > seen, "rows")
        lasts = list[int]()
        while len(lasts) < 2_000:
            lasts.append(decoded(Acknowledgement, running.client.receive().meta).last)
        thread.join(60)
        assert sent.is_set()
        assert lasts == list(range(1, 2_001))


def test_frames_the_core_does_not_handle_go_to_python() -> None:
    """A body in pieces, or above a piece in one frame, and calls that are answered, go the usual way."""
    with writing(None) as running:
        record, body = call(random.Random(1), None, 1, running.columns)
        running.sock.sendall(frame(0, 0, [msgspec.structs.replace(record, seq=1)], body))
        running.sock.sendall(frame(0, 0, [msgspec.structs.replace(record, seq=2)], body))
        big = msgspec.structs.replace(record, seq=3, count=250)
        running.sock.sendall(frame(0, 0, [big], body * 250))
        meta = msgspec.msgpack.encode(Records(0, 0, [msgspec.structs.replace(big, seq=253)]))
        running.sock.sendall(messages.frame(Kind.APPEND, meta, body * 250, seq=len(body) * 250))
        meta, buffers = call_of("close", "", {"seq": 503, "timeout": 5.0}, once=False)
        running.sock.sendall(framed(Sent(Kind.CALL, meta, joined(buffers), request=7)))
        lasts = [decoded(Acknowledgement, running.client.receive().meta).last for _ in range(4)]
        assert lasts == [1, 2, 252, 502]
        assert running.client.receive().kind == Kind.ANSWER
        assert len(running.store.table("t")) == 502


@pytest.mark.parametrize("said", [2, 200, 300, 2**31, 2**63])
def test_a_frame_with_too_many_calls_is_refused(said: int) -> None:
    """They end the connection, and none is made."""
    with writing(None) as running:
        record, body = call(random.Random(1), None, 1, running.columns)
        running.sock.sendall(frame(0, 0, [msgspec.structs.replace(record, seq=1)], body))
        running.sock.sendall(frame(0, 0, [msgspec.structs.replace(record, seq=2, count=said)], body))
        assert running.client.receive().kind == Kind.ACKNOWLEDGE
        with pytest.raises(Disconnected):
            running.client.receive()
        assert len(running.store.table("t")) == 1
