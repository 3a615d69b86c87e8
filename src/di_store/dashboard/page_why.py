"""Why the job of a store is slow, in words."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard.layout import asked, page, watch_of
from di_store.dashboard.watch import SECONDS_OF_WHY


def why(request: Request) -> Response:
    """Who waits for whom and for what, and what would help; the cause first."""
    name = asked(request, "store")
    found = watch_of(request).findings(name)
    return page(request, "why.html", title=f"Why is {name} slow?", store=name, findings=found, refresh=SECONDS_OF_WHY)


ROUTES = [Route("/why", why)]
