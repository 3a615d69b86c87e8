"""`di-store why`: what makes the job of a store slow, in words."""

from __future__ import annotations

import dataclasses
import time

import click

from di_store.cli.common import Seconds, Stop, attached, json_option, print_json, store_names
from di_store.cli.printing import console, printable
from di_store.cli.progress import progress_bar
from di_store.observe import report
from di_store.observe.why import Finding, Samples
from di_store.store.opening import stats_without_locks

LOOKS_A_SECOND = 15


@click.command(short_help="Say in words why a job is slow.")
@click.argument("store", shell_complete=store_names)
@click.option("--seconds", type=Seconds(0.2, 3600), default=5.0, show_default=True, help="How long to look.")
@json_option
def why(store: str, seconds: float, as_json: bool) -> None:
    """Look at STORE for some seconds, and say who waits for whom, for what, and what would help; the cause first.

    The job goes on meanwhile. Takes no locks, so it answers even where a process was stopped in the middle of its work.
    """
    samples = Samples(seconds + 60)
    with attached(store, readonly=True) as found, Stop().installed() as stop, progress_bar("looking", as_json):
        end = time.monotonic() + seconds
        while True:
            samples.add(report(stats_without_locks(found)))
            if time.monotonic() >= end or stop.wait(1 / LOOKS_A_SECOND):
                break
    findings = samples.findings()
    if as_json:
        print_json({"store": store, "findings": [dataclasses.asdict(each) for each in findings]})
        return
    out = console()
    for number, each in enumerate(findings, 1):
        out.print(text_of(number, each), markup=False, highlight=False, soft_wrap=True)


def text_of(number: int, finding: Finding) -> str:
    """A finding in two lines."""
    return f"{number}. {printable(finding.sentence)}\n   What helps: {finding.help}"
