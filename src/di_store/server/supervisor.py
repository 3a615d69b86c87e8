"""The supervisor keeps a store alive and starts its agent. The listening socket is its only part in the network.

A store ends with its last process, so clients must not be able to bring that process down. The agent is a child
process, and is restarted when it dies. The socket stays open: clients that connect meanwhile wait in its queue.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from di_store.base.errors import AccessDenied, NodeUnavailable, StoreError, shown
from di_store.base.listen import open_listener, url_of
from di_store.client.address import DEFAULT_PORT, SCHEME, TOKEN_ENV, Address, as_token, client_context, own_token
from di_store.client.session import RemoteSession
from di_store.objects.access import written
from di_store.runtime.deadline import Deadline
from di_store.server.engine import OWN
from di_store.server.membership import KINDS, NAME, Membership, membership_of
from di_store.server.orders import Orders, server_context
from di_store.session import Session
from di_store.store.handle import Store

JOIN_SECONDS = 60.0
"""How long writing the membership to the store may wait for a lock or room."""
ALONE_SECONDS = 5.0
"""How long the agent of a killed supervisor may go on answering. If it answers longer, the store counts as served
already."""
END_SECONDS = 5.0
"""How long an agent may take to end."""
_ASK_SECONDS = 1.0  # of an agent whether it serves the store
_SOON_SECONDS = 0.3  # an agent that dies sooner than that is started again after a pause
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 16.0  # the next one, if that does not help, after twice as long
_LONGEST_KILLED_SECONDS = 2.0  # the longest pause after one that was killed: it may have served, and clients wait


class TlsFiles(NamedTuple):
    """PEM files. An agent without a certificate does not use TLS.

    Attributes:
        certificate, key: files of the agent itself.
        authority: certificate of the authority that signed other agents' certificates; None: the system's authorities.
    """

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


NO_TLS = TlsFiles()


@dataclass(frozen=True)
class Serving:
    """How a store is served.

    Attributes:
        listen: ``host:port``; port 0: any free port.
        token_file: file with the token; None: from the environment, or on loopback the user's own.
        tls: files for TLS.
        plaintext: serve other machines without TLS; with an engine, send payloads without TLS and token.
        allow_pickle: load values that clients pickle.
        peers: addresses of all nodes of its cluster, including this one; empty: no static directory.
        join: the directory of its cluster: ``etcd://HOST:PORT,...`` or ``ray://ID``; None: `peers`, if given.
        bulk: one of `BULK_KINDS`: the transport of large payloads from other nodes.
        metrics: ``host:port``, or a port of loopback: where Prometheus finds metrics; None: nowhere.
    """

    listen: str
    token_file: str | None = None
    tls: TlsFiles = NO_TLS
    plaintext: bool = False
    allow_pickle: bool = False
    peers: tuple[str, ...] = ()
    join: str | None = None
    bulk: str = OWN
    metrics: str | None = None


def place_of(listen: str, option: str = "listen") -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``HOST`` or ``:PORT``; ValueError for other text."""
    found: Address | None
    try:
        found = Address.parse(f"di-store://{listen if not listen.startswith(':') else '0.0.0.0' + listen}")
    except ValueError:
        found = None
    if found is None or found.store:
        raise ValueError(f"{option}={shown(listen)}: give HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
    return found.host, found.port


class Supervisor:
    """Has a store served until `end`. For one thread."""

    def __init__(self, store: Store, serving: Serving) -> None:
        """Open the port and start the agent.

        Raises:
            ValueError: options that do not go together. AccessDenied: no token. NodeUnavailable: the port is in use or
            cannot be opened; or the store is already a node. OSError: the file with the token cannot be read.
        """
        host, _ = place_of(serving.listen)
        loopback = is_loopback(host)
        _check_trust(serving, loopback)
        _check_bulk(serving)
        token = _token(serving, loopback)
        self._listener, self._metrics = _listeners(serving)
        encrypted = serving.tls.certificate is not None
        self.metrics_url = None if self._metrics is None else f"{url_of(self._metrics, encrypted)}/metrics"
        node = f"{socket.gethostname()}"
        shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
        self.address = str(Address(shown, self._listener.getsockname()[1], store.name))
        self._orders = msgspec.msgpack.encode(
            Orders(
                store.name,
                token,
                node,
                self._listener.fileno(),
                serving.tls.certificate,
                serving.tls.key,
                serving.allow_pickle,
                self.address,
                serving.tls.authority,
                serving.bulk,
                None if self._metrics is None else self._metrics.fileno(),
            )
        )
        try:
            _join(store.name, self.address, serving, token)
        except BaseException:  # also Ctrl-C: nobody would close the listeners
            self._close_listeners()
            raise
        self._began = self._next = self._pause = 0.0
        self._ended = False
        self.restarts = 0
        self._agent = self._start(self._spawn())
        self._spare = self._spawn()  # it has imported everything, and waits for its orders: no client waits for that

    @property
    def agent_pid(self) -> int:
        """Pid of the current agent."""
        return self._agent.pid

    def _close_listeners(self) -> None:
        self._listener.close()
        if self._metrics is not None:
            self._metrics.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_ENV}
        return subprocess.Popen(
            [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-m", "di_store.server"],
            stdin=subprocess.PIPE,
            pass_fds=[each.fileno() for each in (self._listener, self._metrics) if each is not None],
            env=environment,
            start_new_session=True,
        )

    def _start(self, started: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        self._began = time.monotonic()
        assert started.stdin is not None
        try:
            started.stdin.write(len(self._orders).to_bytes(4, "little") + self._orders)
            started.stdin.flush()  # it stays open: the agent ends when it is closed, and so with this process
        except BrokenPipeError:
            pass  # it has died already: `look` starts another one
        return started

    def look(self) -> bool:
        """Restart the agent if it has died, at once or after a pause. Returns whether the agent was started."""
        if self._agent.poll() is None:
            return False
        now = time.monotonic()
        if not self._ended:
            self._ended = True
            soon = now - self._began < _SOON_SECONDS and self.restarts
            longest = _LONGEST_KILLED_SECONDS if self._agent.returncode < 0 else _LONGEST_PAUSE_SECONDS
            self._pause = min(max(2 * self._pause, _PAUSE_SECONDS), longest) if soon else 0.0
            self._next = now + self._pause
        if now < self._next:
            return False
        self._ended = False
        _close_pipe(self._agent)
        self.restarts += 1
        self._agent, self._spare = self._start(self._spare), self._spawn()
        return True

    def end(self) -> None:
        """End the agent, and close the ports."""
        self._close_listeners()
        for each in (self._agent, self._spare):
            _close_pipe(each)
        for each in (self._agent, self._spare):
            try:
                each.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


def _join(store: str, address: str, serving: Serving, token: bytes) -> None:
    """Note the addresses of the other nodes in the store, for processes on this machine."""
    kind, peers = "static", addresses_of(serving.peers)
    if len(set(peers)) < len(peers):
        raise ValueError(f"--peers names a node twice: {','.join(serving.peers)}")
    if serving.join is not None:
        kind, _, where = serving.join.partition("://")
        if peers:
            raise ValueError("--join and --peers each name a directory, and a node has only one: give one of them")
        if kind not in KINDS or not where:
            raise ValueError(
                f"--join {serving.join}: give one of {', '.join(f'{each}://...' for each in KINDS)}, or --peers"
            )
        peers = (where,)
    word = b""
    if peers:
        engine = serving.bulk != OWN
        word = msgspec.msgpack.encode(
            Membership(kind, peers, address, _tls_of_peers(serving), serving.allow_pickle, engine)
        )
    session = Session.attach(store)
    try:
        if session.arena.newest(NAME):  # it was a node before
            _check_alone(session, address, token)
        if word or session.arena.newest(NAME):
            written(session, JOIN_SECONDS, "serve", lambda arena: arena.publish(NAME, word, 1))
    finally:
        session.close()


def _check_alone(session: Session, address: str, token: bytes) -> None:
    """Raise NodeUnavailable if the store is already a node of a cluster and its agent keeps answering."""
    node = membership_of(session)
    if node is None or node.address == address:
        return
    if node.kind == "ray":  # its keepers see to it, and take over from one that was killed
        return
    deadline = Deadline(ALONE_SECONDS)
    while deadline.pause():  # the agent of a supervisor that was killed ends by itself
        try:
            far = RemoteSession.connect(node.address, token, node.tls, False, _ASK_SECONDS)
        except (StoreError, OSError):  # OSError: its certificates are not here any more
            return
        same = far.channel.welcome.uuid == session.uuid
        far.close()
        if not same:
            return
    raise NodeUnavailable(
        f"store {session.name!r} is a node of a cluster already, at {Address.parse(node.address).node}",
        remedy="end that `di-store serve` first, or serve a store of another name",
    )


def credentials_of(serving: Serving) -> tuple[bytes, str | bool | None, bool]:
    """Token, TLS and `allow_pickle` for calls to the other nodes of the cluster.

    Raises:
        ValueError: `listen` is no place. AccessDenied: no token. OSError: the file with the token cannot be read.
    """
    host, _ = place_of(serving.listen)
    return _token(serving, is_loopback(host)), _tls_of_peers(serving), serving.allow_pickle


def _tls_of_peers(serving: Serving) -> str | bool | None:
    return None if serving.tls.certificate is None else serving.tls.authority or True


def addresses_of(peers: Iterable[str]) -> tuple[str, ...]:
    """The addresses of the nodes of a list, the same on every node."""
    return tuple(sorted(_address(each) for each in peers))


def is_listed(address: str, peers: Iterable[str]) -> bool:
    """Whether a node of the list may have this address: only ports are compared, because a host has several names."""
    return Address.parse(address).port in {Address.parse(each).port for each in addresses_of(peers)}


def _address(peer: str) -> str:
    """The address of a node, which may be given as HOST:PORT."""
    return str(Address.parse(peer if "://" in peer else f"{SCHEME}://{peer}"))


def _close_pipe(agent: subprocess.Popen[bytes]) -> None:
    if agent.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.close()


def _check_trust(serving: Serving, loopback: bool) -> None:
    if serving.tls.authority is not None and serving.tls.certificate is None:
        raise ValueError("--tls-ca is for an agent that speaks TLS: give --tls-cert and --tls-key too, or leave it out")
    if (serving.tls.certificate is None) != (serving.tls.key is None):
        raise ValueError("--tls-cert and --tls-key belong together: give both or none")
    if serving.tls.certificate is not None and serving.tls.key is not None:
        if serving.plaintext and serving.bulk == OWN:
            raise ValueError("--plaintext contradicts --tls-cert: leave one of them out")
        server_context(serving.tls.certificate, serving.tls.key)
        _check_authority(serving.tls.authority)
    elif not loopback and not serving.plaintext:
        raise ValueError(
            f"--listen {serving.listen} can be reached from other machines, and without TLS anyone on the "
            "network path can read everything: give --tls-cert and --tls-key, or --plaintext if the "
            "network is trusted"
        )


def _check_bulk(serving: Serving) -> None:
    if serving.bulk != OWN and not serving.plaintext:
        raise ValueError(
            f"--bulk {serving.bulk} bypasses TLS and the token, and listens on all addresses: give "
            "--plaintext too if all machines that reach this one are trusted, or leave --bulk out"
        )


def _check_authority(path: str | None) -> None:
    try:
        client_context(path or True)
    except OSError as error:
        raise ValueError(f"--tls-ca {path} cannot be used: {error.strerror or error}") from None
    except AccessDenied as error:
        raise ValueError(f"--tls-ca {path} cannot be used: {error.message}") from None


def _token(serving: Serving, loopback: bool) -> bytes:
    found: bytes | None
    if serving.token_file is not None:
        with open(serving.token_file, "rb") as file:
            found = file.read().strip()
        if not found:
            raise AccessDenied(f"{serving.token_file} is empty", remedy="write a long random text into it")
        return found
    if given := os.environ.get(TOKEN_ENV):
        return as_token(given)
    found = own_token(make=True) if loopback else None
    if found is None:
        raise AccessDenied(
            f"--listen {serving.listen} can be reached from other machines, and there is no token to "
            "authenticate clients",
            remedy=f"set {TOKEN_ENV} or give --token-file, with the same long random text on both sides",
        )
    return found


def _listeners(serving: Serving) -> tuple[socket.socket, socket.socket | None]:
    """The sockets for clients, and for Prometheus if it is wanted."""
    place = None if serving.metrics is None else _metrics_place(serving, serving.metrics)
    listener = open_listener(*place_of(serving.listen))
    try:
        return listener, None if place is None else open_listener(*place, "--metrics HOST:PORT")
    except BaseException:  # nobody would close it
        listener.close()
        raise


def _metrics_place(serving: Serving, metrics: str) -> tuple[str, int]:
    host, port = place_of(metrics if ":" in metrics else f"127.0.0.1:{metrics}", "metrics")
    if not is_loopback(host) and serving.tls.certificate is None and not serving.plaintext:
        raise ValueError(
            f"--metrics {metrics} can be reached from other machines: give --tls-cert and --tls-key, or --plaintext if "
            "the network is trusted"
        )
    return host, port


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    return Address(host, DEFAULT_PORT, "").is_loopback
