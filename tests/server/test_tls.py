"""Agents with TLS, and clients without; certificates that do not hold."""

from __future__ import annotations

import multiprocessing as mp
import re
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.served import ServedStore, told

import di_store
from di_store import AccessDenied
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.server.supervisor import _check_authority

Serve = Callable[..., ServedStore]


def test_clients_connect_over_tls(serve: Serve, authorities: Any) -> None:
    ours, other = authorities
    certificate, key = ours.sign("good")
    served = serve("--tls-cert", certificate, "--tls-key", key)
    connect: Callable[..., di_store.Store] = served.connect
    served.connect = lambda **options: connect(**{"tls": ours.path, **options})  # type: ignore[method-assign]
    with served.leaves_nothing():
        with served.connect() as store:
            value = np.random.default_rng(1).integers(0, 256, 40 << 20, np.uint8)
            assert np.array_equal(store.get(store.put(value)), value)
        context = ssl.create_default_context(cafile=ours.path)
        served.connect(tls=context).close()
        with pytest.raises(FileNotFoundError, match=r"nothing\.pem"):
            served.connect(tls="nothing.pem")
        with pytest.raises(AccessDenied, match="this agent requires TLS") as caught:
            served.connect(tls=None)
        assert "connect(tls=PATH)" in told(caught)
        for tls in (other.path, True):
            with pytest.raises(AccessDenied, match="its certificate is not trusted") as caught:
                served.connect(tls=tls)
            assert "give connect(tls=) the CA certificate" in told(caught)
        with pytest.raises(AccessDenied, match="does not know the token"):
            served.connect(token="wrong")
        with socket.create_connection(("127.0.0.1", served.port), 30) as odd:
            odd.sendall(b"GET / HTTP/1.1\r\n\r\n")
            odd.settimeout(60)
            with suppress(ConnectionResetError):
                while odd.recv(1000):
                    pass


@pytest.mark.parametrize(
    ("names", "days", "why"),
    [("IP:127.0.0.1", -1, "certificate has expired"), ("DNS:elsewhere.test", 2, "IP address mismatch")],
)
def test_an_untrusted_certificate_is_refused(serve: Serve, authorities: Any, names: str, days: int, why: str) -> None:
    certificate, key = authorities[0].sign(f"bad{days}", names, days)
    served = serve("--tls-cert", certificate, "--tls-key", key)
    with pytest.raises(AccessDenied, match=f"its certificate is not trusted: .*{why}"):
        served.connect(tls=authorities[0].path)


def test_tls_at_a_plaintext_agent_is_refused(serve: Serve, authorities: Any) -> None:
    served = serve()
    with served.leaves_nothing():
        with pytest.raises(AccessDenied, match="the TLS handshake failed") as caught:
            served.connect(tls=authorities[0].path)
        assert "leave connect(tls=) out" in told(caught)


def test_a_writer_works_over_tls(serve: Serve, authorities: Any) -> None:
    """One thread sends while another one reads: never at once in the TLS object."""
    certificate, key = authorities[0].sign("writer")
    served = serve("--tls-cert", certificate, "--tls-key", key)
    with served.connect(tls=authorities[0].path) as store:
        table = store.create_table("t", capacity=5_000)
        with table.writer() as writer:
            for number in range(3_000):
                writer.append({"x": np.full(500, number, np.int64)})
            writer.flush()
        assert len(table) == 3_000
        assert store.table("t").peek(table.keys()).data["x"][-1, -1] == 2_999


def _use(store: di_store.Store, found: Any) -> None:
    found.put(store.get(store.put("of the child")))


def test_a_forked_child_has_connections_of_its_own(serve: Serve, authorities: Any) -> None:
    """Those of its parent go on, though the child closes its copies."""
    certificate, key = authorities[0].sign("forked")
    served = serve("--tls-cert", certificate, "--tls-key", key)
    context = mp.get_context("fork")
    with served.connect(tls=authorities[0].path) as store:
        ref, found = store.put("of the parent"), context.SimpleQueue()
        child = context.Process(target=_use, args=(store, found))
        child.start()
        assert found.get() == "of the child"
        child.join(60)
        assert child.exitcode == 0
        assert store.get(ref) == "of the parent"


def test_a_received_message_is_not_waited_for(authorities: Any) -> None:
    """All of its bytes are there when the end of the wait is: it is read, and nothing is looked for behind it."""
    certificate, key = authorities[0].sign("pair")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asking = ssl.create_default_context(cafile=authorities[0].path)
    near, far = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serving.wrap_socket, far, server_side=True)
        reader = Connection(asking.wrap_socket(near, server_hostname="localhost"))
        writer = Connection(served.result(60))

    def looked() -> None:
        raise AssertionError("waited for a message that is there")

    try:
        reader.most_bytes = 1 << 20
        for size in (10, 100_000):
            writer.send(Kind.ANSWER, request=1, body=[bytes(size)])
            reader.look_at, reader.ticking = time.monotonic(), looked
            assert len(reader.receive().body) == size
    finally:
        reader.close()
        writer.close()


@pytest.mark.parametrize("text", ["", "odd", "-----BEGIN CERTIFICATE-----\nodd\n-----END CERTIFICATE-----\n"])
def test_a_file_without_certificates_is_refused(tmp_path: Path, text: str) -> None:
    """It is refused before anything is asked, by a sentence that names the file and the option."""
    path = tmp_path / "ca.pem"
    path.write_text(text)
    for given in (path, str(path)):
        with pytest.raises(AccessDenied, match=r"ca\.pem' holds no certificates") as caught:
            di_store.connect("di-store://127.0.0.1:1/s", token="t", tls=given, timeout=0)
        assert "connect(tls=)" in told(caught)
    with pytest.raises(ValueError, match=r"--tls-ca .* cannot be used"):
        _check_authority(str(path))


def test_an_empty_path_or_folder_is_refused_as_a_certificate(tmp_path: Path) -> None:
    """An empty path is not taken for the system's certificates; a folder is named."""
    with pytest.raises(ValueError, match="names no file"):
        di_store.connect("di-store://127.0.0.1:1/s", token="t", tls="", timeout=0)
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        di_store.connect("di-store://127.0.0.1:1/s", token="t", tls=tmp_path, timeout=0)
