"""What the recipes share: options, networks, actor processes, evaluation, and the chart at the end.

Nothing here uses di_store, except that the chart shows how many items went through a table. Needs torch, Gymnasium and
matplotlib: pip install 'di-store[demo]'
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import di_store

torch.set_num_threads(1)  # the networks are small, and each process has a core at most

EVALUATE_SECONDS = 5.0
SMALL_UPDATES = 30


def generator(seed: int, index: int) -> np.random.Generator:
    """A generator for process `index` of a run, which also seeds torch there; the learner is process 0."""
    torch.manual_seed(1_000 * seed + index)
    return np.random.default_rng([seed, index])


def mlp(inputs: int, *outputs: int, hidden: int = 128, last_gain: float | None = None) -> nn.Module:
    """Two hidden layers, then one linear layer per entry of `outputs` (one: a tensor, several: a tuple of tensors)."""
    return _Heads(inputs, outputs, hidden, last_gain)


class _Heads(nn.Module):
    def __init__(self, inputs: int, outputs: Sequence[int], hidden: int, last_gain: float | None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in outputs)
        if last_gain is not None:  # small first outputs: a policy that starts near uniform
            for head in self.heads:
                nn.init.orthogonal_(head.weight, last_gain)
                nn.init.zeros_(head.bias)

    def forward(self, x: torch.Tensor) -> Any:
        features = self.body(x)
        out = tuple(head(features) for head in self.heads)
        return out[0] if len(out) == 1 else out


def tensors(data: dict[str, Any], *names: str) -> list[torch.Tensor]:
    """Columns of a batch as tensors, without a copy."""
    return [torch.from_numpy(data[name]) for name in names]


def mean_return(make: Callable[[], gym.Env], act: Callable[[Any], Any], episodes: int, seed: int) -> float:
    """Mean return of one episode in each of `episodes` environments that are stepped together.

    `act` gets observations `[episodes, …]` and returns that many actions. It is called from the first step to the last,
    so that it may keep a recurrent state.
    """
    envs = gym.vector.SyncVectorEnv([make] * episodes)
    obs, _ = envs.reset(seed=seed)
    returns, alive = np.zeros(episodes), np.ones(episodes, bool)
    while alive.any():
        with torch.inference_mode():
            actions = act(obs)
        obs, reward, terminated, truncated, _ = envs.step(np.asarray(actions))
        returns += reward * alive
        alive &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


class Run:
    """One run of a recipe: its options, its actor processes, its evaluations, and its chart.

    It ends when an evaluation of `episodes` episodes reaches `threshold` and a second one of three times as many does
    so too, or when the time is up. `finish` prints the last result and returns the exit status: 0 if the threshold was
    reached, else 1. With --small it ends after some updates and always returns 0; then it only shows that all works.
    `more` are options of one recipe with their defaults; `run.more` has their values.
    """

    def __init__(
        self, doc: str | None, *, threshold: float, minutes: float, unit: str = "return", **more: str | float
    ) -> None:
        parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
        parser.add_argument("--minutes", type=float, default=minutes, help="stop after so long (default %(default)s)")
        parser.add_argument("--seed", type=int, default=0, help="of networks, environments and draws")
        parser.add_argument("--small", action="store_true", help="some updates only, in seconds: for tests")
        for option, default in more.items():
            parser.add_argument(f"--{option}", type=type(default), default=default, help="default %(default)s")
        self.name = Path(sys.argv[0]).stem
        parser.add_argument("--chart", type=Path, default=Path(f"{self.name}.png"), help="default %(default)s")
        options = parser.parse_args()
        self.more = {option: getattr(options, option) for option in more}
        self.small, self.seed, self.chart = bool(options.small), int(options.seed), Path(options.chart)
        self.threshold, self.unit, self.limit = threshold, unit, 60.0 * options.minutes
        self.started = self.evaluated = time.monotonic()
        self.updates = 0
        self.points: list[tuple[float, int, float]] = []  # seconds, items inserted, result
        self.rates: list[tuple[float, int, int]] = []  # seconds, items inserted, items sampled
        self.moved: dict[str, tuple[int, int, float]] = {}  # by table: items in and out, bytes of one
        self.reached = False
        self._processes: list[multiprocessing.Process] = []
        generator(self.seed, 0)

    @contextlib.contextmanager
    def processes(self, target: Callable[..., None], count: int, *args: Any) -> Iterator[None]:
        """Run `target(index, *args)` in `count` processes, and end them with the block."""
        mine = [multiprocessing.Process(target=target, args=(i, *args), daemon=True) for i in range(count)]
        self._processes += mine
        for process in mine:
            process.start()
        try:
            yield
        finally:
            for process in mine:
                process.terminate()
                process.join()
                self._processes.remove(process)

    def goes_on(
        self,
        tables: di_store.Table | Sequence[di_store.Table],
        evaluate: Callable[[int, int], float],
        episodes: int = 10,
    ) -> bool:
        """Call it before each update: evaluates every few seconds; False: the run is over.

        `evaluate(episodes, seed)` returns the mean result of so many episodes. `finish` reports what went through each
        of `tables`; the chart shows the first one.
        """
        dead = [process for process in self._processes if process.exitcode is not None]
        if dead:
            raise RuntimeError(f"{dead[0].name} has ended with exit code {dead[0].exitcode}")
        now = time.monotonic()
        over = now - self.started > self.limit or (self.small and self.updates >= SMALL_UPDATES)
        self.updates += 1
        if now - self.evaluated < EVALUATE_SECONDS and not over:
            return True
        watched = (tables,) if isinstance(tables, di_store.Table) else tables
        every = [table.stats() for table in watched]
        for table, each in zip(watched, every, strict=True):
            name = f"{table.name!r} ({type(table.view).__name__}, {type(table.sampler).__name__})"
            _, _, size = self.moved.get(name, (0, 0, 0.0))
            size = each["bytes_logical"] / each["size"] if each["size"] else size  # a queue may be empty just now
            self.moved[name] = each["inserts"], each["samples"], size
        stats = every[0]
        result = evaluate(episodes, self.seed + 10_000 + self.updates)
        if result >= self.threshold or over:  # a lucky evaluation does not count: once more with other episodes
            result = evaluate(3 * episodes, self.seed + 20_000 + self.updates)
        self.points.append((now - self.started, stats["inserts"], result))
        self.rates.append((now - self.started, stats["inserts"], stats["samples"]))
        self.reached = result >= self.threshold
        print(f"{now - self.started:6.0f} s  {stats['inserts']:>9,} items  {self.unit} {result:.4g}", flush=True)
        self.evaluated = time.monotonic()
        return not (over or self.reached)

    def finish(self) -> int:
        """Write the chart, print the last result. Returns the exit status."""
        seconds, items, result = self.points[-1]
        self._draw()
        for name, (inserts, samples, size) in self.moved.items():
            print(
                f"table {name}, {size:,.0f} bytes an item: {inserts / seconds:,.1f} inserts/s"
                f" ({size * inserts / seconds / 1e6:.3g} MB/s), {samples / seconds:,.1f} samples/s"
                f" ({size * samples / seconds / 1e6:.3g} MB/s), {samples / max(1, inserts):.3g} samples an insert,"
                f" {samples / max(1, self.updates - 1):.3g} samples an update"
            )
        verdict = "reached" if self.reached else "not reached"
        if self.small:
            verdict = "not the aim of a small run"
        cpu_seconds = sum(os.times()[:4])  # of this process, and of those that it has waited for
        print(
            f"{self.name}: final {self.unit} {result:.4g} after {seconds:.0f} s ({cpu_seconds:.0f} s of CPU time),"
            f" {items:,} items and {self.updates - 1:,} updates;"
            f" threshold {self.threshold:g}: {verdict}; chart: {self.chart}"
        )
        return 0 if self.reached or self.small else 1

    def _draw(self) -> None:
        figure = Figure(figsize=(9, 3.5), layout="constrained")
        figure.suptitle(f"{self.name}, seed {self.seed}")
        left, right = figure.subplots(1, 2)
        seconds = [point[0] for point in self.points]
        left.plot(seconds, [point[2] for point in self.points], ".-")
        left.axhline(self.threshold, color="gray", linestyle="--", label=f"threshold {self.threshold:g}")
        left.set_title(self.unit)
        left.legend(loc="best")
        for column, name in ((1, "items inserted"), (2, "items sampled")):
            right.plot([0.0, *seconds], [0, *(rate[column] for rate in self.rates)], label=name)
        right.set_yscale("symlog", linthresh=1_000)
        right.set_title("what went through the table")
        right.legend(loc="best")
        for axis in (left, right):
            axis.set_xlabel("seconds")
            axis.grid(alpha=0.3)
        figure.savefig(self.chart, dpi=100, format="png")
