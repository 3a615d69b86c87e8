"""Stable-Baselines3's own replay buffer beside ours: speed of add and sample, and whole training runs.

`python -m bench.adapters.sb3 [--runs SEEDS]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.evaluation import evaluate_policy

from di_store.adapters.sb3 import ReplayBuffer

ROUNDS, CAPACITY, EPISODE = 41, 20_000, 100
SHAPES = {"CartPole": (4, spaces.Discrete(2)), "Pendulum": (3, spaces.Box(-2, 2, (1,), np.float32))}
DQN_OPTIONS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "learning_starts": 1_000,
    "target_update_interval": 10,
    "train_freq": 64,
    "gradient_steps": 32,
    "exploration_final_eps": 0.04,
}
JOBS: list[tuple[Any, str, int, dict[str, Any]]] = [
    (DQN, "CartPole-v1", 30_000, DQN_OPTIONS),
    (SAC, "Pendulum-v1", 4_000, {}),
]


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def buffers(name: str, n_envs: int, n_steps: int) -> list[tuple[Callable[[], None], Callable[[], Any]]]:
    """Of SB3 and ours: an add and a sample of a full buffer."""
    (width, action), found = SHAPES[name], []
    own = sb3.ReplayBuffer if n_steps == 1 else sb3.NStepReplayBuffer
    options = {"n_steps": n_steps} if n_steps > 1 else {}
    observations = np.random.default_rng(0).random((EPISODE + 1, n_envs, width), np.float32)
    dones = [np.full(n_envs, step == EPISODE - 1) for step in range(EPISODE)]
    chosen = np.stack([np.atleast_1d(action.sample()) for _ in range(n_envs)])
    rewards, infos = np.ones(n_envs, np.float32), [{"TimeLimit.truncated": False} for _ in range(n_envs)]
    for kind in (own, ReplayBuffer):
        space = spaces.Box(0, 1, (width,), np.float32)
        buffer = kind(CAPACITY, space, action, device="cpu", n_envs=n_envs, **options)

        def add(buffer: Any = buffer, step: list[int] = [0]) -> None:  # noqa: B006 - counts the steps of this buffer
            at = step[0] = (step[0] + 1) % EPISODE
            buffer.add(observations[at], observations[at + 1], chosen, rewards, dones[at], infos)

        for _ in range(CAPACITY // n_envs + EPISODE):
            add()
        found.append((add, lambda buffer=buffer: buffer.sample(256)))
    return found


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: SB3, ours, ratio (above 1: ours is faster)")
    for name in SHAPES:
        for n_steps in (1, 3):
            for n_envs in (1, 8):
                pair = buffers(name, n_envs, n_steps)
                for what, place, times in (("add", 0, 200), ("sample 256", 1, 40)):
                    rounds = [[seconds(calls[place], times) * 1e6 for calls in pair] for _ in range(ROUNDS)]
                    theirs, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
                    line = f"{name}, n_steps={n_steps}, n_envs={n_envs}, {what}"
                    print(f"{line:45} {theirs:7.2f} {ours:7.2f} {theirs / ours:6.2f}", flush=True)


def trainings(seeds: int) -> None:
    print("\nreturn after training, mean of 20 episodes, and seconds: SB3, ours")
    for algorithm, env, steps, options in JOBS:
        for seed in range(seeds):
            row = []
            for kind in (None, ReplayBuffer):
                model = algorithm("MlpPolicy", env, replay_buffer_class=kind, buffer_size=50_000, seed=seed, **options)
                begin = time.perf_counter()
                model.learn(steps)
                taken = time.perf_counter() - begin
                reward, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=20)
                row.append((reward, taken))
            (a, b), (c, d) = row
            print(f"{algorithm.__name__} {env} seed {seed}: {a:9.2f} {c:9.2f}   {b:6.1f} s {d:6.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    speeds()
    trainings(given.runs)
