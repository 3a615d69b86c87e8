"""What a load's environment shows and takes."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym

from bench.bottlenecks.loads import Load
from di_store.demo.envs import make_envs


@dataclass(frozen=True)
class Shape:
    """One environment: observation (one frame of a game) and action.

    actions: number of discrete ones, 0 if they are `action_shape` floats in ± `action_scale`.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str
    actions: int
    action_shape: tuple[int, ...]
    action_dtype: str
    action_scale: float


def shape_of(load: Load) -> Shape:
    """Look at one environment of the load."""
    envs = make_envs(load.demo, 1)
    try:
        space, action = envs.single_observation_space, envs.single_action_space
        obs_shape = tuple(space.shape[1:] if load.demo.pixels else space.shape)
        if isinstance(action, gym.spaces.Discrete):
            return Shape(obs_shape, str(space.dtype), int(action.n), (), "int64", 1.0)
        return Shape(obs_shape, str(space.dtype), 0, tuple(action.shape), "float32", float(action.high.max()))
    finally:
        envs.close()
