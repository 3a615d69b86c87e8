"""`di-store why` names the true cause of made-up jobs, each slow for another one."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_run import fails, read_json, run

import di_store
from di_store.observe import report, unreadable
from di_store.observe.why import CAUSES, Finding, Samples
from di_store.store.opening import stats_without_locks
from observe.jobs import JOBS, running

ROOT = Path(__file__).resolve().parents[2]


def findings(store: di_store.Store) -> list[Finding]:
    """Of 60 looks, in four seconds or, on a busy machine, more."""
    samples, pause, end = Samples(), threading.Event(), time.monotonic() + 4
    for number in itertools.count():
        samples.add(report(stats_without_locks(store)))
        if number >= 60 and time.monotonic() >= end:
            return samples.findings()
        pause.wait(0.05)
    raise AssertionError


@pytest.mark.extended
@pytest.mark.parametrize("which", JOBS)
def test_the_cause_is_first(which: str, store_name: Callable[[], str], tmp_path: Path) -> None:
    """The true cause is the first finding, and names the processes."""
    cause, _ = JOBS[which]
    with running(which, store_name(), tmp_path) as (job, store):
        found = findings(store)
    print(*found, sep="\n")
    assert found[0].cause == cause, found
    assert job.guilty <= set(found[0].pids), found
    assert {each.cause for each in found} <= {cause, *ALSO.get(which, ())}, found


class Made:
    """Reports of a store of no process, of which a test changes what it wants."""

    def __init__(self, store: di_store.Store) -> None:
        store.create_table("t", capacity=10, limiter=di_store.SamplesPerInsert(1, 1, 1))
        self.first = report(stats_without_locks(store))
        self.table: dict[str, Any] = {}
        self.waiters: list[dict[str, Any]] = []

    def findings(self) -> list[Finding]:
        """From one report without changes, and three with them."""
        samples = Samples()
        samples.add(self.first)
        for _ in range(3):
            changed: Any = copy.deepcopy(self.first)
            changed["tables"][0].update(self.table)
            changed["waiters"] = self.waiters
            samples.add(changed)
        return samples.findings()

    def waits(self, slot: int, kind: str, text: str = "table 't': its reason") -> None:
        """A process waits, in all reports but the first."""
        waiter = {"slot": slot, "pid": 100 + slot, "thread": slot, "kind": kind, "table": "t", "reason": text}
        self.waiters.append({**waiter, "culprit": None, "age_seconds": 1.0})


@pytest.fixture
def made() -> Iterator[Made]:
    with di_store.open(memory="64MiB") as store:
        yield Made(store)


def test_items_that_leave_for_lack_of_bytes(made: Made) -> None:
    made.table = {"inserts": 100, "evicted_for_room": 50}
    (found,) = made.findings()
    assert (found.cause, found.share) == ("memory", 0.5)


def test_both_sides_wait(made: Made) -> None:
    made.waits(1, "limiter")
    made.waits(2, "items")
    (found,) = made.findings()
    assert (found.cause, found.pids, found.share) == ("limiter", (101, 102), 1.0)


@pytest.mark.parametrize(("reason", "cause"), [("pace: 8 draws", "learner"), ("empty", "actor")])
def test_who_waits_for_a_version_waits_for_the_trainer(made: Made, reason: str, cause: str) -> None:
    made.waits(1, "items", f"table 't': {reason}")
    (found,) = made.findings()
    assert (found.cause, found.pids) == (cause, (101,))
    assert ("for the trainer" in found.sentence) is (cause == "learner")


def test_many_processes_are_counted(made: Made) -> None:
    for slot in range(8):
        made.waits(slot, "limiter")
    (found,) = made.findings()
    assert "Writers (pids 100, 101, 102, 103, 104 and 3 more) wait 75% of the time" in found.sentence
    assert "its reason." in found.sentence
    assert found.pids == tuple(range(100, 108))


@pytest.mark.parametrize("kind", ["lock", "object", "weights", "table"])
def test_another_wait_is_said(made: Made, kind: str) -> None:
    made.waits(1, kind)
    (found,) = made.findings()
    assert (found.cause, found.pids) == ("wait", (101,))


def test_another_store_begins_anew(made: Made) -> None:
    """Also a store that cannot be read for a while."""
    samples = Samples()
    for each in (made.first, {**made.first, "uuid": "another"}, unreadable("x", "gone"), made.first):
        samples.add(each)  # type: ignore[arg-type]
        assert samples.findings()[0].sentence == "Too few reports so far."
    samples.add(made.first)
    assert "Nothing waits" in samples.findings()[0].sentence


def test_old_reports_are_forgotten(made: Made) -> None:
    made.waits(1, "limiter")
    samples = Samples(seconds=0)
    samples.add({**made.first, "waiters": made.waiters})  # type: ignore[typeddict-item]
    samples.add(made.first)
    assert samples.findings()[0].cause == "nothing"


def test_the_page_lists_the_causes() -> None:
    """docs/slow.md has a row for each cause, in the order in which they are found."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/slow.md").read_text(), re.MULTILINE)
    assert tuple(rows) == ("cause", *CAUSES)


def test_the_command_prints_the_findings(store_name: Callable[[], str]) -> None:
    """In words and as JSON; a store that is not there is one line."""
    with di_store.open(store_name(), memory="64MiB") as store:
        store.create_table("t", capacity=10)
        done = run("why", store.name, "--seconds", "0.2")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1. Nothing waits: the store is not the cause.")
        assert "What helps: " in done.stdout
        found = read_json("why", store.name, "--seconds", "0.2")
    assert [each["cause"] for each in found["findings"]] == ["nothing"]
    assert set(found["findings"][0]) == {each.name for each in dataclasses.fields(Finding)}
    assert "no process of this user holds a store named" in fails(1, "why", store.name)


@pytest.mark.extended
def test_the_command_answers_where_a_lock_is_held(store_name: Callable[[], str], tmp_path: Path) -> None:
    """A process was stopped with a table's lock in hand."""
    with running("stopped with a lock", store_name(), tmp_path) as (job, store):
        done = run("why", store.name, "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"1. Process {min(job.guilty)} is stopped"), done.stdout


ALSO: dict[str, tuple[str, ...]] = {
    "remote polling": ("actor", "learner", "limiter"),
    "held GIL": (),
    "stopped judge": ("judge",),
}
"""What may be found beside the cause: in another process."""
