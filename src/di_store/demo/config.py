"""The settings that the user chooses (`DemoConfig`), and those that depend on the kind of environment (`Recipe`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AUTORESET_MODES = ("next-step", "same-step")
# Seeds networks, environments, exploration and sampling. Runs still differ, since the speeds of the processes vary.
SEED = 0


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Options of `di-store demo`, named as on the command line.

    seconds: how long to train, counted from when all actors are attached to the store.
    env: a Gymnasium environment with discrete actions; names that start with "ALE/" are Atari games.
    out: path of the PNG chart written at the end.
    memory: memory limit of the store, as for `di_store.open`.
    json: print only the summary, as one JSON object.

    Raises `ValueError` naming the option for values that cannot work.
    """

    seconds: float = 60.0
    actors: int = 2
    env: str = "CartPole-v1"
    autoreset: str = "next-step"
    envs_per_actor: int = 8
    memory: int | str = "1GiB"
    out: str | Path = "di-store-demo.png"
    json: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"--seconds must be a positive number, got {self.seconds}")
        if self.actors < 1:
            raise ValueError(f"--actors must be at least 1, got {self.actors}")
        if self.envs_per_actor < 1:
            raise ValueError(f"--envs-per-actor must be at least 1, got {self.envs_per_actor}")
        if self.autoreset not in AUTORESET_MODES:
            raise ValueError(f"--autoreset must be one of {', '.join(AUTORESET_MODES)}, got {self.autoreset!r}")

    @property
    def pixels(self) -> bool:
        """Whether the environment is an Atari game seen as frames."""
        return self.env.startswith("ALE/")

    @property
    def recipe(self) -> Recipe:
        """Learning settings for this kind of environment."""
        return PIXELS if self.pixels else VECTOR


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Learning settings for one kind of environment.

    Counts are in learner updates unless the name states another unit.
    """

    batch_size: int
    capacity: int
    min_size: int
    samples_per_insert: float
    # Falls linearly from first to last over `learning_rate_updates`. With a constant high rate, the returns of a DQN
    # that has solved the task often fall again.
    learning_rate_first: float
    learning_rate_last: float
    learning_rate_updates: int
    gamma: float = 0.99
    n_step: int = 3
    frame_stack: int | None = None
    hidden_units: int
    target_every: int
    publish_every: int
    # The probability of a random action falls linearly from 1 over the first `epsilon_steps` steps of all actors
    # together: to `epsilon_final` for the last actor, and to `epsilon_spread` times that for the first one.
    epsilon_steps: int
    epsilon_final: float
    epsilon_spread: float
    alpha: float = 0.6
    beta_first: float = 0.4
    beta_updates: int
    priority_floor: float = 1e-3
    max_grad_norm: float = 10.0
    learner_threads: int  # maximum of torch's threads; fewer if the actors need the cores


# 4 samples per insert is what DI-engine's parallel Qbert job does (400 inserts/s, 1,650 samples/s).
PIXELS = Recipe(
    batch_size=32,
    capacity=60_000,
    min_size=1_000,
    samples_per_insert=4.0,
    learning_rate_first=1e-4,
    learning_rate_last=1e-4,
    learning_rate_updates=1,
    frame_stack=4,
    hidden_units=512,
    target_every=500,
    publish_every=25,
    epsilon_steps=15_000,
    epsilon_final=0.02,
    epsilon_spread=4.0,
    beta_updates=20_000,
    learner_threads=4,
)

VECTOR = Recipe(
    batch_size=64,
    capacity=200_000,
    min_size=1_000,
    samples_per_insert=32.0,
    learning_rate_first=5e-4,
    learning_rate_last=2e-5,
    learning_rate_updates=60_000,
    hidden_units=128,
    target_every=200,
    publish_every=50,
    epsilon_steps=10_000,
    epsilon_final=0.01,
    epsilon_spread=2.0,
    beta_updates=30_000,
    learner_threads=1,
)
