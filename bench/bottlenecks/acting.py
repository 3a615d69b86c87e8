"""An actor: acts in its environments, hands steps to the plane, follows the published weights."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bench.bottlenecks.agents import make_policy
from bench.bottlenecks.board import EPISODES, PID, PULLS, RETURNS, STEPS, Board, Clock
from bench.bottlenecks.loads import Load
from bench.bottlenecks.planes import ActorSide, actor_side
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import Lanes

GOODBYE_SECONDS = 5.0


def act(load: Load, shape: Shape, index: int, board: Board, clock: Clock, plane: ActorSide) -> None:
    """The loop of actor `index`, until the board says stop."""
    row, returns = board.rows[1 + index], board.returns[index]
    policy = make_policy(load, shape, index)
    lanes = Lanes(load.demo, load.lanes, seed=load.seed * 1_000_000 + index * 10_000)
    version = 0
    row[PID] = os.getpid()
    try:
        while not board.stopped:
            if board.version > version:
                version = board.version
                with clock("weights"):
                    weights = plane.latest()
                    policy.network.load_state_dict({k: torch.as_tensor(value) for k, value in weights.items()})
                row[PULLS] += 1
            with clock("inference"):
                actions, extra = policy.act(lanes.seen, int(row[STEPS]))
            with clock("environment"):
                stepped = lanes.step(actions)
            if not plane.append(stepped, lanes.seen, extra):
                break
            row[STEPS] += stepped.rows
            for value in stepped.returns:
                returns[int(row[EPISODES]) % RETURNS] = value
                row[EPISODES] += 1
    finally:
        plane.close()
        lanes.close()


def actor_main(system: str, load: Load, shape: Shape, index: int, board: Board, link: Any) -> None:
    """Entry point of an actor's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    clock = Clock(board, index)
    act(load, shape, index, board, clock, actor_side(system, load, shape, board, clock, link))


def start_actors(system: str, load: Load, shape: Shape, board: Board, link: Any) -> list[BaseProcess]:
    """A process per actor. Not forked: torch and the emulator own threads, and a forked copy of those hangs."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    for index in range(load.actors):
        process = context.Process(target=actor_main, args=(system, load, shape, index, board, link), daemon=True)
        process.start()
        processes.append(process)
    return processes


def end_actors(processes: list[BaseProcess]) -> None:
    """Wait for the actors, who were told to stop through the board; then insist."""
    for process in processes:
        process.join(GOODBYE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join(GOODBYE_SECONDS)
