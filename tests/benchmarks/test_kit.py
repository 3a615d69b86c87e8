"""The measuring kit: processes are started and ended, results are read as they were written, pages change in blocks."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from bench.kit import Page, Result, Worker, apart, output_of, records_of, start_module, time_calls, turns

pytestmark = pytest.mark.extended


def test_a_call_runs_in_a_fresh_process() -> None:
    assert apart(os.getpid) != os.getpid()
    assert apart(math.hypot, 3.0, 4.0) == 5.0


def test_exceptions_of_the_process_are_raised() -> None:
    with pytest.raises(ValueError, match="math domain error"):
        apart(math.sqrt, -1.0)


def test_a_dead_process_raises() -> None:
    with pytest.raises(EOFError):
        apart(os._exit, 3)


def echo(pipe: object) -> None:
    """A worker's process."""
    pipe.send(pipe.recv())  # type: ignore[attr-defined]


def test_a_worker_answers_and_ends() -> None:
    worker = Worker(echo)
    worker.pipe.send("word")
    assert worker.pipe.recv() == "word"
    worker.end()
    assert worker.process.exitcode == 0


def module(tmp_path: Path, text: str) -> object:
    """A started module of that text."""
    (tmp_path / "spoken.py").write_text(text)
    return start_module(sys.executable, "spoken", [], [tmp_path])


def test_the_output_of_a_module_is_returned(tmp_path: Path) -> None:
    assert records_of(module(tmp_path, "print('a word'); print('{\"figure\": 2.5}')"), 60) == [{"figure": 2.5}]


def test_failing_and_slow_modules_raise(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)spoken ended with 1:.*no such luck"):
        output_of(module(tmp_path, "raise ValueError('no such luck')"), 60)
    process = module(tmp_path, "import threading; threading.Event().wait()")
    with pytest.raises(RuntimeError, match=r"spoken: not done after 0.2 s"):
        output_of(process, 0.2)
    assert process.wait() == -9  # type: ignore[attr-defined]


def test_every_case_runs_first_once() -> None:
    assert list(turns("abc", 3)) == list("abcbcacab")


def test_calls_are_timed_until_the_values_end() -> None:
    seen: list[int] = []
    assert len(time_calls(seen.append, range(7))) == len(seen) == 7


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = Result("measure", parts={"figures": [{"name": "é", "values": [[1, 2 / 3]]}, {"name": "f", "values": []}]})
    path = result.save(tmp_path, "bench")
    read = Result.load(path)
    assert read.parts == {"figures": [{"name": "é", "values": [[1, 0.66667]]}, {"name": "f", "values": []}]}
    assert (read.command, read.machine) == (result.command, result.machine)
    assert len(read.load_average) == 2
    assert path.read_text().count("\n") == 9, "one record a line"
    assert f"`bench/results/{path.name}`" in read.source(path)


def test_a_page_changes_between_its_marks_only(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "before\n<!-- x: a -->\n1\n<!-- /x -->\n2\n<!-- x: b -->\n`bench/results/c.json`\n<!-- /x -->\nafter\n"
    )
    page = Page(path, "x")
    assert page.blocks() == ["a", "b"]
    assert page.results() == [Path("bench/results/c.json")]
    assert not page.holds(str.upper)
    page.write(str.upper)
    assert page.holds(str.upper)
    assert path.read_text() == "before\n<!-- x: a -->\nA\n<!-- /x -->\n2\n<!-- x: b -->\nB\n<!-- /x -->\nafter\n"
