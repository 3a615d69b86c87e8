"""The data planes behind one interface: what moves experience to the learner and weights back.

Nothing else differs between the systems. The module of a system has two classes:

* `Plane(run)`, in the learner's process: `start()` starts the actors; `sample()` is the next batch, None if there was
  none for a while; `update(sample, priorities)`; `publish(weights, version)` gives weights to the actors, the caller
  then sets the board's version; `store_bytes()` of experience, None where the system does not tell; `close()` ends the
  actors, whom the board has told to stop, and what the plane started.
* `Actor(run, link)`, in an actor, from the `link` that the plane gave: `append(stepped)` hands over one vector step and
  is False once told to stop; `latest()` are the newest weights by name, tensors or arrays; `close()` drops what is not
  handed over.

Parts of time that they name themselves (`board.py`):

* actor: "write": what the actor does to hand a step over; "wait": for the limiter, a full queue or a confirmation.
* learner: "wait": for data, where that can be told from "sample"; "ingest": taking in messages; "sample": all of
  getting a batch as numpy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
PATIENCE_SECONDS = 0.5
ALPHA, BETA, TOLERANCE = 0.6, 0.4, 0.1
MODULES = {"di-store": "ours", "in-process": "in_process", "reverb": "reverb_plane", "ray": "ray_plane"}
SYSTEMS = tuple(MODULES)


@dataclass(frozen=True)
class Sample:
    """One batch, the same in every system.

    Attributes:
        data: obs, next_obs [n, …] (stacked frames: uint8 [n, 4, 84, 84]), action, reward, discount [n].
        keys: for new priorities.
        weights: of the loss.
    """

    data: dict[str, Array]
    keys: Any
    weights: Array


def module_of(system: str) -> Any:
    """The module of a system; the system's library is imported with it."""
    return import_module(f"bench.bottlenecks.planes.{MODULES[system]}")
