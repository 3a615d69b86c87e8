"""Replay buffers that live in one process: what they reach without sharing anything with anybody.

Environment: ``bench/peers/inprocess.txt``. From the repository root: ``python -m bench.peers.inprocess_bench``. The
loads are those of ``bench/measure.py`` that hold transitions (56 KB, 2 KB).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cpprb  # type: ignore[import-not-found,import-untyped,unused-ignore]
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer as Sb3Buffer  # type: ignore[import-not-found,unused-ignore]
from tensordict import TensorDict  # type: ignore[import-not-found,unused-ignore]
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer  # type: ignore[import-not-found,unused-ignore]
from torchrl.data import (  # type: ignore[import-not-found,unused-ignore]
    LazyMemmapStorage,
    LazyTensorStorage,
    TensorDictReplayBuffer,
)

from bench.measure import LOADS, Load, Meter, arguments

ALPHA, BETA = 0.6, 0.4
EXTEND, UPDATE = 100, 32


def fill(load: Load, add: Callable[[], object], items: int = 1) -> None:
    """Add until the buffer is full."""
    for _ in range(load.capacity // items):
        add()


def run_cpprb(load: Load, meter: Meter) -> None:
    """cpprb, prioritized."""
    step = load.step()
    columns = {name: {"shape": np.asarray(leaf).shape or 1, "dtype": leaf.dtype} for name, leaf in step.items()}
    buffer = cpprb.PrioritizedReplayBuffer(load.capacity, columns, alpha=ALPHA)
    fill(load, lambda: buffer.add(**step))
    meter.take(load.name, "cpprb append", lambda: buffer.add(**step))
    meter.take(load.name, "cpprb sample", lambda: buffer.sample(load.batch, beta=BETA), load.batch)
    places = buffer.sample(load.batch, beta=BETA)["indexes"]
    ones = np.ones(load.batch)
    meter.take(load.name, "cpprb update", lambda: buffer.update_priorities(places, ones), load.batch)
    if load.batch > UPDATE:
        few, priorities = places[:UPDATE], ones[:UPDATE]
        meter.take(load.name, "cpprb update of 32", lambda: buffer.update_priorities(few, priorities), UPDATE)


def run_cpprb_uniform(load: Load, meter: Meter) -> None:
    """Without priorities: cpprb."""
    step = load.step()
    columns = {name: {"shape": np.asarray(leaf).shape or 1, "dtype": leaf.dtype} for name, leaf in step.items()}
    buffer = cpprb.ReplayBuffer(load.capacity, columns)
    fill(load, lambda: buffer.add(**step))
    meter.take(load.name, "cpprb uniform append", lambda: buffer.add(**step))
    meter.take(load.name, "cpprb uniform sample", lambda: buffer.sample(load.batch), load.batch)


def run_torchrl(load: Load, meter: Meter) -> None:
    """TorchRL, uniform, with tensor and with memmap storage (its priority trees do not load beside this torch)."""
    leaves = {name: torch.from_numpy(np.stack([leaf] * EXTEND)) for name, leaf in load.step().items()}
    many = TensorDict(leaves, [EXTEND])
    for storage in (LazyTensorStorage, LazyMemmapStorage):
        buffer = TensorDictReplayBuffer(storage=storage(load.capacity), batch_size=load.batch)
        name = f"torchrl {storage.__name__}"
        fill(load, partial(buffer.extend, many), EXTEND)
        meter.take(load.name, f"{name} extend", partial(buffer.extend, many), EXTEND)
        meter.take(load.name, f"{name} sample", buffer.sample, load.batch)


def run_sb3(load: Load, meter: Meter) -> None:
    """Stable-Baselines3, uniform."""
    step = load.step()
    observation = np.asarray(step["observation"])
    low, high = (0, 255) if observation.dtype == np.uint8 else (0, 1)
    space = gym.spaces.Box(low, high, observation.shape, observation.dtype.type)
    action = np.asarray(step["action"])
    actions: Any = gym.spaces.Box(0, 1, action.shape) if action.shape else gym.spaces.Discrete(4)
    buffer = Sb3Buffer(load.capacity, space, actions, device="cpu")
    now, following = observation[None], np.asarray(step["following"])[None]
    one, zero = np.ones(1), np.zeros(1)

    def add() -> None:
        buffer.add(now, following, action[None], one, zero, [{}])

    fill(load, add)
    meter.take(load.name, "sb3 append", add)
    meter.take(load.name, "sb3 sample", lambda: buffer.sample(load.batch), load.batch)

    def loop() -> None:
        add()
        buffer.sample(load.batch)

    meter.take(load.name, "sb3 loop", loop)


def run_tianshou(load: Load, meter: Meter) -> None:
    """Tianshou, prioritized and uniform."""
    step = load.step()
    row: dict[str, Any] = {"obs": step["observation"], "obs_next": step["following"], "act": step["action"]}
    row |= {"rew": 1.0, "info": {}}

    def add(buffer: Any) -> None:
        buffer.add(Batch(terminated=False, truncated=False, **row))

    by_priority = PrioritizedReplayBuffer(load.capacity, alpha=ALPHA, beta=BETA)
    fill(load, lambda: add(by_priority))
    meter.take(load.name, "tianshou append", lambda: add(by_priority))
    meter.take(load.name, "tianshou sample", lambda: by_priority.sample(load.batch), load.batch)
    places = by_priority.sample(load.batch)[1]
    ones = np.ones(load.batch)
    meter.take(load.name, "tianshou update", lambda: by_priority.update_weight(places, ones), load.batch)
    uniform = ReplayBuffer(load.capacity)
    fill(load, lambda: add(uniform))
    meter.take(load.name, "tianshou uniform sample", lambda: uniform.sample(load.batch), load.batch)


def main() -> None:
    args = arguments("in-process buffers", loads=("56KB,2KB,105B", "which loads"))
    warnings.filterwarnings("ignore")
    meter = Meter("inprocess", args.seconds, args.repeats, args.only)
    for name in args.loads.split(","):
        for run in (run_cpprb, run_cpprb_uniform, run_torchrl, run_sb3, run_tianshou):
            run(LOADS[name], meter)


if __name__ == "__main__":
    main()
