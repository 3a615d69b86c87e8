"""The demo: its parts against the real environments and the real store, and whole runs as a user starts them."""

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
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np
import pytest
import torch

import di_store
from di_store.demo import DemoConfig
from di_store.demo.actor import POLICY, Report, epsilon_at
from di_store.demo.envs import MODES, EnvShape, Lanes, env_shape
from di_store.demo.fleet import Member, State
from di_store.demo.job import create_replay, room_for_weights
from di_store.demo.learner import Learner
from di_store.demo.metrics import Metrics
from di_store.demo.networks import as_input, build_network
from di_store.demo.screen import actor_cells, curve

PNG = b"\x89PNG\r\n\x1a\n"
WAIT_SECONDS = 120.0
QBERT = "ALE/Qbert-v5"
AGAIN = pytest.param(QBERT, "same-step", marks=pytest.mark.long)


# The parts


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"seconds": 0}, "--seconds"),
        ({"seconds": float("nan")}, "--seconds"),
        ({"actors": 0}, "--actors"),
        ({"envs_per_actor": 0}, "--envs-per-actor"),
        ({"autoreset": "never"}, "--autoreset"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], option: str) -> None:
    with pytest.raises(ValueError, match=option):
        DemoConfig(**options)


def test_exploration_falls_and_differs_by_actor() -> None:
    config = DemoConfig(env="CartPole-v1", actors=3)
    first = [epsilon_at(config, index, 0) for index in range(3)]
    last = [epsilon_at(config, index, 10**9) for index in range(3)]
    assert first == [1.0, 1.0, 1.0]
    assert last[0] > last[1] > last[2] == pytest.approx(config.recipe.epsilon_final)


@pytest.mark.parametrize("autoreset", sorted(MODES))
@pytest.mark.parametrize("env", ["CartPole-v1", QBERT])
def test_learner_sees_what_the_policy_saw(env: str, autoreset: str) -> None:
    """Every stored item, read back, holds the very stack the actor's policy acted on, although frames go in singly."""
    config = DemoConfig(env=env, autoreset=autoreset, envs_per_actor=3, memory="96MiB")
    shape = env_shape(config)
    turns, rng = (700 if config.pixels else 200), np.random.default_rng(5)
    seen_by_key: dict[int, np.ndarray] = {}
    actions_by_key: dict[int, int] = {}
    ends = 0
    with di_store.open(memory=config.memory) as store:
        replay = create_replay(config, shape, store)
        replay.configure(limiter=di_store.MinSize(1))  # no learner samples while the rows go in
        lanes = Lanes(config, 3, seed=1)
        # Per lane, what the policy saw and did in each row of the running episode.
        rows: dict[int, list[tuple[np.ndarray, int]]] = defaultdict(list)
        with replay.writer(lanes=3, autoreset=lanes.autoreset) as writer:
            for _ in range(turns):
                actions = rng.integers(shape.actions, size=3)
                for lane in np.flatnonzero(~lanes.resetting):
                    rows[int(lane)].append((lanes.seen[lane].copy(), int(actions[lane])))
                stepped = lanes.step(actions)
                items = writer.append(stepped.step, next=stepped.next, final=stepped.final)
                for key, lane, start in zip(items.keys, items.lanes, items.starts, strict=True):
                    seen_by_key[int(key)], actions_by_key[int(key)] = rows[int(lane)][int(start)]
                for lane in np.flatnonzero(stepped.step["terminated"] | stepped.step["truncated"]):
                    rows[int(lane)] = []
                    ends += 1
        lanes.close()
        assert ends > 0, "no episode ended, so nothing was tested"
        keys = np.array(sorted(seen_by_key), np.uint64)
        batch = replay.peek(keys)
        assert batch.live.all()
        np.testing.assert_array_equal(batch.data["obs"], np.stack([seen_by_key[int(key)] for key in keys]))
        np.testing.assert_array_equal(batch.data["action"], [actions_by_key[int(key)] for key in keys])
        if config.pixels:
            assert np.abs(batch.data["reward"]).max() <= config.recipe.n_step
            assert batch.data["obs"].shape[1:] == (4, 84, 84)


def test_lost_life_stops_the_value() -> None:
    """A lost life gives `discount` 0 in that row, once per life, and the episode goes on."""
    config = DemoConfig(env=QBERT)
    lanes, rng = Lanes(config, 1, seed=4), np.random.default_rng(1)
    lost = 0
    while True:
        stepped = lanes.step(rng.integers(6, size=1))
        lost += int(stepped.step["discount"][0] == 0)
        if stepped.step["terminated"][0]:
            break
    lanes.close()
    assert lost == 4
    assert len(stepped.returns) == 1


class _Batch:
    """What the learner reads of a batch."""

    def __init__(self, shape: EnvShape, count: int) -> None:
        rng = np.random.default_rng(0)
        self.data = {
            "obs": rng.normal(size=(count, *shape.obs_shape)).astype(np.float32),
            "next_obs": rng.normal(size=(count, *shape.obs_shape)).astype(np.float32),
            "action": rng.integers(shape.actions, size=count),
            "reward": rng.normal(size=count).astype(np.float32),
            "discount": rng.choice([0.0, 0.97], size=count).astype(np.float32),
        }
        self.weights = rng.uniform(0.1, 1.0, size=count).astype(np.float32)


def test_learner_is_a_weighted_double_dqn() -> None:
    config, shape = DemoConfig(env="CartPole-v1"), EnvShape((4,), "float32", 2)
    torch.manual_seed(0)
    learner = Learner(build_network(config, shape), config.recipe)
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.add_(0.02)  # so that it matters which network chooses and which one values
    batch: Any = _Batch(shape, 64)
    with torch.no_grad():
        online = {name: learner.network(as_input(batch.data[name])).numpy() for name in ("obs", "next_obs")}
        target = learner.target(as_input(batch.data["next_obs"])).numpy()
    row = np.arange(64)
    goal = batch.data["reward"] + batch.data["discount"] * target[row, online["next_obs"].argmax(1)]
    error = np.abs(goal - online["obs"][row, batch.data["action"]])
    huber = np.where(error < 1, 0.5 * error**2, error - 0.5)
    update = learner.update(batch)
    np.testing.assert_allclose(update.priorities, error + config.recipe.priority_floor, rtol=1e-4)
    assert update.loss == pytest.approx(float((batch.weights * huber).mean()), rel=1e-4)
    for _ in range(150):
        later = learner.update(batch)
    assert later.loss < update.loss / 2


def test_target_follows_and_beta_rises() -> None:
    config, shape = DemoConfig(env="CartPole-v1"), EnvShape((4,), "float32", 2)
    learner = Learner(build_network(config, shape), config.recipe)
    batch: Any = _Batch(shape, 8)
    assert learner.beta == pytest.approx(config.recipe.beta_first)
    learner.update(batch)
    pairs = list(zip(learner.network.parameters(), learner.target.parameters(), strict=True))
    assert not all(torch.equal(ours, target) for ours, target in pairs)
    while learner.updates % config.recipe.target_every:
        learner.update(batch)
    assert all(torch.equal(ours, target) for ours, target in pairs)
    learner.updates = 2 * config.recipe.beta_updates
    assert learner.beta == 1.0


@pytest.mark.memory_only
def test_capacity_follows_memory() -> None:
    """--memory too small for the usual capacity gives a smaller table; far too small is refused."""
    config = DemoConfig(env=QBERT)
    shape = EnvShape((84, 84), "uint8", 6)
    with di_store.open(memory="128MiB") as store:
        create_replay(config, shape, store)
    with di_store.open(memory="16MiB") as store, pytest.raises(di_store.CapacityError):
        create_replay(config, shape, store)


def test_table_leaves_room_for_weights() -> None:
    """A table that takes what --memory leaves still lets the learner publish while the version before is there."""
    config, shape = DemoConfig(env=QBERT), EnvShape((84, 84), "uint8", 6)
    learner = Learner(build_network(config, shape), config.recipe)
    with di_store.open(memory="100MiB") as store:
        with room_for_weights(config, store, learner):
            create_replay(config, shape, store)
        versions = [store.publish(POLICY, learner.network.state_dict()) for _ in range(3)]
        assert versions == [1, 2, 3]


class _Process:
    """What the screen reads of an actor's process."""

    pid, exitcode = 7, 3

    def join(self, timeout: float) -> None:
        """It has ended."""


def _member(state: State, reported: float) -> Member:
    process, control = _Process(), None
    report = Report(steps=1_000, epsilon=0.5, version=3, waiting=0.25, returns=[])
    return Member(0, cast(Any, process), cast(Any, control), state, report, reported, "exit status 3")


@pytest.mark.parametrize(
    ("state", "silent_seconds", "cells"),
    [
        (State.RUNNING, 0.0, ("pid 7", "1,000 steps", "epsilon 0.50", "policy 3", "waits  25%")),
        (State.RUNNING, 1e6, ("pid 7", "1,000 steps", "no report for 1,000,000 s")),
        (State.ENDED, 1e6, ("ended", "1,000 steps")),
        (State.DEAD, 1e6, ("died: exit status 3", "1,000 steps")),
    ],
    ids=["running", "silent", "ended", "dead"],
)
def test_an_actors_row_holds_nothing_stale(state: State, silent_seconds: float, cells: tuple[str, ...]) -> None:
    now = time.monotonic()
    assert actor_cells(_member(state, now - silent_seconds), now) == ("actor 0", *cells)


def test_returns_are_kept_against_steps() -> None:
    """The chart's running mean, the screen's curve, and the mean at the start follow the steps of the episodes."""
    metrics = Metrics()
    for steps in range(1, 101):
        metrics.add_returns([float(steps)], steps=steps * 10)
    assert [episode.steps for episode in metrics.episodes] == [steps * 10 for steps in range(1, 101)]
    assert metrics.first_mean_return == 10.5
    assert (metrics.running_means()[0], metrics.running_means()[-1]) == (1.0, 90.5)
    assert curve(metrics)[0] == "▁"
    assert curve(metrics)[-1] == "█"
    assert list(curve(metrics)) == sorted(curve(metrics))
    assert curve(Metrics()) == "-"


# Whole runs


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
    assert "did not end" not in demo.text
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


def test_ctrl_c_while_starting(tmp_path: Path) -> None:
    """The actors are still importing torch when it comes."""
    with running(*cartpole(tmp_path / "demo.png", "600")) as demo:
        demo.pids()
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
        wait_gone(demo.process.pid)
    assert "Traceback" not in demo.text


def test_ctrl_c_while_importing(tmp_path: Path) -> None:
    """The main process is importing torch when it comes: no actor is started any more."""
    with running(*cartpole(tmp_path / "demo.png", "600")) as demo:
        while "libtorch" not in Path(f"/proc/{demo.process.pid}/maps").read_text():
            assert demo.process.poll() is None
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == 0, demo.text
        wait_gone(demo.process.pid)
    assert demo.text == "ended before the actors were started\n"


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


def test_run_ends_when_no_actor_is_left(tmp_path: Path) -> None:
    with running(*cartpole(tmp_path / "demo.png", "600"), often=True) as demo:
        pids = demo.pids()
        demo.until(r"samples [1-9]")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert demo.end() == 1, demo.text
    assert "no actor is left" in demo.text
    assert "Traceback" not in demo.text


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
def test_what_cannot_work_is_one_line(tmp_path: Path, options: list[str], says: str) -> None:
    with running("--out", str(tmp_path / "demo.png"), *options) as demo:
        assert demo.end() == 1
    assert says in demo.text
    assert len(demo.text.splitlines()) == 1, demo.text
    assert not list(tmp_path.iterdir())


def test_live_screen(tmp_path: Path) -> None:
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
