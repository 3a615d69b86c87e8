"""A process as one agent's client: its name at the agent, its connections, its call numbers, and its heartbeat.

All handles of one process with the same address, token and options share one client. A forked child gets its own, under
another name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from di_store.base.errors import AccessDenied, CorruptData, NodeUnavailable, StoreClosed, StoreError, StoreNotFound
from di_store.client.address import Address
from di_store.client.known_versions import KnownVersions
from di_store.client.waiting import Silent
from di_store.protocol.connection import TICK_SECONDS, Connection, Disconnected
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import NEWEST, NONCE_BYTES, OLDEST, Hello, Welcome, greet
from di_store.protocol.values import call_of
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child

CONNECT_SECONDS = 5.0
"""How long one attempt to reach the agent takes at most."""
BEAT_SECONDS = 2.0
MAX_BODY_BYTES = 1 << 46
_LEAST_SECONDS = 0.05  # that each attempt has
_IDLE = 8  # connections that are kept for later calls

_shared: weakref.WeakValueDictionary[tuple[Any, ...], AgentClient] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # a signal handler may make a handle in the middle of another


@dataclass
class IdempotencyToken:
    """A call that must not run twice. The agent remembers the call by its number as long as the call may be repeated.

    Attributes:
        request: number of the call.
        agent: the agent that the call was sent to; b"": none yet.
    """

    request: int
    agent: bytes = b""


class AgentClient:
    """A process as one agent's client. Thread-safe.

    Attributes:
        address: address of the agent.
        token: token that both sides know.
        ended: why no call is possible any more.
        versions: the version of each name of weights that this process last got from `latest`.
        known_versions: the versions that the agent reports.
        protocol: protocol of the agent that was reached last; 0: no agent yet.
        reported: by name, the agent and the version that this client reported to it.
        quiet: whether the agent's silence was reported, and nothing was heard since.
    """

    def __init__(self, address: Address, token: bytes, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.token = token
        self._tls = tls
        self._welcome: Welcome | None = None
        self.protocol = 0
        self.ended: StoreError | None = None
        self.versions: dict[str, int] = {}
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  # channels
        self._begin()
        in_child(self, AgentClient.forget)

    @classmethod
    def shared(
        cls, address: Address, token: bytes, tls: Any, allow_pickle: bool, context: ssl.SSLContext | None
    ) -> AgentClient:
        """The client of this process for an address, a token and options.

        `context`: the TLS context, used if the client is new.
        """
        key = address, token, tls, allow_pickle
        with _lock:
            found = _shared.get(key)
            if found is None or found.ended is not None:
                found = _shared[key] = cls(address, token, context)
            return found

    def _begin(self) -> None:
        self.id = secrets.token_bytes(16)
        self._idle: list[Connection] = []
        self._lock = threading.RLock()  # a signal handler may make a call in the middle of another
        self._request = 0  # the last number of a call
        self._numbers = itertools.count(1)
        self._tokens: set[int] = set()
        self._dropped: deque[int] = deque()
        self.known_versions = KnownVersions(self)
        self.reported: dict[str, tuple[bytes, int]] = {}
        self.quiet = False
        self._beats = False
        self._beating: Connection | None = None
        self._waked = threading.Event()

    def forget(self) -> None:
        """Drop the parent's connections in a forked child, which makes its own."""
        for connection in (*self._idle, *([self._beating] if self._beating is not None else [])):
            connection.forget()
        self.known_versions.forget()
        numbers, request = self._numbers, self._request
        self._begin()
        self._numbers, self._request = numbers, request  # what the child knows of the parent's is nothing of its own

    @property
    def welcome(self) -> Welcome:
        """The agent's description of itself and its store."""
        assert self._welcome is not None
        return self._welcome

    @property
    def agent(self) -> bytes:
        """Id of the agent that was reached last; b"": none was."""
        return self._welcome.agent if self._welcome is not None else b""

    def close_unused(self) -> None:
        """Note that a channel was closed. With the last channel the client ends."""
        with _lock:
            if any(channel.closed is None for channel in list(self.users)) or self.ended is not None:
                return
            self.ended = StoreClosed(f"all handles of {self.address} were closed")
        with self._lock:
            idle, self._idle = self._idle, []
        if idle:
            _say_goodbye(idle[0])
        for connection in idle:
            connection.close()
        if (beating := self._beating) is not None:
            beating.end()
        self._waked.set()
        self.known_versions.end()

    # -- numbers ------------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """A new number, by which the agent knows a handle of this process. No number is used twice."""
        return next(self._numbers)

    def next_request(self) -> int:
        """A new number for a call."""
        with self._lock:
            self._request += 1
            return self._request

    def new_token(self) -> IdempotencyToken:
        """A token for a call that must not run twice."""
        with self._lock:
            found = IdempotencyToken(self.next_request())
            self._tokens.add(found.request)
        return found

    def end_token(self, token: IdempotencyToken) -> None:
        """Note that the call will not be repeated any more."""
        with self._lock:
            self._tokens.discard(token.request)

    def may_repeat(self) -> list[int]:
        """Numbers of the calls that must not run twice, and that may still be repeated."""
        with self._lock:
            return list(self._tokens)

    def let_go(self, number: int) -> None:
        """Let the next call report that this process dropped the handle of this number. For finalizers: no lock."""
        self._dropped.append(number)

    def take_dropped(self) -> list[int]:
        """The dropped numbers for the next call; if that call fails, pass each to `let_go`."""
        found: list[int] = []
        if not self._dropped:
            return found
        with contextlib.suppress(IndexError):
            while len(found) < 1000:
                found.append(self._dropped.popleft())
        return found

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, role: str, deadline: Deadline, check_open: Callable[[], None]) -> Connection:
        """A new connection, after the handshake.

        Raises:
            Disconnected: nothing answers. AccessDenied, StoreNotFound, LayoutMismatch: the agent refuses. StoreClosed:
            another store has taken the name.
        """
        seconds = deadline.reach(CONNECT_SECONDS)
        until = time.monotonic() + seconds
        try:
            sock = _dialled(self.address, until)
        except OSError as error:
            raise Disconnected(_reason(error)) from None
        connection: Connection | None = None
        try:
            if self._tls is not None:
                sock.settimeout(max(until - time.monotonic(), _LEAST_SECONDS))
                sock = self._tls.wrap_socket(sock, server_hostname=self.address.host)
            connection = made = Connection(sock)

            def patience() -> None:
                check_open()
                if made.is_silent_until(until):
                    raise Silent("it accepts connections and does not answer")

            connection.ticking = patience
            connection.look_at, connection.until = until, until + TICK_SECONDS
            self._greeted(connection, role)
            connection.look_at, connection.until = float("inf"), None
            connection.most_bytes = MAX_BODY_BYTES
            return connection
        except BaseException as error:  # also Ctrl-C: nobody else knows of this connection
            connection.close() if connection is not None else sock.close()
            if (found := _explained(self.address, error)) is not None:
                raise found from None
            raise

    def _greeted(self, connection: Connection, role: str) -> None:
        """The handshake."""
        name = f"pid {os.getpid()} on {socket.gethostname()}"
        store = self.address.store or (self._welcome.store if self._welcome else "")
        hello = Hello(OLDEST, NEWEST, secrets.token_bytes(NONCE_BYTES), self.id, role, store, name)
        known, found = self._welcome, None
        try:
            found = greet(connection, self.token, hello)
        except StoreNotFound:  # a store of another name
            if known is None or self.address.store:
                raise
        if found is None or (known is not None and found.uuid != known.uuid):
            why = f"store {store!r} at {self.address.node} was replaced by a new one"
            self.ended = StoreClosed(why, remedy="connect again; the data of the old store is lost")
            raise self.ended
        self._welcome, self.protocol = found, connection.protocol

    def take_idle(self) -> Connection | None:
        """An idle connection; None: no connection is idle."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def keep_idle(self, connection: Connection) -> bool:
        """Keep a connection for a later call; False: there are enough."""
        with self._lock:
            if self.ended is not None or len(self._idle) >= _IDLE:
                return False
            self._idle.append(connection)
            return True

    def drop_idle(self) -> None:
        """Close the idle connections, because one broke or the agent holds state for one of them."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # -- the heartbeat ------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """From now on report every two seconds that this process lives, because the agent holds draws for it."""
        with self._lock:
            if self._beats:
                return
            self._beats = True
        threading.Thread(target=_beat, args=(weakref.ref(self), self._waked), daemon=True).start()

    def beat_now(self) -> None:
        """Send a beat soon, because something was dropped."""
        self._waked.set()

    def beat_once(self, connection: Connection | None) -> Connection | None:
        """Send one beat. Returns the connection, or None if it broke."""
        dropped: list[int] = []
        try:
            if connection is None:
                connection = self._beating = self.connect("beat", Deadline(CONNECT_SECONDS), self.check_ended)
            dropped = self.take_dropped()
            if dropped:
                meta, _ = call_of("hello", "", None, once=False, dropped=dropped)
                connection.send(Kind.CALL, request=self.next_request(), meta=meta)
            else:
                connection.send(Kind.PING)
            connection.receive()
            return connection
        except (StoreError, OSError):
            self._beating = None
            for number in dropped:
                self.let_go(number)
            if connection is not None:
                connection.close()
            return None

    def check_ended(self) -> None:
        """Raise why no call is possible any more."""
        if self.ended is not None:
            raise type(self.ended)(self.ended.message, remedy=self.ended.remedy)


def _beat(reference: weakref.ref[AgentClient], waked: threading.Event) -> None:
    """The heartbeat's thread; it does not keep the client alive."""
    connection: Connection | None = None
    while True:
        waked.wait(BEAT_SECONDS)
        client = reference()
        if client is None or client.ended is not None:
            break
        waked.clear()
        connection = client.beat_once(connection)
        del client
    if connection is not None:
        connection.close()


def _dialled(address: Address, until: float) -> socket.socket:
    """A connected socket; the host's addresses are tried within the remaining time.

    Raises:
        OSError: no address answers; the error of the last one.
    """
    *others, last = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for left, each in zip(range(len(others) + 1, 1, -1), others, strict=True):
        with contextlib.suppress(OSError):
            return _connected(each, (until - time.monotonic()) / left)
    return _connected(last, until - time.monotonic())


def _connected(found: tuple[Any, ...], seconds: float) -> socket.socket:
    """A socket that is connected to what `getaddrinfo` has found."""
    family, kind, protocol, _, where = found
    sock = socket.socket(family, kind, protocol)
    try:
        sock.settimeout(max(seconds, _LEAST_SECONDS))
        sock.connect(where)
        return sock
    except BaseException:  # also Ctrl-C: nobody else knows of this socket
        sock.close()
        raise


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _explained(address: Address, error: BaseException) -> Exception | None:
    """The meaning of a failed attempt to connect; None: the error's own text says it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{address}: its certificate is not trusted: {error.verify_message}"
        return AccessDenied(why, remedy="give connect(tls=) the CA certificate that signed it")
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        why = f"{address}: the TLS handshake failed ({error.reason or error})"
        return AccessDenied(why, remedy="leave connect(tls=) out, or serve it with --tls-cert and --tls-key")
    if isinstance(error, CorruptData):
        return NodeUnavailable(f"{address}: {error.message}", remedy="is this the address of an agent?")
    if isinstance(error, OSError) and not isinstance(error, Disconnected):
        return Disconnected(_reason(error))
    return None


def _say_goodbye(connection: Connection) -> None:
    """Tell the agent that this process ends, without waiting for anything."""

    def give_up() -> None:
        raise Disconnected("the agent accepts no data")

    connection.ticking = give_up
    with contextlib.suppress(Disconnected):
        connection.send(Kind.CALL, meta=call_of("goodbye", "", None, once=False)[0])


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may hold it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
