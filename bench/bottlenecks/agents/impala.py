"""An actor-critic on unrolls with V-trace (Espeholt et al. 2018, arXiv 1802.01561, equations 1 and 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.bottlenecks.loads import Load
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.networks import as_input

ENTROPY, VALUE, RATE, MAX_NORM = 0.01, 0.5, 3e-4, 40.0


def network(load: Load, shape: Shape) -> nn.Sequential:
    """The small network of the paper, without its recurrent part: action logits and a value, [n, actions + 1]."""
    return nn.Sequential(
        nn.Conv2d(load.frame_stack or 1, 16, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 9 * 9, 256),
        nn.ReLU(),
        nn.Linear(256, shape.actions + 1),
    )


class ImpalaPolicy:
    """Draws from the logits and stores the log probability of what it drew."""

    def __init__(self, load: Load, shape: Shape, seed: int) -> None:
        self.network = network(load, shape)
        self.rng = np.random.default_rng(seed)

    def act(self, seen: Array, steps: int) -> tuple[Array, dict[str, Array]]:
        with torch.inference_mode():
            logits = functional.log_softmax(self.network(as_input(seen))[:, :-1], 1).numpy()
        # The largest of logit + Gumbel noise is a draw from the softmax.
        actions = (logits + self.rng.gumbel(size=logits.shape)).argmax(1)
        return actions, {"logp": np.take_along_axis(logits, actions[:, None], 1)[:, 0]}


def stacks(frames: Array, is_first: Array, stack: int) -> Array:
    """Stacks [n, t + 1, stack, …] of frames [n, stack - 1 + t + 1, …]; none reaches over the start of an episode."""
    n, steps = is_first.shape
    first = np.concatenate([is_first, np.zeros((n, 1), np.bool_)], 1)
    place = np.arange(steps + 1) + stack - 1
    index = np.broadcast_to(place, (n, steps + 1)).copy()
    columns = [index.copy()]
    blocked = np.zeros((n, steps + 1), np.bool_)
    for back in range(1, stack):
        blocked[:, back - 1 :] |= first[:, : steps + 2 - back]
        index = np.where(blocked, index, index - 1)
        columns.append(index)
    order = np.stack(columns[::-1], 2)
    gathered: Array = frames[np.arange(n)[:, None, None], order]
    return gathered


class ImpalaLearner:
    """One network, policy and value in one."""

    def __init__(self, load: Load, shape: Shape) -> None:
        torch.manual_seed(load.seed)
        self.stack = load.frame_stack or 1
        self.gamma = load.gamma
        self.network = network(load, shape)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=RATE, fused=True)
        self.updates = 0

    def assemble(self, sample: Sample) -> Any:
        data = sample.data
        seen = stacks(data["frames"], data["is_first"], self.stack)
        tensors = {name: torch.from_numpy(data[name]) for name in ("action", "reward", "discount", "logp")}
        return {**tensors, "obs": as_input(seen.reshape(-1, *seen.shape[2:]))}

    def train(self, tensors: Any) -> Array | None:
        n, steps = tensors["action"].shape
        out = self.network(tensors["obs"]).view(n, steps + 1, -1)
        logits, values = functional.log_softmax(out[:, :-1, :-1], 2), out[:, :, -1]
        logp = logits.gather(2, tensors["action"].long().unsqueeze(2)).squeeze(2)
        discount = tensors["discount"] * self.gamma
        goal, advantage = self._trace(logp.detach(), tensors["logp"], tensors["reward"], discount, values.detach())
        loss = -(logp * advantage).mean() + VALUE * (goal - values[:, :-1]).square().mean()
        loss = loss + ENTROPY * (logits.exp() * logits).sum(2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        self.optimizer.step()
        self.updates += 1
        return None

    def weights(self) -> dict[str, Tensor]:
        return dict(self.network.state_dict())

    @staticmethod
    def _trace(new: Tensor, old: Tensor, reward: Tensor, discount: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and advantages [n, t] from log probabilities, rewards, discounts [n, t] and values [n, t + 1]."""
        rho = (new - old).exp().clamp(max=1.0)
        delta = rho * (reward + discount * values[:, 1:] - values[:, :-1])
        goal, carried = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
        for t in range(delta.shape[1] - 1, -1, -1):
            carried = delta[:, t] + discount[:, t] * rho[:, t] * carried
            goal[:, t] = values[:, t] + carried
        following = torch.cat([goal[:, 1:], values[:, -1:]], 1)
        return goal, rho * (reward + discount * following - values[:, :-1])
