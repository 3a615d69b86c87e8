"""What all pages share: the frame around them, links, and how values become text."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from di_store.base.sizes import format_size, seconds_text
from di_store.dashboard.charts import number_text
from di_store.dashboard.watch import SECONDS, StoreWatch
from di_store.observe import limiter_text

STORE_PAGES = (
    ("store", "Store"),
    ("weights", "Weights"),
    ("disk", "Disk"),
    ("history", "History"),
    ("why", "Why is it slow?"),
)
"""Pages of one store, in the order of the navigation: path and label."""

TABLE_PAGES = (("table", "Table"), ("items", "Items"))
"""Pages of one table."""

MOST_TEXT = 300
"""Characters of a text that a page shows."""


def page(request: Request, template: str, *, status: int = 200, **facts: Any) -> Response:
    """The page that `template` makes of `facts`.

    Args:
        request: the request.
        template: name of a file in `templates/`.
        status: HTTP status.
        facts: variables of the template. Those of the frame: `title`; `store` and `table`, the names that the page is
            about; `refresh`, the seconds after which the browser fetches the page again (0: never).
    """
    watch = watch_of(request)
    frame = {"refresh": SECONDS, "store": "", "table": "", "age": watch.age, "here": request.url.path.strip("/")}
    return HTMLResponse(_templates.get_template(template).render(frame | facts), status)


def asked(request: Request, name: str) -> str:
    """A name in the query.

    Raises:
        HTTPException: it is missing.
    """
    value = request.query_params.get(name)
    if value is None:
        raise HTTPException(404, f"the address of this page lacks {name}=")
    return value


def watch_of(request: Request) -> StoreWatch:
    """What the server has seen of the stores."""
    watch: StoreWatch = request.app.state.watch
    return watch


def link(path: str, **names: object) -> str:
    """The address of a page; `names`: its query."""
    return f"/{path}?{urlencode(names)}" if names else f"/{path}"


def shown(value: object) -> object:
    """A value as a template prints it: text is cut, without control characters; None is a dash."""
    if value is None:
        return "-"
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    cut = value[:MOST_TEXT]
    text = cut if cut.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut)
    return text if len(value) <= MOST_TEXT else f"{text}… ({len(value):,} characters)"


def count_text(value: float | None) -> str:
    """A count with separators."""
    return "-" if value is None else f"{value:,.0f}"


def rate_text(value: float | None) -> str:
    """A rate per second."""
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def size_text(value: float | None) -> str:
    """Bytes, with a unit."""
    return "-" if value is None else format_size(round(value))


def share_text(value: float | None) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{value:.1%}"


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("di_store.dashboard"),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"link": link, "store_pages": STORE_PAGES, "table_pages": TABLE_PAGES}
    made.filters |= {
        "count": count_text,
        "rate": rate_text,
        "size": size_text,
        "share": share_text,
        "seconds": seconds_text,
        "number": number_text,
        "limiter": limiter_text,
    }
    return made


_templates = _environment()
for _each in _templates.list_templates():  # now, so that the first view of a page does not wait for it
    _templates.get_template(_each)
