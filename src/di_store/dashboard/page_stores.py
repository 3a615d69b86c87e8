"""All stores of this machine."""

from __future__ import annotations

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard import charts
from di_store.dashboard.layout import page, watch_of
from di_store.dashboard.processes import Processes
from di_store.observe import MemoryReport
from di_store.store.opening import hidden_holders

FEW_PROCESSES = 16
"""Processes of each store that the page shows."""


def stores(request: Request) -> Response:
    """Memory, tables and processes of each store."""
    watch = watch_of(request)
    seen = watch.seen
    return page(
        request,
        "stores.html",
        title="Stores",
        found=[each.report for each in seen],
        bars={each.report["name"]: memory_bar(each.report["memory"]) for each in seen if not each.report["error"]},
        processes={each.report["name"]: Processes(each, FEW_PROCESSES) for each in seen},
        few=FEW_PROCESSES,
        hidden=hidden_holders(),
        only=watch.only,
    )


def memory_bar(memory: MemoryReport) -> Markup:
    """The split of a store's memory."""
    parts = [
        ("in use", memory["live"]),
        ("read by processes", memory["pinned"]),
        ("deleted but read", memory["pending"]),
        ("free", memory["free"]),
    ]
    return charts.stacked(parts, charts.bytes_text, "memory")


ROUTES = [Route("/", stores)]
