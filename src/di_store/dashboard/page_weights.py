"""The published weights of a store: versions, bytes, and which process reads which."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from di_store.dashboard.history import VERSIONS, History, Subject
from di_store.dashboard.layout import asked, page, watch_of
from di_store.dashboard.page_history import drawn
from di_store.dashboard.watch import Seen


class Version(NamedTuple):
    """One version that is there."""

    number: int
    id: str
    bytes: int | None  # None: a process holds the heap's lock
    readers: list[str]  # processes that hold arrays of it


class NamedWeights(NamedTuple):
    """The weights of one name."""

    name: str
    newest: int
    oldest: int
    versions: list[Version]  # the newest first
    speed: float | None  # bytes published per second, in the last look
    chart: Markup


def weights(request: Request) -> Response:
    """All names of weights."""
    name = asked(request, "store")
    watch = watch_of(request)
    seen = watch.store(name)
    found = list(_published(seen, watch.history))
    known = {version.id for each in found for version in each.versions}
    old = [(process, raw.hex(), size) for process, raw, size in _reads(seen) if raw.hex() not in known]
    return page(request, "weights.html", title=f"Weights of {name}", store=name, found=found, old=old)


def _published(seen: Seen, history: History) -> list[NamedWeights]:
    readers: dict[bytes, list[str]] = {}
    for process, raw, _ in _reads(seen):
        readers.setdefault(raw, []).append(process)
    made = []
    for name, newest, oldest, all in seen.weights:
        subject = Subject(seen.report["name"], "weights", name)
        there = [Version(number, raw.hex(), size, readers.get(raw, [])) for number, raw, size in all if size != 0]
        _, lines = history.lines(subject, VERSIONS)
        rate = lines[0][1][-1] if len(lines[0][1]) else np.nan
        speed = float(rate) * (there[0].bytes or 0) if there and not np.isnan(rate) else None
        made.append(NamedWeights(name, newest, oldest, there, speed, drawn(history, subject, (VERSIONS,))[0]))
    return made


def _reads(seen: Seen) -> list[tuple[str, bytes, int]]:
    """Each process that reads a version of weights: the process, the version's id, and its bytes."""
    process = {client["slot"]: client["process"] for client in seen.report["clients"]}
    return [
        (process[slot], raw, size) for slot, raw, is_weights, size, _ in seen.pins if is_weights and slot in process
    ]


ROUTES = [Route("/weights", weights)]
