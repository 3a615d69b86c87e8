"""One store: its memory, its tables, and the processes that have it open."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store import observe
from di_store.dashboard.layout import asked, page, watch_of
from di_store.dashboard.page_stores import memory_bar
from di_store.observe import WaiterReport


def store(request: Request) -> Response:
    """Memory, tables and processes: what each runs, reads and waits for."""
    name = asked(request, "store")
    seen = watch_of(request).store(name)
    waits: dict[int, list[WaiterReport]] = {}
    for waiter in seen.report["waiters"]:
        waits.setdefault(waiter["slot"], []).append(waiter)
    return page(
        request,
        "store.html",
        title=name,
        store=name,
        found=seen.report,
        bar=memory_bar(seen.report["memory"]),
        processes=observe.processes(seen.report, seen.pins),
        waits=waits,
    )


ROUTES = [Route("/store", store)]
