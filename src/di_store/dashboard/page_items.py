"""Items of a table: a list, one item, and one episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard import charts
from di_store.dashboard.item_reader import PAGE, SORTS, ItemReader, Wanted
from di_store.dashboard.item_values import Curve
from di_store.dashboard.layout import asked, link, page, shown, watch_of

_MOST_READ = 2_000_000
"""Items of a table that a page offers to read in full, which takes about 0.3 s for a million."""
_BOUNDS = ("least_priority", "most_priority", "least_uses", "most_uses")


def items(request: Request) -> Response:
    """Items by key, age, priority or uses, with their values."""
    store, table = asked(request, "store"), asked(request, "table")
    wanted = _wanted(request)
    with _reader(request, store, table) as reader:
        found, columns, episodes = reader.listed(wanted), reader.columns, reader.has_episodes
    other = {
        name: value for name, value in request.query_params.items() if name in ("store", "table", "sort", *_BOUNDS)
    }
    return page(
        request,
        "items.html",
        title=f"Items of {table}",
        store=store,
        table=table,
        refresh=0 if wanted.every else 2,
        found=found,
        columns=columns,
        episodes=episodes,
        wanted=wanted,
        sorts=SORTS,
        given=request.query_params,
        previous=link("items", **other, start=max(0, wanted.start - PAGE)) if wanted.start else "",
        following=link("items", **other, start=wanted.start + PAGE) if wanted.start + PAGE < found.found else "",
        everything=link("items", **other, every=1) if found.looked_at < found.size <= _MOST_READ else "",
    )


def item(request: Request) -> Response:
    """One item: its facts, its values in full, and curves over its time axis."""
    return _of_item(request, "item.html", ItemReader.one, lambda found: f"Item {found.item.key}")


def episode(request: Request) -> Response:
    """The episode of one item: small columns as curves over its steps, columns of images as film strips."""
    return _of_item(request, "episode.html", ItemReader.episode, lambda found: f"Episode {found.episode}")


def _of_item(
    request: Request, template: str, read: Callable[[ItemReader, int], Any], title: Callable[[Any], str]
) -> Response:
    """A page of what `read` finds of the item of the address."""
    store, table, key = asked(request, "store"), asked(request, "table"), _key(request)
    with _reader(request, store, table) as reader:
        found, episodes = read(reader, key), reader.has_episodes
    if found is None:
        raise HTTPException(404, f"table {table} holds no item {key}: it has left the table, or never was in it")
    return page(
        request,
        template,
        title=title(found),
        store=store,
        table=table,
        key=key,
        found=found,
        episodes=episodes,
        curves=[_chart(each) for each in found.curves],
    )


@contextmanager
def _reader(request: Request, store: str, table: str) -> Iterator[ItemReader]:
    watch = watch_of(request)
    watch.table(store, table)
    with watch.attached(store) as handle:
        yield ItemReader(handle.table(table), request.app.state.decoders)


def _chart(curves: list[Curve]) -> Markup:
    steps = np.array(curves[0].steps, np.float64)
    names = [str(shown(each.name)) for each in curves]
    series = [(name, np.array(each.values)) for name, each in zip(names, curves, strict=True)]
    series = [(name, np.where(np.isfinite(values), values, np.nan)) for name, values in series]
    label = str(shown(curves[0].name.rpartition("[")[0])) if len(curves) > 1 else names[0]
    return charts.line(steps, series, label, ends=(f"step {curves[0].steps[0]:,}", f"step {curves[0].steps[-1]:,}"))


def _wanted(request: Request) -> Wanted:
    sort = request.query_params.get("sort") or "oldest"
    if sort not in SORTS:
        raise HTTPException(404, f"give one of {', '.join(SORTS)}, not sort={sort}")
    start = _number(request, "start") or 0
    bounds = [_number(request, name) for name in _BOUNDS]
    return Wanted(sort, int(min(max(start, 0), 2**40)), "every" in request.query_params, *bounds)


def _number(request: Request, name: str) -> float | None:
    """A number in the query; None: it is not given."""
    text = request.query_params.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise HTTPException(404, f"give a number, not {name}={text}")
    return value


def _key(request: Request) -> int:
    text = asked(request, "key").strip()
    if not (text.isascii() and text.isdigit() and int(text[:20]) < 2**56 and len(text) <= 20):
        raise HTTPException(404, f"give an item's key, a whole number, not key={text}")
    return int(text)


ROUTES = [Route("/items", items), Route("/item", item), Route("/episode", episode)]
