"""One store: its memory, its tables, and the processes that have it open."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard.history import MEMORY, PROCESSES, Subject
from di_store.dashboard.layout import asked, page, watch_of
from di_store.dashboard.page_history import drawn
from di_store.dashboard.page_stores import memory_bar
from di_store.dashboard.processes import Processes


def store(request: Request) -> Response:
    """Memory, tables and processes: what each runs, reads and waits for."""
    name = asked(request, "store")
    watch = watch_of(request)
    seen = watch.store(name)
    return page(
        request,
        "store.html",
        title=name,
        store=name,
        found=seen.report,
        bar=memory_bar(seen.report["memory"]),
        processes=Processes(seen),
        charts=drawn(watch.history, Subject(name), (MEMORY, PROCESSES)),
    )


ROUTES = [Route("/store", store)]
