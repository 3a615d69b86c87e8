"""Soft actor-critic with two critics and a learnt temperature (Haarnoja et al. 2018, arXiv 1812.05905)."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape

HIDDEN = 64
RATE, TAU = 3e-4, 5e-3


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
    )


def squashed(network: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in ±1 [n, a] drawn from the policy, and their log probabilities [n]."""
    mean, log_std = network(obs).chunk(2, dim=1)
    std = log_std.clamp(-5, 2).exp()
    raw = mean + std * torch.randn_like(mean)
    logp = -((raw - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2
    # log of d tanh(raw)/d raw, in a form that does not overflow.
    logp = logp - 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    return raw.tanh(), logp.sum(1)


class SacPolicy:
    """Draws from the policy."""

    def __init__(self, shape: Shape, seed: int) -> None:
        torch.manual_seed(seed)
        self.scale = shape.action_scale
        self.network = perceptron(math.prod(shape.obs_shape), 2 * math.prod(shape.action_shape))

    def act(self, seen: Array, steps: int) -> tuple[Array, dict[str, Array]]:
        with torch.inference_mode():
            action, _ = squashed(self.network, torch.from_numpy(seen).float())
        return (action.numpy() * np.float32(self.scale)), {}


class SacLearner:
    """Policy, two critics and their targets."""

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(0)
        inputs, actions = math.prod(shape.obs_shape), math.prod(shape.action_shape)
        self.scale, self.actions = shape.action_scale, actions
        self.policy = perceptron(inputs, 2 * actions)
        self.critics = nn.ModuleList([perceptron(inputs + actions, 1) for _ in range(2)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=RATE, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=RATE, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=RATE)
        self.updates = 0

    def assemble(self, sample: Sample) -> Any:
        return {name: torch.from_numpy(values).float() for name, values in sample.data.items()}

    def train(self, tensors: Any) -> Array | None:
        obs, next_obs, action = tensors["obs"], tensors["next_obs"], tensors["action"] / self.scale
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            following, logp = squashed(self.policy, next_obs)
            value = self._least(self.targets, next_obs, following) - alpha * logp
            goal = tensors["reward"] + 0.99 * tensors["discount"] * value
        both = torch.cat([obs, action], 1)
        loss = sum(functional.mse_loss(critic(both).squeeze(1), goal) for critic in self.critics)
        self._step(self.critic_optimizer, loss)
        chosen, logp = squashed(self.policy, obs)
        self.critics.requires_grad_(False)
        self._step(self.policy_optimizer, (alpha * logp - self._least(self.critics, obs, chosen)).mean())
        self.critics.requires_grad_(True)
        self._step(self.alpha_optimizer, -(self.log_alpha * (logp.detach() - self.actions)).mean())
        with torch.no_grad():
            torch._foreach_lerp_(list(self.targets.parameters()), list(self.critics.parameters()), TAU)
        self.updates += 1
        return None

    def weights(self) -> dict[str, Tensor]:
        return dict(self.policy.state_dict())

    @staticmethod
    def _least(critics: nn.ModuleList, obs: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([obs, action], 1)
        return torch.minimum(critics[0](both), critics[1](both)).squeeze(1)

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
