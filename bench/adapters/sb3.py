"""Stable-Baselines3's own replay buffer beside ours: speed of add and sample, and whole training runs.

`python -m bench.adapters.sb3 [--adds PATH | --runs SEEDS [--job DQN|SAC|PPO] [--write PATH]]`; training takes
some minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.evaluation import evaluate_policy

from bench.adapters import turns
from di_store.adapters.sb3 import ReplayBuffer, RolloutBuffer

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
    (DQN, "CartPole-v1", 30_000, {"buffer_size": 50_000, **DQN_OPTIONS}),
    (SAC, "Pendulum-v1", 3_000, {"buffer_size": 50_000}),
    (PPO, "CartPole-v1", 20_000, {}),
]


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


def rollouts(n_envs: int) -> list[tuple[Callable[[], None], Callable[[], Any]]]:
    """Of SB3 and ours: an add to a rollout of 2,048 steps, and an epoch of batches of 64."""
    steps, found = 2_048 // n_envs, []
    space, rng = spaces.Box(0, 1, (4,), np.float32), np.random.default_rng(0)
    obs, action = rng.random((n_envs, 4), np.float32), np.zeros((n_envs, 1), np.int64)
    reward, start = np.ones(n_envs, np.float32), np.zeros(n_envs, bool)
    value, log_prob = torch.zeros(n_envs, 1), torch.zeros(n_envs)
    for kind in (sb3.RolloutBuffer, RolloutBuffer):
        buffer = kind(steps, space, spaces.Discrete(2), device="cpu", n_envs=n_envs)

        def add(buffer: Any = buffer) -> None:
            if buffer.full:
                buffer.reset()
            buffer.add(obs, action, reward, start, value, log_prob)

        def epoch(buffer: Any = buffer, add: Any = add) -> None:
            while not buffer.full:
                add()
            for _ in buffer.get(64):
                pass

        found.append((add, epoch))
    return found


def compare(label: str, calls: tuple[Callable[[], Any], ...], times: int) -> None:
    """Print the time of SB3's call and of ours."""
    for call in calls:
        call()
    rounds = [[turns.seconds(call, times) * 1e6 for call in calls] for _ in range(ROUNDS)]
    theirs, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
    print(f"{label:45} {theirs:8.2f} {ours:8.2f} {theirs / ours:6.2f}", flush=True)


def speeds() -> None:
    print(f"microseconds, medians of {ROUNDS} alternating rounds: SB3, ours, ratio (above 1: ours is faster)")
    for name in SHAPES:
        for n_steps in (1, 3):
            for n_envs in (1, 8):
                pair = buffers(name, n_envs, n_steps)
                for what, place, times in (("add", 0, 200), ("sample 256", 1, 40)):
                    line = f"{name}, n_steps={n_steps}, n_envs={n_envs}, {what}"
                    compare(line, tuple(calls[place] for calls in pair), times)
    for n_envs in (1, 8):
        pair = rollouts(n_envs)
        compare(f"rollout, n_envs={n_envs}, add", tuple(calls[0] for calls in pair), 2_048 // n_envs)
        compare(f"rollout, n_envs={n_envs}, epoch of 2,048 in 64s", tuple(calls[1] for calls in pair), 1)


def first_adds() -> list[dict[str, Any]]:
    """`add` of images and of small steps, also while a buffer fills for the first time."""
    print(f"\nadd, microseconds of CPU time, medians of {turns.ROUNDS} rounds: SB3, ours, ours by SB3's, others")
    image, frame = ((84, 84, 4), np.uint8), ((84, 84, 1), np.uint8)
    lines = turns.adds("images 84x84x4, 8 environments", made(*image, 8, 500), 500, 1_000, 50)
    lines += turns.adds("images 84x84, 8 environments", made(*frame, 8, 2_000), 2_000, 2_000, 50)
    lines += turns.adds("images 84x84x4, 1 environment", made(*image, 1, 4_000), 4_000, 4_000, 100)
    lines += turns.adds("4 floats, 8 environments", made((4,), np.float32, 8, 20_000), 20_000, 20_000, 500)
    # As with SB3's default buffer_size: a run of 100,000 steps never gets behind that.
    return lines + turns.adds("4 floats, buffer of 1,000,000", made((4,), np.float32, 1, 1_000_000), 100_000, 0, 1_000)


def made(shape: tuple[int, ...], dtype: Any, n_envs: int, size: int) -> dict[str, turns.Make]:
    """Of SB3's buffer and of ours."""
    high = 255 if dtype is np.uint8 else 1
    space, rng = spaces.Box(0, high, shape, dtype), np.random.default_rng(0)
    observations = (rng.random((EPISODE + 1, n_envs, *shape), np.float32) * high).astype(dtype)
    dones = [np.full(n_envs, step == EPISODE - 1) for step in range(EPISODE)]
    action, reward = np.zeros((n_envs, 1), np.int64), np.ones(n_envs, np.float32)
    infos: list[dict[str, Any]] = [{} for _ in range(n_envs)]

    def make(kind: Any) -> Callable[[int], None]:
        buffer, at = kind(size * n_envs, space, spaces.Discrete(4), device="cpu", n_envs=n_envs), 0

        def add(count: int) -> None:
            nonlocal at
            for _ in range(count):
                buffer.add(observations[at], observations[at + 1], action, reward, dones[at], infos)
                at = (at + 1) % EPISODE

        return add

    return {"theirs": lambda: make(sb3.ReplayBuffer), "ours": lambda: make(ReplayBuffer)}


def trainings(seeds: int, only: str | None) -> list[dict[str, Any]]:
    print("\nreturn after training, mean of 20 episodes; seconds of CPU, and by the clock: SB3, ours")
    found = []
    for algorithm, env, steps, options in JOBS:
        for seed in range(seeds if only in (None, algorithm.__name__) else 0):
            row: dict[str, Any] = {"algorithm": algorithm.__name__, "env": env, "steps": steps, "seed": seed}
            for name in ("sb3", "di_store") if seed % 2 else ("di_store", "sb3"):
                chosen = (
                    {"rollout_buffer_class": RolloutBuffer}
                    if algorithm is PPO
                    else {"replay_buffer_class": ReplayBuffer}
                )
                model = algorithm("MlpPolicy", env, seed=seed, **options, **(chosen if name == "di_store" else {}))
                begin = time.process_time(), time.perf_counter()
                model.learn(steps)
                row[f"{name}_cpu_seconds"] = round(time.process_time() - begin[0], 3)
                row[f"{name}_seconds"] = round(time.perf_counter() - begin[1], 3)
                row[f"{name}_return"] = round(float(evaluate_policy(model, model.get_env(), n_eval_episodes=20)[0]), 2)
            found.append(row)
            figures = [
                row[f"{name}_{what}"] for what in ("return", "cpu_seconds", "seconds") for name in ("sb3", "di_store")
            ]
            print(f"{row['algorithm']} {env} seed {seed}: " + " ".join(f"{each:9.2f}" for each in figures), flush=True)
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By job: returns, and ours over SB3's time, all seeds together and by seed."""
    found = []
    for algorithm, env, steps, _ in JOBS:
        if not (mine := [row for row in rows if row["algorithm"] == algorithm.__name__]):
            continue
        line: dict[str, Any] = {"algorithm": algorithm.__name__, "env": env, "steps": steps, "seeds": len(mine)}
        for name in ("sb3", "di_store"):
            returns = [row[f"{name}_return"] for row in mine]
            line[f"{name}_return"] = {"mean": round(statistics.mean(returns), 2), "range": [min(returns), max(returns)]}
        for clock in ("cpu_seconds", "seconds"):
            line[f"ratio_{clock}"] = round(
                sum(row[f"di_store_{clock}"] for row in mine) / sum(row[f"sb3_{clock}"] for row in mine), 3
            )
            line[f"median_ratio_{clock}"] = round(
                statistics.median(row[f"di_store_{clock}"] / row[f"sb3_{clock}"] for row in mine), 3
            )
        print(line)
        found.append(line)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    parser.add_argument("--job", choices=[each[0].__name__ for each in JOBS], help="train only with this algorithm")
    parser.add_argument("--write", type=Path, metavar="PATH", help="a JSON file of training runs, kept for other jobs")
    parser.add_argument("--adds", type=Path, metavar="PATH", help="measure only `add` by CPU time, into a JSON file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.adds:
        versions = {"stable_baselines3": stable_baselines3.__version__, "numpy": np.__version__}
        turns.write(given.adds, f"python -m bench.adapters.sb3 --adds {given.adds}", versions, first_adds())
        raise SystemExit
    if not given.write:
        first_adds()
        speeds()
    rows = trainings(given.runs, given.job)
    if given.write:
        if given.write.exists():
            new = {row["algorithm"] for row in rows}
            rows += [row for row in json.loads(given.write.read_text())["runs"] if row["algorithm"] not in new]
        result = {
            "command": f"python -m bench.adapters.sb3 --runs {given.runs} --write {given.write}",
            "versions": {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__},
            "machine": f"{platform.machine()}, 2 shared cores with other work beside, torch on one thread",
            "summary": summary(rows),
            "runs": rows,
        }
        given.write.write_text(json.dumps(result, indent=1) + "\n")
