"""Every page shows the numbers of `stats()`, whatever names a store has, and says in a line what it cannot show."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from pains import Program, until

import di_store
from dashboard.visitor import Answer, Page, Visitor, dashboard
from di_store.base.sizes import format_size
from di_store.store.opening import pins

ODD = "<b>x</b>&\"'/..?#%\x1b[31m\u202e"
SHOWN = "<b>x</b>&\"'/..?#%\\x1b[31m\\u202e"


class Scene:
    """A store with a bit of everything, which nothing changes any more, and a dashboard that has seen it."""

    def __init__(self, store: di_store.Store, visitor: Visitor) -> None:
        self.store, self.visitor = store, visitor
        self.stats = store.stats()

    def get(self, page: str, **names: str) -> Answer:
        answer = self.visitor.get(page, store=self.store.name, **names)
        assert answer.status == 200, answer.text
        return answer

    def agrees(self, holds: Callable[[Page, Any], bool], page: str = "", **names: str) -> Page:
        """The page once it agrees with the store's figures: maintenance commits memory ahead at a time of its own."""
        return self.visitor.until(lambda it: holds(it.page, self.store.stats()), page, **names).page


def fill(store: di_store.Store) -> None:
    """Tables, objects and weights."""
    table = store.create_table(
        ODD,
        capacity=20_000,
        sampler=di_store.Prioritized(alpha=0.5),
        limiter=di_store.SamplesPerInsert(2.0, 100, 0.5),
    )
    table.extend({"x": np.random.default_rng(1).random((6_000, 4), np.float32)}, priority=np.arange(6_000) + 0.5)
    for _ in range(20):
        table.sample(100)
    groups = store.create_table("groups", capacity=100, view=di_store.Group(by="q", size=4))
    with groups.writer() as writer:
        for at in range(10):
            writer.append({"q": at // 4, "x": float("nan")})
    store.create_table("empty", capacity=10)
    work = store.create_table("work", capacity=10)
    work.extend({"x": np.arange(9)})
    work.sample(2, lease=600)
    store.put({"a": np.zeros(100_000)})
    for _ in range(4):
        store.publish("policy", {"w": np.zeros(50_000)}, keep=2)
    store.publish(ODD, {"w": 1})


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("disk") / "tier"
    with di_store.open(f"scene-{os.getpid()}", memory="64MiB", disk=folder, disk_capacity="1GiB") as store:
        fill(store)
        with dashboard(store.name) as visitor:
            yield Scene(store, visitor)


def test_stores(scene: Scene) -> None:
    def memory(page: Page, stats: Any) -> bool:
        names = (("in use", "live"), ("read by processes", "pinned"), ("free", "free"))
        committed = f"{format_size(stats['committed'])} of {format_size(stats['budget'])} committed"
        return committed in page.text and all(
            f"{label}: {format_size(stats[it])}" in page.titles for label, it in names
        )

    page = scene.agrees(memory)
    assert f"{scene.stats['objects']} objects, 1 processes, 0 waiting threads" in page.text
    assert f"{SHOWN} (6,000 items)" in page.text
    (row,) = (row for row in page.rows if row[0] == str(os.getpid()))
    assert Path(sys.executable).name in row[-1]


def test_store(scene: Scene) -> None:
    def memory(page: Page, stats: Any) -> bool:
        committed = f"{format_size(stats['committed'])} of {format_size(stats['budget'])}"
        return page.facts["committed"] == committed and page.facts["free"] == format_size(stats["free"])

    page, stats = scene.agrees(memory, "store", store=scene.store.name), scene.stats
    assert page.facts["objects"] == str(stats["objects"])
    assert page.facts["uuid"] == stats["uuid"]
    rows = {row[0]: row for row in page.rows}
    for name, table in stats["tables"].items():
        row = rows[SHOWN if name == ODD else name]
        assert row[1:4] == [f"{table['size']:,}", f"{table['capacity']:,}", format_size(table["used_bytes"])]
    assert rows[str(os.getpid())][3] == "runs"


def test_table(scene: Scene) -> None:
    table = scene.stats["tables"][ODD]
    page = scene.get("table", table=ODD).page
    assert page.facts["items"] == "6,000 of 20,000"
    assert page.facts["sampler"].startswith(table["sampler"])
    assert page.facts["inserts"].startswith("6,000 (")
    assert page.facts["samples"].startswith("2,000 (")
    assert page.facts["balance"].startswith("inserts × ratio − samples = 6,000 × 2 − 2,000 = 10,000")
    limiter = table["limiter"]
    assert page.facts["next insert"] == " ".join(limiter["insert_reason"].split())
    assert limiter["insert_reason"]  # this table is one whose inserts wait
    assert page.facts["next sample"] == "may pass"
    assert page.facts["least items"].startswith("6,000 of 100")
    assert scene.get("table", table="work").page.facts["items"] == "7 of 10; 2 leased"


def test_histograms_are_of_a_sample(scene: Scene) -> None:
    """The table has more items than are read; each bar tells how many of these it stands for."""
    page = scene.get("table", table=ODD).page
    (count,) = (int(word.replace(",", "")) for word in page.text.partition("a sample of ")[2].split()[:1])
    assert 3_000 <= count <= 4_096
    assert "of 6,000" in page.text
    bars = [title for title in page.titles if title.endswith("items of the sample")]
    counts = [int(title.split(": ")[1].split()[0].replace(",", "")) for title in bars]
    assert sum(counts) == 2 * count  # times sampled and age; no version is known
    assert "the tenth of the items with the highest has 15%" in page.text  # 1 - 0.9 ** 1.5


def test_groups(scene: Scene) -> None:
    page = scene.get("table", table="groups").page
    table = scene.stats["tables"]["groups"]
    assert table["waiting"] == 1
    assert "1 groups cannot be drawn yet" in page.text
    assert ["2", "2", "2 answers"] in page.rows


def test_a_table_without_items(scene: Scene) -> None:
    page = scene.get("table", table="empty").page
    assert "no items" in page.text
    assert page.facts["items"] == "0 of 10"


def test_weights(scene: Scene) -> None:
    """The versions that are there, and who reads them; also a version that is kept by its reader alone."""
    held = scene.store.latest("policy")
    assert held is not None
    me = str(os.getpid())

    def readers(answer: Answer) -> list[str]:
        return [row[2] for row in answer.page.rows if len(row) == 4]

    answer = scene.visitor.until(lambda it: me in readers(it), "weights", store=scene.store.name)
    rows = {row[0]: row for row in answer.page.rows if len(row) == 4}
    ((_, raw, _, size, _),) = pins(scene.store)
    assert "Newest version 4, oldest kept 3" in answer.page.text
    assert rows["4"] == ["4", format_size(size), me, raw.hex()]
    assert rows["3"][:3] == ["3", format_size(size), "-"]
    assert "2" not in rows
    assert SHOWN in answer.page.text
    del held
    scene.visitor.until(lambda it: me not in readers(it), "weights", store=scene.store.name)


def test_old_versions_that_are_read(store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="64MiB") as store, dashboard(store.name) as visitor:
        store.publish("policy", {"w": np.zeros(50_000)}, keep=1)
        held = store.latest("policy")
        ((_, raw, _, size, _),) = pins(store)
        store.publish("policy", {"w": np.zeros(50_000)}, keep=1)
        row = [str(os.getpid()), format_size(size), raw.hex()]
        visitor.until(lambda it: row in it.page.rows, "weights", store=store.name)
        del held


STOPS_IN_PUBLISH = """
import sys, di_store
store = di_store.attach(sys.argv[1])
di_store._core.arm_fault("heap.publish_before_seal:1:stop")
print("ready", flush=True)
store.publish("policy", 2)
"""


def test_weights_beside_a_stopped_publisher(store_name: Callable[[], str]) -> None:
    """It holds the heap's lock: the versions are there all the same, their bytes once it goes on."""
    with di_store.open(store_name(), memory="16MiB") as store:
        store.publish("policy", 1)
        with Program(STOPS_IN_PUBLISH, store.name) as program, dashboard(store.name) as visitor:
            assert program.line() == "ready"
            visitor.until(lambda it: "stopped" in it.text, "store", store=store.name)
            page = visitor.get("weights", store=store.name).page
            assert ["1", "not known", "-"] in [row[:3] for row in page.rows]
            os.kill(program.pid, signal.SIGCONT)
            program.finish()
            visitor.until(lambda it: "Newest version 2" in it.page.text, "weights", store=store.name)


def test_why_is_it_slow(store_name: Callable[[], str]) -> None:
    """The page says what `di-store why` says."""
    with stopping(name := store_name()) as (program, visitor):
        says = f"Process {program.pid} is stopped"
        answer = visitor.until(lambda it: says in it.page.text, "why", store=name)
        assert f"`kill -CONT {program.pid}` resumes it" in answer.page.text


def test_disk(scene: Scene) -> None:
    disk: Any = scene.stats["disk"]
    page = scene.get("disk").page
    assert page.facts["folder"] == disk["folder"]
    files = (
        f"{format_size(disk['files'])} of {format_size(disk['capacity'])}; {format_size(disk['live'])} of them needed"
    )
    assert page.facts["files"] == files
    assert page.facts["written"].endswith(f"each byte {disk['write_amplification']:.2f} times")
    assert page.facts["hits"] == "100.0% of drawn items were in memory"


def test_history(scene: Scene) -> None:
    scene.agrees(
        lambda page, stats: f"in use: {format_size(stats['committed'])}" in page.text,
        "history",
        store=scene.store.name,
    )
    page = scene.get("history", table=ODD).page
    assert "items: 6,000" in page.text


def test_all_links_lead_to_pages(scene: Scene) -> None:
    """At most four of each page: there is one for each item."""
    seen, found = set[str](), ["/"]
    while found:
        address = found.pop()
        same = [each for each in seen if urlsplit(each).path == urlsplit(address).path]
        if address not in seen and len(same) < 4:
            seen.add(address)
            answer = scene.visitor.raw(address, cookie=scene.visitor.cookie)
            assert answer.status == 200, address
            found += answer.page.links
    assert f"/table?{urlencode({'store': scene.store.name, 'table': ODD})}" in seen


def test_odd_names_are_text(scene: Scene) -> None:
    """Nothing that a store holds becomes markup, and no control character gets to the browser."""
    for answer in (scene.visitor.get(), scene.get("store"), scene.get("table", table=ODD), scene.get("history")):
        assert "b" not in answer.page.tags
        assert SHOWN in answer.page.text
        assert not [one for one in answer.text if one != "\n" and not one.isprintable()]


RUNS = """
import sys, di_store
store = di_store.open(sys.argv[1], memory="16MiB") if sys.argv[2] == "open" else di_store.attach(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


def test_commands_of_processes_are_text(scene: Scene) -> None:
    with Program(RUNS, scene.store.name, "attach", f"<script>{ODD}", "x" * 100_000) as program:
        assert program.line() == "ready"
        answer = scene.visitor.until(lambda it: str(program.pid) in it.text, "store", store=scene.store.name)
        (row,) = (row for row in answer.page.rows if row[0] == str(program.pid))
        assert row[-1].endswith("characters)")
        assert len(answer.text) < 50_000
        assert "<script>" not in answer.text.partition("<main")[2]
        assert "<script>" in scene.visitor.get("store", store=scene.store.name).page.text or "…" in row[-1]
        program.say()
        program.finish()


@pytest.mark.parametrize(
    ("page", "names", "says"),
    [
        ("store", {"store": "nowhere"}, "no process of this user holds a store named 'nowhere'"),
        ("store", {}, "store="),
        ("table", {"store": "SCENE"}, "table="),
        ("table", {"store": "SCENE", "table": "<b>\0"}, "has no table '<b>\\x00'"),
        ("disk", {"store": "<script>"}, "'<script>'"),
        ("history", {"store": "nowhere"}, "nothing was seen of store 'nowhere'"),
        ("nothing", {}, "Not Found"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(scene: Scene, page: str, names: dict[str, str], says: str) -> None:
    names = {name: scene.store.name if value == "SCENE" else value for name, value in names.items()}
    answer = scene.visitor.get(page, **names)
    assert answer.status == 404
    assert says in answer.page.text
    assert answer.text.count("<script") == 1  # the page's own


def test_a_store_that_ends_while_one_looks(store_name: Callable[[], str]) -> None:
    """It ends: the dashboard does not keep it. Its hour of history stays."""
    name = store_name()
    with Program(RUNS, name, "open") as program:
        assert program.line() == "ready"
        with dashboard(name) as visitor:
            assert str(program.pid) in visitor.get("store", store=name).text
            program.process.kill()
            gone = visitor.until(lambda it: it.status == 404, "store", store=name)
            assert f"no process of this user holds a store named '{name}'" in gone.page.text
            assert f"No stores named {name}" in visitor.get().page.text
            assert f"{name} has ended" in visitor.get("history", store=name).page.text
            until(lambda: name not in {each.name for each in di_store.list_stores()}, "the store to end")


def test_a_table_that_is_dropped_while_one_looks(store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="16MiB") as store:
        store.create_table("t", capacity=10)
        with dashboard(store.name) as visitor:
            assert visitor.get("table", store=store.name, table="t").status == 200
            store.drop_table("t")
            visitor.until(lambda it: it.status == 404, "table", store=store.name, table="t")
            assert "items" in visitor.get("history", store=store.name, table="t").text


STOPS = """
import sys, numpy as np, di_store
store = di_store.attach(sys.argv[1])
di_store._core.arm_fault("table.insert_item:1:stop")
print("ready", flush=True)
store.table("t").extend({"x": np.zeros(5)})
"""


@contextmanager
def stopping(name: str) -> Iterator[tuple[Program, Visitor]]:
    """A process that stops with the lock of the table "t" in hand, and who looks at its store."""
    with di_store.open(name, memory="16MiB") as store:
        store.create_table("t", capacity=10).extend({"x": np.zeros(5)})
        with Program(STOPS, name) as program, dashboard(name) as visitor:
            assert program.line() == "ready"
            yield program, visitor


def test_a_stopped_process_that_holds_a_lock(store_name: Callable[[], str]) -> None:
    """The pages answer, and name it in place of the histograms."""
    with stopping(name := store_name()) as (program, visitor):
        visitor.until(lambda it: "stopped" in it.text, "store", store=name)
        answer = visitor.get("table", store=name, table="t")
        assert f"pid {program.pid}, stopped" in answer.page.text
        assert answer.page.facts["items"].startswith("5 of 10")
        os.kill(program.pid, signal.SIGCONT)
        program.finish()
        visitor.until(lambda it: "a sample of 10 of 10" in it.page.text, "table", store=name, table="t")


def test_a_store_of_another_version(store_name: Callable[[], str]) -> None:
    from store.test_bad_header import overwrite

    name = store_name()
    with Program(RUNS, name, "open") as program:
        assert program.line() == "ready"
        before = overwrite(program.pid, "layout_version", lambda value: value + 1)
        with dashboard(name) as visitor:
            assert f"{name} cannot be read: " in visitor.get().page.text
            answer = visitor.get("store", store=name)
            assert answer.status == 404
            assert "version" in answer.page.text
            overwrite(program.pid, "layout_version", lambda _: int.from_bytes(before, "little"))
            visitor.until(lambda it: it.status == 200, "store", store=name)
        program.say()
        program.finish()


def test_addresses_hold_names_in_the_query(scene: Scene) -> None:
    """A path could not hold all names: browsers resolve `..` in it."""
    for link in scene.get("store").page.links:
        parts = urlsplit(link)
        assert parts.path.count("/") == 1
        assert set(parse_qs(parts.query)) <= {"store", "table"}
