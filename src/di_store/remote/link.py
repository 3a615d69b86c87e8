"""The link of this process to an agent: connections that threads take in turn, and what happens when one breaks.

Each call has a connection of its own while it runs, so a long one never stands before a short one. A broken connection
is replaced, and a call that may be repeated is; the others are known to the agent by their number, which answers again
what it has answered before.
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
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from di_store.base.errors import (
    AccessDenied,
    CorruptData,
    NodeUnavailable,
    StoreClosed,
    StoreError,
    Timeout,
)
from di_store.remote.address import Address
from di_store.runtime.waits import LOG_SECONDS, logger
from di_store.wire.connection import TICK_SECONDS, Connection, Disconnected, Message
from di_store.wire.frame import Kind
from di_store.wire.handshake import NEWEST, NONCE_BYTES, OLDEST, Hello, Welcome, decoded, greet
from di_store.wire.values import Waiting, call_of, error_of, value_of

CONNECT_SECONDS = 5.0
"""How long one attempt to reach the agent takes at most."""
GRACE_SECONDS = 1.0
"""By how much a call may outlast its deadline: the agent's own answer, which says why, comes first."""
LOST_SECONDS = 60.0
"""How long a call without a timeout tries to reach an agent that does not answer."""
SILENT_SECONDS = 10.0
"""An agent from which nothing came for so long, in the middle of a call, is named as silent."""
BEAT_SECONDS = 2.0
CATCH_UP_SECONDS = 1.0
"""How long a call waits for the rows that its thread has written before."""
MAX_BODY_BYTES = 1 << 46
_IDLE = 8  # connections that are kept for later calls

_links: weakref.WeakSet[Link] = weakref.WeakSet()


class Silent(Disconnected):
    """A process is there, and says nothing: it is stopped, or its machine is."""


class Deadline:
    """When a call ends: its own time, and the grace for the answer."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.began = time.monotonic()

    @property
    def left(self) -> float | None:
        """Seconds; None: no limit."""
        return None if self.timeout is None else max(0.0, self.timeout - self.passed)

    @property
    def passed(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self.began

    def over(self) -> bool:
        """Whether the call must end now, with or without an answer."""
        return self.timeout is not None and self.passed >= self.timeout + GRACE_SECONDS


class Link:
    """One agent, as this process reaches it. Thread-safe.

    Attributes:
        address: of the agent.
        welcome: what it said of the store.
    """

    def __init__(self, address: Address, token: bytes, tls: ssl.SSLContext | None, allow_pickle: bool) -> None:
        self.address = address
        self.token = token
        self.tls = tls
        self.allow_pickle = allow_pickle
        self._begin()
        self._welcome: Welcome | None = None
        self.closed: StoreError | None = None
        _links.add(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._id = secrets.token_bytes(16)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._own: dict[int, weakref.WeakSet[Any]] = {}  # writers, by the thread that writes with them
        self._lock = threading.RLock()  # a signal handler may make a call in the middle of another
        self._requests = itertools.count(1)
        self._beats = False
        self._waked = threading.Event()

    @property
    def known_as(self) -> tuple[bytes, bytes]:
        """Whom an agent that knows something of this process knows: the agent's id, and this process's."""
        return self.welcome.agent, self._id

    def owns(self, writer: Any) -> None:
        """The calling thread writes with this: what it asks later sees what it has written."""
        self._own.setdefault(threading.get_ident(), weakref.WeakSet()).add(writer)

    def _catch_up(self, deadline: Deadline) -> None:
        for writer in list(self._own.get(threading.get_ident(), ())):
            left = deadline.left
            with contextlib.suppress(Timeout):  # they may wait for what this call does
                writer.catch_up(CATCH_UP_SECONDS if left is None else min(left, CATCH_UP_SECONDS))

    def forget(self) -> None:
        """In a forked child: the connections are the parent's; this process makes its own."""
        for connection in (*self._idle, *self._busy):
            connection.forget()
        self._begin()

    @property
    def welcome(self) -> Welcome:
        """What the agent said of itself and its store."""
        assert self._welcome is not None
        return self._welcome

    @property
    def node(self) -> str:
        """The agent's, for error texts."""
        return self.address.node

    def close(self, why: StoreError) -> None:
        """End all calls; later ones raise `why`."""
        self.closed = self.closed or why
        with self._lock:
            idle, busy = self._idle, self._busy
            self._idle, self._busy = [], set()
        if idle:
            _say_goodbye(idle[0])
        for connection in idle:
            connection.close()
        for connection in busy:  # the threads that use them close them
            connection.end()
        self._waked.set()

    def check_open(self) -> None:
        """Raise the error of a closed handle."""
        if self.closed is not None:
            raise type(self.closed)(self.closed.message, remedy=self.closed.remedy)

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, role: str, deadline: Deadline) -> Connection:
        """A new connection, after the handshake.

        Raises:
            Disconnected: nothing answers. AccessDenied, StoreNotFound, LayoutMismatch: it refuses. StoreClosed: another
            store has taken the name.
        """
        seconds = CONNECT_SECONDS if deadline.left is None else min(CONNECT_SECONDS, max(deadline.left, GRACE_SECONDS))
        until = time.monotonic() + seconds
        try:
            sock: socket.socket = socket.create_connection((self.address.host, self.address.port), timeout=seconds)
        except OSError as error:
            raise Disconnected(_reason(error)) from None
        connection: Connection | None = None
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_hostname=self.address.host)
            connection = Connection(sock)

            def patience() -> None:
                self.check_open()
                if time.monotonic() > until:
                    raise Silent("it accepts connections and does not answer")

            connection.ticking = patience
            connection.until = until + TICK_SECONDS
            name = f"pid {os.getpid()} on {socket.gethostname()}"
            store = self.address.store or (self._welcome.store if self._welcome else "")
            hello = Hello(OLDEST, NEWEST, secrets.token_bytes(NONCE_BYTES), self._id, role, store, name)
            welcome = greet(connection, self.token, hello)
            if self._welcome is not None and welcome.uuid != self._welcome.uuid:
                why = f"store {welcome.store!r} at {self.node} is another one than it was: the old one is gone"
                self.closed = StoreClosed(why, remedy="connect to it anew; what the old one held is lost")
                self.check_open()
            self._welcome = welcome
            connection.until = None
            connection.most_bytes = MAX_BODY_BYTES
            return connection
        except BaseException as error:
            connection.close() if connection is not None else sock.close()
            if (found := _explained(self.address, error)) is not None:
                raise found from None
            raise

    @contextlib.contextmanager
    def connection(self, deadline: Deadline) -> Iterator[Connection]:
        """A connection for one call. It is kept for a later one if the call ends well."""
        self.check_open()
        found: Connection | None = None
        with self._lock:
            if self._idle:
                found = self._idle.pop()
                self._busy.add(found)
        if found is None:
            found = self.connect("call", deadline)
            with self._lock:
                self._busy.add(found)
        ended = False
        try:
            yield found
            ended = True
        finally:
            with self._lock:
                self._busy.discard(found)
                kept = ended and self.closed is None and len(self._idle) < _IDLE
                if kept:
                    self._idle.append(found)
            if not kept:
                found.close()

    def adopt(self, connection: Connection) -> None:
        """A connection that something else reads: it ends with the link."""
        with self._lock:
            self._busy.add(connection)
        if self.closed is not None:
            connection.end()

    def release(self, connection: Connection) -> None:
        """It has ended."""
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    # -- calls --------------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        arguments: dict[str, Any] | None = None,
        *,
        target: str = "",
        timeout: float | None = 60,
        what: str = "",
        once: bool = False,
        stop: Callable[[], None] | None = None,
    ) -> Any:
        """Make a call, and return its value.

        Args:
            method: as the agent's list names it.
            arguments: by name; values that the codec takes.
            target: name of the table; "": the store.
            timeout: that the call has; None: no limit.
            what: the call, as its failure names it.
            once: whether it must not be done twice.
            stop: called twice a second while it waits; may raise to give the call up.
        """
        return value_of(self.ask(method, arguments, target=target, timeout=timeout, what=what, once=once, stop=stop))

    def ask(
        self,
        method: str,
        arguments: dict[str, Any] | None = None,
        *,
        target: str = "",
        timeout: float | None = 60,
        what: str = "",
        once: bool = False,
        stop: Callable[[], None] | None = None,
        feed: Callable[[Connection], None] | None = None,
    ) -> Message:
        """Make a call, and return its answer as it came.

        Args:
            method: as in `call`.
            arguments: as in `call`.
            target: as in `call`.
            timeout: as in `call`.
            what: as in `call`.
            once: as in `call`.
            stop: as in `call`.
            feed: sends what the call announced, once the agent asks for it.
        """
        deadline = Deadline(timeout)
        self._catch_up(deadline)
        waiting = _Waiting(self, deadline, what or method, stop)
        meta, body = call_of(method, target, arguments, once=once)
        request = next(self._requests)
        agent = self._welcome.agent if self._welcome else b""
        sent = False
        while True:
            self.check_open()
            if once and sent and self.welcome.agent != agent:
                raise _unknown(what or method, self.node)
            try:
                with self.connection(deadline) as connection:
                    if once and sent and self.welcome.agent != agent:
                        continue
                    connection.ticking = waiting.tick
                    sent = True
                    connection.send(Kind.CALL, request=request, meta=meta, body=body)
                    answer = self._answer(connection, request, waiting, feed)
                if answer.kind == Kind.ERROR:  # outside: the connection is as good as before
                    raise error_of(answer.meta, self.node)
                return answer
            except Disconnected as error:
                self.drop_idle()
                waiting.lost(error)

    def drop_idle(self) -> None:
        """Close the connections that wait for a call: one broke, or the agent holds something for one of them."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _answer(
        self, connection: Connection, request: int, waiting: _Waiting, feed: Callable[[Connection], None] | None
    ) -> Message:
        while True:
            message = connection.receive()
            waiting.heard()
            if message.request != request:
                raise Disconnected("an answer to another call came")
            if message.kind == Kind.WAITING:
                if message.flags and feed is not None:
                    feed(connection)
                elif message.meta:
                    waiting.reason = decoded(Waiting, message.meta).reason
            elif message.kind in (Kind.ANSWER, Kind.ERROR):
                return message
            else:
                raise Disconnected(f"a message of kind {message.kind} came in place of an answer")

    # -- the heartbeat ------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """From now on tell the agent every two seconds that this process lives: it holds draws there."""
        with self._lock:
            if self._beats:
                return
            self._beats = True
        threading.Thread(target=self._beat, args=(weakref.ref(self), self._waked), daemon=True).start()

    @staticmethod
    def _beat(reference: weakref.ref[Link], waked: threading.Event) -> None:
        connection: Connection | None = None
        while not waked.wait(BEAT_SECONDS):
            link = reference()
            if link is None or link.closed is not None:
                break
            try:
                if connection is None:
                    connection = link.connect("beat", Deadline(CONNECT_SECONDS))
                    link.adopt(connection)
                connection.send(Kind.PING)
                connection.receive()
            except (StoreError, OSError):
                if connection is not None:
                    link.release(connection)
                connection = None
            del link
        if connection is not None:
            connection.close()


class _Waiting:
    """A call that waits for the agent: when it gives up, and what it says then."""

    def __init__(self, link: Link, deadline: Deadline, what: str, stop: Callable[[], None] | None) -> None:
        self._link = link
        self._deadline = deadline
        self._what = what
        self._stop = stop
        self._heard = deadline.began
        self._lost_since: float | None = None
        self._log_at = deadline.began + LOG_SECONDS
        self._pause = 0.01
        self.reason = ""

    def heard(self) -> None:
        """Something came from the agent."""
        self._heard = time.monotonic()
        self._lost_since = None

    def tick(self) -> None:
        """Called twice a second while nothing comes.

        Raises:
            Timeout: the deadline is over. Whatever `stop` raises.
        """
        self._link.check_open()
        if self._stop is not None:
            self._stop()
        now = time.monotonic()
        if self._deadline.over():
            self._fail()
        if now >= self._log_at:
            self._log_at += LOG_SECONDS
            logger.warning(
                "%s has waited %.0f s for node %s: %s",
                self._what,
                self._deadline.passed,
                self._link.node,
                self._why(now),
            )

    def lost(self, error: Disconnected) -> None:
        """The connection broke, or there is none: wait a little before the next attempt.

        Raises:
            NodeUnavailable, Timeout: the deadline is over.
        """
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        self.reason = reason = str(error)
        out_of_time = self._deadline.left is not None and self._deadline.passed + self._pause >= max(
            self._deadline.timeout or 0.0, GRACE_SECONDS
        )
        if out_of_time or (self._deadline.timeout is None and now - self._lost_since > LOST_SECONDS):
            if isinstance(error, Silent):
                self._fail()
            raise NodeUnavailable(
                f"{self._what}: node {self._link.node} does not answer: {reason}",
                remedy="`di-store status` on that machine shows whether its agent runs; `di-store serve` starts one",
            )
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)
        self.tick()

    def _why(self, now: float) -> str:
        silent = now - self._heard
        return self.reason or "no answer yet" if silent < SILENT_SECONDS else f"it has been silent for {silent:.0f} s"

    def _fail(self) -> NoReturn:
        now = time.monotonic()
        silent = now - self._heard
        culprit = f"node {self._link.node}" + (f", silent for {silent:.0f} s" if silent >= 1.5 else "")
        seconds = self._deadline.timeout or 0.0
        raise Timeout(f"{self._what} did not come through within {round(seconds, 2):g} s", self._why(now), culprit)


def _unknown(what: str, node: str) -> NodeUnavailable:
    error = NodeUnavailable(
        f"{what}: the agent at {node} was killed in the middle of it: it may be done or not",
        remedy="look whether it is done before you repeat it",
    )
    error.may_be_done = True
    return error


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _explained(address: Address, error: BaseException) -> Exception | None:
    """What a failed attempt to connect means; None: what it says itself."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{address}: its certificate is not trusted: {error.verify_message}"
        return AccessDenied(why, remedy="connect(tls=) names the authority that signed for it")
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        why = f"{address}: it does not speak TLS as this side does ({error.reason or error})"
        return AccessDenied(why, remedy="leave connect(tls=) out, or serve it with --tls-cert and --tls-key")
    if isinstance(error, CorruptData):
        return NodeUnavailable(f"{address}: {error.message}", remedy="is this the address of an agent?")
    if isinstance(error, OSError) and not isinstance(error, Disconnected):
        return Disconnected(_reason(error))
    return None


def _say_goodbye(connection: Connection) -> None:
    """Tell the agent that this process will not come back, without waiting for anything."""

    def give_up() -> None:
        raise Disconnected("the agent takes nothing")

    connection.ticking = give_up
    with contextlib.suppress(Disconnected):
        connection.send(Kind.CALL, meta=call_of("goodbye", "", None, once=False)[0])


def forget_links() -> None:
    """In a forked child."""
    for link in list(_links):
        link.forget()


os.register_at_fork(after_in_child=forget_links)
