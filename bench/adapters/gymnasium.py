"""The cost of recording a step, by the recorder and by hand: `python -m bench.adapters.gymnasium [--rounds 9]`.

The environments do nothing, so that what is left is the cost of recording. Loops take turns; a figure is the median of
its rounds. With Minari installed, also how fast a dataset is read into a table and written back.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

import di_store
from di_store.adapters.gymnasium import Recorder

LANES = 8


class Still(gym.Env):  # type: ignore[misc,unused-ignore]
    """Returns the same observation always; episodes have 200 steps."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    seen = np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.at = 0
        return self.seen, {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.seen, 1.0, self.at % 200 == 0, False, {}


def stepped(env: Any, action: Any, steps: int, write: Callable[..., Any] | None = None) -> float:
    """Microseconds a step; `write` appends it by hand."""
    obs, _ = env.reset()
    vector = isinstance(env, gym.vector.VectorEnv)
    start = time.perf_counter()
    for _ in range(steps):
        after, reward, terminated, truncated, _ = env.step(action)
        if write is not None:
            row = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            write(row, next={"obs": after})
        obs = env.reset()[0] if not vector and (terminated or truncated) else after
    return (time.perf_counter() - start) / steps * 1e6


def recording(store: di_store.Store, rounds: int, lanes: int | None) -> None:
    def make() -> Any:
        return Still() if lanes is None else SyncVectorEnv([Still] * lanes)

    def table(name: str) -> di_store.Table:
        view, schema = di_store.Transition(), Recorder.schema(make())
        return store.create_table(f"{name} {lanes}", capacity=100_000, view=view, schema=schema)

    action: Any = 1 if lanes is None else np.ones(lanes, np.int64)
    steps = 20_000 if lanes is None else 3_000
    recorder, bare = Recorder(make(), table("recorder")), make()
    writer = table("by hand").writer(lanes=lanes, autoreset=bare.metadata.get("autoreset_mode"))

    def by_hand() -> float:
        writer.end_episode()
        return stepped(bare, action, steps, writer.append)

    loops = {
        "not recorded": lambda: stepped(bare, action, steps),
        "recorder": lambda: stepped(recorder, action, steps),
        "by hand": by_hand,
    }
    times = [[loop() for loop in loops.values()] for _ in range(rounds)]
    for name, column in zip(loops, zip(*times, strict=True), strict=True):
        print(f"{lanes or 1} environments, {name}: {statistics.median(column):.2f} µs a step")
    recorder.close()
    writer.close()


def collecting(rounds: int, steps: int = 5_000) -> None:
    """Minari's own recorder, which keeps all episodes in memory; it needs jax."""
    try:
        import jax  # noqa: F401
        import minari
    except ImportError:
        print("Minari's DataCollector is not installed")
        return
    times = [stepped(minari.DataCollector(Still()), 1, steps) for _ in range(rounds)]
    print(f"1 environment, Minari's DataCollector: {statistics.median(times):.2f} µs a step")


def datasets(store: di_store.Store, steps: int = 200_000) -> None:
    try:
        import minari  # noqa: F401

        from di_store.adapters.minari import read, write
    except ImportError:
        print("Minari is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        options = {"view": di_store.Transition(), "schema": Recorder.schema(Still())}
        table = store.create_table("made", capacity=steps, **options)
        env = Recorder(gym.wrappers.Autoreset(Still()), table)
        stepped(env, 1, steps)
        env.close()
        start = time.perf_counter()
        dataset = write(table, "still-v0")
        middle = time.perf_counter()
        found = read(store, dataset, **{**options, "schema": None})
        end = time.perf_counter()
        print(
            f"Minari: {len(table)} steps written in {middle - start:.2f} s, {len(found)} read in {end - middle:.2f} s"
        )
        start = time.perf_counter()
        for episode in dataset.iterate_episodes():
            len(episode)
        print(f"Minari: its own iterate_episodes alone takes {time.perf_counter() - start:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with di_store.open(memory="512MiB") as store:
        recording(store, rounds, None)
        recording(store, rounds, LANES)
        collecting(rounds)
        datasets(store)


if __name__ == "__main__":
    main()
