"""An actor: acts in its environments, gives steps to the data plane, and loads the published weights."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import torch

from bench.bottlenecks.board import PID, STEPS, Run
from bench.bottlenecks.planes import module_of
from bench.kit import Worker
from di_store.demo.actor import Policy, epsilon_at
from di_store.demo.envs import EnvLanes
from di_store.demo.networks import build_network

END_SECONDS = 5.0


def act(run: Run, plane: Any) -> None:
    board, clock, config = run.board, run.clock, run.config
    row, version = board.rows[1 + run.index], 0
    network = build_network(config, run.shape)
    policy = Policy(network, run.shape.actions, np.random.default_rng([0, run.index]))
    lanes = EnvLanes(config, run.lanes, seed=run.index * 10_000)
    row[PID] = os.getpid()
    try:
        while not board.stopped:
            if board.version > version:
                version = board.version
                with clock("weights"):
                    weights = plane.latest()
                    network.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
            with clock("inference"):
                actions = policy.act(lanes.seen, epsilon_at(config, run.index, int(row[STEPS])))
            with clock("environment"):
                stepped = lanes.step(actions)
            if not plane.append(stepped):
                break
            row[STEPS] += stepped.rows
    finally:
        plane.close()
        lanes.close()


def _main(pipe: Any, system: str, config: Any, shape: Any, board: Any, index: int, link: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    run = Run(config, shape, board, index)
    act(run, module_of(system).Actor(run, link))


def start_actors(system: str, run: Run, link: Any) -> list[Worker]:
    """Start a process for each actor. Not forked: a forked child would lack the threads of torch and the emulator."""
    shared = (system, run.config, run.shape, run.board)
    return [Worker(_main, *shared, index, link) for index in range(run.config.actors)]


def end_actors(actors: list[Worker]) -> None:
    """Wait for the actors, after the board has told them to stop; kill those that take too long."""
    for actor in actors:
        actor.end(END_SECONDS)
