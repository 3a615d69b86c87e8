"""`di-store why` names the true cause of made-up jobs, each slow for another one."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_run import fails, read_json, run

import di_store
from di_store.observe import report
from di_store.observe.why import CAUSES, Finding, Samples
from di_store.store.opening import stats_without_locks
from observe.jobs import JOBS, running

ROOT = Path(__file__).resolve().parents[2]


def findings(store: di_store.Store, seconds: float = 4.0) -> list[Finding]:
    samples, pause, end = Samples(), threading.Event(), time.monotonic() + seconds
    while time.monotonic() < end:
        samples.add(report(stats_without_locks(store)))
        pause.wait(0.05)
    return samples.findings()


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
    assert "no live process holds a store named" in fails(1, "why", store.name)


@pytest.mark.extended
def test_the_command_answers_where_a_lock_is_held(store_name: Callable[[], str], tmp_path: Path) -> None:
    """A process was stopped with a table's lock in hand."""
    with running("stopped with a lock", store_name(), tmp_path) as (job, store):
        done = run("why", store.name, "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"1. Process {min(job.guilty)} is stopped"), done.stdout


ALSO: dict[str, tuple[str, ...]] = {"remote polling": ("actor", "learner", "limiter"), "held GIL": ()}
"""What may be found beside the cause: in another process."""
