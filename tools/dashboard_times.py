"""Measures `di-store dashboard` in a real Chromium: the first view of each page, and its refreshes.

From the repository root, where `make programs` has found Chromium: ``python tools/dashboard_times.py``. The store has
1,000,000 items with priorities and 200 processes that have it open. "first" is the time from the start of the
navigation to the end of its load event, "paint" to the first content that is painted, "refresh" from the request for
the new page to the frame that shows it. A column shows the median and the largest of several, in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from pathlib import Path

import numpy as np

import di_store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from dashboard.chromium import Window, chromium, window
from dashboard.visitor import dashboard
from playwright.sync_api import Browser

NAVIGATION = """() => {
  const [load] = performance.getEntriesByType("navigation");
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return [load.loadEventEnd, paint ? paint.startTime : NaN];
}"""
# Notes, for each new <main>, the time since its request began, once the frame that shows it is done.
REFRESHES = """window.refreshes = [];
new MutationObserver((changes) => {
  if (!changes.some((change) => [...change.addedNodes].some((node) => node.nodeName === "MAIN"))) return;
  const asked = performance.getEntriesByType("resource").filter((entry) => entry.initiatorType === "fetch").at(-1);
  if (asked) requestAnimationFrame(() => setTimeout(() => window.refreshes.push(performance.now() - asked.startTime)));
}).observe(document, {childList: true, subtree: true});"""


def clients(name: str, count: int) -> list[int]:
    """Processes that have the store open and do nothing."""
    found = []
    for _ in range(count):
        ready, done = os.pipe()
        child = os.fork()
        if child == 0:
            store = di_store.attach(name, timeout=60)
            os.write(done, store.name.encode()[:1])
            signal.pause()
            os._exit(0)
        os.read(ready, 1)
        os.close(ready)
        os.close(done)
        found.append(child)
    return found


def fill(store: di_store.Store, items: int) -> None:
    """One table of many items with priorities, one of frames."""
    rng = np.random.default_rng(1)
    many = store.create_table("many", capacity=items, sampler=di_store.Prioritized(alpha=0.6, beta=0.4))
    part = 100_000
    for _ in range(0, items, part):
        obs, action = rng.random((part, 8), np.float32), rng.integers(4, size=part)
        keys = many.extend({"obs": obs, "action": action, "reward": rng.random(part)})
        many.update_priorities(keys, rng.exponential(size=part))
    frames = store.create_table("frames", capacity=5_000, view=di_store.Transition(n_step=3, frame_stack={"obs": 4}))
    with frames.writer() as writer:
        for at in range(2_000):
            frame = np.full((84, 84), 30, np.uint8)
            frame[at % 80 :, at * 3 % 80 : at * 3 % 80 + 6] = 200
            writer.append({"obs": frame, "reward": float(at % 7), "terminated": False, "truncated": False})
            if at % 200 == 199:
                writer.end_episode(final={"obs": np.zeros((84, 84), np.uint8)})
    for _ in range(100):
        many.sample(256)


def views(browser: Browser, url: str, path: str, rounds: int) -> list[list[float]]:
    """First views of one page, each in a window of its own: load and paint."""
    found = []
    for _ in range(rounds):
        with window(browser, url) as shown:
            shown.show(path)
            shown.page.wait_for_load_state("load")
            shown.page.wait_for_timeout(200)  # the first paint is noted after it
            found.append(shown.page.evaluate(NAVIGATION))
    return [list(each) for each in zip(*found, strict=True)]


def refreshes(browser: Browser, url: str, path: str, rounds: int) -> list[float]:
    """Refreshes of one page."""
    with window(browser, url) as shown:
        shown.page.add_init_script(REFRESHES)
        shown.show(path)
        if shown.page.locator("main").get_attribute("data-refresh") == "0":
            return []
        found: list[float] = []
        while len(found) < rounds:
            shown.page.wait_for_timeout(500)
            found = shown.page.evaluate("window.refreshes")
        return found


def text(times: list[float]) -> str:
    """Median and largest."""
    return f"{statistics.median(times):6.0f} {max(times):5.0f}" if times else f"{'-':>12}"


def main() -> None:
    """Measure and print one line for each page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with di_store.open("dashboard-times", memory="1GiB") as store:
        fill(store, options.items)
        children = clients(store.name, options.clients)
        try:
            with dashboard(store.name) as visitor, chromium() as browser:
                with window(browser, visitor.url) as shown:
                    paths = every_page(shown, store.name)
                print(f"{options.items:,} items, {options.clients} clients; milliseconds, median and largest")
                print(f"{'page':58} {'first':>12} {'paint':>12} {'refresh':>12}")
                for path in paths:
                    load, paint = views(browser, visitor.url, path, options.rounds)
                    again = refreshes(browser, visitor.url, path, options.rounds)
                    print(f"{path[:58]:58} {text(load)} {text(paint)} {text(again)}", flush=True)
        finally:
            for each in children:
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)


def every_page(shown: Window, store: str) -> list[str]:
    """Each page that links lead to, and lists of items that are sorted and filtered."""
    items = f"/items?store={store}&table=many"
    return [*shown.pages(), f"{items}&sort=priority", f"{items}&sort=newest", f"{items}&sort=newest&least_priority=3"]


if __name__ == "__main__":
    main()
