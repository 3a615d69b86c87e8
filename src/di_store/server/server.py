"""The agent accepts connections, keeps the state of clients, and cleans up after clients that have ended."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from di_store import _core
from di_store._core import Mode
from di_store.base.errors import AccessDenied, NodeUnavailable, StoreClosed, StoreError
from di_store.base.warned import noted, taken
from di_store.broadcast.chains import Chains
from di_store.broadcast.other_agents import OtherAgents
from di_store.client.address import Address
from di_store.client.bulk import OWN_TCP
from di_store.client.sessions import Credentials
from di_store.observe.stats import AGENT_ROLE
from di_store.observe.threads import name_thread
from di_store.protocol.connection import MAX_CALL_BYTES, Connection, Disconnected
from di_store.protocol.frame import MAGIC, Kind
from di_store.protocol.handshake import Hello, Welcome, answer, one_line, refuse
from di_store.runtime import waits
from di_store.runtime.waits import logger
from di_store.server.conversation import TELL_WORKING_SECONDS, Cancelled, Conversation
from di_store.server.engine import OWN, Engine
from di_store.server.engine_bulk import EngineBulk
from di_store.server.greetings import Greetings
from di_store.server.peer import AgentParts, Peer
from di_store.server.push import ObjectPush
from di_store.server.version_watch import VersionWatch
from di_store.server.writing import serve_writer
from di_store.session import Session

MAX_CONNECTIONS = 1536
"""Three for each of 512 actors: for calls, for a writer, and for news of versions of weights."""
GREETING_SECONDS = 10.0
"""How long a client may take to prove itself."""
LEASE_SECONDS = 30.0
"""If a client is silent for this time, its draws and its leases are given back."""
LOOK_SECONDS = 1.0
_MOST_WARNED = 2000  # characters of a warning that a client is told of
_SLEPT_SECONDS = 5.0  # a gap of its own loop: the agent was stopped, and has not read what came meanwhile


@dataclass(frozen=True)
class Served:
    """The settings of an agent.

    Attributes:
        store: name of the store.
        token: token that clients must know.
        node: name of this machine, for people.
        tls: context of the server's side; None: connections are not encrypted.
        allow_pickle: load values that clients have pickled; only for trusted clients.
        own_process: whether only the agent runs in this process; then libraries' warnings come from clients' calls.
        address: address at which other machines reach the agent; "": the address at which it listens.
        peers: context for connections to other agents of the group; None: without TLS.
        bulk: one of `BULK_KINDS`: the transport of large payloads from nodes that were started with the same value.
    """

    store: str
    token: bytes
    node: str
    tls: ssl.SSLContext | None = None
    allow_pickle: bool = False
    own_process: bool = False
    address: str = ""
    peers: ssl.SSLContext | None = None
    bulk: str = OWN


class Agent:
    """Serves one store. `serve` runs until `stop`."""

    def __init__(self, served: Served, listener: socket.socket) -> None:
        self._served = served
        self._listener = listener
        self._session = self._attach({})
        self._session.arena.set_role(AGENT_ROLE)
        self._agent_id = secrets.token_bytes(16)
        self._peers: dict[bytes, Peer] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._ending = False
        self._connections: set[Connection] = set()  # of clients that have proved themselves
        self._greetings = Greetings()
        self._talks: set[Conversation] = set()
        self._warnings = _Warnings()
        own = served.address or f"di-store://{self.address}/{served.store}"
        self._agents = OtherAgents(Credentials(served.token, served.peers, served.allow_pickle))
        engine = None if served.bulk == OWN else Engine(served.bulk, Address.parse(own).host)
        push = ObjectPush(self._session, self._agents, OWN_TCP if engine is None else EngineBulk(engine))
        chains = Chains(self._session, self._agents, own)
        self._parts = AgentParts(chains, push, VersionWatch(self._session), engine)

    @property
    def address(self) -> str:
        """Host and port at which the agent listens."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _attach(self, versions: dict[str, int]) -> Session:
        arena = _core.Arena.open(self._served.store, Mode.ATTACH, 0, 0, waits.CALL_SECONDS)
        return Session(arena, versions=versions)

    # -- its life -----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Accept connections until `stop`.

        Raises:
            StoreClosed: the store was removed by force.
        """
        self._listener.settimeout(LOOK_SECONDS)
        threading.Thread(target=self._look_after, name="di-store agent", daemon=True).start()
        self._parts.chains.start()
        engine = self._parts.engine
        if engine is not None:  # its module is large: nobody waits for it, and what it lacks is said now
            threading.Thread(target=engine.missing, name="di-store engine", daemon=True).start()
        threading.Thread(target=self._tell_working, name="di-store busy", daemon=True).start()
        with self._warnings.collected(self._served.own_process):
            while not self._has_to_end():
                try:
                    sock, _ = self._listener.accept()
                except TimeoutError:
                    try:
                        self._session.arena.enter()
                    except StoreClosed:
                        if self._has_to_end():  # by `stop`, just now
                            return
                        raise
                    continue
                except OSError:
                    if self._has_to_end():
                        return
                    time.sleep(LOOK_SECONDS / 10)  # out of descriptors, for example
                    continue
                try:
                    threading.Thread(target=self._serve, args=(sock,), daemon=True).start()
                except (RuntimeError, MemoryError):  # no more threads: the client tries again
                    sock.close()

    def _has_to_end(self) -> bool:
        return self._ending or self._stopped.is_set()

    def stop_soon(self) -> None:
        """Make `serve` return. A signal handler may call this: it takes no lock."""
        self._ending = True
        if not self._served.own_process:  # else the socket is the supervisor's too, whose next agent listens at it
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`

    def stop(self) -> None:
        """Stop: give clients' draws back, and close their writers. Their leases stay for the next agent."""
        self.stop_soon()
        self._stopped.set()
        self._parts.chains.stop()
        self._parts.push.stop()
        self._agents.close()
        self._parts.versions.stop()
        with self._lock:
            peers, self._peers = list(self._peers.values()), {}
            connections = list(self._connections)
        for connection in connections:
            connection.end()
        self._greetings.end()
        for peer in peers:
            with contextlib.suppress(StoreError):
                peer.end()
        self._listener.close()
        self._session.close()

    def _tell_working(self) -> None:
        """Tell clients that the agent works on their calls: the threads of these calls send nothing meanwhile."""
        while not self._stopped.wait(TELL_WORKING_SECONDS):
            for talk in list(self._talks):
                talk.tell_working()

    def _look_after(self) -> None:
        """Give back draws and leases of silent clients, and forget clients that have ended."""
        seen = time.monotonic()
        while not self._stopped.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - seen > _SLEPT_SECONDS:
                with self._lock:
                    for peer in self._peers.values():
                        peer.heard = now
            seen = now
            with self._lock:
                peers = list(self._peers.values())
            for peer in peers:
                if now - peer.heard < LEASE_SECONDS:
                    peer.leases.keep()
                    continue
                if _ends_leases(peer):
                    logger.warning("%s is silent: its leases are over", peer.name)
                if (count := peer.draws.give_back_all()) > 0:
                    logger.warning("%s is silent: %d batches that it had drawn are given back", peer.name, count)
                if not peer.connections:
                    self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        with self._lock:
            if peer.connections or self._peers.get(peer.link) is not peer:
                return
            del self._peers[peer.link]
        _ends_leases(peer)
        with contextlib.suppress(StoreError):
            peer.end()

    # -- connections --------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket) -> None:
        """One connection, from the handshake to its end."""
        connection: Connection | None = None
        number = self._greetings.add(sock)
        try:
            port = sock.getpeername()[1]
            connection = self._secured(sock, number)
            talk = self._greet(connection)
            self._greetings.remove(number)
            self._talks.add(talk)
            try:
                with noted():
                    name_thread(f"{talk.role}:{port}")
                    if talk.role == "writer":
                        serve_writer(talk, connection.receive())
                    else:
                        talk.run()
            finally:
                self._talks.discard(talk)
                talk.leave()
        except (Disconnected, Cancelled, OSError):
            pass
        except Exception as error:  # only a program that is no client of ours brings others than a StoreError
            logger.warning("a connection was closed: %s: %s", type(error).__name__, one_line(str(error)))
        finally:
            self._greetings.remove(number)
            if connection is not None:
                with self._lock:
                    self._connections.discard(connection)
                connection.close()
            else:
                sock.close()

    def _secured(self, sock: socket.socket, number: int) -> Connection:
        sock.settimeout(GREETING_SECONDS)
        tls = self._served.tls
        if tls is None:
            return Connection(sock)
        if sock.recv(len(MAGIC), socket.MSG_PEEK) == MAGIC:
            remedy = "give connect(tls=PATH) the CA certificate of this agent"
            refuse(Connection(sock), AccessDenied("this agent requires TLS", remedy=remedy))
            raise Disconnected("a client without TLS")
        secured = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        try:
            self._greetings.replace(number, secured)
            secured.do_handshake()
        except BaseException:  # also Ctrl-C: nobody else knows of this socket
            self._greetings.remove(number)
            secured.close()
            raise
        return Connection(secured)

    def _greet(self, connection: Connection) -> Conversation:
        """Authenticate the client and describe the store to it, or refuse it."""
        connection.until = time.monotonic() + GREETING_SECONDS
        served = self._served
        try:
            hello, mac = answer(connection, served.token, served.store)
            self._let_in(connection)
            peer = self._join(hello)
        except Disconnected:
            raise
        except StoreError as error:
            refuse(connection, error)
            logger.warning("a connection was refused: %s", one_line(str(error)))
            raise Disconnected("refused") from None
        talk = Conversation(connection, peer, self._warnings.take, partial(self._leave, peer, connection))
        try:
            self._welcome(connection, mac)
        except BaseException:  # the conversation has begun, and nobody would end it
            talk.leave()
            raise
        talk.role = hello.role
        connection.until = None
        connection.ticking = _wait_on
        connection.most_bytes = MAX_CALL_BYTES
        return talk

    def _let_in(self, connection: Connection) -> None:
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                raise NodeUnavailable(
                    f"the agent has {MAX_CONNECTIONS} connections, the maximum",
                    remedy="close stores and writers that are not needed, or spread the clients over more nodes",
                )
            self._connections.add(connection)

    def _welcome(self, connection: Connection, mac: bytes) -> None:
        served, arena = self._served, self._session.arena
        welcome = Welcome(
            mac,
            served.store,
            self._session.uuid,
            served.node,
            self._agent_id,
            arena.seed,
            arena.tiered,
            served.allow_pickle,
        )
        connection.send(Kind.WELCOME, meta=msgspec.msgpack.encode(welcome))

    def _join(self, hello: Hello) -> Peer:
        peer = self._peer(hello)
        peer.leases.take_over()
        return peer

    def _peer(self, hello: Hello) -> Peer:
        with self._lock:
            peer = self._peers.get(hello.link)
            if peer is not None:
                return _joined(peer)
        # Attaching may wait for another process: not with the lock in hand.
        name, session = one_line(hello.name, 200), self._attach({})
        fresh = Peer(hello.link, name, session, self._served.allow_pickle, self._parts)
        with self._lock:
            if not self._stopped.is_set():
                peer = _joined(self._peers.setdefault(hello.link, fresh))
        if peer is not fresh:
            fresh.end()
        if peer is None:
            raise Disconnected("the agent is shutting down")
        return peer

    def _leave(self, peer: Peer, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
            peer.connections -= 1
            last = not peer.connections
        if not last:
            return
        with contextlib.suppress(StoreError):
            peer.draws.give_back_all()
        if not peer.is_needed():
            self._forget(peer)


def _joined(peer: Peer) -> Peer:
    """Count one more connection of the peer, and return the peer. Under the agent's lock."""
    peer.connections += 1
    peer.heard = time.monotonic()
    return peer


def _ends_leases(peer: Peer) -> bool:
    with contextlib.suppress(StoreError):
        return peer.leases.end() > 0
    return False


def _wait_on() -> None:
    """A client may be silent for as long as it likes."""


class _Warnings:
    """The warnings of each thread (ours and libraries'), for the client whose call has raised them."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}

    def take(self) -> list[str]:
        """The texts of this thread since the last call."""
        return [*taken(), *self._texts.pop(threading.get_ident(), [])]

    @contextlib.contextmanager
    def collected(self, alone: bool) -> Iterator[None]:
        """Collect warnings of all threads instead of printing them; only an agent's own process does this."""
        if not alone:
            yield
            return
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.showwarning = self._note
            yield

    def _note(self, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        self._texts.setdefault(threading.get_ident(), []).append(one_line(str(message), _MOST_WARNED))
