"""Tianshou's own replay buffers beside ours: speed of add and sample, and whole training runs.

`python -m bench.adapters.tianshou [--adds PATH | --runs SEEDS]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou import data as theirs
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, CollectStats
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

from bench.adapters import turns
from di_store.adapters import tianshou as ours

ROUNDS, CAPACITY, EPISODE = 41, 20_000, 100
SHAPES = {"4 floats": ((4,), np.float32), "84x84 bytes": ((84, 84), np.uint8)}
KINDS: dict[str, dict[str, Any]] = {
    "ReplayBuffer": {"size": CAPACITY},
    "VectorReplayBuffer": {"total_size": CAPACITY, "buffer_num": 8},
    "PrioritizedVectorReplayBuffer": {"total_size": CAPACITY, "buffer_num": 8, "alpha": 0.6, "beta": 0.4},
}


def buffers(kind: str, shape: str) -> list[dict[str, Callable[[], Any]]]:
    """Of Tianshou and ours: an add, and samples of a full buffer."""
    lanes = KINDS[kind].get("buffer_num", 1)
    size, dtype = SHAPES[shape]
    values = np.random.default_rng(0).integers(0, 255, (EPISODE + 1, lanes, *size)).astype(dtype)
    steps = [step_of(values[step], values[step + 1], step == EPISODE - 1) for step in range(EPISODE)]
    found = []
    for module in (theirs, ours):
        buffer, ids = getattr(module, kind)(**KINDS[kind]), np.arange(lanes)

        def add(buffer: Any = buffer, at: list[int] = [0]) -> None:  # noqa: B006 - counts the steps of this buffer
            at[0] = (at[0] + 1) % EPISODE
            buffer.add(steps[at[0]], ids)  # noqa: B023 - the same for both

        for _ in range(CAPACITY // lanes + EPISODE):
            add()
        calls = {"add": add}
        for n in (64, 256):
            calls[f"sample {n}"] = lambda buffer=buffer, n=n: buffer.sample(n)
        found.append(calls)
    return found


def step_of(obs: Any, following: Any, ends: bool) -> Batch:
    """A step of all environments."""
    lanes = len(obs)
    batch = Batch(obs=obs, act=np.ones(lanes, int), rew=np.ones(lanes), terminated=np.full(lanes, ends))
    batch.truncated, batch.obs_next = np.zeros(lanes, bool), following
    batch.info = Batch(env_id=np.arange(lanes))
    return batch


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: Tianshou, ours, ratio (above 1: ours is faster)")
    for shape in SHAPES:
        for kind in KINDS:
            pair = buffers(kind, shape)
            for what in pair[0]:
                times = 100 if what == "add" else 20
                rounds = [[turns.seconds(calls[what], times) * 1e6 for calls in pair] for _ in range(ROUNDS)]
                own, mine = (statistics.median(each) for each in zip(*rounds, strict=True))
                print(f"{shape:11} {kind:30} {what:10} {own:8.1f} {mine:8.1f} {own / mine:6.2f}", flush=True)


def first_adds() -> list[dict[str, Any]]:
    """`add` of 8 environments' images, also while a buffer fills for the first time."""
    print(f"\nadd, microseconds of CPU time, medians of {turns.ROUNDS} rounds: Tianshou, ours, ratio, others")
    lines = turns.adds("8 x 84x84x4 bytes", made((84, 84, 4), 500), 500, 1_000, 50)
    return lines + turns.adds("8 x 84x84 bytes", made((84, 84), 2_000), 2_000, 2_000, 50)


def made(shape: tuple[int, ...], size: int) -> dict[str, turns.Make]:
    """Of Tianshou's buffer for 8 environments and of ours."""
    lanes = 8
    values = np.random.default_rng(0).integers(0, 255, (EPISODE + 1, lanes, *shape), np.uint8)
    steps = [step_of(values[step], values[step + 1], step == EPISODE - 1) for step in range(EPISODE)]

    def make(module: Any) -> Callable[[int], None]:
        buffer, ids, at = module.VectorReplayBuffer(total_size=size * lanes, buffer_num=lanes), np.arange(lanes), 0

        def add(count: int) -> None:
            nonlocal at
            for _ in range(count):
                buffer.add(steps[at], ids)
                at = (at + 1) % EPISODE

        return add

    return {"theirs": lambda: make(theirs), "ours": lambda: make(ours)}


def train(module: Any, kind: str, seed: int) -> tuple[float, float]:
    """DQN on CartPole as in Tianshou's test/discrete/test_dqn.py. Returns the mean return, and seconds of CPU."""
    training, testing = (DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 10) for _ in range(2))
    np.random.seed(seed)
    torch.manual_seed(seed)
    training.seed(seed)
    testing.seed(seed)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=[128, 128, 128, 128]),
        action_space=training.action_space[0],
        observation_space=training.observation_space[0],
        eps_training=0.1,
        eps_inference=0.0,
    )
    optim = AdamOptimizerFactory(lr=1e-3)
    algorithm = DQN(policy=policy, optim=optim, gamma=0.9, n_step_return_horizon=3, target_update_freq=320)
    buffer = getattr(module, kind)(**KINDS[kind] | {"buffer_num": 10}, random_seed=seed)
    collector = Collector[CollectStats](algorithm, training, buffer, exploration_noise=True)
    begin = time.process_time()
    with policy_within_training_step(policy):
        collector.reset()
        collector.collect(n_step=640)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=2,
            epoch_num_steps=10_000,
            collection_step_num_env_steps=10,
            batch_size=64,
            update_step_num_gradient_steps_per_sample=0.1,
            show_progress=False,
            verbose=False,
        )
    )
    taken = time.process_time() - begin
    tester = Collector[CollectStats](algorithm, testing)
    tester.reset()
    return float(np.mean(tester.collect(n_episode=50).returns)), taken


def trainings(seeds: int) -> None:
    print("\nreturn after training, mean of 50 episodes, and seconds of CPU: Tianshou, ours")
    for kind in ("VectorReplayBuffer", "PrioritizedVectorReplayBuffer"):
        ratios = []
        for seed in range(seeds):
            order = (theirs, ours) if seed % 2 else (ours, theirs)
            results = {module: train(module, kind, seed) for module in order}
            (a, b), (c, d) = results[theirs], results[ours]
            ratios.append(d / b)
            print(f"DQN CartPole-v1, {kind}, seed {seed}: {a:7.2f} {c:7.2f}   {b:6.1f} s {d:6.1f} s", flush=True)
        if ratios:
            print(f"time, ours / Tianshou's: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    parser.add_argument("--adds", type=Path, metavar="PATH", help="measure only `add` by CPU time, into a JSON file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.adds:
        versions = {name: version(name) for name in ("tianshou", "numpy")}
        turns.write(given.adds, f"python -m bench.adapters.tianshou --adds {given.adds}", versions, first_adds())
        raise SystemExit
    if not given.runs:
        speeds()
        first_adds()
    trainings(given.runs)
