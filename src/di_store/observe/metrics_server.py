"""Serves the metrics of stores to Prometheus over HTTP."""

from __future__ import annotations

import atexit
import logging
import math
import socket
import ssl
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from di_store.base import config
from di_store.base.errors import StoreError
from di_store.base.listen import open_listener, url_of
from di_store.observe.machine import reports
from di_store.observe.metrics import Look, StoresCollector, check_library
from di_store.observe.report import HasStats, StoreReport, report, unreadable
from di_store.runtime.forks import in_child

MOST_AT_ONCE = 16
"""Connections at the same time. For a further one the oldest without a whole request is closed, else it is refused."""
SILENT_SECONDS = 5.0
"""How long a client may take to send its whole request."""
LOOK_SECONDS = 0.1  # of the thread, whether it shall end

log = logging.getLogger("di_store")


def serve_metrics(store: HasStats | None = None, *, host: str = "127.0.0.1", port: int = 0) -> MetricsServer:
    """Serve the metrics of a store, or of all stores of this machine, to Prometheus; needs ``di-store[metrics]``.

    A scrape never waits longer than 20 ms for a table's lock. The server ends with `close`, or with the process.

    Args:
        store: the store; None: at each scrape, all stores that processes of this user hold then.
        host: address to listen at. Beyond loopback everyone who reaches it can read the names and figures.
        port: port to listen at; 0: any free one, see `url` of the server.

    Raises:
        ImportError: the extra is not installed. NodeUnavailable: the port is in use.
    """
    check_library()
    look = reports if store is None else own_report(store)
    port = config.count("port", port, minimum=0, maximum=65535)
    return MetricsServer(look, open_listener(host, port, "port="))


def own_report(store: HasStats) -> Look:
    """Looks at one store with a handle of this process."""

    def look() -> list[StoreReport]:
        try:
            return [report(store.stats(), own=True)]
        except StoreError as error:
            return [unreadable(store.name, str(error))]

    return look


class MetricsServer:
    """Answers scrapes until `close`."""

    def __init__(self, look: Look, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        self.url = f"{url_of(listener, tls is not None)}/metrics"
        self._collector = StoresCollector(look)
        registry = CollectorRegistry()
        registry.register(self._collector)
        if tls is not None:  # the thread of a request shakes hands, so that a silent client delays no other
            listener = tls.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
        self._httpd: _Httpd | None = _Httpd(listener, make_wsgi_app(registry))
        threading.Thread(
            target=self._httpd.serve_forever, args=(LOOK_SECONDS,), name="di-store metrics", daemon=True
        ).start()
        atexit.register(self.close)  # no thread may be inside the core when the interpreter ends
        in_child(self, MetricsServer._forget)

    def close(self) -> None:
        """Stop answering and close the port. Waits for a scrape that reads a store."""
        atexit.unregister(self.close)
        httpd, self._httpd = self._httpd, None
        if httpd is not None:
            self._collector.close()
            httpd.shutdown()
            httpd.server_close()

    def _forget(self) -> None:
        """In a forked child, which has no thread: give up the port, or it would stay in use after the parent's end."""
        atexit.unregister(self.close)
        httpd, self._httpd = self._httpd, None
        if httpd is not None:
            httpd.socket.close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(WSGIRequestHandler):
    server: _Httpd
    timeout = SILENT_SECONDS  # of a client that takes no answer

    def parse_request(self) -> bool:
        """Whether there is a request to answer."""
        return super().parse_request() and self.server.has_asked(self.connection)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a line for each scrape helps nobody."""


class _Httpd(ThreadingMixIn, WSGIServer):
    """A thread for each connection, at most `MOST_AT_ONCE`."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, app: Any) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.set_app(app)
        self._free = threading.Semaphore(MOST_AT_ONCE)
        self._asking: dict[Any, float] = {}  # connections without a whole request, since when, the oldest first
        self._lock = threading.Lock()  # of these: a connection stays open while another thread shuts it down

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or not at all if too many are being answered."""
        if not self._free.acquire(blocking=False):
            if not self._shut_oldest():
                self.shutdown_request(request)
                return
            self._free.acquire()  # the thread of the closed connection ends at once
        with self._lock:
            self._asking[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could start
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def has_asked(self, request: Any) -> bool:
        """A connection has sent a whole request; returns whether it is still open."""
        with self._lock:
            return self._asking.pop(request, None) is not None

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        self.has_asked(request)
        super().close_request(request)

    def service_actions(self) -> None:
        """Close the connections that take too long to send a request."""
        while self._shut_oldest(time.monotonic() - SILENT_SECONDS):
            pass

    def server_close(self) -> None:
        """Close the port, and the connections without a whole request."""
        super().server_close()
        while self._shut_oldest():
            pass

    def _shut_oldest(self, since: float = math.inf) -> bool:
        """Shut down the oldest connection without a whole request, unless it is younger. Its thread closes it."""
        with self._lock:
            request, begun = next(iter(self._asking.items()), (None, math.inf))
            if request is None or begun > since:
                return False
            del self._asking[request]
            with suppress(OSError):  # its client has left
                request.shutdown(socket.SHUT_RDWR)
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log it for those who look for it: clients that go away or send no request are no news."""
        log.debug("a request for metrics failed", exc_info=True)
