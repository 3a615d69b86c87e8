"""Batches drawn ahead change nothing that one can see in what a learner learns: DQN on CartPole, rows on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import di_store

STEPS, START, BATCH, GAMMA, EVERY = 12_000, 1_000, 64, 0.99, 250
PAD = 8_000
"""Bytes of a row beside what is learned from, so that a sixth of the rows fits memory."""
SEEDS, AHEAD = 5, (0, 1, 4, 16)
LEARNED = 100.0
"""Mean return at the end of a run that learns; a policy at random has 22."""


def network() -> Any:
    layers = torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    return torch.nn.Sequential(*layers)


class Learner:
    """Mnih et al. 2015, with the Huber loss and Adam; the target network is renewed every 250 steps."""

    def __init__(self) -> None:
        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), 5e-4)

    def action(self, obs: Any) -> int:
        with torch.no_grad():
            return int(self.online(torch.as_tensor(obs)).argmax())

    def learn(self, data: Any, step: int) -> None:
        if step % EVERY == 0:
            self.target.load_state_dict(self.online.state_dict())
        names = "obs", "next_obs", "reward", "action", "discount"
        obs, following, reward, action, discount = (torch.as_tensor(data[name]) for name in names)
        with torch.no_grad():
            wanted = reward + discount * self.target(following).max(1).values
        found = self.online(obs).gather(1, action[:, None])[:, 0]
        self.optimizer.zero_grad()
        torch.nn.functional.smooth_l1_loss(found, wanted).backward()
        self.optimizer.step()


def play(folder: Path, seed: int, prefetch: int) -> float:
    """Mean return of the last 20 episodes of a run, a batch each step."""
    torch.manual_seed(seed)
    rng, env = np.random.default_rng(seed), gymnasium.make("CartPole-v1")
    learner, returns = Learner(), [0.0]
    disk: dict[str, Any] = {"disk": folder, "disk_capacity": "256MiB", "staging": "64MiB"}
    with di_store.open(memory="32MiB", seed=seed, **disk) as store:
        table = store.create_table("t", capacity=STEPS, lanes=1, view=di_store.Transition(gamma=GAMMA), compress=None)
        with table.writer() as writer, table.loader(BATCH, prefetch=prefetch) as loader:
            obs, _ = env.reset(seed=seed)
            for step in range(STEPS):
                explore = max(0.05, 1 - step / 3_000)
                action = int(rng.integers(2)) if rng.random() < explore else learner.action(obs)
                following, reward, terminated, truncated, _ = env.step(action)
                row = {"obs": obs, "action": action, "reward": np.float32(reward)}
                row |= {"terminated": terminated, "truncated": truncated}
                row["pad"] = np.frombuffer(rng.bytes(PAD), np.uint8)
                writer.append(row, next={"obs": following})
                returns[-1] += float(reward)
                obs = following
                if terminated or truncated:
                    obs, _ = env.reset()
                    returns.append(0.0)
                if step >= START:
                    learner.learn(next(loader).data, step)
        assert store.stats()["disk"]["read"] > BATCH * STEPS * PAD // 4
    return float(np.mean(returns[-21:-1]))


@pytest.mark.long
def test_prefetched_batches_learn_equally_well(tmp_path: Path) -> None:
    """The mean over seeds of each is within the spread of the seeds without."""
    torch.set_num_threads(1)
    means = {}
    for prefetch in AHEAD:
        found = [play(tmp_path / f"{prefetch}-{seed}", seed, prefetch) for seed in range(SEEDS)]
        print(f"prefetch={prefetch}: returns {', '.join(f'{each:.0f}' for each in found)}")
        means[prefetch] = np.mean(found)
        if prefetch == 0:
            low, high = min(found), max(found)
    assert means[0] > LEARNED
    assert all(low <= mean <= high for mean in means.values())
