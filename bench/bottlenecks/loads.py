"""The three training jobs: what is played, what an item is, how much learning each step gets.

Every number that decides how much data moves stands here and is the same for all systems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from di_store.demo.config import PIXELS, VECTOR, DemoConfig

Kind = Literal["replay", "states", "unrolls"]


@dataclass(frozen=True, kw_only=True)
class Load:
    """One job.

    kind: "replay" prioritized n-step transitions (of stacked frames if `frame_stack`), "states" uniform 1-step
    transitions, "unrolls" sequences in order, each used once.
    capacity: items, for "unrolls" the length of the queue; lanes: environments of one actor; fragment: vector steps
    that an actor of the systems with messages sends at once.
    memory_bytes: of the store, where a system wants to know before.
    """

    name: str
    title: str
    kind: Kind
    env: str
    autoreset: str = "next-step"
    actors: int = 2
    lanes: int = 8
    batch_size: int
    capacity: int
    min_size: int = 1_000
    samples_per_insert: float = 1.0
    tolerance: float = 0.1
    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int | None = None
    unroll: int = 20
    fragment: int = 10
    publish_every: int = 25
    alpha: float = 0.6
    beta: float = 0.4
    memory_bytes: int = 1 << 30
    seed: int = 0

    @property
    def demo(self) -> DemoConfig:
        """The demo's configuration that makes the same environments."""
        return DemoConfig(env=self.env, actors=self.actors, envs_per_actor=self.lanes, autoreset=self.autoreset)


QBERT = Load(
    name="qbert",
    title="Atari replay",
    kind="replay",
    env="ALE/Qbert-v5",
    batch_size=PIXELS.batch_size,
    capacity=PIXELS.capacity,
    min_size=PIXELS.min_size,
    samples_per_insert=PIXELS.samples_per_insert,
    n_step=PIXELS.n_step,
    frame_stack=PIXELS.frame_stack,
    publish_every=PIXELS.publish_every,
)
PENDULUM = Load(
    name="pendulum",
    title="states, SAC",
    kind="states",
    env="Pendulum-v1",
    lanes=4,
    batch_size=256,
    capacity=100_000,
    samples_per_insert=1_024.0,  # four updates with 256 samples for every step
    publish_every=10,
    memory_bytes=128 << 20,
)
UNROLLS = Load(
    name="unrolls",
    title="unrolls, IMPALA",
    kind="unrolls",
    env="ALE/Qbert-v5",
    autoreset="same-step",
    batch_size=16,
    capacity=64,
    frame_stack=4,
    fragment=20,
    publish_every=1,
    memory_bytes=512 << 20,
)
CARTPOLE = Load(
    name="cartpole",
    title="the demo's CartPole",
    kind="replay",
    env="CartPole-v1",
    batch_size=VECTOR.batch_size,
    capacity=VECTOR.capacity,
    min_size=VECTOR.min_size,
    samples_per_insert=VECTOR.samples_per_insert,
    n_step=VECTOR.n_step,
    publish_every=VECTOR.publish_every,
    memory_bytes=256 << 20,
)
LOADS = {load.name: load for load in (QBERT, PENDULUM, UNROLLS)}
