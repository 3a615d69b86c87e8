"""How the command line is used, wrongly too, and the command that needs no store: `bench`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from cli_run import call, fails, run

COMMANDS = ("demo", "status", "top", "inspect", "check", "hold", "checkpoint", "restore", "plan", "bench", "rm")


def test_help_names_every_command() -> None:
    done = call("--help")
    assert done.returncode == 0
    for each in COMMANDS:
        assert re.search(rf"^  {each} ", done.stdout, re.M), each
        helped = call(each, "--help")
        assert helped.returncode == 0
        assert "--json" in helped.stdout
    assert call("--version").stdout.startswith("di-store")


def test_the_installed_command_is_the_same() -> None:
    script = os.path.join(os.path.dirname(sys.executable), "di-store")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=120)
    assert done.stdout == run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dashbord",), "No such command"),
        (("inspect",), "STORE"),
        (("check",), "STORE"),
        (("rm",), "STORE"),
        (("hold",), "NAME"),
        (("status", "--what"), "--what"),
        (("inspect", "x", "y", "--items", "-1"), "--items"),
        (("top", "--interval", "0"), "--interval"),
        (("bench", "everything"), "sample"),
        (("bench", "put", "--memory", "1G"), "GiB"),
        (("hold", "a/b"), "a/b"),
        (("hold", "x", "--memory", "lots"), "memory"),
        (("demo", "--seconds", "0"), "--seconds"),
        (("demo", "--actors", "0"), "--actors"),
        (("demo", "--autoreset", "never"), "next-step"),
        (("demo", "--envs-per-actor", "0"), "--envs-per-actor"),
        (("demo", "--memory", "plenty"), "--memory"),
    ],
    ids=" ".join,
)
def test_wrong_use_names_the_option(arguments: tuple[str, ...], says: str) -> None:
    text = fails(2, *arguments, by=call)
    assert says in text
    assert "--help" in text


@pytest.mark.extended
def test_bench_measures_every_workload() -> None:
    done = run("bench", "--seconds", "0.01", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {figure["workload"] for figure in figures} == {"put", "get", "append", "sample", "update"}
    for figure in figures:
        assert figure["calls"] > 0
        assert figure["items_per_second"] > 0
        assert figure["memcpy_gigabytes_per_second"] > 0
        times = [figure["microseconds"][key] for key in ("p50", "p90", "p99", "p99.9")]
        assert times == sorted(times)
    table = run("bench", "update", "--seconds", "0.01", "--rounds", "1")
    assert table.returncode == 0
    assert "memcpy GB/s" in table.stdout
    assert "update" in table.stdout


SIGNALLED = """
import signal, time
from di_store.cli.common import Stop
with Stop().installed() as stop:
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 5e-3, 5e-4)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        asked = stop.wait(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert asked
"""


def test_a_signal_at_any_moment_ends_a_command() -> None:
    """The handler never waits for what the code that it interrupts holds: Ctrl-C would hang."""
    subprocess.run([sys.executable, "-c", SIGNALLED], timeout=60, check=True)
