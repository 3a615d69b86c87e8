"""The handshake by which two sides of a connection authenticate each other. The token itself is never sent.

    client  HELLO       protocol range, nonce, link, role
    agent   CHALLENGE   nonce
    client  PROOF       HMAC-SHA256(token, "client", challenge, hello)
    agent   WELCOME     HMAC-SHA256(token, "agent", challenge, hello), the store;  or REFUSE with one line of text

Both hello and challenge hold a nonce, which is new for each connection, so a recorded handshake proves nothing later.
Without TLS, anybody on the network path can read the connection and take it over: ``--plaintext`` accepts this.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TypeVar

import msgspec

from di_store.base.errors import (
    AccessDenied,
    CorruptData,
    LayoutMismatch,
    NodeUnavailable,
    StoreError,
    StoreNotFound,
    shown,
)
from di_store.protocol.connection import Connection, Disconnected, Message
from di_store.protocol.frame import Kind

OLDEST, NEWEST = 1, 5
"""The protocols that this version speaks."""
WATCHES = 2
"""From this protocol on an agent tells of new versions of weights: `watch_versions`."""
LEASES = 3
"""From this protocol on a client may draw with a lease."""
REASONS = 4
"""From this protocol on an agent tells why items left a table."""
MANY_OBJECTS = 4
"""From this protocol on one call reads or deletes many objects: `get_many`, `delete_each`."""
LEASES_OF_LOADERS = 5
"""From this protocol on a client's loaders and mixtures may draw with a lease."""
NONCE_BYTES = 32
_TOKEN_REMEDY = "give both sides the same token: DI_STORE_TOKEN, `di-store serve --token-file`, connect(token=)"

M = TypeVar("M", bound=msgspec.Struct)


class Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=False):
    """The client's first message.

    Attributes:
        oldest, newest: range of protocols that the client speaks.
        nonce: 32 random bytes.
        link: 16 bytes that name the client process, the same for all its connections.
        role: purpose of the connection: "call", "writer", "beat" or "watch".
        store: name of the wanted store; "": the served one.
        name: name of the client, for people.
    """

    oldest: int
    newest: int
    nonce: bytes
    link: bytes
    role: str
    store: str
    name: str


class Challenge(msgspec.Struct, array_like=True):
    """The agent's answer: the common protocol, and its nonce."""

    protocol: int
    nonce: bytes


class Proof(msgspec.Struct, array_like=True):
    """The proof that the client knows the token."""

    mac: bytes


class Welcome(msgspec.Struct, array_like=True):
    """The proof that the agent also knows the token, and a description of its store.

    Attributes:
        store, uuid: name and uuid of the store.
        node: name of the agent's machine, for people.
        agent: 16 bytes that name the agent's process; a restarted agent has another name.
        seed: seed of the store.
        tiered: whether the store has a disk.
        allow_pickle: whether the agent loads values that its clients pickle.
    """

    mac: bytes
    store: str
    uuid: str
    node: str
    agent: bytes
    seed: int
    tiered: bool
    allow_pickle: bool


class Refusal(msgspec.Struct, array_like=True):
    """The reason why the connection is refused: the name of an error's class, its text and remedy."""

    kind: str
    text: str
    remedy: str


def decoded(kind: type[M], meta: bytes) -> M:
    """Meta as a message of this type.

    Raises:
        CorruptData: the meta is no such message.
    """
    try:
        return msgspec.msgpack.decode(meta, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # text that is no UTF-8; lists of lists of lists
        raise CorruptData(f"received an invalid {kind.__name__} message: {error}", remedy="") from None


def _mac(token: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    said = role + len(challenge).to_bytes(4, "little") + challenge + hello
    return hmac.new(token, said, hashlib.sha256).digest()


def one_line(text: str, most: int = 500) -> str:
    """A text from another machine as one line that is safe to show in a terminal."""
    return "".join(each if each.isprintable() else " " for each in text[:most])


def greet(connection: Connection, token: bytes, hello: Hello) -> Welcome:
    """The client's part.

    Raises:
        AccessDenied: one of the two does not know the token. LayoutMismatch: no protocol in common. StoreNotFound: the
        agent serves another store. Disconnected: the other side closed the connection.
    """
    said = msgspec.msgpack.encode(hello)
    connection.send(Kind.HELLO, meta=said)
    challenged = _expect(connection.receive(), Kind.CHALLENGE)
    challenge = decoded(Challenge, challenged)
    if not hello.oldest <= challenge.protocol <= hello.newest or len(challenge.nonce) != NONCE_BYTES:
        raise CorruptData("the other side chose a protocol that was not offered", remedy="")
    connection.send(Kind.PROOF, meta=msgspec.msgpack.encode(Proof(_mac(token, b"client", said, challenged))))
    welcome = decoded(Welcome, _expect(connection.receive(), Kind.WELCOME))
    if not hmac.compare_digest(welcome.mac, _mac(token, b"agent", said, challenged)):
        raise AccessDenied("the server at this address does not know the token", remedy=_TOKEN_REMEDY)
    connection.protocol = challenge.protocol
    return welcome


def _expect(message: Message, kind: Kind) -> bytes:
    if message.kind == Kind.REFUSE:
        raise _refusal_error(decoded(Refusal, message.meta))
    if message.kind != kind:
        raise CorruptData(f"expected a {kind.name} message, got a message of kind {message.kind}", remedy="")
    return message.meta


def _refusal_error(refusal: Refusal) -> StoreError:
    cls = _REFUSALS.get(refusal.kind, NodeUnavailable)
    return cls(one_line(refusal.text), remedy=one_line(refusal.remedy))


_REFUSALS: dict[str, type[StoreError]] = {
    each.__name__: each for each in (AccessDenied, LayoutMismatch, StoreNotFound, NodeUnavailable)
}


def answer(connection: Connection, token: bytes, store: str) -> tuple[Hello, bytes]:
    """The agent's part up to the proof. Returns the client's hello, and the mac for `Welcome`.

    Raises:
        StoreError: the client is refused; `refuse` sends it the reason. CorruptData, Disconnected: the other side is no
            client of ours.
    """
    message = connection.receive()
    if message.kind != Kind.HELLO:
        raise CorruptData(f"expected a HELLO message, got a message of kind {message.kind}", remedy="")
    hello = decoded(Hello, message.meta)
    if len(hello.nonce) != NONCE_BYTES or len(hello.link) != 16:
        raise CorruptData("received a HELLO message with a nonce of the wrong size", remedy="")
    protocol = min(hello.newest, NEWEST)
    if protocol < max(hello.oldest, OLDEST):
        raise LayoutMismatch(
            f"the client speaks protocols {hello.oldest} to {hello.newest}, this agent {OLDEST} to {NEWEST}",
            remedy="install versions of di-store that are closer to each other: agents first, then clients",
        )
    challenge = msgspec.msgpack.encode(Challenge(protocol, secrets.token_bytes(NONCE_BYTES)))
    connection.send(Kind.CHALLENGE, meta=challenge)
    proof = connection.receive()
    if proof.kind != Kind.PROOF:
        raise CorruptData(f"expected a PROOF message, got a message of kind {proof.kind}", remedy="")
    if not hmac.compare_digest(decoded(Proof, proof.meta).mac, _mac(token, b"client", message.meta, challenge)):
        raise AccessDenied("the client does not know the token of this agent", remedy=_TOKEN_REMEDY)
    if hello.store and hello.store != store:
        raise StoreNotFound(
            f"this agent serves store {store!r}, not {shown(hello.store)}",
            remedy=f"connect to …/{store}, or leave the name out",
        )
    return hello, _mac(token, b"agent", message.meta, challenge)


def refuse(connection: Connection, error: StoreError) -> None:
    """Tell the client why it is refused. The connection is then of no use."""
    refusal = Refusal(type(error).__name__, one_line(error.message), one_line(error.remedy))
    try:
        connection.send(Kind.REFUSE, meta=msgspec.msgpack.encode(refusal))
    except Disconnected:
        return
    connection.drain()
