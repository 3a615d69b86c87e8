"""Commands on narrow terminals, on those without colours, and on none: what they print, and how they show progress."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_run import Terminal, call, command, fails, process, run
from pains import until
from rich.cells import cell_len

import di_store

COLOURS = re.compile(r"\x1b\[[0-9;]*?(3[0-7]|9[0-7]|38;[0-9;]+)m")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[di_store.Store]:
    """A store whose reports have long names and long sentences."""
    limiter = di_store.SamplesPerInsert(ratio=8, min_size=30, tolerance=1.0)
    with di_store.open(store_name(), memory="64MiB") as made:
        table = made.create_table("replay", capacity=123_456, limiter=limiter, view=di_store.Transition(n_step=2))
        with table.writer() as writer:
            for at in range(8):
                writer.append({"obs": at, "reward": 1.0, "terminated": at == 7, "truncated": False})
        made.create_table("a name of forty-four letters, as some may be", capacity=1)
        yield made


def screen(*arguments: str, **given: Any) -> list[str]:
    """The lines that a command leaves on a terminal of 40 columns."""
    with Terminal(*arguments, columns=40, **given) as terminal:
        assert terminal.finish() == 0, terminal.text
    return [line.rpartition("\r")[2] for line in CODES.sub("", terminal.text).replace("\r\n", "\n").split("\n")]


@pytest.mark.parametrize(
    "arguments", [("inspect", "{}"), ("inspect", "{}", "replay"), ("top", "--once", "{}")], ids=" ".join
)
def test_tables_can_be_read_in_40_columns(store: di_store.Store, arguments: tuple[str, ...]) -> None:
    lines = screen(*(each.format(store.name) for each in arguments))
    shown = "\n".join(lines)
    assert max(map(cell_len, lines)) <= 40, shown
    assert "…" not in shown
    assert "123,456" in shown
    assert "min_size=30" in shown
    if arguments[-1] == "replay":
        (episode,) = set(store.table("replay").peek(store.table("replay").keys()).episodes)
        assert f"episode {episode}  start 0" in shown  # a number is never broken
        assert re.search(r"^key \d+  priority 1  sampled 0$", shown, re.M)
    else:
        assert re.search(r"^replay  items 8  capacity 123,456$", shown, re.M), shown


def test_wide_terminals_and_pipes_get_columns(store: di_store.Store) -> None:
    with Terminal("top", "--once", store.name, columns=160) as wide:
        assert wide.finish() == 0
    for shown in (CODES.sub("", wide.text), call("top", "--once", store.name).stdout):
        assert re.search(r"table +items +capacity +inserts/s +samples/s", shown), shown


def test_no_color_is_respected(store: di_store.Store) -> None:
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"NO_COLOR": "1"}, False)]
    for environment, coloured in cases:
        with Terminal("top", store.name, "--interval", "0.1", **environment) as terminal:
            until(lambda: terminal.shows("inserts/s") and terminal.text.count("replay") > 1, "two looks")
            terminal.type("q")
            assert terminal.finish() == 0
        assert bool(COLOURS.search(terminal.text)) == coloured
        assert "\x1b[1A" in terminal.text  # the second look replaces the first one


def test_top_goes_on_below_on_a_terminal_without_a_cursor(store: di_store.Store) -> None:
    with Terminal("top", store.name, "--interval", "0.1", columns=40, TERM="dumb") as terminal:
        until(lambda: terminal.shows("di-store top") and terminal.text.count("di-store top") > 2, "three looks")
        terminal.type("q")
        assert terminal.finish() == 0
    assert "\x1b" not in terminal.text
    assert max(map(cell_len, terminal.text.splitlines())) <= 40


# -- progress ------------------------------------------------------------------------------------------------------

JOB = "tables: {t: {capacity: 1000, schema: {x: f4}}}"
LONG = {
    "writing": ("checkpoint", "{store}", "{folder}/c"),
    "checking": ("check", "{store}"),
    "reading": ("inspect", "{store}", "replay"),
    "computing": ("plan", "{folder}/job.yaml"),
    "looking": ("why", "{store}", "--seconds", "0.2"),
    "update": ("bench", "update", "--seconds", "0.01", "--rounds", "1", "--memory", "256MiB"),
    "opening": ("serve", "{store}-served", "--memory", "16MiB", "--listen", "127.0.0.1:0"),
}


@pytest.mark.parametrize("said", LONG)
def test_commands_that_may_take_long_show_progress_on_a_terminal(
    said: str, store: di_store.Store, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    words = [each.format(store=store.name, folder=tmp_path) for each in LONG[said]]
    bar = re.compile(rf"{said}\S* .*━.* 0:00:0\d")
    with Terminal(*words, columns=60) as terminal:
        until(lambda: (terminal.read(0.05), bar.search(CODES.sub("", terminal.text)))[1], "the bar")


def test_progress_is_not_written_into_pipes_nor_beside_json(store: di_store.Store, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    with Terminal("check", store.name, "--json") as quiet:
        assert quiet.finish() == 0
    assert "━" not in quiet.text
    for said, words in LONG.items():
        if said != "opening":
            done = run(*(each.format(store=store.name, folder=tmp_path) for each in words))
            assert (done.returncode, done.stderr) == (0, ""), words
            assert "━" not in done.stdout
            assert "\x1b" not in done.stdout


# -- what cannot be looked at --------------------------------------------------------------------------------------


def test_a_store_of_another_version_is_named_in_a_line(store: di_store.Store) -> None:
    holder = "import sys, di_store\nstore = di_store.open(sys.argv[1], memory='16MiB')\nprint(1, flush=True)\ninput()"
    name = f"{store.name}-old"
    with process(*command()[:1], "-c", holder, name) as child:
        assert child.stdout is not None
        child.stdout.readline()
        folder = f"/proc/{child.pid}/fd"
        (descriptor,) = [each for each in os.listdir(folder) if f":{name}:" in os.readlink(f"{folder}/{each}")]
        file = os.open(f"{folder}/{descriptor}", os.O_RDWR)
        before = os.pread(file, 12, 0)
        os.pwrite(file, bytes([before[8] + 1]), 8)
        for words in (("inspect", name), ("check", name), ("checkpoint", name, "/nowhere"), ("rm", name)):
            said = fails(1, *words, by=call)
            assert f"layout {before[8] + 1}, this one reads {before[8]}" in said
            assert "\n" not in said.strip()
        assert f"end pid {child.pid}" in said
        for looks in (("top", "--once", name), ("status",)):
            shown = " ".join(screen(*looks))
            assert f"layout {before[8] + 1}" in shown
            assert "use the same version" in " ".join(shown.split())
        os.pwrite(file, before, 0)
        os.close(file)
