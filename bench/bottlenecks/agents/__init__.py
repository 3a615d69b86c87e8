"""What acts and what learns: the same in every system. A policy per actor, a learner per run."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from bench.bottlenecks.agents.dqn import DqnLearner, DqnPolicy
from bench.bottlenecks.agents.impala import ImpalaLearner, ImpalaPolicy
from bench.bottlenecks.agents.sac import SacLearner, SacPolicy
from bench.bottlenecks.loads import Load
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape


class Policy(Protocol):
    """Acts in one actor's environments."""

    network: nn.Module

    def act(self, seen: Array, steps: int) -> tuple[Array, dict[str, Array]]:
        """Actions for what is seen [lanes, …] after `steps` of this actor's own steps, and further columns to store."""


class Learner(Protocol):
    """Owns the networks that learn."""

    @property
    def updates(self) -> int:
        """Made so far."""

    def assemble(self, sample: Sample) -> Any:
        """The batch as the tensors that `train` takes."""

    def train(self, tensors: Any) -> Array | None:
        """One update; the new priorities float64 [n] where items have any."""

    def weights(self) -> dict[str, Tensor]:
        """What actors need."""


def make_policy(load: Load, shape: Shape, index: int) -> Policy:
    """The policy of actor `index`."""
    if load.kind == "states":
        return SacPolicy(shape, seed=load.seed * 1_000 + index)
    if load.kind == "unrolls":
        return ImpalaPolicy(load, shape, seed=load.seed * 1_000 + index)
    return DqnPolicy(load, shape, index)


def make_learner(load: Load, shape: Shape) -> Learner:
    """The learner of a load."""
    if load.kind == "states":
        return SacLearner(shape)
    return ImpalaLearner(load, shape) if load.kind == "unrolls" else DqnLearner(load, shape)
