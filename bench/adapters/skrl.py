"""skrl's own memory beside ours: speed of add and sample, and whole training runs.

`python -m bench.adapters.skrl [--runs SEEDS]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from skrl.utils.model_instantiators.torch import categorical_model, deterministic_model, gaussian_model

from di_store.adapters.skrl import Memory

ROUNDS, CAPACITY = 41, 20_000
TRAININGS = (("SAC", "Pendulum-v1", 4, 1_500), ("PPO", "CartPole-v1", 4, 12_800), ("PPO", "CartPole-v1", 512, 1_920))
"""Algorithm, environment, how many of it, steps of each."""
NETWORK = [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 64], "activations": "relu"}]
CRITIC = [{**NETWORK[0], "input": "concatenate([OBSERVATIONS, ACTIONS])"}]


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def memories(width: int, n_envs: int) -> list[tuple[Callable[[], None], Callable[[], Any], Callable[[], Any]]]:
    """Of skrl and ours: an add, a sample of a full memory, and both in turns as a training calls them."""
    columns: dict[str, tuple[int, Any]] = {
        "observations": (width, torch.float32),
        "next_observations": (width, torch.float32),
        "actions": (1, torch.int64),
        "rewards": (1, torch.float32),
        "terminated": (1, torch.bool),
    }
    samples, found = {}, []
    for name, (size, dtype) in columns.items():
        samples[name] = torch.rand((n_envs, size)).to(dtype)
    for kind in (RandomMemory, Memory):
        memory = kind(memory_size=CAPACITY // n_envs, num_envs=n_envs, device="cpu", replacement=True)
        for name, (size, dtype) in columns.items():
            memory.create_tensor(name, size=size, dtype=dtype)
        for _ in range(CAPACITY // n_envs + 7):
            memory.add_samples(**samples)
        found.append(
            (
                lambda memory=memory: memory.add_samples(**samples),
                lambda memory=memory: memory.sample([*columns], batch_size=256),
                lambda memory=memory: (memory.add_samples(**samples), memory.sample([*columns], batch_size=256)),
            )
        )
    return found


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: skrl, ours, ratio (above 1: ours is faster)")
    for width in (4, 64, 1_024):
        for n_envs in (1, 8, 64, 512):
            pair = memories(width, n_envs)
            for what, place, times in (("add", 0, 200), ("sample 256", 1, 40), ("add, sample 256", 2, 40)):
                rounds = [[seconds(calls[place], times) * 1e6 for calls in pair] for _ in range(ROUNDS)]
                theirs, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
                line = f"{width} floats, num_envs={n_envs}, {what}"
                print(f"{line:40} {theirs:8.2f} {ours:8.2f} {theirs / ours:6.2f}", flush=True)


def agent(algorithm: str, kind: Any, env: Any) -> Any:
    given = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    if algorithm == "SAC":
        critics = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
        models = {name: deterministic_model(network=CRITIC, output="ONE", **given) for name in critics}
        models["policy"] = gaussian_model(network=NETWORK, output="ACTIONS", clip_actions=True, **given)
        cfg = SAC_CFG(batch_size=256, learning_starts=100, learn_entropy=True)
        memory = kind(memory_size=10_000, num_envs=env.num_envs, device="cpu", replacement=True)
    else:
        models = {
            "policy": categorical_model(network=NETWORK, output="ACTIONS", **given),
            "value": deterministic_model(network=NETWORK, output="ONE", **given),
        }
        cfg = PPO_CFG(rollouts=128, learning_epochs=4, mini_batches=4, learning_rate=1e-3)
        memory = kind(memory_size=128, num_envs=env.num_envs, device="cpu")
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    return (SAC if algorithm == "SAC" else PPO)(models=models, memory=memory, cfg=cfg, **given)


class Turns:
    """Two trainings take turns, a step each, so that other work on the machine slows both down alike."""

    def __init__(self) -> None:
        self._changed, self._now, self._ended = threading.Condition(), 0, 0

    def wait(self, me: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now == me)

    def hand_over(self, me: int) -> None:
        """Let the other one take a step. The generators of random numbers are as before afterwards."""
        if self._ended:
            return
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        with self._changed:
            self._now = 1 - me
            self._changed.notify_all()
        self.wait(me)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])

    def end(self, me: int) -> None:
        with self._changed:
            self._now, self._ended = 1 - me, self._ended + 1
            self._changed.notify_all()


class Returns(gymnasium.vector.VectorWrapper):
    """Keeps the returns of the episodes, and hands over to the other training after each step."""

    def __init__(self, env: Any, turns: Turns, me: int) -> None:
        super().__init__(env)
        self.returns: list[float] = []
        self._sums, self._turns, self._me = [0.0] * env.num_envs, turns, me

    def step(self, actions: Any) -> Any:
        found = self.env.step(actions)
        for number, (reward, ended, cut) in enumerate(zip(*found[1:4], strict=True)):
            self._sums[number] += float(reward)
            if ended or cut:
                self.returns.append(self._sums[number])
                self._sums[number] = 0.0
        self._turns.hand_over(self._me)
        return found


def train(training: tuple[str, str, int, int], kind: Any, seed: int, turns: Turns, me: int) -> tuple[float, float]:
    """Mean return of the last 50 episodes, and seconds of CPU."""
    algorithm, name, n_envs, steps = training
    mode = "vector_entry_point" if n_envs > 4 else None  # all in one array
    turns.wait(me)
    try:
        set_seed(seed)
        inner = Returns(gymnasium.make_vec(name, num_envs=n_envs, vectorization_mode=mode), turns, me)
        env = wrap_env(inner)
        cfg = {"timesteps": steps, "headless": True, "disable_progressbar": True}
        trainer = SequentialTrainer(cfg=cfg, env=env, agents=agent(algorithm, kind, env))
        begin = time.thread_time()
        trainer.train()
        return statistics.mean(inner.returns[-50:]), time.thread_time() - begin
    finally:
        turns.end(me)


def trainings(seeds: int) -> None:
    print("\nmean return of the last 50 episodes, and seconds of CPU: skrl, ours, ratio (above 1: ours is slower)")
    for training in TRAININGS:
        title, ratios = "{} {} x {}".format(*training), []
        for seed in range(seeds):
            turns = Turns()
            with ThreadPoolExecutor(2) as pool:
                done = [
                    pool.submit(train, training, kind, seed, turns, (place + seed) % 2)
                    for place, kind in enumerate((RandomMemory, Memory))
                ]
                (a, b), (c, d) = (each.result() for each in done)
            ratios.append(d / b)
            print(f"{title} seed {seed}: {a:8.2f} {c:8.2f}   {b:6.2f} s {d:6.2f} s {d / b:6.3f}", flush=True)
        if ratios:
            print(f"{title}: median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    speeds()
    trainings(given.runs)
