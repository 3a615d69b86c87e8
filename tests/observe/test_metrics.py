"""Metrics for Prometheus: their values are those of `stats()`, and the endpoint that serves them harms no job."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import Program, status, until
from prometheus_client.parser import text_string_to_metric_families

import di_store
from di_store import observe
from di_store.observe import metrics, metrics_server
from di_store.observe.metrics_server import MOST_AT_ONCE

PAGE = Path(__file__).resolve().parents[2] / "docs/metric_names.md"
HOSTILE = 'a "b" \\ c\n<script>alert(1)</script>{x="1"} ü\u202e\t#'

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(url: str) -> Values:
    """The value of each series, by its name without the prefix and its sorted labels."""
    with urllib.request.urlopen(url, timeout=120) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix(metrics.PREFIX), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Values, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", disk=tmp_path / "disk") as made:
        yield made


def test_values_are_those_of_the_report(store: di_store.Store) -> None:
    """Every metric that has a value there, of the store, its disk and its tables."""
    limiter = di_store.SamplesPerInsert(2, 10, 0.5)
    table = store.create_table("t", capacity=1000, sampler=di_store.Prioritized(0.6), limiter=limiter)
    table.extend({"x": np.ones((20, 4), "f4")})
    table.update_priorities(table.sample(4).keys, np.ones(4))
    refs = [store.put(np.zeros(1 << 20, np.uint8)) for _ in range(2)]
    read = store.get(refs[0])
    while store._backend.session.arena.chore():  # else memory may be committed ahead between the two looks
        pass
    with observe.serve_metrics(store) as server:
        found = scraped(server.url)
    report = observe.report(store.stats(), own=True)
    of_store, of_table = {"store": store.name}, {"store": store.name, "table": "t"}
    told = 0
    for kind, facts, labels in (
        (metrics.STORE, report, of_store),
        (metrics.DISK, report["disk"], of_store),
        (metrics.TABLE, report["tables"][0], of_table),
    ):
        for each in kind:
            if isinstance(each.value, str) and each.name != "table_since_insert_seconds":
                wanted: Any = facts[each.value]  # type: ignore[index]
                if wanted is None:
                    assert (each.name, tuple(sorted(labels.items()))) not in found
                else:
                    assert value(found, each.name, **labels) == wanted, each.name
                    told += 1
    assert told > 35
    assert value(found, "up", **of_store) == 1
    uses = {use: value(found, "memory_bytes", use=use, **of_store) for use in metrics.USES}
    assert sum(uses.values()) == report["budget"]
    assert uses["pinned"] == report["memory"]["pinned"] >= 1 << 20
    assert value(found, "clients", state="runs", **of_store) == 1, "this process"
    assert value(found, "table_limiter_waits", call="insert", **of_table) == 1
    assert value(found, "table_limiter_waits", call="sample", **of_table) == 0
    assert value(found, "table_limiter_difference", **of_table) == 20 * 2 - 4
    assert value(found, "table_limiter_max_difference", **of_table) == report["tables"][0]["limiter"]["max_diff"]
    assert len(read) == 1 << 20


def test_a_limiter_without_bounds_has_infinite_ones(store: di_store.Store) -> None:
    store.create_table("t", capacity=10, limiter=di_store.MinSize(3))
    with observe.serve_metrics(store) as server:
        found = scraped(server.url)
    labels = {"store": store.name, "table": "t"}
    assert value(found, "table_limiter_max_difference", **labels) == float("inf")
    assert value(found, "table_limiter_min_difference", **labels) == float("-inf")
    assert value(found, "table_limiter_waits", call="sample", **labels) == 1


LEARNER = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
print("ready", flush=True)
store.table("t").sample(1, timeout=None)
"""


def test_waiting_and_stopped_processes_are_counted(store: di_store.Store) -> None:
    store.create_table("t", capacity=10)
    labels = {"store": store.name}
    with observe.serve_metrics(store) as server, Program(LEARNER, store.name) as learner:
        assert learner.line() == "ready"
        until(lambda: value(scraped(server.url), "waiters", kind="items", **labels) == 1, "a learner that waits")
        learner.signal(signal.SIGSTOP)
        found = scraped(server.url)
        assert value(found, "table_waiters", kind="items", table="t", **labels) == 1
        assert value(found, "table_waiters", kind="limiter", table="t", **labels) == 0
        assert value(found, "longest_wait_seconds", kind="items", **labels) > 0
        assert value(found, "longest_wait_seconds", kind="room", **labels) == 0
        assert value(found, "clients", state="stopped", **labels) == 1
        learner.process.kill()
        learner.process.wait()
        assert store.check() == []  # it cleans up after the dead
        assert value(scraped(server.url), "deaths_total", **labels) == 1


STOPPED = """
import sys, numpy as np, di_store
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("t")
print("ready", flush=True)
di_store._core.arm_fault("table.insert_item:1:stop")
table.insert({"x": np.ones(4, "f4")})
"""


@pytest.mark.parametrize("whole_machine", [False, True])
def test_a_scrape_takes_no_lock_that_a_job_waits_for(store: di_store.Store, whole_machine: bool) -> None:
    """It answers while a stopped process holds the lock of a table, whose sum of priorities can't be read then."""
    table = store.create_table("t", capacity=10, sampler=di_store.Prioritized(0.6))
    table.insert({"x": np.ones(4, "f4")})
    with observe.serve_metrics(None if whole_machine else store) as server, Program(STOPPED, store.name) as holder:
        assert holder.line() == "ready"
        until(lambda: status(holder.pid)["State"].startswith("T"), "a stopped process")
        found = scraped(server.url)
        assert value(found, "table_items", store=store.name, table="t") == 1
        assert value(found, "clients", store=store.name, state="stopped") == 1


def test_hostile_names_stay_text(store: di_store.Store) -> None:
    """A table's name comes back as it is, and makes no line and no label of its own."""
    store.create_table(HOSTILE, capacity=10)
    store.create_table("plain", capacity=10)
    with observe.serve_metrics(store) as server:
        found = scraped(server.url)
        with urllib.request.urlopen(server.url) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain"), "no browser takes it for a page"
    assert value(found, "table_items", store=store.name, table=HOSTILE) == 0
    tables = {dict(labels)["table"] for name, labels in found if name == "table_items"}
    assert tables == {HOSTILE, "plain"}
    assert {name for name, _ in found} <= {each.name for each in (*metrics.STORE, *metrics.DISK, *metrics.TABLE)}


def test_a_scrape_may_ask_for_some_metrics(store: di_store.Store) -> None:
    with observe.serve_metrics(store) as server:
        found = scraped(f"{server.url}?name[]=di_store_up")
    assert found == {("up", (("store", store.name),)): 1.0}


def test_a_closed_store_is_down(store: di_store.Store) -> None:
    """The endpoint says so, and goes on for other stores of the machine."""
    with di_store.attach(store.name) as handle, observe.serve_metrics(handle) as server:
        handle.close()
        assert scraped(server.url) == {("up", (("store", store.name),)): 0.0}


def test_all_stores_of_the_machine_are_served_and_none_is_kept() -> None:
    with ExitStack() as opened:
        first, second = (opened.enter_context(di_store.open(memory="16MiB")) for _ in range(2))
        names = {first.name, second.name}
        with observe.serve_metrics() as server:
            found = scraped(server.url)
            assert {dict(labels)["store"] for _, labels in found} >= names
            assert value(found, "clients", store=first.name, state="runs") == 0, "it leaves itself out"
            second.close()
            del second
            until(lambda: names - {dict(labels)["store"] for _, labels in scraped(server.url)}, "the store to end")
            assert first.name in {dict(labels)["store"] for _, labels in scraped(server.url)}


def test_a_port_in_use_is_said(store: di_store.Store) -> None:
    with observe.serve_metrics(store) as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(di_store.NodeUnavailable, match=rf"port {port} of 127\.0\.0\.1 is in use .*port="):
            observe.serve_metrics(store, port=port)
    server.close()  # once more does no harm
    observe.serve_metrics(store, port=port).close()
    with pytest.raises(ValueError, match="port=65536 is above 65535"):
        observe.serve_metrics(store, port=65536)


def test_a_forked_child_does_not_keep_the_port(store: di_store.Store) -> None:
    """A learner forks loaders; if it is killed, its next run listens at the same port."""
    server = observe.serve_metrics(store)
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - a process of its own
        server.close()  # as leaving the parent's `with` block would; it must not wait
        os.write(tell, b"!")
        signal.pause()
        os._exit(1)
    try:
        assert select.select([told], [], [], 60)[0], "the child waits for a thread that it does not have"
        server.close()
        observe.serve_metrics(store, port=port).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_half_sent_requests_hold_nobody_up(store: di_store.Store, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """The oldest of them makes room for a scrape; and all are closed with the server."""
    monkeypatch.setattr(metrics_server, "SILENT_SECONDS", 3600.0)
    with observe.serve_metrics(store) as server, ExitStack() as opened:
        half = [opened.enter_context(_half_sent(server.url, sent)) for _ in range(3 * MOST_AT_ONCE)]
        assert scraped(server.url)
        assert not _is_closed(half[-1])
        server.close()
        for each in half:
            until(lambda each=each: _is_closed(each), "the server to close it")


def test_a_request_that_never_ends_is_closed(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often its client sends another byte."""
    monkeypatch.setattr(metrics_server, "SILENT_SECONDS", 0.1)
    with observe.serve_metrics(store) as server, _half_sent(server.url, b"GET /metrics HTTP/1.1\r\nHost: ") as half:
        until(lambda: _is_closed(half), "the server to close it")
        monkeypatch.setattr(metrics_server, "SILENT_SECONDS", 3600.0)
        assert scraped(server.url)


def _half_sent(url: str, sent: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    found = socket.create_connection((host, int(port)), 120)
    found.sendall(sent)
    found.setblocking(False)
    return found


def _is_closed(half: socket.socket) -> bool:
    """Whether the other end has closed a connection; if not, sends one more byte."""
    try:
        half.send(b"x")
        return half.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


ENDS = """
import contextlib, di_store, threading, urllib.request
store = di_store.open(memory="16MiB")
store.create_table("t", capacity=10)
server = di_store.observe.serve_metrics(store)
scalars = di_store.observe.log_to(lambda *_: None, store, every=0.01)
begun = threading.Barrier(5)
def scrape():
    begun.wait()
    with contextlib.suppress(Exception):  # the server ends before the interpreter does
        while True:
            urllib.request.urlopen(server.url).read()
for _ in range(4):
    threading.Thread(target=scrape, daemon=True).start()
begun.wait()
urllib.request.urlopen(server.url).read()
"""


def test_a_program_ends_beside_its_scrapes() -> None:
    """It closes nothing: no thread is inside the core when its interpreter ends."""
    for _ in range(3):
        with Program(ENDS) as program:
            assert program.finish() == ("", "")


def test_the_package_does_not_import_the_client() -> None:
    look = (
        "import di_store, sys; print([m for m in sys.modules if m.split('.')[0] in ('prometheus_client', 'wsgiref')])"
    )
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "[]\n"


WITHOUT = "import sys; sys.modules['prometheus_client'] = None\n"


def test_a_missing_extra_is_named() -> None:
    call = f"{WITHOUT}from di_store.cli import main\nsys.exit(main(['serve', 'x', '--metrics', '0']))"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: metrics need prometheus_client: pip install 'di-store[metrics]'\n"
    call = f"{WITHOUT}import di_store.observe\ndi_store.observe.serve_metrics()"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("ImportError: metrics need prometheus_client: pip install 'di-store[metrics]'\n")


def test_the_page_lists_every_metric() -> None:
    """Name, kind, further label and meaning, in the order of the code."""
    rows = re.findall(r"^\| `di_store_(\w+)`(?: by `(\w+)`)? \| (\w+) \| (.*) \|$", PAGE.read_text(), re.M)
    wanted = [
        (each.name, each.label, "counter" if each.name.endswith("_total") else "gauge", each.text)
        for each in (*metrics.STORE, *metrics.DISK, *metrics.TABLE)
    ]
    assert rows == wanted, "\n".join(
        f"| `di_store_{name}`{f' by `{label}`' if label else ''} | {kind} | {text} |"
        for name, label, kind, text in wanted
    )
