"""One actor process: acts in its environments, appends to the table, and loads each newly published policy.

The process ends when it is told to, or when the learner's process has ended. The end of the learner closes its side of
the control pipe, and no call here blocks for longer than `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import di_store
from di_store.demo.config import SEED, DemoConfig
from di_store.demo.envs import EnvLanes, EnvShape, Stepped
from di_store.demo.networks import as_input, build_network

POLICY = "policy"
REPLAY = "replay"
PATIENCE_SECONDS = 0.5
REPORT_SECONDS = 0.25
POLL_EVERY = 4  # vector steps between two checks for a newer policy


@dataclass(frozen=True)
class Report:
    """The report that an actor sends to the learner's process every `REPORT_SECONDS`.

    steps: steps of this actor, in total; epsilon: probability of a random action; version: version of its policy;
    waiting: share of the time since the last report spent waiting for the limiter, 0 to 1; returns: returns of episodes
    that ended since the last report.
    """

    steps: int
    epsilon: float
    version: int
    waiting: float
    returns: list[float]


@dataclass(frozen=True)
class ActorFailure:
    """The error that ended an actor."""

    text: str


def epsilon_at(config: DemoConfig, index: int, own_steps: int) -> float:
    """Probability of a random action of actor `index` after `own_steps` steps of its own."""
    recipe = config.recipe
    place = index / (config.actors - 1) if config.actors > 1 else 1.0
    final = recipe.epsilon_final * recipe.epsilon_spread ** (1.0 - place)
    done = min(1.0, own_steps * config.actors / recipe.epsilon_steps)
    return float(1.0 + (final - 1.0) * done)


class Policy:
    """Epsilon-greedy actions, one network call for all lanes."""

    def __init__(self, network: nn.Module, actions: int, rng: np.random.Generator) -> None:
        self.network = network
        self.actions = actions
        self.rng = rng
        self.version = 0

    def follow(self, store: di_store.Store) -> None:
        """Load the newest published weights, if they are newer than the current ones."""
        if new := store.latest(POLICY, newer_than=self.version):
            self.network.load_state_dict(new.value)
            self.version = new.version

    def act(self, seen: NDArray[Any], epsilon: float) -> NDArray[np.int64]:
        """Actions int64 [lanes] for observations [lanes, ...]; `epsilon`: probability of a random action."""
        lanes = len(seen)
        chosen = self.rng.integers(self.actions, size=lanes)
        greedy = self.rng.random(lanes) >= epsilon
        if greedy.any():
            with torch.inference_mode():
                best = self.network(as_input(seen)).argmax(1).numpy()
            chosen[greedy] = best[greedy]
        return chosen


class Actor:
    """The loop and the counters of one actor."""

    def __init__(self, config: DemoConfig, index: int, shape: EnvShape, control: Connection) -> None:
        self.config = config
        self.index = index
        self.control = control
        self.steps = 0
        self.waited_seconds = 0.0
        self.returns: list[float] = []
        self.reported = time.monotonic()
        self.policy = Policy(build_network(config, shape), shape.actions, np.random.default_rng([SEED, index]))

    def run(self, store: di_store.Store) -> None:
        """Act until told to stop or until the learner's process is gone."""
        table = store.table(REPLAY)
        seed = SEED + self.index * 10_000
        lanes = EnvLanes(self.config, self.config.envs_per_actor, seed=seed)
        try:
            with table.writer(lanes=self.config.envs_per_actor, autoreset=lanes.autoreset) as writer:
                self._act(store, writer, lanes)
                self._send(epsilon_at(self.config, self.index, self.steps))  # the steps since the last report
                # The learner no longer samples, so the limiter could block the last items of open episodes for ever.
                writer.end_episode(discard=True)
        finally:
            lanes.close()

    def _act(self, store: di_store.Store, writer: di_store.Writer, lanes: EnvLanes) -> None:
        turn = 0
        while not self._told_to_stop():
            if turn % POLL_EVERY == 0:
                self.policy.follow(store)
            epsilon = epsilon_at(self.config, self.index, self.steps)
            stepped = lanes.step(self.policy.act(lanes.seen, epsilon))
            if not self._append(writer, stepped, epsilon):
                return
            self.steps += stepped.rows
            self.returns += stepped.returns
            self._report(epsilon)
            turn += 1

    def _append(self, writer: di_store.Writer, stepped: Stepped, epsilon: float) -> bool:
        """Append, waiting for the limiter as long as necessary; False: told to stop, nothing was written."""
        started = time.monotonic()
        while True:
            try:
                writer.append(stepped.step, next=stepped.next, final=stepped.final, timeout=PATIENCE_SECONDS)
            except di_store.Timeout:
                # Nothing was written, so the same call may be repeated.
                self._report(epsilon)
                if self._told_to_stop():
                    return False
            else:
                self.waited_seconds += time.monotonic() - started
                return True

    def _told_to_stop(self) -> bool:
        # The pipe is readable when "stop" was sent, and when the learner's process has ended.
        return bool(self.control.poll(0))

    def _report(self, epsilon: float) -> None:
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self._send(epsilon)

    def _send(self, epsilon: float) -> None:
        now = time.monotonic()
        waiting = min(1.0, self.waited_seconds / max(now - self.reported, 1e-6))
        self.control.send(Report(self.steps, epsilon, self.policy.version, waiting, self.returns))
        self.returns, self.waited_seconds, self.reported = [], 0.0, now


def actor_main(config: DemoConfig, index: int, shape: EnvShape, store_name: str, control: Connection) -> None:
    """Entry point of an actor process. It ignores Ctrl-C: the learner handles it and then tells the actors to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(1)
    try:
        with di_store.attach(store_name) as store:
            control.send(Report(0, 1.0, 0, 0.0, []))
            Actor(config, index, shape, control).run(store)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the learner's process has ended
    except Exception as error:  # the learner prints it, whatever it is: only one process may write to the screen
        _tell(control, ActorFailure(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


def _tell(control: Connection, failure: ActorFailure) -> None:
    try:
        control.send(failure)
    except OSError:
        pass  # the learner's process is gone
