"""The last hour of a store or a table. It stays here when the store has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.base.errors import StoreNotFound
from di_store.dashboard import charts
from di_store.dashboard.history import DISK_CHARTS, STORE_CHARTS, TABLE_CHARTS, Chart, History, Subject
from di_store.dashboard.layout import asked, page, watch_of

TEXTS: dict[str, Callable[[float], str]] = {
    "count": charts.number_text,
    "bytes": charts.bytes_text,
    "count/s": lambda value: f"{charts.number_text(value)}/s",
    "bytes/s": lambda value: f"{charts.bytes_text(value)}/s",
    "share": lambda value: f"{value:.0%}",
}
"""By the unit of a chart, how its values are written."""


def history(request: Request) -> Response:
    """Every chart of a store, or with `table` of that table."""
    name, table = asked(request, "store"), request.query_params.get("table", "")
    watch = watch_of(request)
    subject = Subject(name, "table", table) if table else Subject(name)
    known = [each for each in watch.history.subjects() if each.store == name]
    if subject not in known:
        raise StoreNotFound(f"nothing was seen of {f'table {table!r} of ' if table else ''}store {name!r}", remedy="")
    wanted = TABLE_CHARTS if table else STORE_CHARTS + DISK_CHARTS
    return page(
        request,
        "history.html",
        title=f"The last hour of {table or name}",
        store=name,
        table=table,
        tables=[each.name for each in known if each.kind == "table"],
        ended=all(each.report["name"] != name for each in watch.seen),
        charts=drawn(watch.history, subject, wanted),
    )


def drawn(history: History, subject: Subject, wanted: Iterable[Chart]) -> list[Markup]:
    """The charts as markup."""
    made = []
    for each in wanted:
        times, lines = history.lines(subject, each)
        made.append(charts.line(times, lines, each.label, TEXTS[each.unit]))
    return made


ROUTES = [Route("/history", history)]
