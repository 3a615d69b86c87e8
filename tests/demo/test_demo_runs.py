"""Whole runs of the demo, as a user starts them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from cli_run import call

PNG = b"\x89PNG\r\n\x1a\n"
WAIT_SECONDS = 120.0
QBERT = "ALE/Qbert-v5"
AGAIN = pytest.param(QBERT, "same-step", marks=pytest.mark.long)


class Running:
    """A demo in its own process group, read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.text = ""
        self.lines: SimpleQueue[str | None] = SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches."""
        while True:
            line = self._next()
            assert line is not None, f"ended before {pattern!r}:\n{self.text}"
            if found := re.search(pattern, line):
                return found

    def end(self) -> int:
        """Wait for the end of the output and of the process; its exit status."""
        while self._next() is not None:
            pass
        return self.process.wait(WAIT_SECONDS)

    def pids(self) -> list[int]:
        """The actors' pids, from the line that announces them."""
        return [int(pid) for pid in self.until(r"actors are starting: pid (.*)").group(1).split(",")]

    def _next(self) -> str | None:
        try:
            line = self.lines.get(timeout=WAIT_SECONDS)
        except Empty:
            raise AssertionError(f"nothing was printed for {WAIT_SECONDS:.0f} s after:\n{self.text}") from None
        self.text += line or ""
        return line

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)


OFTEN = """import sys
from di_store.cli import main
from di_store.demo import screen
screen.LINE_SECONDS = 1.0
sys.exit(main())"""
"""A demo that reports five times as often: its processes take all of the machine meanwhile."""


@contextmanager
def running(*options: str, often: bool = False) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, *(("-c", OFTEN) if often else ("-m", "di_store")), "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    demo = Running(process)
    try:
        yield demo
    finally:
        if group_pids(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_SECONDS)
        demo.reader.join(WAIT_SECONDS)


def group_pids(group: int) -> list[int]:
    """Processes of the group that are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended while we looked
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def wait_gone(group: int) -> None:
    """Wait until no process of the group is left; they are not our children, so their pidfds tell."""
    while pids := group_pids(group):
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                assert select.select([handle], [], [], WAIT_SECONDS)[0], (
                    f"pid {pid} lives on after {WAIT_SECONDS:.0f} s"
                )
            finally:
                os.close(handle)


def cartpole(out: Path, seconds: str) -> list[str]:
    return ["--seconds", seconds, "--memory", "64MiB", "--out", str(out)]


@pytest.mark.extended
@pytest.mark.parametrize(("env", "autoreset"), [("CartPole-v1", "same-step"), (QBERT, "next-step"), AGAIN])
def test_run_until_ctrl_c(tmp_path: Path, env: str, autoreset: str) -> None:
    """A run trains; Ctrl-C, which reaches the whole terminal group, ends it with summary, chart and no process left."""
    out = tmp_path / "charts" / "demo.png"
    options = ["--env", env, "--autoreset", autoreset, "--seconds", "600", "--envs-per-actor", "4", "--out", str(out)]
    with running(*options, "--json", often=True) as demo:
        demo.until(r"samples [1-9].* loss \d")
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
        wait_gone(demo.process.pid)
    figures = json.loads(next(line for line in demo.text.splitlines() if line.startswith("{")))
    assert figures["env"] == env
    assert figures["actors_alive"] == 2
    assert "did not stop" not in demo.text
    assert figures["steps"] >= 1_000 - figures["environments"]
    assert figures["updates"] > 0
    assert figures["loss"] is not None
    if env == QBERT:  # the chunks are not full yet, so the saving is not either
        assert figures["logical_bytes"] > figures["stored_bytes"] * 3
    assert out.read_bytes().startswith(PNG)
    assert "Traceback" not in demo.text


def test_run_ends_by_itself(tmp_path: Path) -> None:
    with running(*cartpole(tmp_path / "demo.png", "2")) as demo:
        assert demo.end() == 0, demo.text
        wait_gone(demo.process.pid)
    assert "summary" in demo.text
    assert "chart: " in demo.text
    assert "Traceback" not in demo.text


@pytest.mark.extended
def test_ctrl_c_while_actors_start_ends_the_demo(tmp_path: Path) -> None:
    """The actors are still importing torch when it comes."""
    with running(*cartpole(tmp_path / "demo.png", "600")) as demo:
        demo.pids()
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
        wait_gone(demo.process.pid)
    assert "Traceback" not in demo.text


@pytest.mark.extended
def test_ctrl_c_during_imports_ends_the_demo(tmp_path: Path) -> None:
    """The main process is importing torch when it comes: no actor is started any more."""
    with running(*cartpole(tmp_path / "demo.png", "600")) as demo:
        while "libtorch" not in Path(f"/proc/{demo.process.pid}/maps").read_text():
            assert demo.process.poll() is None
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
        wait_gone(demo.process.pid)
    assert demo.text == "ended before the actors were started\n"


@pytest.mark.extended
def test_killed_actor_is_named_and_the_rest_go_on(tmp_path: Path) -> None:
    with running(*cartpole(tmp_path / "demo.png", "600"), often=True) as demo:
        first, _ = demo.pids()
        demo.until(r"samples [1-9]")
        assert first in group_pids(demo.process.pid), demo.text
        os.kill(first, signal.SIGKILL)
        demo.until(rf"pid {first}\) died: killed by SIGKILL; going on with 1 of 2")
        demo.until(r"samples [1-9]")  # the line after the death
        demo.until(r"samples [1-9]")  # the learner still samples in the period after that
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
    assert "Traceback" not in demo.text


@pytest.mark.extended
def test_run_ends_when_no_actor_is_left(tmp_path: Path) -> None:
    with running(*cartpole(tmp_path / "demo.png", "600"), often=True) as demo:
        pids = demo.pids()
        demo.until(r"samples [1-9]")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert demo.end() == 1, demo.text
    assert "no actor is left" in demo.text
    assert "Traceback" not in demo.text


@pytest.mark.extended
def test_actors_end_with_the_learner(tmp_path: Path) -> None:
    """SIGKILL of the main process, which can tell nobody."""
    with running(*cartpole(tmp_path / "demo.png", "600"), often=True) as demo:
        demo.until(r"samples [1-9]")
        demo.process.kill()
        wait_gone(demo.process.pid)
        demo.process.wait(WAIT_SECONDS)
    assert "Traceback" not in demo.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--env", "NoSuchGame-v0"], "NoSuchGame"),
        (["--env", "Pendulum-v1"], "--env Pendulum-v1"),
        (["--env", QBERT, "--memory", "16MiB"], "memory="),
        (["--out", "/"], "--out /"),
        (["--out", "/proc/none/demo.png"], "--out /proc/none/demo.png"),
    ],
)
def test_impossible_options_end_with_one_line(
    tmp_path: Path, options: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    done = call("demo", "--out", str(tmp_path / "demo.png"), *options)
    assert done.returncode == 1
    said = done.stdout + done.stderr + "".join(capfd.readouterr())  # of this process, and of those that it started
    assert says in said
    assert len(said.splitlines()) == 1, said
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_the_live_screen_is_painted_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """On a terminal the run paints a screen; Ctrl-C typed there ends it. Its last frame tells the final state only."""
    child, terminal = pty.fork()
    if child == 0:
        command = [sys.executable, "-m", "di_store", "demo", *cartpole(tmp_path / "demo.png", "600")]
        os.execvpe(sys.executable, command, {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"})
    painted, killed, typed = "", 0, False
    try:
        while ready := select.select([terminal], [], [], WAIT_SECONDS)[0]:
            try:
                painted += os.read(ready[0], 65536).decode(errors="replace")
            except OSError:
                break  # the terminal's other end is closed
            painted = re.sub(r"\x1b\[[\d;]*m", "", painted)  # colours
            if not killed and re.search(r"samples +[1-9]", painted) and re.search(r"waits +\d", painted):
                killed = int(re.findall(r"actor 0 +pid (\d+)", painted)[-1])
                os.kill(killed, signal.SIGKILL)
            if not typed and re.search(r"actor 0 +died: killed by SIGKILL", painted):
                typed = bool(os.write(terminal, b"\x03"))
        assert typed, painted[-2000:]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, painted[-2000:]
    finally:
        if group_pids(child):
            os.killpg(child, signal.SIGKILL)
        os.close(terminal)
    assert "Traceback" not in painted
    for name in ("steps", "samples", "stored", "limiter", "loss", "mean return", "training; Ctrl-C ends it"):
        assert name in painted
    last = painted.rpartition("\x1b[2K")[2].partition("summary")[0]
    assert re.search(r"actor 0 +died: killed by SIGKILL +[\d,]+ steps +│", last), last
    assert re.search(r"actor 1 +ended +[\d,]+ steps +│", last), last
    assert re.search(rf"at \d+ s: actor 0 \(pid {killed}\) died: .*; going on with 1 of 2", last), last
    assert "ended: interrupted" in last
    for stale in ("Ctrl-C", "training", "limiter", "waits", "epsilon"):
        assert stale not in last


@pytest.mark.long
def test_cartpole_learns(tmp_path: Path) -> None:
    """The mean return of the last 20 episodes of both actors passes 195 within 3 minutes."""
    with running("--seconds", "180", "--out", str(tmp_path / "demo.png")) as demo:
        while float(demo.until(r"mean return ([\d,.]+|-)").group(1).replace(",", "").replace("-", "0")) <= 195:
            pass
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
