"""The directory in etcd, for clusters without Ray: `di-store serve --join etcd://HOST:PORT,HOST:PORT/NAME`.

A node is a key with a lease of 10 seconds, which its supervisor renews. Everything else works as in the other kinds of
directory.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from di_store.base.errors import AccessDenied, NodeUnavailable, StoreError, shown
from di_store.client.channel import Seconds
from di_store.cluster.directory import packed, unavailable, unpacked
from di_store.cluster.directory_entries import Entries
from di_store.cluster.node import Node
from di_store.runtime.deadline import PAUSE_SECONDS, Deadline
from di_store.runtime.waits import logger

try:
    import requests
    from etcd3gw.exceptions import Etcd3Exception

    from di_store.cluster.etcd_access import PREFIX, EtcdAccess, has_expired, is_refusal
except ImportError as error:
    raise StoreError("a directory in etcd needs the package etcd3gw", remedy="pip install 'di-store[etcd]'") from error

T = TypeVar("T")

DEFAULT_PORT = 2379
LEASE_SECONDS = 10
"""A node whose supervisor has been silent for this time is no longer listed."""
RENEW_SECONDS = 3.0
ASK_SECONDS, LONGEST_ASK_SECONDS = 2.0, 30.0
"""How long one member of etcd may take, before the next one is asked. It doubles in each further round up to the
second."""
START_SECONDS = 30.0
"""How long a node waits for etcd at its start."""


class Members:
    """The members of an etcd cluster. Any member that answers gets the call. Thread-safe: clients are per thread."""

    def __init__(self, where: str) -> None:
        """For an address ``HOST:PORT,HOST:PORT/NAME``. No call is made yet.

        Raises:
            ValueError: the address has another form. StoreError: the environment's settings are invalid (`EtcdAccess`).
        """
        self._access = EtcdAccess.from_environment()
        hosts, _, cluster = where.partition("/")
        self._places = [_place(each) for each in hosts.split(",")]
        self.prefix = f"di-store/{cluster}/" if cluster else "di-store/"
        self._first = 0  # index of the one that answered last; a race costs one more question
        self._own = threading.local()

    def ask(self, call: Callable[[Any], T], timeout: Seconds, lost: list[str] | None = None) -> T:
        """Make a call of any member that answers.

        Args:
            call: may be made several times, because a member may have executed it without answering.
            timeout: seconds; None: no limit.
            lost: gets the reason of each attempt that failed.

        Raises:
            NodeUnavailable: no member answers in time. AccessDenied: etcd refuses this user.
        """
        deadline, patience = Deadline.of(timeout), ASK_SECONDS
        while True:
            reason = ""
            for step in range(len(self._places)):
                at = (self._first + step) % len(self._places)
                seconds = deadline.left
                try:
                    found = call(self._client(at, patience if seconds is None else max(min(patience, seconds), 0.1)))
                except (Etcd3Exception, requests.exceptions.RequestException, ValueError, KeyError) as error:
                    reason = self._failed(at, error)
                    if lost is not None:
                        lost.append(reason)
                else:
                    self._first = at
                    return found
            if not deadline.pause():
                raise unavailable(f"no member of etcd answers: {reason}")
            patience = min(2 * patience, LONGEST_ASK_SECONDS)

    def _client(self, at: int, timeout: float) -> Any:
        clients: dict[int, Any] | None = getattr(self._own, "clients", None)
        if clients is None:
            clients = self._own.clients = {}
        if at not in clients:
            clients[at] = self._access.client(*self._places[at], timeout)
        clients[at].timeout = timeout
        return clients[at]

    def _failed(self, at: int, error: Exception) -> str:
        """Why a call of a member failed, for people. AccessDenied: no other member would accept the user."""
        reason = _short(error)
        if is_refusal(reason):
            remedy = f"set {PREFIX}USER and {PREFIX}PASSWORD to a user who may read and write {self.prefix}*"
            raise AccessDenied(f"etcd refuses: {reason}", remedy=remedy) from None
        if has_expired(reason):
            getattr(self._own, "clients", {}).pop(at, None)
        return reason


class EtcdDirectory:
    """See the module, and `Directory`."""

    def __init__(self, where: str) -> None:
        """For the members at ``HOST:PORT,HOST:PORT/NAME``."""
        self._members = Members(where)

    def nodes(self, timeout: Seconds) -> list[Node]:
        """As `Directory.nodes`.

        An empty list: etcd was unreachable for longer than the leases, and nodes are listing themselves again.
        """
        deadline = Deadline.of(timeout)
        while not (entries := self.listed("node/", deadline)) and deadline.pause():
            pass
        return [unpacked(entry, Node) for entry in entries.values()]

    def missing(self, nodes: list[Node]) -> list[str]:
        """As `Directory.missing`: a node is listed until it is lost."""
        return []

    def read(self, key: str, timeout: Seconds) -> bytes | None:
        """As `Directory.read`."""
        found: list[bytes] = self._members.ask(lambda etcd: etcd.get(self._members.prefix + key), timeout)
        return found[0] if found else None

    def listed(self, prefix: str, timeout: Seconds) -> Entries:
        """As `Directory.listed`."""
        whole = self._members.prefix
        found = self._members.ask(lambda etcd: etcd.get_prefix(whole + prefix), timeout)
        return {meta["key"].decode()[len(whole) :]: value for value, meta in found}

    def swap(self, key: str, old: bytes | None, new: bytes | None, timeout: Seconds) -> bool:
        """As `Directory.swap`.

        If a member changed the entry without answering, the repeated call recognises its own bytes.
        """
        transaction, deadline, lost = _swap(self._members.prefix + key, old, new), Deadline.of(timeout), list[str]()
        done = self._members.ask(lambda etcd: bool(etcd.transaction(transaction).get("succeeded")), deadline, lost)
        return done or (bool(lost) and self.read(key, deadline) == new)

    def close(self) -> None:
        """As `Directory.close`: connections end with their threads."""


class Registration:
    """Keeps a node listed until `end`, in a thread of its own."""

    def __init__(self, where: str, node: Node) -> None:
        """List the node.

        Raises:
            NodeUnavailable: no member of etcd answers. ValueError: `where` names no member.
        """
        self._members = Members(where)
        self._key, self._entry = f"{self._members.prefix}node/{node.uuid}", packed(node)
        self._ended = threading.Event()
        self._lease: Any = None
        self._list(START_SECONDS)
        self._thread = threading.Thread(target=self._renew, name="di-store etcd", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Remove the node from the list."""
        self._ended.set()
        self._thread.join(ASK_SECONDS)
        try:
            self._members.ask(lambda etcd: etcd.delete(self._key), ASK_SECONDS)
        except NodeUnavailable:
            pass  # the lease ends

    def _list(self, timeout: float) -> None:
        def enlist(etcd: Any) -> None:
            self._lease = etcd.lease(LEASE_SECONDS)
            etcd.put(self._key, self._entry, lease=self._lease)

        self._members.ask(enlist, timeout)

    def _renew(self) -> None:
        pause = RENEW_SECONDS
        while not self._ended.wait(pause):
            try:
                if not self._members.ask(self._renewed, RENEW_SECONDS):
                    self._list(RENEW_SECONDS)
                pause = RENEW_SECONDS
            except NodeUnavailable as error:
                if pause == RENEW_SECONDS:  # once for each silence
                    logger.warning("the directory drops this node when its lease ends: %s", error.message)
                pause = PAUSE_SECONDS  # the lease may have ended: list it as soon as anybody answers

    def _renewed(self, etcd: Any) -> bool:
        """Whether the lease still holds."""
        answer = etcd.post(etcd.get_url("/lease/keepalive"), json={"ID": self._lease.id})
        return int(answer.get("result", {}).get("TTL", 0)) > 0


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    if not host:
        host, port = port, str(DEFAULT_PORT)
    if not port.isdigit() or not host:
        raise ValueError(f"etcd://{shown(text)}: give etcd://HOST:PORT,HOST:PORT, and /NAME if etcd is shared")
    return host.strip("[]"), int(port)


def _swap(key: str, old: bytes | None, new: bytes | None) -> dict[str, Any]:
    """The transaction that replaces a key if its value still is `old`."""
    name = _text(key.encode())
    if old is None:
        compare = {"key": name, "result": "EQUAL", "target": "CREATE", "create_revision": 0}
    else:
        compare = {"key": name, "result": "EQUAL", "target": "VALUE", "value": _text(old)}
    if new is None:
        change: dict[str, Any] = {"request_delete_range": {"key": name}}
    else:
        change = {"request_put": {"key": name, "value": _text(new)}}
    return {"compare": [compare], "success": [change], "failure": []}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _short(error: BaseException) -> str:
    told = getattr(error, "detail_text", None) or str(error)  # etcd's own words; else those of HTTP
    return (told.splitlines() or [""])[0][:200] or type(error).__name__
