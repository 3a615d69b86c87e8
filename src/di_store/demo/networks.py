"""Q networks: a small convolutional one for frames, a small perceptron for vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from di_store.demo.config import DemoConfig
from di_store.demo.envs import EnvShape


def build_network(config: DemoConfig, shape: EnvShape) -> nn.Module:
    """The network of learner and actors: from `as_input(observations)` to action values float32 [n, actions]."""
    recipe = config.recipe
    if recipe.frame_stack is not None:
        return frame_network(recipe.frame_stack, recipe.hidden_units, shape.actions)
    return vector_network(math.prod(shape.obs_shape), recipe.hidden_units, shape.actions)


def frame_network(stack: int, hidden_units: int, actions: int) -> nn.Module:
    """The network of Mnih et al. 2015 (Nature), for input float32 [n, stack, 84, 84]."""
    return nn.Sequential(
        nn.Conv2d(stack, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, actions),
    )


def vector_network(size: int, hidden_units: int, actions: int) -> nn.Module:
    """A perceptron with two hidden layers, for input float32 [n, ...] with `size` numbers per observation."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, actions),
    )


def as_input(observations: NDArray[Any]) -> Tensor:
    """Observations [n, ...] as float32 input for the networks; uint8 is scaled to 0..1."""
    values = torch.from_numpy(observations)
    return values.float().div_(255.0) if values.dtype == torch.uint8 else values.float()
