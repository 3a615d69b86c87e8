"""The address of a served store, ``di-store://host:port/name``, and the token that both sides know."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
import secrets
import ssl
import stat
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from di_store import _core
from di_store.base.errors import AccessDenied, shown

SCHEME = "di-store"
_HOST = re.compile(r"[a-z0-9_.:%-]+")
DEFAULT_PORT = 7370
TOKEN_ENV = "DI_STORE_TOKEN"
_FORM = "write di-store://HOST:PORT/NAME, as `di-store serve` prints it"


@dataclass(frozen=True)
class Address:
    """The address of a store that an agent serves.

    `store`: its name, or "" for the only store that the agent serves.
    """

    host: str
    port: int
    store: str

    @classmethod
    def parse(cls, text: Any) -> Address:
        """The address in a text; ValueError if the text is no address."""
        if not isinstance(text, str):
            raise TypeError(f"address={shown(text)} is a {type(text).__name__}: {_FORM}")
        try:
            parts = urlsplit(text)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except ValueError:  # or UnicodeError: a part of the name is too long
            raise ValueError(f"address={shown(text)}: {_FORM}") from None
        more = parts.username is not None or parts.query or parts.fragment
        if parts.scheme != SCHEME or not _HOST.fullmatch(host) or more:
            raise ValueError(f"address={shown(text)}: {_FORM}")
        return cls(host, DEFAULT_PORT if port is None else port, unquote(parts.path.strip("/")))

    @property
    def node(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{SCHEME}://{self.node}/{self.store}"

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine's loopback."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name, such as 127.example.org
            return False


def token_path() -> str:
    """The file with the token of this user on this machine, for agents and clients on loopback."""
    return os.path.join(_core.store_folder(), "token")


def own_token(*, make: bool) -> bytes | None:
    """The token of this user on this machine; None: there is none, and `make` is false.

    Raises:
        AccessDenied: other users can read or write the token's file, or it is empty.
    """
    path = token_path()
    try:
        return _kept_token(path)
    except FileNotFoundError:
        if not make:
            return None
    part = f"{path}.{secrets.token_hex(8)}"  # no process and no thread has the same; one that dies here leaves it
    try:
        with open(part, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
            file.write(secrets.token_hex(32).encode())
        os.link(part, path)  # whoever is first
    except FileExistsError:
        pass
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return _kept_token(path)


def _kept_token(path: str) -> bytes:
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        token = file.read().strip()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise AccessDenied(
            f"{path} does not belong to this user alone (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})",
            remedy=(
                f"run `chmod 600` on it if it is yours, or remove it to get a new one; {TOKEN_ENV} takes "
                "precedence over it"
            ),
        )
    if not token:
        raise AccessDenied(f"{path} is empty", remedy="remove it: the next `di-store serve` makes a new one")
    return token


def as_token(given: str | bytes) -> bytes:
    """The token in a text that may end with a newline, as a file does."""
    return (given.encode() if isinstance(given, str) else given).rstrip(b"\r\n")


def token_for(address: Address, token: Any) -> bytes:
    """The token for this agent.

    Raises:
        AccessDenied: no token is known.
    """
    if token is not None:
        if not isinstance(token, (str, bytes)) or not token.strip():
            raise TypeError("token= must be text that is not empty")
        return as_token(token)
    if found := os.environ.get(TOKEN_ENV):
        return as_token(found)
    own = own_token(make=False) if address.is_loopback else None
    if own is None:
        raise AccessDenied(
            f"{address}: there is no token to authenticate with",
            remedy=f"set {TOKEN_ENV} or give connect(token=), with the token that `di-store serve` was started with",
        )
    return own


def client_context(tls: Any) -> ssl.SSLContext | None:
    """The context for ``tls=``. None or False: no TLS; True: the system's authorities; a path: this authority.

    Raises:
        TypeError, ValueError: another value. OSError: the file cannot be read. AccessDenied: it holds no certificate.
    """
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is True:
        return ssl.create_default_context()
    if isinstance(tls, (str, os.PathLike)):
        if not (path := os.fspath(tls)):  # `ssl` would take it for the system's
            raise ValueError("tls='' names no file: give the path of a certificate (PEM), or True for the system's")
        try:
            return ssl.create_default_context(cafile=path)
        except ssl.SSLError as error:  # an OSError too
            why = f"tls={shown(path)} holds no certificates that can be used: {error.reason or error}"
            raise AccessDenied(why, remedy="connect(tls=) takes a file (PEM) of the authority's certificate") from None
        except OSError as error:  # which does not say what file
            raise type(error)(error.errno, error.strerror, path) from None
    raise TypeError(f"tls={shown(tls)}: give True, the path of a certificate, or an ssl.SSLContext")
