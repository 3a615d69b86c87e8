"""The data planes under one interface: what moves experience to the learner and weights back.

Nothing else differs between the systems. Parts of time that a plane names itself (see `board.py`):

* actor: "write" what the actor does to hand a step over, "wait" for the limiter, a full queue or an acknowledgement.
* learner: "wait" for data where that can be told from "sample", "ingest" taking in messages, "sample" all of getting a
  batch as numpy arrays.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from bench.bottlenecks.board import Board, Clock
from bench.bottlenecks.loads import Load
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import Stepped

PATIENCE_SECONDS = 0.5
MODULES = {"di-store": "ours", "in-process": "in_process", "reverb": "reverb_plane", "ray": "ray_plane"}
SYSTEMS = tuple(MODULES)


class ActorSide(Protocol):
    """The plane in one actor."""

    def append(self, stepped: Stepped, seen: Array, extra: dict[str, Array]) -> bool:
        """Hand over one vector step, what the policy sees next and what it added; False once told to stop."""

    def latest(self) -> dict[str, Any]:
        """The newest published weights, by name: tensors or arrays."""

    def close(self) -> None:
        """End of the run; what is not handed over is lost."""


class LearnerSide(Protocol):
    """The plane in the learner's process."""

    def start(self) -> None:
        """Start the actors."""

    def sample(self) -> Sample | None:
        """The next batch; `None` if there was none for a while, so that the caller can look at the time."""

    def update(self, sample: Sample, priorities: Array) -> None:
        """New priorities for the items of a batch."""

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        """Give weights to the actors; the caller then sets the board's version."""

    def store_bytes(self) -> int | None:
        """What holds the experience takes, where the system can tell."""

    def close(self) -> None:
        """End the actors and what the plane started. The board says stop already."""


def learner_side(system: str, load: Load, shape: Shape, board: Board, clock: Clock) -> LearnerSide:
    """The plane of a system; its module, and the system's library, are imported here."""
    module = import_module(f"bench.bottlenecks.planes.{MODULES[system]}")
    side: LearnerSide = module.Plane(load, shape, board, clock)
    return side


def actor_side(system: str, load: Load, shape: Shape, board: Board, clock: Clock, link: Any) -> ActorSide:
    """The plane in an actor, from what its learner's side gave as `link`."""
    module = import_module(f"bench.bottlenecks.planes.{MODULES[system]}")
    side: ActorSide = module.Actor(load, shape, board, clock, link)
    return side
