"""The channel of one handle to an agent: its calls, over connections that all handles of this process share.

Each running call has a connection of its own, so a long call never delays a short one. A broken connection is replaced,
and a call that may be repeated is repeated. The agent recognises all other calls by their number, and repeats its
earlier answer.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from di_store.base.errors import NodeUnavailable, StoreError, Timeout
from di_store.client.address import Address
from di_store.client.agent_client import AgentClient, IdempotencyToken
from di_store.client.waiting import CallWait
from di_store.protocol.connection import Connection, Disconnected, Message
from di_store.protocol.frame import Buffer, Kind
from di_store.protocol.handshake import Welcome, decoded
from di_store.protocol.values import Waiting, call_of, error_of, value_of
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child

CATCH_UP_SECONDS = 1.0
"""How long a call waits for the rows that its thread has written before."""

Seconds = float | None | Deadline
"""The time for a call: seconds, None for no limit, or the deadline of a longer call that it is a step of."""


class Channel:
    """One agent, as the handles of one session reach it. Thread-safe.

    Attributes:
        client: this process as a client; other channels to the same address share it.
        allow_pickle: load values that others have pickled.
        closed: the reason why its calls are refused.
    """

    def __init__(self, client: AgentClient, allow_pickle: bool) -> None:
        self.client = client
        self.allow_pickle = allow_pickle
        self.closed: StoreError | None = None
        self._begin()
        client.users.add(self)
        in_child(self, Channel.forget)

    def _begin(self) -> None:
        self._busy: set[Connection] = set()
        self._own: dict[int, weakref.WeakSet[Any]] = {}  # writers, by the thread that writes with them
        self._lock = threading.RLock()  # a signal handler may make a call in the middle of another

    @property
    def address(self) -> Address:
        """Address of the agent."""
        return self.client.address

    @property
    def token(self) -> bytes:
        """The token that both sides know."""
        return self.client.token

    @property
    def known_as(self) -> tuple[bytes, bytes]:
        """The ids of agent and process under which the agent keeps state of this process."""
        return self.welcome.agent, self.client.id

    def owns(self, writer: Any) -> None:
        """Note that the calling thread writes through this writer: the thread's later calls see its writes."""
        self._own.setdefault(threading.get_ident(), weakref.WeakSet()).add(writer)

    def _catch_up(self, deadline: Deadline) -> None:
        if not self._own:
            return
        writers = list(self._own.get(threading.get_ident(), ()))
        for writer, step in deadline.step(2).sooner(CATCH_UP_SECONDS).steps(writers):  # then the call itself
            with contextlib.suppress(Timeout, NodeUnavailable):  # they may wait for what this call does
                writer.catch_up(step)

    def forget(self) -> None:
        """Drop the parent's connections in a forked child."""
        for connection in self._busy:
            connection.forget()
        self._begin()

    @property
    def welcome(self) -> Welcome:
        """The agent's description of itself and its store."""
        return self.client.welcome

    @property
    def node(self) -> str:
        """The agent's host and port, for error texts."""
        return self.address.node

    def close(self, why: StoreError) -> None:
        """End all calls; later ones raise `why`."""
        self.closed = self.closed or why
        with self._lock:
            busy, self._busy = self._busy, set()
        for connection in busy:  # the threads that use them close them
            connection.end()
        self.client.close_unused()

    def check_open(self) -> None:
        """Raise the error of a closed handle."""
        if self.closed is not None:
            raise type(self.closed)(self.closed.message, remedy=self.closed.remedy)
        self.client.check_ended()

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, role: str, deadline: Deadline) -> Connection:
        """As `AgentClient.connect`."""
        return self.client.connect(role, deadline, self.check_open)

    def _take(self, deadline: Deadline) -> Connection:
        """A connection for one call."""
        found = self.client.take_idle() or self.connect("call", deadline)
        self.adopt(found)
        return found

    def _give_back(self, connection: Connection, well: bool) -> None:
        """Called at the end of a call. After success, the connection is kept for a later call."""
        with self._lock:
            self._busy.discard(connection)
        if not (well and self.closed is None and self.client.keep_idle(connection)):
            connection.close()

    def adopt(self, connection: Connection) -> None:
        """Register a connection, of a call or other code, to be closed with the channel."""
        with self._lock:
            self._busy.add(connection)
        if self.closed is not None:
            connection.end()

    def release(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    # -- calls --------------------------------------------------------------------------------------------------

    def call(self, method: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        """Make a call, and return its value. The arguments are those of `ask`."""
        return value_of(self.ask(method, arguments, **options))

    def ask(
        self,
        method: str,
        arguments: dict[str, Any] | None = None,
        *,
        target: tuple[str, str] = ("", ""),
        timeout: Seconds = 60,
        what: str = "",
        once: bool | IdempotencyToken = False,
        stop: Callable[[], None] | None = None,
        feed: Callable[[Connection], None] | None = None,
    ) -> Message:
        """Make a call, and return its undecoded answer.

        Args:
            method: name of the call in the agent's list.
            arguments: values by name, which the codec must take.
            target: name and identity of the table; "": the store.
            timeout: seconds that the call has; None: no limit.
            what: name of the call, for its error.
            once: whether the call must not run twice; or the earlier, given-up call that this one repeats.
            stop: called twice a second during the wait; may raise to give the call up.
            feed: sends the announced data of the call, once the agent asks for them.
        """
        client, deadline = self.client, Deadline.of(timeout)
        self._catch_up(deadline)
        waiting = CallWait(self.node, self.check_open, deadline, what or method, stop)
        repeated = once if isinstance(once, IdempotencyToken) else None
        dropped: list[int] = []
        try:
            if once is True:
                repeated = client.new_token()
            dropped = client.take_dropped()
            encoded = partial(
                call_of,
                method,
                target[0],
                once=repeated is not None,
                table=target[1],
                may_repeat=client.may_repeat() if repeated is not None else (),
                dropped=dropped,
            )
            request = client.next_request() if repeated is None else repeated.request
            answer = self._sent(request, encoded, arguments, repeated, waiting, feed)
            dropped = []
        finally:
            for number in dropped:  # nobody has heard of them
                client.let_go(number)
            if once is True and repeated is not None:
                client.end_token(repeated)
        if repeated is not None:
            client.end_token(repeated)
        if answer.kind == Kind.ERROR:  # outside: the connection is as good as before
            raise error_of(answer.meta, self.node)
        return answer

    def _sent(
        self,
        request: int,
        encoded: Callable[[dict[str, Any] | None], tuple[bytes, list[Buffer]]],
        arguments: dict[str, Any] | None,
        once: IdempotencyToken | None,
        waiting: CallWait,
        feed: Callable[[Connection], None] | None,
    ) -> Message:
        """The answer to a call, which is sent again while connections break."""
        client = self.client
        meta, body = encoded(arguments)
        while True:
            self.check_open()
            if once is not None and once.agent not in (b"", client.agent):
                raise self._unknown(waiting.what, once)
            try:
                connection, well = self._take(waiting.deadline), False
                try:
                    if once is not None:
                        if once.agent not in (b"", client.agent):
                            well = True
                            continue
                        once.agent = client.agent
                    waiting.on(connection)
                    connection.send(Kind.CALL, request=request, meta=meta, body=body)
                    waiting.sent()
                    answer = self._answer(connection, request, waiting, feed)
                    well = True
                finally:
                    self._give_back(connection, well)
                client.quiet = False
                return answer
            except Disconnected as error:
                client.drop_idle()
                waiting.lost(error)
                if arguments and arguments.get("timeout") and (left := waiting.deadline.left) is not None:
                    meta, body = encoded({**arguments, "timeout": min(arguments["timeout"], left)})

    def _unknown(self, what: str, once: IdempotencyToken) -> NodeUnavailable:
        self.client.end_token(once)
        error = NodeUnavailable(
            f"{what}: the agent at {self.node} was killed during the call, which may have taken effect or not",
            remedy="check whether it took effect before you repeat it",
        )
        error.may_be_done = True
        return error

    def _answer(
        self, connection: Connection, request: int, waiting: CallWait, feed: Callable[[Connection], None] | None
    ) -> Message:
        while True:
            message = connection.receive()
            waiting.heard()
            if message.request != request:
                raise Disconnected("received the answer to another call")
            if message.kind == Kind.WAITING:
                if message.flags and feed is not None:
                    feed(connection)
                    waiting.sent()
                elif message.meta:
                    waiting.waits_for(decoded(Waiting, message.meta).reason)
                else:
                    waiting.works()
            elif message.kind in (Kind.ANSWER, Kind.ERROR):
                return message
            else:
                raise Disconnected(f"expected an answer, got a message of kind {message.kind}")
