"""The tutorial is one story: its programs and commands run in the order of the page, in one shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="needs Gymnasium")
pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FILES = re.compile(r"`(\w+\.py)`[:：]\n\n<!--[^\n]*-->\n```python\n(.*?)^```", re.M | re.S)
CONSOLES = re.compile(r"<!--[^\n]*-->\n```console\n(.*?)^```", re.M | re.S)
SECONDS = 240


class Shell:
    """A shell, and the lines that it and the programs that it starts have written."""

    def __init__(self, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify()

    def run(self, *commands: str) -> list[str]:
        """Run commands; their lines, and what came from the programs in the background meanwhile."""
        assert self._process.stdin is not None
        begin = len(self.lines)
        for command in commands:
            at = len(self.lines)
            print(f"{command}\necho done: $?", file=self._process.stdin, flush=True)
            assert self.until(r"done: \d+", at) == "done: 0", (command, self.lines[at:])
        return self.lines[begin:]

    def until(self, text: str, begin: int) -> str:
        """The first line from line `begin` on that matches."""

        def found() -> str | None:
            return next((line for line in self.lines[begin:] if re.fullmatch(text, line)), None)

        with self._more:
            line = self._more.wait_for(found, SECONDS)
        assert line is not None, (text, self.lines[begin:])
        return line

    def end(self) -> None:
        """Kill all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        subprocess.run(["pkill", "-KILL", "-s", str(self._process.pid)], check=False)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    for name, text in FILES.findall(PAGE):
        (tmp_path / name).write_text(text.replace("tutorial", _store_name()))
    started = Shell(tmp_path)
    try:
        yield started
    finally:
        started.end()


def test_both_languages_have_the_same_programs() -> None:
    chinese = (ROOT / "docs" / "tutorial.zh-CN.md").read_text()
    assert FILES.findall(chinese) == FILES.findall(PAGE)
    assert CONSOLES.findall(chinese) == CONSOLES.findall(PAGE)


def _store_name() -> str:
    return f"tutorial-{os.getpid()}"


def _commands(block: str) -> list[str]:
    return [line[2:].replace("tutorial", _store_name()) for line in block.splitlines() if line.startswith("$ ")]


def test_the_story_runs(shell: Shell) -> None:
    start, look, actor_dies, learner_dies, all_die = map(_commands, CONSOLES.findall(PAGE))

    def learns(begin: int, resumed: bool) -> None:
        told = shell.until("the table has [0-9,]+ transitions, the weights have version [0-9]+", begin)
        assert [each != "0" for each in re.findall("[0-9][0-9,]*", told)] == [resumed, resumed]
        shell.until("[0-9,]+ batches, [0-9,]+ transitions", begin)

    shell.run(*start)
    learns(0, resumed=False)
    shown = "\n".join(shell.run(*look))
    assert _store_name() in shown
    assert "Prioritized(alpha=0.6" in shown
    assert f"store '{_store_name()}' is sound" in shell.run(*actor_dies)
    now = len(shell.lines)
    shell.until("[0-9,]+ batches, [0-9,]+ transitions", now)
    shell.run(*learner_dies)
    learns(now, resumed=True)
    shell.run(all_die[0], "wait")
    now = len(shell.lines)
    shell.run(*all_die[1:])
    assert not any(line.startswith(_store_name()) for line in shell.lines[now:])
    learns(now, resumed=True)
