"""The learner: double DQN on prioritized n-step transitions.

Double DQN: van Hasselt et al. 2016, equation 4. Prioritized replay: Schaul et al. 2016, algorithm 1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import di_store
from di_store.demo.config import Recipe
from di_store.demo.networks import as_input


@dataclass(frozen=True)
class LearnerUpdate:
    """Outcome of one update: the weighted loss and the new priorities float64 [n]."""

    loss: float
    priorities: NDArray[np.float64]


class Learner:
    """Owns the online and the target network, and decides when to publish."""

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        self.network = network
        self.recipe = recipe
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate_first, eps=1.5e-4, fused=True)
        self.updates = 0

    @property
    def beta(self) -> float:
        """Exponent of the next batch's importance weights: rises linearly from `beta_first` to 1."""
        return self._between(self.recipe.beta_first, 1.0, self.recipe.beta_updates)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update: falls linearly from first to last over `learning_rate_updates`."""
        recipe = self.recipe
        return self._between(recipe.learning_rate_first, recipe.learning_rate_last, recipe.learning_rate_updates)

    @property
    def should_publish(self) -> bool:
        """Whether to publish the weights after the last update."""
        return self.updates % self.recipe.publish_every == 0

    def update(self, batch: di_store.Batch) -> LearnerUpdate:
        """One optimizer step on `batch` (columns obs, action, reward, next_obs, discount)."""
        data = batch.data
        obs, next_obs = as_input(data["obs"]), as_input(data["next_obs"])
        action, reward, discount = (torch.from_numpy(data[name]) for name in ("action", "reward", "discount"))
        with torch.no_grad():
            best = self.network(next_obs).argmax(1, keepdim=True)
            goal = reward + discount * self.target(next_obs).gather(1, best).squeeze(1)
        value = self.network(obs).gather(1, action.long().unsqueeze(1)).squeeze(1)
        weights = torch.from_numpy(batch.weights).float()
        loss = (weights * functional.huber_loss(value, goal, reduction="none")).mean()
        self.optimizer.param_groups[0]["lr"] = self.learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.recipe.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())
        error = (goal - value).detach().abs().double().numpy()
        return LearnerUpdate(float(loss.detach()), error + self.recipe.priority_floor)

    def _between(self, first: float, last: float, updates: int) -> float:
        return first + (last - first) * min(1.0, self.updates / updates)
