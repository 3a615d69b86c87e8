"""The application: its pages, its files, and how it is served."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from di_store.base.errors import StoreError
from di_store.dashboard import (
    page_disk,
    page_history,
    page_items,
    page_store,
    page_stores,
    page_table,
    page_weights,
    page_why,
)
from di_store.dashboard.decoders import Decode
from di_store.dashboard.gate import Gate
from di_store.dashboard.item_sample import ItemSamples
from di_store.dashboard.layout import page
from di_store.dashboard.watch import StoreWatch

ROUTES: list[Route] = [
    *page_stores.ROUTES,
    *page_store.ROUTES,
    *page_table.ROUTES,
    *page_items.ROUTES,
    *page_weights.ROUTES,
    *page_disk.ROUTES,
    *page_history.ROUTES,
    *page_why.ROUTES,
]


def application(watch: StoreWatch, decoders: Mapping[str, Decode]) -> Starlette:
    """All pages about what `watch` sees; `decoders`: as `decoders.decoders`."""
    files = StaticFiles(directory=Path(__file__).parent / "static")
    app = Starlette(
        routes=[*ROUTES, Mount("/static", files)],
        exception_handlers={StoreError: _refused, HTTPException: _refused, Exception: _failed},
    )
    app.state.watch, app.state.decoders = watch, decoders
    app.state.samples = ItemSamples(watch)
    return app


class DashboardServer:
    """Serves the pages in a thread."""

    def __init__(
        self,
        watch: StoreWatch,
        bound: socket.socket,
        token: str,
        host: str,
        tls: tuple[str, str] | None,
        decoders: Mapping[str, Decode],
    ) -> None:
        """Set the state.

        Args:
            watch: what the pages are about.
            bound: the socket, bound to its address.
            token: what each request must show.
            host: the name in the server's address.
            tls: files of the certificate and its key.
            decoders: as `application` takes them.

        Raises:
            OSError: the certificate cannot be read.
        """
        self._watch, self._bound = watch, bound
        gate = Gate(application(watch, decoders), token, {"localhost", host}, tls=tls is not None)
        cert, key = tls or (None, None)
        # Without a free descriptor it would write a traceback thousands of times a second.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            gate,
            log_level="critical",  # tracebacks would fill a pipe that nobody reads: pages say what failed
            lifespan="off",
            backlog=128,  # asyncio tries so many times at once to accept
            ws="none",
            server_header=False,
            ssl_certfile=cert,
            ssl_keyfile=key,
            timeout_graceful_shutdown=1,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([bound],), name="di-store dashboard server")

    def start(self) -> None:
        """Begin to look and to answer."""
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """End both."""
        self._server.should_exit = True
        self._thread.join()
        self._watch.stop()


def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return page(request, "line.html", status=error.status_code, title="Not found", line=error.detail)
    return page(request, "line.html", status=404, title="Not there", line=str(error))


def _failed(request: Request, error: Exception) -> Response:
    line = f"the dashboard failed to make this page: {type(error).__name__}: {error}"
    return page(request, "line.html", status=500, title="Failed", line=line)
