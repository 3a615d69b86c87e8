"""Transports for the payload of a large object from another node.

One uses our own connections, the other one Mooncake's engine (`di_store.server.engine_bulk`), which only agents have.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from di_store import _core
from di_store.base.dtypes import Array
from di_store.client.session import RemoteSession
from di_store.protocol.connection import Connection
from di_store.runtime.deadline import Deadline

ENGINE_BYTES = 1 << 20
"""Smaller objects are sent over our own connections: the agents' messages about a transfer would cost more than it
saves."""


class PayloadRoom(NamedTuple):
    """The memory for the payload of an object.

    Attributes:
        draft: the draft of the copy. The bytes may be written while the draft or `payload` is referenced.
        payload: payload of the draft, as many bytes as the other store sends.
    """

    draft: _core.Reserved
    payload: Array


class Bulk(Protocol):
    """Fetches payloads of other nodes' objects into this store. Thread-safe."""

    def fill(self, far: RemoteSession, raw: bytes, room: PayloadRoom, deadline: Deadline) -> None:
        """Fetch the payload of object `raw` from the store `far`, and check it. After an error nothing may be sealed.

        Raises:
            ObjectNotFound: the object is gone. NodeUnavailable, Timeout: the other agent does not answer in time.
        """


class OwnTcp:
    """Fetches pieces, each with a checksum, over our own connection."""

    def fill(self, far: RemoteSession, raw: bytes, room: PayloadRoom, deadline: Deadline) -> None:
        """As `Bulk.fill`."""
        payload = room.payload

        def feed(connection: Connection) -> None:
            at = 0
            while at < len(payload):
                at += connection.receive_piece(payload[at:])

        arguments = {"id": raw, "timeout": 0, "bytes": len(payload)}
        far.channel.ask("copy_payload", arguments, timeout=deadline, what=what(raw), feed=feed)


OWN_TCP = OwnTcp()


def what(raw: bytes) -> str:
    """The name of the call, for its error."""
    return f"get of object {raw.hex()}"
