"""The environments of one actor, stepped together, and the observations that its policy gets.

Atari games run in ale-py's own vector environment. In C++ it repeats each action for 4 frames, takes the maximum of the
last two, converts to gray and shrinks to 84x84, so neither OpenCV nor a Python wrapper is needed. Other environments
run in Gymnasium's `SyncVectorEnv`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from di_store.demo.config import DemoConfig

MODES = {"next-step": AutoresetMode.NEXT_STEP, "same-step": AutoresetMode.SAME_STEP}


@dataclass(frozen=True)
class EnvShape:
    """One environment's observation (shape, dtype name) and number of discrete actions."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    actions: int


@dataclass(frozen=True)
class Stepped:
    """One vector step, ready for `writer.append(step, next=next, final=final)`.

    step: leaves [lanes, ...]; next: the observations after it, likewise; final: object array [lanes] with `None` for
    lanes whose episode continues, or `None` if no episode ended; returns: unclipped returns of the episodes that ended;
    rows: number of lanes that made a step, without those that were only reset (next-step mode).
    """

    step: dict[str, NDArray[Any]]
    next: dict[str, NDArray[Any]]
    final: NDArray[Any] | None
    returns: list[float]
    rows: int


def make_envs(config: DemoConfig, lanes: int) -> VectorEnv[Any, Any, Any]:
    """A vector of `lanes` environments in the configured autoreset mode."""
    mode = MODES[config.autoreset]
    if not config.pixels:
        return gym.make_vec(
            config.env, num_envs=lanes, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )
    import ale_py

    gym.register_envs(ale_py)
    # stack_num=1: the store keeps each frame once and stacks frames when it is read. Rewards are not clipped here,
    # since the screen shows unclipped returns; `EnvLanes` clips them for learning.
    return gym.make_vec(
        config.env,
        num_envs=lanes,
        vectorization_mode="vector_entry_point",
        autoreset_mode=mode,
        stack_num=1,
        frameskip=4,
        repeat_action_probability=0.0,
        reward_clipping=False,
        num_threads=1,
    )


def env_shape(config: DemoConfig) -> EnvShape:
    """Shapes of the environment that `config` names.

    Raises:
        ValueError: its observations are not a Box, or its actions are not discrete.
    """
    envs = make_envs(config, 1)
    try:
        space, actions = envs.single_observation_space, envs.single_action_space
        if not isinstance(actions, gym.spaces.Discrete) or not isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"--env {config.env}: the demo needs a Box observation and discrete actions, got {space}, {actions}"
            )
        shape = space.shape[1:] if config.pixels else space.shape
        return EnvShape(tuple(shape), str(space.dtype), int(actions.n))
    finally:
        envs.close()


class EnvLanes:
    """`lanes` environments with the policy's own frame stack, episode returns and lives."""

    def __init__(self, config: DemoConfig, lanes: int, *, seed: int) -> None:
        self.envs = make_envs(config, lanes)
        self.pixels = config.pixels
        self.stack = config.recipe.frame_stack
        self.autoreset: AutoresetMode = self.envs.metadata["autoreset_mode"]
        obs, infos = self.envs.reset(seed=seed)
        self.obs = self._newest(obs)
        self.lives = self._lives(infos, lanes)
        self.seen = self.obs if self.stack is None else np.repeat(self.obs[:, None], self.stack, axis=1)
        self.running = np.zeros(lanes)
        self.resetting = np.zeros(lanes, np.bool_)

    def step(self, actions: NDArray[np.int64]) -> Stepped:
        """Step every lane. Sets `self.seen`, the policy's next input: [lanes, stack, 84, 84] or [lanes, ...]."""
        obs, rewards, terminated, truncated, infos = self.envs.step(actions)
        newest, lives = self._newest(obs), self._lives(infos, len(actions))
        step: dict[str, NDArray[Any]] = {
            "obs": self.obs,
            "action": actions,
            "reward": (np.clip(rewards, -1, 1) if self.pixels else rewards).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
        }
        if self.pixels:
            # A lost life ends the return there (discount 0), while the episode goes on.
            step["discount"] = np.where(lives < self.lives, np.float32(0), np.float32(1))
        ended = terminated | truncated
        returns = self._count_returns(rewards, ended)
        rows = int(np.count_nonzero(~self.resetting))
        same_step = self.autoreset is AutoresetMode.SAME_STEP
        final = self._final(infos, ended) if same_step and ended.any() else None
        self._see(newest, fresh=ended if same_step else self.resetting)
        self.resetting = np.zeros_like(ended) if same_step else ended
        self.obs, self.lives = newest, lives
        return Stepped(step, {"obs": newest}, final, returns, rows)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def _newest(self, obs: NDArray[Any]) -> NDArray[Any]:
        return obs[:, 0] if self.pixels else obs

    def _lives(self, infos: dict[str, Any], lanes: int) -> NDArray[Any]:
        return np.asarray(infos["lives"]) if self.pixels else np.zeros(lanes, np.int32)

    def _final(self, infos: dict[str, Any], ended: NDArray[np.bool_]) -> NDArray[Any]:
        final = np.full(len(ended), None, object)
        for lane in np.flatnonzero(ended):
            observation = infos["final_obs"][lane]
            final[lane] = observation[0] if self.pixels else observation
        return final

    def _count_returns(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> list[float]:
        self.running += rewards
        returns = [float(value) for value in self.running[ended]]
        self.running[ended] = 0
        return returns

    def _see(self, newest: NDArray[Any], *, fresh: NDArray[np.bool_]) -> None:
        """Append the newest frames to the stacks. A new episode's stack repeats its first frame, as the view does."""
        if self.stack is None:
            self.seen = newest
            return
        self.seen[:, :-1] = self.seen[:, 1:]
        self.seen[:, -1] = newest
        self.seen[fresh] = newest[fresh][:, None]
