"""Measures replay buffers of a single process, which share nothing with other processes.

Environment: ``bench/peers/inprocess.txt``. From the repository root: ``python -m bench.peers.inprocess_bench``.
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

from bench.measure import ELEMENTS, Element, Script, arguments

ALPHA, BETA = 0.6, 0.4
EXTEND, UPDATE = 100, 32


def fill(element: Element, add: Callable[[], object], items: int = 1) -> None:
    """Add until the buffer is full."""
    for _ in range(element.capacity // items):
        add()


def run_cpprb(element: Element, script: Script) -> None:
    """cpprb, prioritized and uniform."""
    step = element.step()
    columns = {name: {"shape": np.asarray(leaf).shape or 1, "dtype": leaf.dtype} for name, leaf in step.items()}
    buffer = cpprb.PrioritizedReplayBuffer(element.capacity, columns, alpha=ALPHA)
    fill(element, lambda: buffer.add(**step))
    script.take(element.name, "cpprb append", lambda: buffer.add(**step))
    script.take(element.name, "cpprb sample", lambda: buffer.sample(element.batch, beta=BETA), element.batch)
    places = buffer.sample(element.batch, beta=BETA)["indexes"]
    ones = np.ones(element.batch)
    script.take(element.name, "cpprb update", lambda: buffer.update_priorities(places, ones), element.batch)
    if element.batch > UPDATE:
        few, priorities = places[:UPDATE], ones[:UPDATE]
        script.take(element.name, "cpprb update of 32", lambda: buffer.update_priorities(few, priorities), UPDATE)
    uniform = cpprb.ReplayBuffer(element.capacity, columns)
    fill(element, lambda: uniform.add(**step))
    script.take(element.name, "cpprb uniform append", lambda: uniform.add(**step))
    script.take(element.name, "cpprb uniform sample", lambda: uniform.sample(element.batch), element.batch)


def run_torchrl(element: Element, script: Script) -> None:
    """TorchRL, uniform, with tensor and with memmap storage (its priority trees do not load with this torch)."""
    leaves = {name: torch.from_numpy(np.stack([leaf] * EXTEND)) for name, leaf in element.step().items()}
    many = TensorDict(leaves, [EXTEND])
    for storage in (LazyTensorStorage, LazyMemmapStorage):
        buffer = TensorDictReplayBuffer(storage=storage(element.capacity), batch_size=element.batch)
        name = f"torchrl {storage.__name__}"
        fill(element, partial(buffer.extend, many), EXTEND)
        script.take(element.name, f"{name} extend", partial(buffer.extend, many), EXTEND)
        script.take(element.name, f"{name} sample", buffer.sample, element.batch)


def run_sb3(element: Element, script: Script) -> None:
    """Stable-Baselines3, uniform."""
    step = element.step()
    observation = np.asarray(step["observation"])
    low, high = (0, 255) if observation.dtype == np.uint8 else (0, 1)
    space = gym.spaces.Box(low, high, observation.shape, observation.dtype.type)
    action = np.asarray(step["action"])
    actions: Any = gym.spaces.Box(0, 1, action.shape) if action.shape else gym.spaces.Discrete(4)
    buffer = Sb3Buffer(element.capacity, space, actions, device="cpu")
    now, following = observation[None], np.asarray(step["following"])[None]
    one, zero = np.ones(1), np.zeros(1)

    def add() -> None:
        buffer.add(now, following, action[None], one, zero, [{}])

    fill(element, add)
    script.take(element.name, "sb3 append", add)
    script.take(element.name, "sb3 sample", lambda: buffer.sample(element.batch), element.batch)

    def loop() -> None:
        add()
        buffer.sample(element.batch)

    script.take(element.name, "sb3 loop", loop)


def run_tianshou(element: Element, script: Script) -> None:
    """Tianshou, prioritized and uniform."""
    step = element.step()
    row: dict[str, Any] = {"obs": step["observation"], "obs_next": step["following"], "act": step["action"]}
    row |= {"rew": 1.0, "info": {}}

    def add(buffer: Any) -> None:
        buffer.add(Batch(terminated=False, truncated=False, **row))

    by_priority = PrioritizedReplayBuffer(element.capacity, alpha=ALPHA, beta=BETA)
    fill(element, lambda: add(by_priority))
    script.take(element.name, "tianshou append", lambda: add(by_priority))
    script.take(element.name, "tianshou sample", lambda: by_priority.sample(element.batch), element.batch)
    places = by_priority.sample(element.batch)[1]
    ones = np.ones(element.batch)
    script.take(element.name, "tianshou update", lambda: by_priority.update_weight(places, ones), element.batch)
    uniform = ReplayBuffer(element.capacity)
    fill(element, lambda: add(uniform))
    script.take(element.name, "tianshou uniform sample", lambda: uniform.sample(element.batch), element.batch)


def main() -> None:
    args = arguments("in-process buffers", loads=("56KB,2KB,105B", "which elements"))
    warnings.filterwarnings("ignore")
    script = Script("inprocess", args.seconds, args.repeats, args.only)
    for name in args.loads.split(","):
        for run in (run_cpprb, run_torchrl, run_sb3, run_tianshou):
            run(ELEMENTS[name], script)


if __name__ == "__main__":
    main()
