"""The demo's double DQN, with the conversion to tensors apart from the update, so that each can be timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bench.bottlenecks.loads import Load
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.actor import Policy, epsilon_at
from di_store.demo.envs import EnvShape
from di_store.demo.learner import Learner
from di_store.demo.networks import as_input, build_network


def network(load: Load, shape: Shape) -> torch.nn.Module:
    """The demo's Q network."""
    return build_network(load.demo, EnvShape(shape.obs_shape, shape.obs_dtype, shape.actions))


class DqnPolicy:
    """Epsilon-greedy, as in the demo."""

    def __init__(self, load: Load, shape: Shape, index: int) -> None:
        self.load, self.index = load, index
        self.network = network(load, shape)
        self.greedy = Policy(self.network, shape.actions, np.random.default_rng([load.seed, index]))

    def act(self, seen: Array, steps: int) -> tuple[Array, dict[str, Array]]:
        return self.greedy.act(seen, epsilon_at(self.load.demo, self.index, steps)), {}


class DqnLearner:
    """The demo's learner."""

    def __init__(self, load: Load, shape: Shape) -> None:
        torch.manual_seed(load.seed)
        self.learner = Learner(network(load, shape), load.demo.recipe)

    @property
    def updates(self) -> int:
        return self.learner.updates

    def assemble(self, sample: Sample) -> Any:
        # Floats pass through the learner's own conversion as they are.
        data = {**sample.data, "obs": as_input(sample.data["obs"]).numpy()}
        data["next_obs"] = as_input(sample.data["next_obs"]).numpy()
        return SimpleNamespace(data=data, weights=sample.weights)

    def train(self, tensors: Any) -> Array | None:
        return cast(Array, self.learner.update(tensors).priorities)

    def weights(self) -> dict[str, Tensor]:
        return dict(self.learner.network.state_dict())
