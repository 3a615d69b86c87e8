"""The whole run: a store, a table, the actors, and the learner's loop in this process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import di_store
from di_store.demo.actor import POLICY, REPLAY
from di_store.demo.chart import check_path, write_chart
from di_store.demo.config import SEED, DemoConfig
from di_store.demo.envs import EnvShape, env_shape
from di_store.demo.fleet import Fleet
from di_store.demo.interrupt import Interrupt
from di_store.demo.learner import Learner
from di_store.demo.metrics import Metrics
from di_store.demo.networks import build_network
from di_store.demo.screen import STOPPING, TRAINING, Screen, Stage, output_stream, print_summary, summary

SCREEN_SECONDS = 0.25
READY_SECONDS = 120.0


def run_job(config: DemoConfig, interrupt: Interrupt) -> int:
    """Run the demo. Returns 0 when the time is over or after Ctrl-C; 1, with a line on stderr, if it fails."""
    try:
        check_path(Path(config.out))
        shape = env_shape(config)
        with di_store.open(memory=config.memory, seed=SEED) as store:
            return _run(config, shape, store, interrupt)
    except (di_store.StoreError, gymnasium.error.Error, OSError, ValueError) as error:
        print(f"di-store demo: {error}", file=sys.stderr)
        return 1


def _run(config: DemoConfig, shape: EnvShape, store: di_store.Store, interrupt: Interrupt) -> int:
    recipe = config.recipe
    torch.manual_seed(SEED)
    # Threads of torch wait for each other. If one shares a core with an actor, each wait can last a whole time slice.
    torch.set_num_threads(max(1, min(recipe.learner_threads, len(os.sched_getaffinity(0)) - config.actors)))
    learner = Learner(build_network(config, shape), recipe)
    with room_for_weights(config, store, learner):
        replay = create_replay(config, shape, store)
    store.publish(POLICY, learner.network.state_dict())
    stream = output_stream(config)
    if interrupt.asked:
        print("ended before the actors were started", file=stream)
        return 0
    with Screen(config, store.name, stream) as screen:
        run = Run(config, store, replay, learner, Fleet(config, shape, store.name), screen, interrupt)
        run.run()
    figures = summary(config, run.metrics, run.fleet)
    if config.json:
        print(json.dumps(figures))
    else:
        print_summary(stream, figures)
    path = Path(config.out)
    write_chart(path, config, run.metrics)
    print(f"chart: {path}", file=stream)
    if not run.fleet.alive:
        print("di-store demo: ended early, no actor is left", file=sys.stderr)
        return 1
    return 0


@contextmanager
def room_for_weights(config: DemoConfig, store: di_store.Store, learner: Learner) -> Iterator[None]:
    """Reserve the memory for publishing weights while the table is created inside the block.

    This leaves room for the current version, the next one, and one old version that each actor may still read.
    """
    size_bytes = sum(tensor.nbytes for tensor in learner.network.state_dict().values())
    room = store.put(np.empty(size_bytes * (2 + config.actors), np.uint8), timeout=0)
    try:
        yield
    finally:
        store.delete([room])


def create_replay(config: DemoConfig, shape: EnvShape, store: di_store.Store) -> di_store.Table:
    """Create the replay table: stores single frames, returns n-step transitions of stacked frames by priority.

    It holds `recipe.capacity` transitions, or a half, a quarter … of this number if --memory has no room for more.

    Raises:
        CapacityError: fewer than twice `recipe.min_size` fit.
    """
    capacity = config.recipe.capacity
    while True:
        try:
            return _create_table(config, shape, store, capacity)
        except di_store.CapacityError:
            capacity //= 2
            if capacity < 2 * config.recipe.min_size:
                raise


def _create_table(config: DemoConfig, shape: EnvShape, store: di_store.Store, capacity: int) -> di_store.Table:
    recipe = config.recipe
    schema: dict[str, Any] = {
        "obs": di_store.Spec(shape.obs_shape, shape.obs_dtype),
        "action": di_store.Spec((), "int64"),
        "reward": di_store.Spec((), "float32"),
        "terminated": di_store.Spec((), "bool"),
        "truncated": di_store.Spec((), "bool"),
    }
    if config.pixels:
        schema["discount"] = di_store.Spec((), "float32")
    stack = None if recipe.frame_stack is None else {"obs": recipe.frame_stack}
    return store.create_table(
        REPLAY,
        capacity=capacity,
        schema=schema,
        view=di_store.Transition(n_step=recipe.n_step, gamma=recipe.gamma, frame_stack=stack),
        sampler=di_store.Prioritized(alpha=recipe.alpha, beta=recipe.beta_first),
        limiter=di_store.SamplesPerInsert(recipe.samples_per_insert, min_size=recipe.min_size, tolerance=0.1),
        lanes=config.actors * config.envs_per_actor,
        weights=POLICY,
        seed=SEED,
    )


class Run:
    """The learner's loop and its actors, until both have ended."""

    def __init__(
        self,
        config: DemoConfig,
        store: di_store.Store,
        replay: di_store.Table,
        learner: Learner,
        fleet: Fleet,
        screen: Screen,
        interrupt: Interrupt,
    ) -> None:
        self.config = config
        self.store = store
        self.replay = replay
        self.learner = learner
        self.fleet = fleet
        self.screen = screen
        self.interrupt = interrupt
        self.metrics = Metrics()
        self.samples = 0

    def run(self) -> None:
        """Start, train, stop every actor, and show the final state."""
        try:
            self._wait_for_actors()
            self._train()
            outcome = self._outcome()
            self.screen.stage = STOPPING
            self._show()
        finally:
            self._note(*self.fleet.stop())
        self.screen.stage = Stage(f"ended: {outcome}")
        self._show(last=True)

    def _wait_for_actors(self) -> None:
        """Wait until every actor has attached (they import torch first); the run's clock starts here."""
        pids = ", ".join(str(member.process.pid) for member in self.fleet.members)
        self.screen.log(f"store {self.store.name}; actors are starting: pid {pids}")
        deadline = time.monotonic() + READY_SECONDS
        while not (self.fleet.ready or self.interrupt.asked or time.monotonic() > deadline):
            self._listen(SCREEN_SECONDS)
            if self.screen.live:
                self._show()
        self.metrics = Metrics()

    def _train(self) -> None:
        """Sample, learn, update priorities and publish, until the time is over, Ctrl-C, or all actors have died."""
        self.screen.stage = TRAINING
        while not self.interrupt.asked and self.fleet.alive and self.metrics.seconds < self.config.seconds:
            shown = time.monotonic()
            while time.monotonic() - shown < SCREEN_SECONDS and self._learn_once(SCREEN_SECONDS):
                pass
            self._listen(0.0)
            self._show()

    def _outcome(self) -> str:
        if self.interrupt.asked:
            return "interrupted"
        return "time is up" if self.fleet.alive else "no actor is left"

    def _learn_once(self, timeout_seconds: float) -> bool:
        """Make one update; False: the limiter allowed no batch within `timeout_seconds`."""
        learner = self.learner
        try:
            batch = self.replay.sample(learner.recipe.batch_size, beta=learner.beta, timeout=timeout_seconds)
        except di_store.Timeout:
            return False
        update = learner.update(batch)
        self.replay.update_priorities(batch.keys, update.priorities)
        self.samples += learner.recipe.batch_size
        self.metrics.losses.append(update.loss)
        if learner.should_publish:
            self.store.publish(POLICY, learner.network.state_dict())
        return True

    def _listen(self, timeout_seconds: float) -> None:
        self._note(*self.fleet.listen(timeout_seconds))

    def _note(self, returns: list[float], lines: list[str]) -> None:
        self.metrics.add_returns(returns, steps=self.fleet.steps)
        for text in lines:
            self.screen.event(text, self.metrics.seconds)

    def _show(self, *, last: bool = False) -> None:
        self.metrics.measure(
            self.replay.stats(), steps=self.fleet.steps, samples=self.samples, updates=self.learner.updates, last=last
        )
        self.screen.show(self.metrics, self.fleet)
