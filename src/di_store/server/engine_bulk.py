"""Payloads by Mooncake's engine, from nodes whose agents have one; from all other nodes over TCP."""

from __future__ import annotations

import threading
import time

import numpy as np

from di_store import _core
from di_store.base.errors import NodeUnavailable, Timeout
from di_store.client.bulk import OWN_TCP, PayloadRoom, what
from di_store.client.copying import SLOWEST_BYTES
from di_store.client.session import RemoteSession
from di_store.protocol.connection import Connection
from di_store.protocol.handshake import decoded
from di_store.protocol.values import value_of
from di_store.runtime.deadline import LOST_SECONDS, Deadline
from di_store.runtime.waits import logger
from di_store.server.engine import Engine, EngineFailed, EngineOffer

AVOID_SECONDS = 30.0
"""How long a node's payloads come over our own TCP after a transfer from it has failed."""
MOST_OFFER_BYTES = 1024
RETURNED = b"\0"
"""The piece that says that the engine no longer uses the lent payload."""


class _NotLent(Exception):
    """The other agent process never lends payloads, for the given reason."""


class EngineBulk:
    """Implements `Bulk`.

    If an engine fails in any way, the same call fetches the payload over TCP instead. The failure is logged once, until
    a transfer from that node succeeds. TCP is used only if the engine has stopped writing. Otherwise the call ends with
    `Timeout`, and the unpublished draft is freed once the engine has stopped.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._avoided: dict[str, tuple[bytes, float]] = {}  # by node, the agent, and until when. Under _lock
        self._said: set[str] = set()  # nodes that the log has a line of. Under _lock

    def fill(self, far: RemoteSession, raw: bytes, room: PayloadRoom, deadline: Deadline) -> None:
        """As `Bulk.fill`."""
        if not self._engine.missing() and not self._is_avoided(far):
            try:
                self._read(far, raw, room, deadline)
            except _NotLent as error:
                self._avoid(far, str(error), float("inf"))
            except EngineFailed as error:
                self._avoid(far, str(error), AVOID_SECONDS)
            else:
                with self._lock:
                    self._said.discard(far.channel.node)
                return
        OWN_TCP.fill(far, raw, room, deadline)

    def _is_avoided(self, far: RemoteSession) -> bool:
        with self._lock:
            agent, until = self._avoided.get(far.channel.node, (b"", 0.0))
        return agent == far.channel.client.agent and time.monotonic() < until

    def _avoid(self, far: RemoteSession, why: str, seconds: float) -> None:
        node = far.channel.node
        with self._lock:
            self._avoided[node] = far.channel.client.agent, time.monotonic() + seconds
            said = node in self._said
            self._said.add(node)
        if not said:
            logger.warning("objects of node %s are copied over TCP: %s", node, why)

    def _read(self, far: RemoteSession, raw: bytes, room: PayloadRoom, deadline: Deadline) -> None:
        """One transfer.

        Raises: _NotLent, EngineFailed: the payload was not transferred this way, and nothing writes to it any more.
            ObjectNotFound, NodeUnavailable, Timeout: as `Bulk.fill`.
        """
        failed: list[EngineFailed] = []

        def go_on() -> None:
            far.channel.check_open()
            _check_time(far, raw, room, deadline)

        def feed(connection: Connection) -> None:
            failed.clear()  # the call may be made again, of another agent
            packed = np.empty(MOST_OFFER_BYTES, np.uint8)
            offer = decoded(EngineOffer, packed[: connection.receive_piece(packed)].tobytes())
            try:
                self._engine.read(offer, room, go_on)
            except EngineFailed as error:
                failed.append(error)
            connection.send_pieces([RETURNED])

        arguments = {"id": raw, "timeout": 0, "bytes": len(room.payload), "kind": self._engine.kind}
        try:
            answer = value_of(far.channel.ask("lend_payload", arguments, timeout=deadline, what=what(raw), feed=feed))
        except TypeError:
            raise _NotLent("its agent is of an older version") from None
        if isinstance(answer, str):
            raise _NotLent(answer)
        if failed:
            raise failed[0]
        if answer != _core.crc32c(room.payload):
            raise EngineFailed(f"object {raw.hex()} arrived with a wrong checksum")


def _check_time(far: RemoteSession, raw: bytes, room: PayloadRoom, deadline: Deadline) -> None:
    """Raise if a transfer has no more time: the other side may be silent, which an engine notices late."""
    node = far.channel.node
    if deadline.over():
        seconds = deadline.timeout or 0.0
        why = "its bytes are still on their way"
        raise Timeout(f"{what(raw)} timed out after {round(seconds, 2):g} s", why, f"node {node}")
    if deadline.timeout is None and deadline.passed > LOST_SECONDS + len(room.payload) / SLOWEST_BYTES:
        raise NodeUnavailable(f"{what(raw)}: node {node} sends no bytes")
