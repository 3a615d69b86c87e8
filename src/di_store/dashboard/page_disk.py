"""The disk tier of a store."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard import charts
from di_store.dashboard.history import DISK_CHARTS, Subject
from di_store.dashboard.layout import asked, page, watch_of
from di_store.dashboard.page_history import drawn


def disk(request: Request) -> Response:
    """Bytes, what packing gains, writes, hits, and how far loaders are ahead."""
    name = asked(request, "store")
    watch = watch_of(request)
    tier = watch.store(name).report["disk"]
    facts: dict[str, Any] = {}
    if tier is not None:
        parts = [
            ("needed", tier["live"]),
            ("no longer needed", max(0, tier["files"] - tier["live"])),
            ("free", max(0, tier["capacity"] - tier["files"])),
        ]
        facts["bar"] = charts.stacked(parts, charts.bytes_text, "files")
        facts["charts"] = drawn(watch.history, Subject(name), DISK_CHARTS)
    return page(request, "disk.html", title=f"Disk of {name}", store=name, disk=tier, **facts)


ROUTES = [Route("/disk", disk)]
