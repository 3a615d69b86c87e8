"""All stores of this machine."""

from __future__ import annotations

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard import charts
from di_store.dashboard.layout import page, watch_of
from di_store.observe import MemoryReport


def stores(request: Request) -> Response:
    """Memory, tables, processes and waiting threads of each store."""
    watch = watch_of(request)
    found = [each.report for each in watch.seen]
    bars = {each["name"]: memory_bar(each["memory"]) for each in found if not each["error"]}
    return page(request, "stores.html", title="Stores", found=found, bars=bars, only=watch.only)


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
