"""skrl's own memory beside ours: speed of add and sample, and whole training runs.

`python -m bench.adapters.skrl [--runs SEEDS]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from skrl.utils.model_instantiators.torch import categorical_model, deterministic_model, gaussian_model

from di_store.adapters.skrl import Memory

ROUNDS, CAPACITY, ENVS = 41, 20_000, 4
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
        memory = kind(memory_size=10_000, num_envs=ENVS, device="cpu", replacement=True)
    else:
        models = {
            "policy": categorical_model(network=NETWORK, output="ACTIONS", **given),
            "value": deterministic_model(network=NETWORK, output="ONE", **given),
        }
        cfg = PPO_CFG(rollouts=128, learning_epochs=4, mini_batches=4, learning_rate=1e-3)
        memory = kind(memory_size=128, num_envs=ENVS, device="cpu")
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    return (SAC if algorithm == "SAC" else PPO)(models=models, memory=memory, cfg=cfg, **given)


class Returns(gymnasium.vector.VectorWrapper):
    """Keeps the returns of the episodes."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.returns: list[float] = []
        self._sums = [0.0] * ENVS

    def step(self, actions: Any) -> Any:
        found = self.env.step(actions)
        for number, (reward, ended, cut) in enumerate(zip(*found[1:4], strict=True)):
            self._sums[number] += float(reward)
            if ended or cut:
                self.returns.append(self._sums[number])
                self._sums[number] = 0.0
        return found


def trainings(seeds: int) -> None:
    print("\nmean return of the last 50 episodes, and seconds of CPU: skrl, ours")
    for algorithm, name, steps in (("SAC", "Pendulum-v1", 1_500), ("PPO", "CartPole-v1", 12_800)):
        for seed in range(seeds):
            row = []
            for kind in (RandomMemory, Memory) if seed % 2 else (Memory, RandomMemory):
                set_seed(seed)
                inner = Returns(gymnasium.make_vec(name, num_envs=ENVS))
                env = wrap_env(inner)
                cfg = {"timesteps": steps, "headless": True, "disable_progressbar": True}
                trainer = SequentialTrainer(cfg=cfg, env=env, agents=agent(algorithm, kind, env))
                begin = time.process_time()
                trainer.train()
                row.append((kind is Memory, statistics.mean(inner.returns[-50:]), time.process_time() - begin))
            (_, a, b), (_, c, d) = sorted(row)
            print(f"{algorithm} {name} seed {seed}: {a:8.2f} {c:8.2f}   {b:6.1f} s {d:6.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    speeds()
    trainings(given.runs)
