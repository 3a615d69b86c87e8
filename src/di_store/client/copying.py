"""Temporary copies of objects of another store in this one, under the same id.

If several processes want a copy, the process that reserves the id makes it. If that process dies, the core frees its
draft, and the next process copies.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import StoreFull
from di_store.client.bulk import OWN_TCP, Bulk, PayloadRoom, what
from di_store.client.channel import Seconds
from di_store.client.session import RemoteSession
from di_store.objects.access import written
from di_store.objects.blocks import header_of, payload_start
from di_store.protocol.frame import view
from di_store.protocol.handshake import decoded
from di_store.protocol.values import Answer, warn
from di_store.runtime.deadline import Deadline
from di_store.session import Session

LEASE_SECONDS = 50.0
"""How long a copy stays, and so how long a deleted object may still be read on other nodes: less than `put` waits."""
SLOWEST_BYTES = 10e6
"""A copy that would take longer than the lease at this many bytes a second gets that time."""
FREE_SHARE = 0.25
"""The share of the store's memory that copies leave free, so that values put here need not wait for them."""


def head_of(far: RemoteSession, raw: bytes, timeout: Seconds) -> tuple[Array, int]:
    """The block of an object, or only its bytes before the payload; and the size of the whole block.

    Raises:
        ObjectNotFound: the object does not exist in time. NodeUnavailable, Timeout: the agent does not answer.
    """
    deadline = Deadline.of(timeout)
    arguments = {"id": raw, "timeout": deadline.left}
    message = far.channel.ask("copy_head", arguments, timeout=deadline, what=what(raw))
    answer = decoded(Answer, message.meta)
    warn(answer.warnings)
    sealed: Array = np.frombuffer(view(message.body).toreadonly(), np.uint8)  # no view of it can be made writable
    return sealed, answer.header_bytes


def make_copy(
    here: Session, far: RemoteSession, raw: bytes, head: Array, total: int, timeout: Seconds, bulk: Bulk = OWN_TCP
) -> None:
    """Copy an object into this store. `head`, `total`: from `head_of`. `bulk`: transport for the payload.

    Raises:
        StoreFull, CapacityError: the copy would leave too little room. ObjectExists: another process copies the object,
            or has copied it. NodeUnavailable, Timeout: the agent does not answer.
    """
    if len(head) == total:  # all of it
        start = payload_start(head)
        room = _room(here, far, raw, head[:start], total)
        room.payload[:] = head[start:]
    else:
        room = _room(here, far, raw, head, total)
        bulk.fill(far, raw, room, Deadline.of(timeout))
    room.draft.seal()


def _room(here: Session, far: RemoteSession, raw: bytes, head: Array, total: int) -> PayloadRoom:
    """Room for a copy under the same id."""
    header, payload_bytes = header_of(head, total)
    stats = here.arena.stats()
    if stats["live"] + total > (1 - FREE_SHARE) * stats["budget"]:
        raise StoreFull(f"a copy of object {raw.hex()} would leave too little room")
    ttl = max(LEASE_SECONDS, total / SLOWEST_BYTES)
    reserve = partial(_reserved, header, payload_bytes, raw, ttl, not far.channel.allow_pickle)
    draft = written(here, 0, f"copy of object {raw.hex()}", reserve)
    return PayloadRoom(draft, draft.payload())


def _reserved(header: bytes, payload: int, raw: bytes, ttl: float, foreign: bool, arena: _core.Arena) -> _core.Reserved:
    return arena.reserve(header, payload, raw, ttl, foreign=foreign)
