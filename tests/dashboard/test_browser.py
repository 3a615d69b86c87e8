"""Every page of the dashboard in a real Chromium."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from pains import Program
from PIL import Image
from playwright.sync_api import Browser

import di_store
from dashboard.chromium import Scheme, chromium, window
from dashboard.test_items import HOSTILE, fill
from dashboard.visitor import Visitor, dashboard
from di_store.dashboard.app import ROUTES

pytestmark = pytest.mark.extended

WIDE, NARROW = 1280, 390
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
IMAGES = "DI_STORE_DASHBOARD_IMAGES"
"""The variable of the environment that names a folder, such as docs/images: the pictures of the docs are put there."""
MOST_IMAGE_BYTES = 150_000
DOCS = Path(__file__).resolve().parents[2] / "docs/dashboard.md"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def store() -> Iterator[di_store.Store]:
    with di_store.open("hostile-and-quiet", memory="256MiB") as made:
        fill(made)
        made.publish("policy", {"w": np.zeros(1000, np.float32)})
        yield made


@pytest.fixture(scope="module")
def visitor(store: di_store.Store) -> Iterator[Visitor]:
    with dashboard(store.name) as found:
        yield found


def test_links_lead_to_every_page(browser: Browser, visitor: Visitor) -> None:
    with window(browser, visitor.url) as shown:
        paths = {urlsplit(each).path for each in shown.pages()}
        assert paths == {route.path for route in ROUTES}
        assert shown.faults == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page_is_clean_and_fits(width: int, scheme: Scheme, browser: Browser, visitor: Visitor) -> None:
    """No error in the console, no script in a name or value that runs, no request elsewhere, no scrolling sideways."""
    with window(browser, visitor.url, width, scheme) as shown:
        for path in shown.pages():
            shown.show(path)
            assert shown.too_wide() == 0, path
            assert shown.page.evaluate("window.broken === undefined"), path
            assert shown.faults == [], path


def test_dark_and_light_differ(browser: Browser, visitor: Visitor) -> None:
    levels = []
    for scheme in SCHEMES:
        with window(browser, visitor.url, scheme=scheme) as shown:
            picture = Image.open(io.BytesIO(shown.page.screenshot())).convert("L")
            levels.append(float(np.asarray(picture).mean()))
    light, dark = levels
    assert light > 200
    assert dark < 60


def test_hostile_names_and_values_are_text(browser: Browser, visitor: Visitor, store: di_store.Store) -> None:
    with window(browser, visitor.url) as shown:
        shown.show(f"/store?store={store.name}")
        shown.page.get_by_role("link", name=HOSTILE).first.click()
        shown.page.get_by_role("link", name="Items").click()
        cell = shown.page.get_by_text("<img src=x onerror=window.broken=1>\\x1b[31m\\x00&amp;").first
        cell.hover()
        shown.page.locator("#items a").first.click()
        shown.page.get_by_role("heading", name="text").wait_for()
        assert shown.page.locator("script").count() == 1  # the page's own
        assert shown.page.evaluate("window.broken === undefined")
        assert shown.faults == []


def test_numbers_are_those_of_stats(browser: Browser, visitor: Visitor, store: di_store.Store) -> None:
    """Of each table on the store's page, and on the table's own."""
    stats = store.stats()
    with window(browser, visitor.url) as shown:
        shown.show(f"/store?store={store.name}")
        row = shown.page.get_by_role("row").filter(has=shown.page.get_by_role("link", name="few", exact=True)).first
        row.wait_for()
        cells = row.get_by_role("cell").all_inner_texts()
        table = dict(stats["tables"]["few"])
        for name in ("size", "capacity"):
            assert f"{table[name]:,}" in cells, (name, cells)
        row.get_by_role("link").first.click()
        text = shown.page.locator("main").inner_text()
        for name in ("size", "capacity", "inserts", "samples", "updates"):
            assert f"{table[name]:,}" in text, name
        assert shown.faults == []


def test_images_are_there(browser: Browser, visitor: Visitor, store: di_store.Store) -> None:
    with window(browser, visitor.url) as shown:
        shown.show(f"/items?store={store.name}&table=frames")
        widths = shown.page.locator("#items img").evaluate_all("all => all.map(each => each.naturalWidth)")
        assert widths == [4 * 18 - 2] * 24  # four frames of 16 pixels with gaps of 2; obs and next_obs of 12 items
        assert shown.faults == []


JOB = """
import sys
import numpy as np
import di_store
store = di_store.open(sys.argv[1], memory="64MiB")
table = store.create_table("t", capacity=1000)
table.extend({"n": np.arange(40)})
print("ready", flush=True)
for line in sys.stdin:
    table.insert({"n": 1})
    print("done", flush=True)
"""


def test_a_refresh_shows_news_and_keeps_the_page(browser: Browser) -> None:
    """Until the store ends, which it says, and when there is one of that name again."""
    name = f"refreshed-{os.getpid()}"
    where = "[window.here, scrollY, document.getElementById('items').scrollLeft]"
    with ExitStack() as running:
        job = running.enter_context(Program(JOB, name))
        assert job.line() == "ready"
        visitor = running.enter_context(dashboard(name))
        shown = running.enter_context(window(browser, visitor.url, NARROW))
        shown.show(f"/items?store={name}&table=t")
        said = shown.page.locator("#said")
        shown.page.evaluate("window.here = 1; scrollTo(0, 40); document.getElementById('items').scrollTo(60, 0)")
        job.say()
        assert job.line() == "done"
        said.filter(has_text="of 41").wait_for()
        assert shown.page.evaluate(where) == [1, 40, 60]
        assert shown.faults == []
        job.finish()
        shown.page.locator("main", has_text="no process of this user holds a store named").wait_for()
        again = running.enter_context(Program(JOB, name))
        assert again.line() == "ready"
        said.filter(has_text="of 40").wait_for()
        assert shown.page.evaluate("window.here") == 1
        # The browser itself says that the page was not found while there was no store.
        assert not [each for each in shown.faults if "404" not in each]


def test_a_dashboard_that_ended_is_said(browser: Browser, store: di_store.Store) -> None:
    with dashboard(store.name) as visitor, window(browser, visitor.url) as shown:
        shown.page.get_by_role("link", name=store.name).first.wait_for()
        os.kill(visitor.pid, 15)
        shown.page.locator("#lost", has_text="does not answer").wait_for()
        assert shown.page.get_by_role("link", name=store.name).first.is_visible()


# -- the pictures of the docs ------------------------------------------------------------------------------------------

TRAIN = """
import sys, threading
import numpy as np
import di_store

def frame(at):  # a ball on its way, and a paddle
    found = np.full((84, 84), 30, np.uint8)
    x, y = abs(at * 3 % 152 - 76), abs(at * 2 % 152 - 76)
    found[y : y + 8, x : x + 8] = 230
    found[76:80, max(0, x - 8) : x + 16] = 140
    return found

store = di_store.open("breakout", memory="512MiB")
replay = store.create_table(
    "replay", capacity=2_000, view=di_store.Transition(n_step=3, frame_stack={"obs": 4}), exist_ok=True,
    sampler=di_store.Prioritized(alpha=0.6, beta=0.4), weights="policy",
    limiter=di_store.SamplesPerInsert(8.0, min_size=100, tolerance=0.5),
)
print("ready", flush=True)
rng, pace = np.random.default_rng(5), threading.Event()
if sys.argv[1] == "learner":
    for step in range(10**9):
        if step % 100 == 0:
            store.publish("policy", {"w": np.zeros(250_000, np.float32)})
        batch = replay.sample(32)
        pace.wait(0.004)
        replay.update_priorities(batch.keys, rng.exponential(size=32))
with replay.writer() as writer:
    for at in range(10**9):
        if at % 50 == 0:
            weights = store.latest("policy", timeout=60)
        writer.append({"obs": frame(at), "action": at % 4, "reward": float(at % 50 == 49)})
        if at % 100 == 99:
            writer.end_episode(final={"obs": frame(at + 1)})
        pace.wait(0.002)
"""


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """A learner and two actors, as the store `breakout`."""
    (folder / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with ExitStack() as running:
        for role in ("learner", "actor", "actor"):
            child = subprocess.Popen(
                ["python", "train.py", role], cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE
            )
            running.enter_context(child)
            running.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        yield


def test_pictures_of_the_docs_can_be_made(browser: Browser, tmp_path: Path) -> None:
    """With DI_STORE_DASHBOARD_IMAGES=docs/images they are."""
    folder = Path(os.environ.get(IMAGES) or tmp_path)
    about = "?store=breakout&table=replay"
    shots: list[tuple[str, str, int, Scheme]] = [
        ("stores", "/", WIDE, "light"),
        ("stores-dark", "/", NARROW, "dark"),
        ("table", f"/table{about}", WIDE, "light"),
        ("table-dark", f"/table{about}", NARROW, "dark"),
        ("items", f"/items{about}&sort=priority", WIDE, "dark"),
    ]
    with training(tmp_path), dashboard("breakout") as visitor:
        threading.Event().wait(60 if IMAGES in os.environ else 0)  # of history
        for name, path, width, scheme in shots:
            with window(browser, visitor.url, width, scheme) as shown:
                shown.show(path)
                # A line for each store of another user of this machine.
                shown.page.locator("main > p.warn").evaluate_all("all => all.forEach(each => each.remove())")
                height = min(900, int(shown.page.evaluate("document.body.getBoundingClientRect().height")) + 1)
                picture = shown.page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
            target = folder / f"dashboard-{name}.png"
            Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(target, optimize=True)
            assert target.stat().st_size <= MOST_IMAGE_BYTES
            assert f"](images/{target.name})" in DOCS.read_text()
