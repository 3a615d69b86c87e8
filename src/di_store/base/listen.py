"""Opens a port to listen at."""

from __future__ import annotations

import errno
import socket

from di_store.base.errors import NodeUnavailable


def open_listener(host: str, port: int, option: str = "--listen HOST:PORT") -> socket.socket:
    """A socket that listens there; port 0: any free port. `option`: what chooses another port, for the error.

    Raises:
        NodeUnavailable: the port is in use or cannot be opened.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NodeUnavailable(
                f"port {port} of {host} is in use",
                remedy=f"choose another port with {option}; port 0 picks a free one",
            ) from None
        raise NodeUnavailable(
            f"cannot listen at {host}:{port}: {error.strerror or error}", remedy=f"see {option.split()[0]}"
        ) from None


def url_of(listener: socket.socket, encrypted: bool) -> str:
    """The URL of a web server that listens there, without a path."""
    host, port = listener.getsockname()[:2]
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http{'s' if encrypted else ''}://{shown}:{port}"
