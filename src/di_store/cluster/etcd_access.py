"""Access to etcd: encryption and user. It is set in the environment, because secrets do not belong in an address.

| variable | is |
|---|---|
| `DI_STORE_ETCD_CA` | a file (PEM) of the members' certificate authority, or `system`: calls are encrypted |
| `DI_STORE_ETCD_CERT`, `DI_STORE_ETCD_KEY` | files (PEM) of this client's certificate and key, if etcd wants one |
| `DI_STORE_ETCD_USER`, `DI_STORE_ETCD_PASSWORD` | a user of etcd, if it asks for one |
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, fields
from typing import Any

import requests
from etcd3gw.client import Etcd3Client

from di_store.base.errors import StoreError

PREFIX = "DI_STORE_ETCD_"
SYSTEM = "system"
"""As `ca`: the certificates that this machine trusts."""
_EXPIRED = "invalid auth token"
_REFUSED = ("authentication failed", "permission denied", "user name is empty", "authentication is not enabled")


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The settings from the environment. Each field is a variable; "": not set."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = ""

    @classmethod
    def from_environment(cls) -> EtcdAccess:
        """The settings of this process.

        Raises:
            StoreError: the settings contradict each other, or name a file that does not exist.
        """
        made = cls(*(os.environ.get(PREFIX + each.name.upper(), "") for each in fields(cls)))
        for name in ("ca", "cert", "key"):
            path = getattr(made, name)
            if path and not (name == "ca" and path == SYSTEM) and not os.path.isfile(path):
                raise StoreError(f"{PREFIX}{name.upper()}={path!r} is not a file", remedy="give the path of a PEM file")
        if bool(made.cert) != bool(made.key):
            raise StoreError("a certificate for etcd needs its key", remedy=f"set {PREFIX}CERT and {PREFIX}KEY")
        if made.cert and not made.ca:
            raise StoreError("a certificate for etcd needs encrypted calls", remedy=f"set {PREFIX}CA too")
        return made

    def client(self, host: str, port: int, timeout: float) -> Any:
        """A client of one member, signed in.

        Raises:
            StoreError: a password would cross the network unencrypted. RequestException, Etcd3Exception: the member
                does not answer, or refuses this user.
        """
        if self.user and not self.ca and not _is_loopback(host):
            raise StoreError(
                f"the password of {PREFIX}USER={self.user!r} would be sent to {host} unencrypted",
                remedy=f"have etcd serve TLS, and set {PREFIX}CA",
            )
        session = requests.Session()
        session.trust_env = False  # neither proxies nor certificates of others
        if self.ca:
            session.verify = True if self.ca == SYSTEM else self.ca
        if self.cert:
            session.cert = (self.cert, self.key)
        made = Etcd3Client(
            host, port, protocol="https" if self.ca else "http", timeout=timeout, api_path="/v3/", session=session
        )
        if self.user:
            given = {"name": self.user, "password": self.password}
            session.headers["Authorization"] = made.post(made.get_url("/auth/authenticate"), json=given)["token"]
        return made


def has_expired(reason: str) -> bool:
    """Whether etcd's error says that a client has to sign in again."""
    return _EXPIRED in reason


def is_refusal(reason: str) -> bool:
    """Whether etcd's error means that it refuses the environment's user, or a client without a user."""
    return any(text in reason for text in _REFUSED)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
