"""A real headless Chromium that looks at the dashboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright
from programs import need

Scheme = Literal["light", "dark"]

LONGEST_MS = 120_000
"""How long a page may take, in milliseconds; on a machine that does nothing else, it takes a thousandth of it."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium with a fresh profile, also as root and without a screen."""
    need("chromium")
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=options, timeout=LONGEST_MS)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A window of the browser. It notes whatever a page must not do.

    Attributes:
        page: what it shows.
        faults: errors and warnings in the console, errors of scripts, dialogs, and requests to other hosts.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self._place = urlsplit(url).netloc
        page.set_default_timeout(LONGEST_MS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._asked)
        page.on("request", self._requested)
        page.goto(url)

    def show(self, path: str) -> None:
        """Open a page of the dashboard."""
        self.page.goto(f"http://{self._place}{path}")

    def links(self) -> list[str]:
        """Paths of all links of the page."""
        found = self.page.locator("a[href]").evaluate_all("all => all.map(each => each.getAttribute('href'))")
        assert all(each.startswith("/") for each in found), found
        return [str(each) for each in found]

    def pages(self) -> list[str]:
        """Paths of the pages that links lead to, one for each kind of page, store and table."""
        found: dict[tuple[str, ...], str] = {}
        ahead = ["/"]
        while ahead:
            path = ahead.pop()
            parts = urlsplit(path)
            query = parse_qs(parts.query)
            kind = parts.path, *query.get("store", []), *query.get("table", [])
            if kind not in found:
                found[kind] = path
                self.show(path)
                ahead += self.links()
        return list(found.values())

    def too_wide(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _asked(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data" and parts.netloc != self._place:
            self.faults.append(f"request: {request.url[:200]}")


@contextmanager
def window(browser: Browser, url: str, width: int = 1280, scheme: Scheme = "light") -> Iterator[Window]:
    """A window without cookies; `url`: with the token."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        yield Window(context.new_page(), url)
    finally:
        context.close()
