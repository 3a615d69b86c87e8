"""The real dashboard in a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from threading import Event
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from cli_run import command, process
from pains import until

LONGEST = 60.0
"""Seconds that an answer may take."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def page(self) -> Page:
        """What a reader sees."""
        found = Page()
        found.feed(self.text)
        return found


class Page(HTMLParser):
    """A page's texts: all of it, `facts` (each `dt` with its `dd`), `rows` of tables, and the addresses of `links`."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.titles: list[str] = []  # of marks in charts
        self._texts = [""]
        self._name = ""

    @property
    def text(self) -> str:
        return " ".join(self._texts[0].split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")
        elif tag == "tr":
            self.rows.append([])
        if tag in ("dt", "dd", "td", "th", "title"):
            self._texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("dt", "dd", "td", "th", "title"):
            text = " ".join(self._texts.pop().split())
            self._texts[-1] += f" {text} "
            if tag == "dt":
                self._name = text
            elif tag == "dd":
                self.facts[self._name] = text
            elif tag == "title":
                self.titles.append(text)
            else:
                self.rows[-1].append(text)

    def handle_data(self, data: str) -> None:
        self._texts[-1] += data


class Visitor:
    """A browser that has opened the URL with the token."""

    def __init__(self, url: str, pid: int, tls: ssl.SSLContext | None = None) -> None:
        self.url, self.pid, self._tls = url, pid, tls
        parts = urlsplit(url)
        self.port = parts.port or 0
        self.token = parts.query.removeprefix("token=")
        self.host = f"{parts.hostname}:{self.port}"
        answer = self.raw(f"/?token={self.token}")
        assert answer.status == 303, answer
        assert answer.headers["location"] == "/"
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def raw(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """An answer without the cookie; `headers` with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        place = urlsplit(self.url).hostname or ""
        made = (
            http.client.HTTPSConnection(place, self.port, timeout=LONGEST, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(place, self.port, timeout=LONGEST)
        )
        try:
            made.request(method, path, headers=named)
            found = made.getresponse()
            text = found.read().decode()
        finally:
            made.close()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, text)

    def get(self, page: str = "", **names: str) -> Answer:
        """A page; `names`: its query."""
        return self.raw(f"/{page}?{urlencode(names)}" if names else f"/{page}", cookie=self.cookie)

    def until(self, holds: Callable[[Answer], bool], page: str = "", **names: str) -> Answer:
        """The page once `holds`: the dashboard looks at the stores every two seconds."""
        answers: list[Answer] = []

        def look() -> bool:
            Event().wait(0.1 if answers else 0)
            answers.append(self.get(page, **names))
            return holds(answers[-1])

        until(look, f"the page {page!r}")
        return answers[-1]


@contextmanager
def dashboard(*arguments: str, tls: ssl.SSLContext | None = None) -> Iterator[Visitor]:
    """The dashboard with these arguments, on a free port."""
    place = () if "--listen" in arguments else ("--port", "0")
    with process(*command("dashboard", *arguments, *place, "--no-browser")) as child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        if not url:
            raise AssertionError(child.communicate()[1])
        yield Visitor(url, child.pid, tls)
