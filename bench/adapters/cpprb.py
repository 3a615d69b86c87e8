"""cpprb's buffers and the adapter, in turns: `python -m bench.adapters.cpprb [--steps 20000] [--seeds 3]`.

First the costs of single calls, then the program of cpprb's example `dqn.py` in torch: a double DQN with prioritized
3-step replay learns CartPole-v1. Needs di-store[cpprb], torch and gymnasium.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import cpprb
import gymnasium as gym
import numpy as np
import torch

import di_store.adapters.cpprb as adapter

MODULES = {"cpprb": cpprb, "di-store": adapter}
GAMMA, NSTEP = 0.99, 3


def env_dict(width: int) -> dict[str, Any]:
    obs = {"shape": width}
    return {"obs": obs, "act": {"dtype": np.int64}, "rew": {}, "next_obs": dict(obs), "done": {}}


def rows(n: int, width: int) -> dict[str, Any]:
    obs = np.random.rand(n + 1, width).astype(np.float32)
    return {"obs": obs[:-1], "act": np.zeros(n, int), "rew": np.ones(n), "next_obs": obs[1:], "done": np.zeros(n)}


def calls(width: int) -> dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]]:
    """By name: class of the buffer, its options, and what is timed."""
    step, many = {name: each[0] for name, each in rows(1, width).items()}, rows(8, width)
    episode = rows(100, width)
    episode["next_obs"] = np.roll(episode["obs"], -1, axis=0)
    follows = itertools.cycle([{name: each[i] for name, each in episode.items()} for i in range(100)])
    new = np.random.rand(256)
    plain, priority = "ReplayBuffer", "PrioritizedReplayBuffer"
    return {
        "add": (plain, {}, lambda buffer: buffer.add(**step)),
        "add 8": (plain, {}, lambda buffer: buffer.add(**many)),
        "add, next_of": (plain, {"next_of": "obs"}, lambda buffer: buffer.add(**next(follows))),
        "sample 256": (plain, {}, lambda buffer: buffer.sample(256)),
        "sample 256, next_of": (plain, {"next_of": "obs"}, lambda buffer: buffer.sample(256)),
        "add, priorities": (priority, {}, lambda buffer: buffer.add(**step, priorities=0.5)),
        "sample 256, priorities": (priority, {}, lambda buffer: buffer.sample(256)),
        "sample 256 and update": (
            priority,
            {},
            lambda buffer: buffer.update_priorities(buffer.sample(256)["indexes"], new),
        ),
    }


def path(width: int, repeats: int = 500, rounds: int = 9) -> None:
    """Prints the median microseconds of a call of each, of rounds that take turns."""
    for name, (kind, options, call) in calls(width).items():
        env = env_dict(width)
        if options:
            del env["next_obs"]
        buffers = {of: getattr(module, kind)(20_000, dict(env), **options) for of, module in MODULES.items()}
        times: dict[str, list[float]] = {of: [] for of in buffers}
        for buffer in buffers.values():
            for _ in range(25):
                buffer.add(**rows(1_000, width))
        for _ in range(rounds):
            for of, buffer in buffers.items():
                start = time.perf_counter()
                for _ in range(repeats):
                    call(buffer)
                times[of].append((time.perf_counter() - start) / repeats * 1e6)
        theirs, ours = (statistics.median(times[of]) for of in MODULES)
        print(f"{width:5} floats  {name:24} cpprb {theirs:7.1f} µs  di-store {ours:7.1f} µs  {theirs / ours:.2f}x")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )


def learn(model: Any, target: Any, optimizer: Any, buffer: Any, beta: float) -> None:
    batch = buffer.sample(64, beta=beta)
    obs, act, rew, after, done = (torch.as_tensor(batch[name]) for name in ("obs", "act", "rew", "next_obs", "done"))
    with torch.no_grad():
        best = model(after).argmax(1, keepdim=True)
        wanted = rew + GAMMA**NSTEP * (1 - done.clamp(max=1)) * target(after).gather(1, best)
    errors = wanted - model(obs).gather(1, act)
    loss = (torch.as_tensor(batch["weights"])[:, None] * errors.square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    buffer.update_priorities(batch["indexes"], errors.detach().abs().numpy().ravel())


def train(module: Any, seed: int, steps: int) -> tuple[float, float]:
    """Mean return of the last 20 episodes, and seconds."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    rng, env = np.random.default_rng(seed), gym.make("CartPole-v1")
    model, target = network(), network()
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    options = {"Nstep": {"size": NSTEP, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}}
    buffer = module.PrioritizedReplayBuffer(20_000, env_dict(4), **options)
    returns, total, start = [], 0.0, time.perf_counter()
    obs, _ = env.reset(seed=seed)
    for step in range(steps):
        if rng.random() < max(0.05, 1 - step / 5_000):
            action = int(rng.integers(2))
        else:
            with torch.no_grad():
                action = int(model(torch.as_tensor(obs)).argmax())
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs=obs, act=action, rew=reward, next_obs=after, done=float(terminated))
        total, obs = total + float(reward), after
        if terminated or truncated:
            buffer.on_episode_end()
            returns.append(total)
            total, obs = 0.0, env.reset()[0]
        if step >= 1_000:
            learn(model, target, optimizer, buffer, 0.4 + 0.6 * step / steps)
        if step % 500 == 0:
            target.load_state_dict(model.state_dict())
    return float(np.mean(returns[-20:])), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for width in (11, 4_096):
        path(width, repeats=500 if width < 100 else 50)
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {of: [] for of in MODULES}
    for seed in range(given.seeds):
        for of, module in MODULES.items():
            mean, took = train(module, seed, given.steps)
            seconds[of].append(took)
            print(f"seed {seed}  {of:8}  return {mean:5.0f}  {took:5.1f} s")
    theirs, ours = (statistics.median(seconds[of]) for of in MODULES)
    print(f"median time: di-store {ours / theirs:.2f} of cpprb")


if __name__ == "__main__":
    main()
