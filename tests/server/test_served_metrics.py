"""`di-store serve --metrics`: the agent answers Prometheus, and the holder of the store stays out of the network."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from cli_run import fails
from cluster.served import ServedStore, held
from pains import until

from di_store import observe
from di_store.observe.metrics_server import MOST_AT_ONCE

Serve = Callable[..., ServedStore]


def scrape(url: str, tls: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=120, context=tls) as answer:
        return answer.read().decode()


def test_a_served_store_has_metrics(serve: Serve) -> None:
    """Also with its next agent, at the same port; the holder answers none of it."""
    served = serve("--metrics", "0")
    assert served.metrics.startswith("http://127.0.0.1:")
    with served.connect() as store:
        store.create_table("t", capacity=10).extend({"x": [1.0, 2.0]})
        wanted = f'di_store_table_inserts_total{{store="{served.name}",table="t"}} 2.0\n'
        assert wanted in scrape(served.metrics)
        before = held(served.pid)
        for _ in range(10):
            scrape(served.metrics)
        assert held(served.pid) == before
        os.kill(served.agent, signal.SIGKILL)
        until(lambda: served.agent not in served.agents(), "its end")
        assert wanted in scrape(served.metrics), "it waits for the next agent"
        until(lambda: served.agents() not in ([], [served.agent]), "the next agent")
        assert wanted in scrape(served.metrics)
    served.process.send_signal(signal.SIGTERM)
    _, err = served.process.communicate(timeout=120)
    assert err.count("\n") == 1, err  # the agent died
    with pytest.raises(urllib.error.URLError):
        scrape(served.metrics)


def test_the_figures_of_a_served_store_are_had_elsewhere(serve: Serve) -> None:
    """A client's program serves and writes them as if the store were its own."""
    served, seen = serve(), {}
    with served.connect() as store:
        store.create_table("t", capacity=10).extend({"x": [1.0, 2.0]})
        with observe.serve_metrics(store) as server, observe.log_to(lambda *each: seen.update({each[0]: each}), store):
            assert f'di_store_table_inserts_total{{store="{served.name}",table="t"}} 2.0\n' in scrape(server.url)
    assert seen["di_store/t/inserts"] == ("di_store/t/inserts", 2, 2)


def test_metrics_beyond_loopback_have_the_agents_certificate(serve: Serve, authorities: Any) -> None:
    """Clients that begin no handshake hold no other up."""
    ours, other = authorities
    certificate, key = ours.sign("metrics")
    served = serve("--tls-cert", certificate, "--tls-key", key, "--metrics", "0.0.0.0:0")
    assert served.metrics.startswith(f"https://{socket.gethostname()}:")
    url = f"https://127.0.0.1:{served.metrics.rpartition(':')[2]}"
    with ExitStack() as opened:
        for _ in range(2 * MOST_AT_ONCE):
            port = int(url.rpartition(":")[2].partition("/")[0])
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        assert "di_store_up" in scrape(url, ssl.create_default_context(cafile=ours.path))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        scrape(url, ssl.create_default_context(cafile=other.path))


@pytest.mark.parametrize(
    ("place", "status", "text"),
    [
        ("0.0.0.0:0", 2, "--metrics 0.0.0.0:0 can be reached from other machines: give --tls-cert and --tls-key, or"),
        (":0", 2, "--metrics :0 can be reached from other machines"),
        ("nonsense", 2, "metrics='127.0.0.1:nonsense': give HOST:PORT"),
        ("99999", 2, "metrics='127.0.0.1:99999': give HOST:PORT"),
    ],
)
def test_places_that_cannot_be_are_refused(store_name: Callable[[], str], place: str, status: int, text: str) -> None:
    assert text in fails(
        status, "serve", store_name(), "--memory", "16MiB", "--listen", "127.0.0.1:0", "--metrics", place
    )


def test_a_port_in_use_is_said_in_one_line(store_name: Callable[[], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fails(1, "serve", store_name(), "--memory", "16MiB", "--listen", "127.0.0.1:0", "--metrics", str(port))
    assert said == (
        f"di-store: port {port} of 127.0.0.1 is in use "
        "(choose another port with --metrics HOST:PORT; port 0 picks a free one)"
    )
