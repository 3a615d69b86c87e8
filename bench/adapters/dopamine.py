"""Dopamine's own replay buffer beside ours: speed of add and sample, memory, and whole training runs.

`python -m bench.adapters.dopamine [--runs SEEDS]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import gin
import gymnasium
import jax
import numpy as np

if importlib.util.find_spec("baselines") is None:  # Dopamine imports it, for Atari games, and does not require it
    sys.modules["baselines"] = sys.modules["baselines.common"] = types.SimpleNamespace(atari_wrappers=None)  # type: ignore

from dopamine.jax import networks
from dopamine.jax.agents.dqn import dqn_agent
from dopamine.jax.replay_memory import accumulator, elements, replay_buffer, samplers

from di_store.adapters.dopamine import ReplayBuffer as Ours

Theirs = replay_buffer.ReplayBuffer
ROUNDS, CAPACITY, EPISODE = 21, 5_000, 100
SHAPES: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "CartPole, 4 floats": ((4, 1), np.float64, 1),
    "Atari, 84x84, stack 4": ((84, 84), np.uint8, 4),
}
STEPS, WARM = 20_000, 1_000

# As in dopamine/jax/agents/dqn/configs/dqn_cartpole.gin.
CONFIG = """
create_optimizer.learning_rate = 0.001
create_optimizer.eps = 3.125e-4
ClassicControlDQNNetwork.min_vals = %jax_networks.CARTPOLE_MIN_VALS
ClassicControlDQNNetwork.max_vals = %jax_networks.CARTPOLE_MAX_VALS
ReplayBuffer.max_capacity = 50_000
ReplayBuffer.batch_size = 128
"""


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def atari_frames(count: int) -> Any:
    """Frames of Pong, 84×84, which compress as frames do."""
    import ale_py
    import cv2

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=4, obs_type="grayscale")
    env.action_space.seed(0)
    env.reset(seed=0)
    found = np.zeros((count, 84, 84), np.uint8)
    for number in range(count):
        frame, _, terminated, truncated, _ = env.step(env.action_space.sample())
        found[number] = cv2.resize(frame, (84, 84), interpolation=cv2.INTER_AREA)
        if terminated or truncated:
            env.reset()
    return found


def calls(kind: Any, shape: str, frames: Any) -> dict[str, Callable[[], Any]]:
    """An add to, and samples of, a full buffer."""
    stack = SHAPES[shape][2]
    buffer = kind(
        accumulator.TransitionAccumulator(stack, 1, 0.99),
        samplers.UniformSamplingDistribution(seed=0),
        batch_size=32,
        max_capacity=CAPACITY,
    )
    at = [0]

    def add() -> None:
        at[0] += 1
        ended = at[0] % EPISODE == 0
        step = elements.TransitionElement(frames[at[0] % len(frames)], 1, 1.0, ended, ended)
        buffer.add(step)

    for _ in range(CAPACITY + EPISODE):
        add()
    found: dict[str, Callable[[], Any]] = {"add": add}
    for n in (32, 128):
        found[f"sample {n}"] = lambda n=n: buffer.sample(n)
    return found


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: Dopamine, ours, ratio (above 1: ours is faster)")
    for shape, (size, dtype, _) in SHAPES.items():
        frames = atari_frames(5_000) if dtype is np.uint8 else np.random.default_rng(0).random((5_000, *size))
        pair = [calls(kind, shape, frames) for kind in (Theirs, Ours)]
        for what in pair[0]:
            times = 200 if what == "add" else 10
            rounds = [[seconds(each[what], times) * 1e6 for each in pair] for _ in range(ROUNDS)]
            own, mine = (statistics.median(each) for each in zip(*rounds, strict=True))
            print(f"{shape:22} {what:10} {own:8.1f} {mine:8.1f} {own / mine:6.2f}", flush=True)


def train(kind: Any, seed: int, steps: int = STEPS) -> tuple[list[float], float, Any]:
    """DQN on CartPole: the returns of all episodes, seconds of CPU after the first 1,000 steps, and the weights."""
    replay_buffer.ReplayBuffer = kind
    try:
        agent = dqn_agent.JaxDQNAgent(
            num_actions=2,
            observation_shape=(4, 1),
            observation_dtype=np.float64,
            stack_size=1,
            network=networks.ClassicControlDQNNetwork,
            min_replay_history=500,
            target_update_period=100,
            epsilon_fn=dqn_agent.identity_epsilon,
            seed=seed,
        )
    finally:
        replay_buffer.ReplayBuffer = Theirs
    env = gymnasium.make("CartPole-v1")
    returns: list[float] = []
    total = begin = 0.0
    action = agent.begin_episode(env.reset(seed=seed)[0])
    for step in range(steps):
        if step == WARM:
            begin = time.process_time()
        obs, reward, terminated, truncated, _ = env.step(int(action))
        total += float(reward)
        if terminated or truncated:
            agent.end_episode(reward, terminated)
            returns.append(total)
            total = 0.0
            action = agent.begin_episode(env.reset()[0])
        else:
            action = agent.step(reward, obs)
    return returns, time.process_time() - begin, agent.online_params


def trainings(seeds: int) -> None:
    print(f"mean return of the last 50 episodes of {STEPS:,} steps, seconds of CPU: Dopamine, ours; same weights?")
    ratios = []
    for seed in range(seeds):
        order = (Theirs, Ours) if seed % 2 else (Ours, Theirs)
        results = {kind: train(kind, seed) for kind in order}
        (a, b, one), (c, d, other) = results[Theirs], results[Ours]
        same = jax.tree_util.tree_all(jax.tree_util.tree_map(lambda x, y: bool((x == y).all()), one, other))
        ratios.append(d / b)
        means = f"{np.mean(a[-50:]):7.2f} {np.mean(c[-50:]):7.2f}"
        print(f"seed {seed}: {means}   {b:6.1f} s {d:6.1f} s   {same}", flush=True)
    print(f"time, ours / Dopamine's: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    given = parser.parse_args()
    gin.parse_config(CONFIG)
    if given.runs:
        trainings(given.runs)
    else:
        speeds()
