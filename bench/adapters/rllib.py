"""RLlib's own episode replay buffers beside ours: speed of add and sample, and whole training runs.

`python -m bench.adapters.rllib [--runs SEEDS]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import replay_buffers as theirs

from di_store.adapters import rllib as ours

ROUNDS, CAPACITY, LENGTH = 15, 20_000, 100
STEPS = {"DQN CartPole-v1": 2_000, "SAC Pendulum-v1": 1_200}
SHAPES: dict[str, Any] = {"4 floats": ((4,), np.float32), "84x84x4 bytes": ((84, 84, 4), np.uint8)}
PAIRS = {
    name: (getattr(theirs, name), getattr(ours, name))
    for name in ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
}


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def episode(values: Any, id_: str) -> SingleAgentEpisode:
    """A finished episode."""
    made = SingleAgentEpisode(id_=id_)
    made.add_env_reset(values[0])
    for step in range(1, LENGTH + 1):
        made.add_env_step(values[step], np.int64(0), 1.0, terminated=step == LENGTH)
    return made.to_numpy()


def chunks(values: Any, prefix: str) -> Iterator[SingleAgentEpisode]:
    """Steps of one environment one by one, as DQN adds them, without end."""
    for number in itertools.count():
        current = SingleAgentEpisode(id_=f"{prefix}{number}")
        current.add_env_reset(values[0])
        for step in range(1, LENGTH + 1):
            current.add_env_step(values[step], np.int64(0), 1.0, terminated=step == LENGTH)
            following = current if step == LENGTH else current.cut(1)
            yield current.to_numpy()
            current = following


def calls_of(kind: Any, shape: str) -> dict[str, Callable[[], Any]]:
    """An add, and samples of a full buffer."""
    size, dtype = SHAPES[shape]
    capacity = CAPACITY if shape == "4 floats" else CAPACITY // 10
    values = np.random.default_rng(0).integers(0, 255, (LENGTH + 1, *size)).astype(dtype)
    buffer, count, whole = kind(capacity=capacity), itertools.count(), episode(values, "")

    def add() -> None:
        whole.id_ = f"whole{next(count)}"
        buffer.add(whole)

    def update() -> None:
        buffer.sample(32, n_step=1, beta=0.4)
        buffer.update_priorities(np.random.rand(32).astype(np.float32))

    for _ in range(capacity // LENGTH + 2):
        add()
    steps = iter(list(itertools.islice(chunks(values, "chunk"), 100 * ROUNDS)))
    calls: dict[str, Callable[[], Any]] = {"add 1 step": lambda: buffer.add(next(steps)), f"add {LENGTH} steps": add}
    draw = partial(buffer.sample, gamma=0.99, beta=0.4, sample_episodes=True)
    for n, n_step in ((32, 1), (256, 1), (32, 3)):
        calls[f"sample {n}, n_step {n_step}"] = partial(draw, n, n_step=n_step)
    if kind not in PAIRS["EpisodeReplayBuffer"]:
        return calls | {"sample 32 and update": update}
    calls["sample 256 of 20 steps"] = partial(draw, 256, n_step=1, batch_length_T=20, lookback=1)
    return calls | {"sample 16 x 64 rows": partial(buffer.sample, batch_size_B=16, batch_length_T=64)}


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: RLlib, ours, ratio (above 1: ours is faster)")
    for shape in SHAPES:
        for name, kinds in PAIRS.items():
            pair = [calls_of(kind, shape) for kind in kinds]
            for what in pair[0]:
                times = 100 if what == "add 1 step" else 5
                rounds = [[seconds(calls[what], times) * 1e6 for calls in pair] for _ in range(ROUNDS)]
                own, mine = (statistics.median(each) for each in zip(*rounds, strict=True))
                print(f"{shape:13} {name:30} {what:22} {own:9.1f} {mine:9.1f} {own / mine:6.2f}", flush=True)


def configuration(name: str, kind: Any, seed: int) -> Any:
    """DQN on CartPole or SAC on Pendulum, in one process, on the new API stack."""
    more: dict[str, Any] = {"train_batch_size": 64, "num_steps_sampled_before_learning_starts": 200}
    options = {"type": kind, "capacity": 50_000}
    if name == "DQN CartPole-v1":
        config = DQNConfig().environment("CartPole-v1")
        more |= {"lr": 1e-3, "epsilon": [[0, 1.0], [1_500, 0.05]], "target_network_update_freq": 200}
        options |= {"alpha": 0.6, "beta": 0.4}
    else:
        config = SACConfig().environment("Pendulum-v1")
        more |= {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3}
    config.training(**more, replay_buffer_config=options)
    config.env_runners(num_env_runners=0, rollout_fragment_length=4)
    config.reporting(min_sample_timesteps_per_iteration=STEPS[name], metrics_num_episodes_for_smoothing=10)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
    return config.debugging(seed=seed, log_level="ERROR")


def train(name: str, kind: Any, seed: int) -> tuple[float, float]:
    """The mean return of the last episodes, and seconds of CPU of one iteration."""
    own = kind.__module__.startswith("ray.")  # RLlib 2.60 takes only the names of its own
    algorithm = configuration(name, kind.__name__ if own else kind, seed).build_algo()
    algorithm.local_replay_buffer.rng = np.random.default_rng(seed)
    begin = time.process_time()
    result = algorithm.train()
    taken = time.process_time() - begin
    algorithm.stop()
    return float(result["env_runners"]["episode_return_mean"]), taken


def trainings(seeds: int) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    print("mean return of the last 10 episodes, and seconds of CPU: RLlib, ours")
    for name, which in zip(STEPS, reversed(PAIRS), strict=True):
        train(name, PAIRS[which][1], 100)  # what the first run pays for
        ratios = []
        for seed in range(seeds):
            order = PAIRS[which] if seed % 2 else PAIRS[which][::-1]
            results = {kind: train(name, kind, seed) for kind in order}
            (a, b), (c, d) = (results[kind] for kind in PAIRS[which])
            ratios.append(d / b)
            print(f"{name}, {which}, seed {seed}: {a:9.3f} {c:9.3f}   {b:6.1f} s {d:6.1f} s", flush=True)
        print(f"time, ours / RLlib's: median {statistics.median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="train with that many seeds instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    trainings(given.runs) if given.runs else speeds()
