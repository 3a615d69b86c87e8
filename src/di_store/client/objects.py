"""Objects and weights of a remote store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, NodeUnavailable, ObjectExists, Timeout
from di_store.client.bulk import what
from di_store.client.channel import Seconds
from di_store.client.session import RemoteSession
from di_store.objects import codec
from di_store.objects.refs import Ref, joined_ids
from di_store.objects.weights import Published
from di_store.protocol.connection import Connection, Message
from di_store.protocol.frame import Buffer, view
from di_store.protocol.handshake import MANY_OBJECTS, decoded
from di_store.protocol.values import Answer, payload_of, value_of, warn
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import logger

MOST_ATTEMPTS = 20
"""Attempts to put a value with a new id while connections break."""
INLINE_BYTES = 256 << 10
"""Values up to this size travel with the call; larger ones follow once the agent has room for them."""


IDS_AT_ONCE = 10_000
"""Objects that one call names."""
_ALIGNMENT = 64


class _Sent:
    """A value ready to travel."""

    def __init__(self, value: Any, raw: bytes | None) -> None:
        self.raw = raw
        encoded = codec.encode(value)
        self.header: bytes = encoded.header
        self.bytes = encoded.payload_bytes
        self._encoded = encoded

    @property
    def entry(self) -> list[Any]:
        """The call's description of the value."""
        return [self.raw, self.header, self.bytes]

    def parts(self) -> list[Buffer]:
        """The payload as consecutive buffers."""
        return payload_of(self._encoded)

    def whole(self) -> bytes:
        """The payload as one text of bytes."""
        return b"".join(view(each) for each in self.parts())


class RemoteObjects:
    """Implements the calls of a remote store that concern objects and weights."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    def put_many(
        self, values: Sequence[Any], ids: Sequence[bytes | None], ttl: float, deadline: Deadline, durability: str
    ) -> list[Ref]:
        """Put all values or none. `ttl` 0: they stay."""
        fresh = all(raw is None for raw in ids)
        for _ in range(MOST_ATTEMPTS):
            sent = [
                _Sent(value, secrets.token_bytes(20) if raw is None else raw)
                for value, raw in zip(values, ids, strict=True)
            ]
            try:
                self._put(sent, ttl, deadline, durability, once=not fresh)
                break
            except ObjectExists:
                if not fresh:
                    raise
                # An attempt whose answer was lost has them, all or some, or is still at it: these are nobody's.
                self._session.call("delete", {"ids": [each.raw for each in sent]}, timeout=deadline, what="put")
        else:
            raise NodeUnavailable(
                f"put: {MOST_ATTEMPTS} connections to {self._session.channel.node} broke during the call"
            )
        return [Ref(each.raw) for each in sent if each.raw is not None]

    def _put(self, sent: list[_Sent], ttl: float, deadline: Deadline, durability: str, *, once: bool) -> None:
        inline = sum(each.bytes for each in sent) <= INLINE_BYTES
        arguments = {
            "entries": [each.entry for each in sent],
            "ttl": ttl or None,
            "timeout": deadline.left,
            "durability": durability,
            "inline": [each.whole() for each in sent] if inline else None,
        }
        self._session.channel.ask("put", arguments, timeout=deadline, what="put", once=once, feed=_feeding(sent))

    def get(self, raw: bytes, timeout: Seconds, copy: bool | None) -> Any:
        """The value of an object. Arrays lie in this process, and are read-only unless `copy`."""
        deadline = Deadline.of(timeout)
        arguments = {"id": raw, "timeout": deadline.left}
        message = self._session.channel.ask("get", arguments, timeout=deadline, what=what(raw))
        warn(decoded(Answer, message.meta).warnings)
        return self._value(message.body, copy)

    def present(self, raws: list[bytes], timeout: Seconds, copy: bool | None) -> Iterator[tuple[bytes, Any]]:
        """The ids and values of those of these objects that can be read at once. One call reads many of them.

        An agent of an older protocol is not asked: then nothing is there.
        """
        deadline, at = Deadline.of(timeout), 0
        self._session.meet(deadline)
        while at < len(raws) and self._session.channel.client.protocol >= MANY_OBJECTS:
            some = raws[at : at + IDS_AT_ONCE]
            arguments = {"ids": joined_ids(some)}
            message = self._session.channel.ask(
                "get_many", arguments, timeout=deadline, what=f"get of {len(raws)} objects"
            )
            answer = decoded(Answer, message.meta)
            warn(answer.warnings)
            for raw, block in zip(some, blocks_of(message.body, answer.header_bytes), strict=False):
                if len(block):
                    yield raw, self._value(block, copy)
            at += answer.header_bytes

    def delete_each(self, raws: list[bytes], timeout: Seconds) -> set[bytes]:
        """Delete objects. Returns which of them existed."""
        options: dict[str, Any] = {"timeout": Deadline.of(timeout), "what": "delete", "once": True}
        call, gone = self._session.call, set[bytes]()
        if self._session.channel.client.protocol < MANY_OBJECTS:
            return {raw for raw in raws if call("delete", {"ids": [raw]}, **options)}
        for at in range(0, len(raws), IDS_AT_ONCE):
            some = raws[at : at + IDS_AT_ONCE]
            were_there = call("delete_each", {"ids": joined_ids(some)}, **options)
            gone.update(raw for raw, was_there in zip(some, were_there, strict=True) if was_there)
        return gone

    def _value(self, block: Array, copy: bool | None) -> Any:
        return _core.read_block(block, copy, foreign=not self._session.channel.allow_pickle)

    def publish(self, name: str, tree: Any, keep: int, deadline: Deadline, durability: str) -> int:
        """`Store.publish`."""
        return self._known(name, int(self._publish(name, tree, keep, deadline, durability, f"publish of {name!r}")))

    def _publish(
        self, name: str, tree: Any, keep: int, deadline: Deadline, durability: str, what: str, **more: Any
    ) -> Any:
        sent = None if tree is None else _Sent(tree, None)
        inline = sent is not None and sent.bytes <= INLINE_BYTES
        arguments = {
            "name": name,
            "keep": keep,
            "timeout": deadline.left,
            "durability": durability,
            "entry": None if sent is None else sent.entry,
            "inline": [sent.whole()] if sent is not None and inline else None,
            **more,
        }
        feed = None if sent is None else _feeding([sent])
        ask = self._session.channel.ask
        return value_of(ask("publish", arguments, timeout=deadline, what=what, once=True, feed=feed))

    def _known(self, name: str, version: int) -> int:
        self._session.channel.client.known_versions.at_least(name, version)
        return version

    def publish_at(self, name: str, tree: Any, version: int, timeout: Seconds, what: str) -> bool:
        """Publish a small value as exactly this version; False: this version or a newer one exists.

        `what`: name of the call, for its error.

        Raises:
            NodeUnavailable: the agent does not answer, or was killed during the call. StoreFull: no room there.
        """
        made = bool(self._publish(name, tree, 1, Deadline.of(timeout), "memory", what, at=version))
        if made:
            self._known(name, version)
        return made

    def newest(self, name: str, timeout: Seconds, what: str) -> Published | None:
        """The newest version, without waiting for one. `timeout`: seconds that the agent has to answer.

        `what`: name of the call, for its error.

        Raises:
            NodeUnavailable, Timeout: the agent does not answer.
        """
        arguments = {"name": name, "newer_than": None, "version": None, "timeout": 0}
        return self._published(self._session.channel.ask("latest", arguments, timeout=timeout, what=what))

    def _published(self, message: Message) -> Published | None:
        answer = decoded(Answer, message.meta)
        warn(answer.warnings)
        if not answer.header_bytes:
            return None
        return Published(answer.header_bytes, self._value(message.body, None) if len(message.body) else None)

    def _is_newest(self, name: Any, version: Any) -> bool:
        """Whether the agent has reported this. An invalid name or version is left to the agent's own error."""
        known = self._session.channel.client.known_versions
        return type(name) is str and type(version) is int and known.is_newest(name, version)

    def latest(self, name: str, newer_than: int | None, version: int | None, deadline: Deadline) -> Published | None:
        """`Store.latest`. A poll need not ask the agent (`KnownVersions`)."""
        channel = self._session.channel
        if deadline.timeout == 0 and version is None and self._is_newest(name, newer_than):
            channel.check_open()
            return None
        arguments = {"name": name, "newer_than": newer_than, "version": version, "timeout": deadline.left}
        try:
            message = channel.ask("latest", arguments, timeout=deadline, what=f"latest({name!r})")
        except (NodeUnavailable, Timeout) as error:
            if deadline.timeout is None:
                raise
            # Nothing newer is known at the deadline: an actor goes on with what it has.
            if not channel.client.quiet:  # once for each silence
                channel.client.quiet = True
                logger.warning("%s", error)
            return None
        if (found := self._published(message)) is not None:
            self._session.versions[name] = self._known(name, found.version)
        return found


def blocks_of(body: Array, count: int) -> Iterator[Array]:
    """The blocks in the answer to `get_many` about so many ids; an empty one for an object that is not there."""
    sealed: Array = np.frombuffer(view(body).toreadonly(), np.uint8)  # no view of it can be made writable
    front = sealed[: 8 * count]
    if count < 1 or len(front) < 8 * count:
        raise CorruptData("received fewer sizes of objects than announced", remedy="")
    at = 8 * count
    for size in front.view(np.int64).tolist():
        if size:
            at = -(-at // _ALIGNMENT) * _ALIGNMENT
        if not 0 <= size <= len(sealed) - at:
            raise CorruptData("received an object that is longer than its message", remedy="")
        yield sealed[at : at + size]
        at += size


def _feeding(sent: list[_Sent]) -> Callable[[Connection], None]:
    """Sends the payloads in pieces."""

    def feed(connection: Connection) -> None:
        for each in sent:
            connection.send_pieces(each.parts())

    return feed
