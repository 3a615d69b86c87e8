"""A DQN run of Stable-Baselines3 that is killed in the middle, and goes on in a new process with its buffer.

`python -m bench.adapters.sb3_resume [--seeds N]`: for each seed the final return of a run that is left alone, of one
that saves and loads its model and buffer every 2,500 steps, and of one that also gets SIGKILL in the middle of a
stretch. The last two end with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import set_random_seed

from bench.adapters.sb3 import DQN_OPTIONS
from di_store.adapters.sb3 import ReplayBuffer

STRETCH, STRETCHES = 2_500, 12


class Stretch(BaseCallback):
    """A part of a run: exploration goes down as over the whole run; at a step it kills its own process.

    Args:
        steps: of the whole run.
        kill_at: step at which the process gets SIGKILL: nothing is saved or closed; None: none.
    """

    def __init__(self, steps: int, kill_at: int | None) -> None:
        super().__init__()
        self.steps, self.kill_at = steps, kill_at

    def _on_training_start(self) -> None:
        self.model._total_timesteps = self.steps

    def _on_step(self) -> bool:
        if self.kill_at is not None and self.num_timesteps >= self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def fresh(seed: int) -> DQN:
    """A model with a new buffer."""
    torch.set_num_threads(1)
    options: dict[str, Any] = {"buffer_size": 20_000, **DQN_OPTIONS}
    return DQN("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", replay_buffer_class=ReplayBuffer, **options)


def save(model: DQN, folder: Path, number: int) -> None:
    """Save model and buffer as number `number`: a folder that is complete as soon as it has its name."""
    part = folder / f"part-{os.getpid()}"
    part.mkdir(parents=True, exist_ok=True)
    model.save(part / "model")
    model.save_replay_buffer(part / "buffer")
    part.rename(folder / str(number))


def load(folder: Path, number: int, seed: int) -> DQN:
    """The model with its buffer, as saved; the environment begins a new episode."""
    torch.set_num_threads(1)
    model = DQN.load(folder / str(number) / "model", device="cpu")
    model.load_replay_buffer(folder / str(number) / "buffer")
    environment = fresh(seed).get_env()
    assert environment is not None
    model.set_env(environment)
    set_random_seed(seed + 1_000 * (number + 1))
    model.set_random_seed(seed + 1_000 * (number + 1))
    return model


def run(folder: Path, seed: int, stretches: int, stretch: int, kill_at: int | None = None) -> None:
    """Train stretch by stretch, each from what the one before has saved; goes on where the folder ends."""
    if not (folder / "0").exists():
        save(fresh(seed), folder, 0)
    for number in range(max(int(each.name) for each in folder.iterdir() if each.name.isdigit()), stretches):
        model = load(folder, number, seed)
        model.learn(stretch, Stretch(stretches * stretch, kill_at), reset_num_timesteps=False)
        save(model, folder, number + 1)


def killed_and_resumed(folder: Path, seed: int, stretches: int, stretch: int, start: str = "spawn") -> None:
    """A process that is killed in the middle of the middle stretch, and a new one that goes on."""
    context: Any = mp.get_context(start)
    middle = stretches // 2 * stretch + stretch // 2
    for kill_at in (middle, None):
        process = context.Process(target=run, args=(folder, seed, stretches, stretch, kill_at))
        process.start()
        process.join()
        wanted = 0 if kill_at is None else -signal.SIGKILL
        if process.exitcode != wanted:
            raise RuntimeError(f"the run ended with {process.exitcode}, not {wanted}")


def weights(folder: Path, number: int) -> dict[str, torch.Tensor]:
    """The weights of a saved model."""
    found: dict[str, torch.Tensor] = DQN.load(folder / str(number) / "model", device="cpu").policy.state_dict()
    return found


def same_weights(one: Path, other: Path, number: int) -> bool:
    """Whether two runs have ended with the same weights, bit for bit."""
    mine, theirs = weights(one, number), weights(other, number)
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


def final_return(model: DQN) -> float:
    """Mean return of 20 greedy episodes, always the same ones."""
    environment = fresh(0).get_env()
    environment.seed(12_345)
    mean, _ = evaluate_policy(model, environment, n_eval_episodes=20)
    return float(mean)


def main() -> None:
    """Print the returns by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print(f"CartPole-v1, DQN, {STRETCH * STRETCHES:,} steps; return: left alone, saved and loaded, killed and resumed")
    columns = []
    for seed in range(seeds):
        began = time.monotonic()
        alone = fresh(seed)
        alone.learn(STRETCH * STRETCHES)
        with tempfile.TemporaryDirectory() as scratch:
            loaded, killed = Path(scratch, "loaded"), Path(scratch, "killed")
            run(loaded, seed, STRETCHES, STRETCH)
            killed_and_resumed(killed, seed, STRETCHES, STRETCH)
            found = [
                final_return(alone),
                *(final_return(DQN.load(each / str(STRETCHES) / "model", device="cpu")) for each in (loaded, killed)),
            ]
            equal = same_weights(loaded, killed, STRETCHES)
        columns.append(found)
        took = time.monotonic() - began
        print(
            f"seed {seed}: {found[0]:6.1f} {found[1]:6.1f} {found[2]:6.1f}  same weights: {equal}  {took:.0f} s",
            flush=True,
        )
    means = [statistics.mean(each) for each in zip(*columns, strict=True)]
    print(f"mean:   {means[0]:6.1f} {means[1]:6.1f} {means[2]:6.1f}")


if __name__ == "__main__":
    main()
