"""DI-engine's own replay buffer beside ours: speed of push and sample, and whole training runs of its DQN pipeline.

`python -m bench.adapters.ding [--runs SEEDS] [--priority]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import cycle
from typing import Any

import gym
import torch
import treetensor.torch as ttorch
from ding.config import compile_config
from ding.data import DequeBuffer
from ding.data.buffer.middleware import PriorityExperienceReplay
from ding.envs import BaseEnvManagerV2, DingEnvWrapper
from ding.framework import ding_init, task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
)
from ding.model import DQN
from ding.policy import DQNPolicy
from ding.utils import set_pkg_seed
from ditk import logging
from easydict import EasyDict

from di_store.adapters.ding import Buffer

ROUNDS, CAPACITY, ITERATIONS, EPISODES = 21, 20_000, 250, 20
KINDS: tuple[Any, ...] = (DequeBuffer, Buffer)


def configuration(seed: int, folder: str, priority: bool) -> EasyDict:
    """DI-engine's `cartpole_dqn_config`, which evaluates at the end only."""
    policy = {
        "cuda": False,
        "priority": priority,
        "priority_IS_weight": priority,
        "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [128, 128, 64], "dueling": True},
        "nstep": 1,
        "discount_factor": 0.97,
        "learn": {"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.001},
        "collect": {"n_sample": 8, "unroll_len": 1},
        "eval": {"evaluator": {"eval_freq": 10**9}},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10_000},
            "replay_buffer": {"replay_buffer_size": CAPACITY},
        },
    }
    env = {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": EPISODES, "stop_value": 10**9}
    main = EasyDict(exp_name=f"{folder}/dqn", seed=seed, env=env, policy=policy)
    return compile_config(main, policy=DQNPolicy, env_manager=BaseEnvManagerV2, seed=seed, save_cfg=False)


def environments(count: int, cfg: EasyDict) -> Any:
    return BaseEnvManagerV2([lambda: DingEnvWrapper(gym.make("CartPole-v0")) for _ in range(count)], cfg.env.manager)


def train(kind: Any, seed: int, priority: bool) -> tuple[float, float]:
    """Seconds of CPU time of a run, which has one thread, and the mean return of episodes after it."""
    with tempfile.TemporaryDirectory() as folder, task.start(async_mode=False, ctx=OnlineRLContext()):
        cfg = configuration(seed, folder, priority)
        ding_init(cfg)
        envs, evaluated = environments(8, cfg), environments(5, cfg)
        set_pkg_seed(seed, use_cuda=False)
        model, buffer = DQN(**cfg.policy.model), kind(size=CAPACITY)
        policy = DQNPolicy(cfg.policy, model=model)
        if priority:
            buffer.use(PriorityExperienceReplay(buffer, IS_weight=True))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        begin = time.process_time()
        task.run(max_step=ITERATIONS)
        taken = time.process_time() - begin
        interaction_evaluator(cfg, policy.eval_mode, evaluated)(task.ctx)
        return taken, float(task.ctx.eval_value)


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def transitions(count: int) -> list[Any]:
    """What a collector pushes for CartPole."""
    numbers = [ttorch.as_tensor({"obs": torch.randn(4), "next_obs": torch.randn(4)}) for _ in range(count)]
    for tree in numbers:
        tree.action, tree.done = torch.tensor([1]), torch.tensor([False])
        tree.reward, tree.collect_train_iter, tree.env_data_id = torch.ones(1), torch.tensor([7]), torch.tensor([0])
    return numbers


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: DI-engine, ours, ratio (above 1: ours is faster)")
    data = transitions(1_000)
    for name in ("plain", "priority"):
        pair = [kind(size=CAPACITY) for kind in KINDS]
        for buffer in pair:
            if name == "priority":
                buffer.use(PriorityExperienceReplay(buffer))
            for step in range(CAPACITY):
                buffer.push(data[step % len(data)])
        for what, times in (("push", 1_000), ("push of 1,000", 1_000), ("sample 64", 20)):
            pushed = cycle(data[:1] if what == "push" else data)
            rounds = []
            for _ in range(ROUNDS):
                calls = [
                    (lambda b=b: b.sample(64)) if what == "sample 64" else (lambda b=b: b.push(next(pushed)))  # noqa: B023
                    for b in pair
                ]
                rounds.append([seconds(call, times) * 1e6 for call in calls])
            theirs, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
            print(f"{name + ', ' + what:23} {theirs:8.1f} {ours:8.1f} {theirs / ours:6.2f}", flush=True)


def trainings(seeds: int, priority: bool) -> None:
    print(f"\n{ITERATIONS} iterations: return after training, and CPU seconds: DI-engine, ours, ratio")
    ratios = []
    for seed in range(seeds):
        order = KINDS if seed % 2 else KINDS[::-1]
        runs = {kind: train(kind, seed, priority) for kind in order}
        (a, b), (c, d) = (runs[kind] for kind in KINDS)
        ratios.append(c / a)
        print(f"seed {seed}: {b:7.1f} {d:7.1f}   {a:6.2f} s {c:6.2f} s {c / a:5.3f}", flush=True)
    if ratios:
        print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    parser.add_argument("--priority", action="store_true", help="train with prioritized replay")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    speeds()
    trainings(given.runs, given.priority)
