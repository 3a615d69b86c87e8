"""A Gymnasium wrapper that appends every step to a table.

A row is recorded only if the observation before its action is known. An exception in `step`, `reset` or `append` makes
it unknown: the episode ends there, and the next episode starts at the next observation that the environment returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import di_store
from di_store.adapters.framework import require

require("gymnasium", "gymnasium", ">=1.1,<2")

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from di_store.adapters.casts import cast
from di_store.adapters.spaces import converter, mapped, step_specs
from di_store.adapters.trees import cut, leaves

__all__ = ["Recorder"]

_REWARD = np.dtype(np.float32)


class Recorder:
    """A wrapper of an environment, or of a vector environment, that appends every step to a table.

    The columns are ``obs``, ``action``, ``reward``, ``terminated``, ``truncated``. The parts of a `Dict` space become
    columns below these, under their names; those of a `Tuple` space under "0", "1", …. Infos are not recorded.

    `step` and `reset` return what the environment returned. `step` blocks or raises as `Writer.append` does. `close`
    closes the environment, then the writer, which ends the open episodes.

    Args:
        env: an environment or a vector environment.
        table: a table with the columns of `Recorder.schema`, or without columns so far. All rows come from one writer,
            so the recorder is for one thread and one process.
        autoreset: who resets the environment after an episode. None: taken from the ``metadata`` of a vector
            environment; for a single environment, from whether the wrapper `Autoreset` is around it.
    """

    _writer: di_store.Writer
    env: Any

    def __new__(cls, env: Any, table: di_store.Table, *, autoreset: Any = None) -> Any:
        """Make the wrapper that fits `env`."""
        if cls is not Recorder:
            return object.__new__(cls)
        return object.__new__(_VectorRecorder if _is_vector(env) else _EnvRecorder)

    def __init__(self, env: Any, table: di_store.Table, *, autoreset: Any = None) -> None:
        if not isinstance(table, di_store.Table):
            raise TypeError(f"Recorder(env, table) takes a table of di_store, not {type(table).__name__}")
        super().__init__(env)  # type: ignore[call-arg]
        self.table = table

    @staticmethod
    def schema(env: Any) -> dict[str, Any]:
        """The columns of a recorder of `env`, for ``store.create_table(…, schema=)``.

        Raises:
            TypeError: `env` is no environment, or a table has no columns for its spaces.
        """
        if _is_vector(env):
            return step_specs(env.single_observation_space, env.single_action_space)
        return step_specs(env.observation_space, env.action_space)

    def close(self, **options: Any) -> None:
        """Close the environment, then the writer: open episodes end."""
        try:
            self.env.close(**options)
        finally:
            self._writer.close()


class _EnvRecorder(Recorder, gym.Wrapper):  # type: ignore[misc]
    """Of a single environment."""

    def __init__(self, env: Any, table: di_store.Table, *, autoreset: Any = None) -> None:
        super().__init__(env, table)
        mode = _mode(autoreset, AutoresetMode.NEXT_STEP if _resets_itself(env) else AutoresetMode.DISABLED)
        if mode is AutoresetMode.SAME_STEP:
            raise ValueError("a single environment has no same-step mode: its step() returns one observation")
        self._observed = converter(env.observation_space, "observation")
        self._acted = converter(env.action_space, "action")
        self._resets = mode is AutoresetMode.NEXT_STEP
        self._obs: Any = None  # what the next action is chosen by; None: not known, or the episode is over
        self._over = False
        self._writer = table.writer()

    @property
    def spec(self) -> Any:
        """The environment's specification, unchanged: a recorder cannot be made from a specification."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an open episode ends."""
        self._obs = None
        self._writer.end_episode()
        obs, infos = self.env.reset(seed=seed, options=options)
        self._obs, self._over = self._observed(obs), False
        return obs, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and append the step."""
        before, acted = self._obs, self._acted(action)
        self._obs = None  # an exception leaves it so
        if before is None:
            self._writer.end_episode()
        obs, reward, terminated, truncated, infos = self.env.step(action)
        after = self._observed(obs)
        if before is not None:
            row = {
                "obs": before,
                "action": acted,
                "reward": float(reward),
                "terminated": bool(terminated),
                "truncated": bool(truncated),
            }
            self._writer.append(row, next={"obs": after})
        # Without automatic resets, an episode that is over stays so until reset().
        self._over = bool(terminated or truncated) or (self._over and not self._resets)
        if not self._over:
            self._obs = after
        return obs, reward, terminated, truncated, infos


class _VectorRecorder(Recorder, VectorWrapper):  # type: ignore[misc]
    """Records a vector environment: each of its environments is a lane."""

    def __init__(self, env: Any, table: di_store.Table, *, autoreset: Any = None) -> None:
        super().__init__(env, table)
        self._mode = _mode(autoreset, env.metadata.get("autoreset_mode"))
        self._observed = converter(env.single_observation_space, "observation")
        self._acted = converter(env.single_action_space, "action")
        self._obs: Any = None  # what the next actions are chosen by; None: not known
        self._live = np.ones(env.num_envs, np.bool_)  # lanes inside an episode: their next row is recorded
        self._writer = table.writer(lanes=env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; their open episodes end."""
        before, self._obs = self._obs, None
        mask = None if options is None else options.get("reset_mask")
        mask = np.ones_like(self._live) if mask is None else np.array(mask, np.bool_)
        partial = not mask.all()
        self._writer.end_episode(lane=None if before is None else mask)
        obs, infos = self.env.reset(seed=seed, options=options)
        self._live |= mask
        if not partial:
            self._obs = self._observed(obs)
        elif before is not None:
            self._obs = mapped(np.copy, before)
            _set_lanes(self._obs, mask, cut(self._observed(obs), mask))
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and append their steps."""
        before, acted = self._obs, self._acted(actions)
        self._obs = None  # an exception leaves it so
        if before is None:
            self._writer.end_episode()
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        after = self._observed(obs)
        over = np.logical_or(terminated, truncated)
        if before is not None:
            row = {
                "obs": before,
                "action": acted,
                "reward": cast(np.array(rewards), _REWARD, "reward"),
                "terminated": np.array(terminated, np.bool_),
                "truncated": np.array(truncated, np.bool_),
            }
            self._append(row, self._next(after, over, infos))
        if self._mode is AutoresetMode.NEXT_STEP:
            self._live = ~over  # the next step of the others only resets
        elif self._mode is AutoresetMode.DISABLED:
            self._live = self._live & ~over
        self._obs = after
        return obs, rewards, terminated, truncated, infos

    def _append(self, row: Any, after: Any) -> None:
        """Append the lanes inside an episode."""
        live = self._live
        if live.all():
            self._writer.append(row, next={"obs": after})
        elif live.any():
            self._writer.append(cut(row, live), next={"obs": cut(after, live)}, lane=live)

    def _next(self, after: Any, over: Any, infos: dict[str, Any]) -> Any:
        """The observations after the step: final observations for environments that returned those after the reset."""
        if self._mode is not AutoresetMode.SAME_STEP or not over.any():
            return after
        finals = infos.get("final_obs")
        if finals is None:
            raise ValueError("in same-step mode, the infos of a step that ends an episode must hold 'final_obs'")
        after = mapped(np.copy, after)
        for lane in np.flatnonzero(over).tolist():
            _set_lanes(after, lane, self._observed(finals[lane]))
        return after


def _is_vector(env: Any) -> bool:
    if isinstance(env, VectorEnv):
        return True
    if isinstance(env, gym.Env):
        return False
    raise TypeError(f"Recorder takes a Gymnasium environment or vector environment, not {type(env).__name__}")


def _mode(given: Any, found: Any) -> AutoresetMode:
    mode = found if given is None else given
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ValueError(
            f"autoreset mode {mode!r} is not known: pass autoreset=gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP "
            "or DISABLED, whichever the environment does"
        ) from None


def _resets_itself(env: Any) -> bool:
    """Whether the wrapper `Autoreset` is around an environment."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.Autoreset):
            return True
        env = env.env
    return False


def _set_lanes(obs: Any, lanes: Any, values: Any) -> None:
    """Write the observations of one lane, or of some."""
    for leaf, value in zip(leaves(obs), leaves(values), strict=True):
        leaf[lanes] = value
