"""The orders that a supervisor sends to its agent."""

from __future__ import annotations

import ssl

import msgspec


class Orders(msgspec.Struct):
    """The store to serve, and the settings for its clients.

    Attributes:
        store: name of the store.
        token: token that clients must know.
        node: name of this machine, for people.
        descriptor: file descriptor of the listening socket.
        certificate, key: files for TLS; None: without TLS.
        allow_pickle: load values that clients pickle.
        address: address at which other machines reach the agent.
        authority: file with the certificate of the authority that signed other agents' certificates; None: the system's
            authorities.
        bulk: as in `Served`.
        metrics: file descriptor of the socket that listens for Prometheus; None: it is not wanted.
    """

    store: str
    token: bytes
    node: str
    descriptor: int
    certificate: str | None
    key: str | None
    allow_pickle: bool
    address: str
    authority: str | None
    bulk: str
    metrics: int | None


def server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """The agent's side of TLS.

    Raises:
        ValueError: the files do not hold a certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if type(error) is not ssl.SSLError else (error.reason or str(error))
        raise ValueError(f"--tls-cert {certificate} and --tls-key {key} cannot be used: {why}") from None
    return context


def _no_password() -> str:
    raise ValueError("--tls-key is encrypted, and the agent cannot ask for its password: give a key without one")
