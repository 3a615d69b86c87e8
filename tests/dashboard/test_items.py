"""The pages of items: order, filters, pages, values, and what they say when there is nothing to show."""

from __future__ import annotations

import html
import itertools
import re
import signal
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import looked_at
import numpy as np
import pytest
from pains import Program, status, until

import di_store
from dashboard.visitor import Visitor, dashboard
from di_store.dashboard.item_reader import PAGE, SAMPLE, SORTS, ItemReader, Wanted

HOSTILE = "<script>window.broken=1</script>"
MARKUP = "<img src=x onerror=window.broken=1>"
TEXT = f"{MARKUP}\x1b[31m\x00&amp;"


@pytest.fixture(scope="module")
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="256MiB") as made:
        fill(made)
        yield made


def fill(store: di_store.Store) -> None:
    """Tables with priorities, frames, texts, and values of any class."""
    many = store.create_table("many", capacity=2 * SAMPLE, sampler=di_store.Prioritized(1.0))
    rng = np.random.default_rng(3)
    keys = many.extend({"reward": rng.random(2 * SAMPLE)})
    many.update_priorities(keys, rng.permutation(2 * SAMPLE) + 1.0)
    few = store.create_table("few", capacity=50, sampler=di_store.Prioritized(1.0))
    keys = few.extend({"reward": np.arange(50.0)})
    few.update_priorities(keys, rng.permutation(50) + 1.0)
    few.sample(200)
    frames = store.create_table("frames", capacity=50, view=di_store.Transition(frame_stack={"obs": 4}))
    with frames.writer() as writer:
        for at in range(12):
            frame = np.full((16, 16), at, np.uint8)
            writer.append({"obs": frame, "reward": float(at)})
            if at in (5, 11):
                writer.end_episode(final={"obs": frame})
    texts = {
        "text": di_store.Spec((None,), "u1"),
        "tokens": di_store.Spec((None,), "i4"),
        MARKUP: di_store.Spec((), "?"),
    }
    table = store.create_table(HOSTILE, capacity=10, max_bytes="64MiB", schema=texts)
    table.insert({"text": TEXT, "tokens": [1, 2, 3], MARKUP: True})
    table.insert({"text": "x" * 10_000_000, "tokens": [], MARKUP: True})
    values = store.create_table("values", capacity=10, view=di_store.Opaque())
    for value in ({TEXT: TEXT}, float("nan"), [np.zeros((16, 16), np.uint8)], "y" * 10_000_000):
        values.insert(value)
    store.create_table("empty", capacity=10)
    store.create_table("locked", capacity=10).insert({"reward": 1.0})


@pytest.fixture(scope="module")
def visitor(store: di_store.Store) -> Iterator[Visitor]:
    with dashboard(store.name, "--decode", f"{HOSTILE}.tokens=numpy:sum") as found:
        yield found


def rows(text: str) -> list[list[str]]:
    """The cells of the page's table, as a reader sees them."""
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in re.findall("<td.*?</td>", row, re.S)]
        for row in re.findall("<tr>.*?</tr>", body, re.S)
    ]


def keys_of(text: str) -> list[int]:
    return [int(row[0]) for row in rows(text)]


@pytest.mark.parametrize("sort", SORTS)
def test_items_are_in_order_on_all_pages(sort: str, store: di_store.Store, visitor: Visitor) -> None:
    table = store.table("few")
    keys = table.keys()
    batch = table.peek(keys)
    orders = {
        "oldest": np.arange(50),
        "newest": np.arange(50)[::-1],
        "priority": np.argsort(-batch.priorities, kind="stable"),
        "low-priority": np.argsort(batch.priorities, kind="stable"),
        "uses": np.argsort(-batch.times_sampled, kind="stable"),
        "few-uses": np.argsort(batch.times_sampled, kind="stable"),
    }
    found: list[int] = []
    for start in range(0, 60, PAGE):
        text = visitor.get("items", store=store.name, table="few", sort=sort, start=str(start)).text
        assert ('rel="next"' in text) == (start + PAGE < 50)
        assert ('rel="prev"' in text) == (start > 0)
        found += keys_of(text)
    assert found == keys[orders[sort]].tolist()
    first = rows(visitor.get("items", store=store.name, table="few", sort=sort).text)[0]
    at = orders[sort][0]
    shown = [f"{batch.priorities[at]:.6g}", f"{batch.times_sampled[at]:,}", "-", str(batch.episodes[at])]
    assert first[1:5] == shown
    assert first[6] == f"{batch.data['reward'][at]:.6g}"


@pytest.mark.parametrize("sort", ["oldest", "newest", "priority"])
def test_filters_keep_what_they_name(sort: str, store: di_store.Store, visitor: Visitor) -> None:
    table = store.table("few")
    keys = table.keys()
    batch = table.peek(keys)
    kept = (batch.priorities >= 11) & (batch.priorities <= 40) & (batch.times_sampled <= 4)
    bounds = {"least_priority": "11", "most_priority": "4e1", "most_uses": "4", "least_uses": ""}
    text = visitor.get("items", store=store.name, table="few", sort=sort, **bounds).text
    found = keys_of(text)
    assert f"of {kept.sum()} that match" in " ".join(text.split())
    assert set(found) <= set(keys[kept].tolist())
    assert len(found) == min(PAGE, kept.sum())
    if sort != "priority":
        assert found == sorted(found, reverse=sort == "newest")
    (following,) = re.findall('<a href="([^"]*)" rel="next"', text) or [""]
    assert all(f"{name}={value}" in html.unescape(following) for name, value in bounds.items()) or not following


def test_a_large_table_is_sorted_by_a_sample_that_says_so(store: di_store.Store, visitor: Visitor) -> None:
    table = store.table("many")
    for more in ({"sort": "priority"}, {"sort": "newest", "least_priority": "5"}):
        text = visitor.get("items", store=store.name, table="many", **more).text
        assert re.search("1[56],[0-9]{3} items that lie evenly over the table's 32,768", " ".join(text.split()))
        assert 'data-refresh="2"' in text
    text = visitor.get("items", store=store.name, table="many", sort="priority", every="1").text
    assert "lie evenly" not in text
    assert 'data-refresh="0"' in text
    best = table.peek(np.array(keys_of(text), np.uint64)).priorities
    assert best.tolist() == (2 * SAMPLE - np.arange(PAGE)).tolist()
    for sort, expected in (("oldest", table.keys()[:PAGE]), ("newest", table.keys()[: -PAGE - 1 : -1])):
        assert keys_of(visitor.get("items", store=store.name, table="many", sort=sort).text) == expected.tolist()


def test_a_sample_has_each_item_once_also_of_a_sparse_table() -> None:
    with di_store.open(memory="256MiB") as store:
        table = store.create_table("t", capacity=200_000, schema={"n": np.zeros((), np.int8)})
        for size, least in ((17_000, 14_000), (190_000, 16_000)):
            table.extend({"n": np.zeros(size - len(table), np.int8)})
            keys = di_store.observe.spread_keys(table, SAMPLE, 5.0)
            assert len(set(keys.tolist())) == len(keys)
            assert least <= len(keys) <= SAMPLE
            assert set(keys.tolist()) <= set(table.keys().tolist())
            quarters = np.bincount(np.searchsorted(table.keys(), keys) * 4 // size, minlength=4)
            assert quarters.min() > len(keys) // 5


def test_a_sample_by_age_is_spread_over_the_order_of_insertion() -> None:
    """Of a table whose slots are reused, and of one that items have left out of order."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=20_000, schema={"n": np.zeros((), np.int8)})
        assert_spread(table, SAMPLE)
        for size in (10, 20_000, 7_000):
            table.extend({"n": np.zeros(size, np.int8)})
            for some in (1, 1_000, SAMPLE):
                assert_spread(table, some)
        table.delete(table.keys()[5_000:5_100])
        assert_spread(table, SAMPLE)


def assert_spread(table: di_store.Table, n: int) -> None:
    expected = di_store.observe.evenly(table.keys(), n)
    assert di_store.observe.spread_by_age(table, n, 5.0).tolist() == expected.tolist()


def test_a_sample_by_age_has_each_item_once_while_items_leave() -> None:
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=5_000, schema={"n": np.zeros((), np.int8)})
        stop = Event()

        def change() -> None:
            rows = {"n": np.zeros(50, np.int8)}
            for at in itertools.count():
                if stop.is_set():
                    return
                table.extend(rows)
                if at % 150 == 149:
                    table.reset()

        with ThreadPoolExecutor(1) as pool:
            changes = pool.submit(change)
            try:
                for _ in range(200):
                    found = di_store.observe.spread_by_age(table, 2_000, 5.0)
                    assert len(found) == len(set(found.tolist())) <= 2_000
            finally:
                stop.set()
            changes.result()


def test_a_filter_by_age_lists_no_items_that_it_skips() -> None:
    """Neither takes it the memory of such a list."""
    items = 500_000
    with di_store.open(memory="256MiB") as store:
        table = store.create_table("t", capacity=items, schema={"n": np.zeros((), np.int8)})
        table.extend({"n": np.zeros(items, np.int8)})
        reader = ItemReader(table, {})
        tracemalloc.start()
        try:
            found = reader.listed(Wanted("newest", least_priority=0.5))
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (found.found, found.looked_at, found.size) == (SAMPLE, SAMPLE, items)
        assert found.items[0].key == table.at([-1])[0]
        assert taken < 8 * items


def test_looking_changes_nothing(store: di_store.Store, visitor: Visitor) -> None:
    before = store.stats()["tables"]["few"]
    key = int(store.table("few").keys()[0])
    for sort in SORTS:
        visitor.get("items", store=store.name, table="few", sort=sort, least_priority="2")
    for page in ("item", "episode"):
        assert visitor.get(page, store=store.name, table="few", key=str(key)).status == 200
    after = store.stats()["tables"]["few"]
    assert {**after, "seconds_since_insert": 0} == {**before, "seconds_since_insert": 0}


def test_an_item_shows_frames_and_an_episode_curves(store: di_store.Store, visitor: Visitor) -> None:
    table = store.table("frames")
    key = int(table.keys()[7])
    text = visitor.get("item", store=store.name, table="frames", key=str(key)).text
    assert text.count("<img ") == 2  # obs and next_obs
    assert "4 frames of 16 × 16" in text
    text = visitor.get("episode", store=store.name, table="frames", key=str(key)).text
    assert "6 items of this episode" in text
    assert "step 0" in text
    assert "step 5" in text
    assert "<figcaption>reward</figcaption>" in text
    assert text.count("<img ") == 1


def test_hostile_texts_are_text_and_long_ones_are_cut(store: di_store.Store, visitor: Visitor) -> None:
    table = store.table(HOSTILE)
    shown = html.escape(f"{MARKUP}\\x1b[31m\\x00&amp;")
    text = visitor.get("items", store=store.name, table=HOSTILE).text
    assert shown in text
    assert HOSTILE not in text
    assert "<img src=x" not in text
    assert rows(text)[0][7] == "6"  # what the decoder makes of the tokens
    assert rows(text)[1][6].endswith("(see the item)")
    keys = table.keys().tolist()
    text = visitor.get("item", store=store.name, table=HOSTILE, key=str(keys[1])).text
    assert "… (10,000,000 bytes)" in text
    assert len(text) < 100_000
    for key in store.table("values").keys().tolist():
        answer = visitor.get("item", store=store.name, table="values", key=str(key))
        assert answer.status == 200
        assert len(answer.text) < 100_000
        assert "<img src=x" not in answer.text
    text = visitor.get("items", store=store.name, table="values").text
    assert text.count("<img ") == 1
    assert [row[6] for row in rows(text)][1] == "nan"


@pytest.mark.parametrize(
    ("page", "query", "says"),
    [
        ("items", {"start": "x"}, "give a number, not start=x"),
        ("items", {"least_priority": "nan"}, "give a number, not least_priority=nan"),
        ("items", {"sort": TEXT}, "give one of oldest, newest"),
        ("item", {}, "lacks key="),
        ("item", {"key": "-1"}, "give an item's key, a whole number, not key=-1"),
        ("item", {"key": "9" * 400}, "give an item's key"),
        ("item", {"key": str(2**56 - 1)}, f"holds no item {2**56 - 1}"),
        ("episode", {"key": str(2**56 - 1)}, f"holds no item {2**56 - 1}"),
        ("items", {"table": "nothing"}, "has no table 'nothing'"),
        ("items", {"store": "nothing"}, "holds a store named 'nothing'"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(
    page: str, query: dict[str, str], says: str, store: di_store.Store, visitor: Visitor
) -> None:
    answer = visitor.get(page, **{"store": store.name, "table": "few", **query})
    assert answer.status == 404
    assert says in html.unescape(answer.text)
    assert "<img src=x" not in answer.text


def test_names_of_curves_are_text(store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="16MiB") as made, dashboard(made.name) as visitor:
        table = made.create_table("t", capacity=4, view=di_store.Sequence(2))
        with table.writer() as writer:
            for _ in range(2):
                writer.append({f"{MARKUP}\x1b[": np.zeros(2, "f4"), "x" * 1_000: 1.0})
            writer.end_episode()
        for page in ("item", "episode"):
            answer = visitor.until(lambda found: found.status == 200, page, store=made.name, table="t", key="0")
            assert html.escape(f"{MARKUP}\\x1b[[0]: 0") in answer.text
            assert "x" * 301 not in answer.text
            assert "\x1b" not in answer.text
            assert MARKUP not in answer.text


@pytest.mark.parametrize("start", ["-5", "1e300", "60"])
def test_a_start_outside_is_no_fault(start: str, store: di_store.Store, visitor: Visitor) -> None:
    for sort in ("oldest", "newest", "priority"):
        answer = visitor.get("items", store=store.name, table="few", sort=sort, start=start)
        assert answer.status == 200
        assert len(rows(answer.text)) == (PAGE if start == "-5" else 0)
    assert visitor.get("items", store=store.name, table="empty").status == 200


@pytest.mark.parametrize("view", looked_at.VIEWS)
def test_items_of_every_table_are_read(view: str) -> None:
    """Of each view, sampler, kind of column and state."""
    with warnings.catch_warnings(), di_store.open(memory="256MiB") as store:
        warnings.simplefilter("ignore")
        for name, state in looked_at.tables(store, view):
            table = store.table(name)
            reader = ItemReader(table, {})
            for wanted in (Wanted(), Wanted("newest"), Wanted("priority", least_priority=0.0)):
                found = reader.listed(wanted)
                assert found.found == len(found.items) == len(table) == found.size
                assert (len(table) > 0) == (state in ("some", "finished"))
                assert all([each.name for each in item.values] == reader.columns for item in found.items)
            for item in found.items:
                one = reader.one(item.key)
                assert one is not None
                assert one.item[:6] == item[:6]
                assert reader.episode(item.key) is not None
            store.drop_table(name)


class Unloadable:
    """Pickles, and raises when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def test_a_value_that_cannot_be_loaded_is_its_own_loss() -> None:
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=10, view=di_store.Opaque())
        for value in ("good", Unloadable(), 3):
            table.insert(value)
        first, unloadable, last = (item.values[0].text for item in ItemReader(table, {}).listed(Wanted()).items)
    assert (first, last) == ("good", "3")
    assert "cannot be loaded, keys [1]: ValueError: invalid literal for int()" in unloadable


def test_a_stopped_process_with_the_lock_is_named(visitor: Visitor, store: di_store.Store) -> None:
    program = """
import sys
import di_store
from di_store import _core
table = di_store.attach(sys.argv[1]).table("locked")
print("ready", flush=True)
sys.stdin.readline()
_core.arm_fault("table.draw_item:1:stop")
table.sample(1)
"""
    with Program(program, store.name) as holder:
        assert holder.line() == "ready"
        holder.say()
        until(lambda: status(holder.pid)["State"].startswith("T"), "the program to stop")
        for page, query in (("items", {}), ("items", {"sort": "priority"}), ("item", {"key": "0"})):
            answer = visitor.get(page, store=store.name, table="locked", **query)
            assert answer.status == 404
            assert f"pid {holder.pid}" in answer.text
        assert visitor.get("items", store=store.name, table="few").status == 200
        holder.process.send_signal(signal.SIGKILL)


def test_an_ended_store_is_said_in_a_line(visitor: Visitor, tmp_path: Path) -> None:
    with di_store.open(memory="64MiB") as made, dashboard() as other:
        made.create_table("t", capacity=10).insert({"reward": 1.0})
        other.until(lambda answer: answer.status == 200, "items", store=made.name, table="t")
        name = made.name
        made.close()
        answer = other.until(lambda answer: answer.status != 200, "items", store=name, table="t")
    assert f"holds a store named &#39;{name}&#39;" in answer.text
