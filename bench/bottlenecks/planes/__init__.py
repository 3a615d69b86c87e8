"""The data planes behind one interface: they move experience to the learner, and weights to the actors.

Nothing else differs between the systems. The module of a system has two classes:

* `Plane(run)`, in the learner's process: `start()` starts the actors; `sample()` returns the next batch, None if there
  is none for a while; `update(sample, priorities)`; `publish(weights, version)` gives weights to the actors (the caller
  then sets the board's version); `store_bytes()` of experience, None if the system does not tell; `close()` ends the
  actors, after the board has told them to stop, and everything that the plane started.
* `Actor(run, link)`, in an actor, with the `link` from the plane: `append(stepped)` sends one vector step, and returns
  False if told to stop; `latest()` returns the newest weights by name, as tensors or arrays; `close()` drops what is
  not sent yet.

They measure these parts of time themselves (`board.py`):

* actor: "write": sending a step; "wait": for the limiter, a full queue or a confirmation.
* learner: "wait": for data, if that can be separated from "sample"; "ingest": receiving messages; "sample": everything
  needed to get a batch as numpy arrays.
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
        keys: for `update`.
        weights: importance weights, float32 [n].
    """

    data: dict[str, Array]
    keys: Any
    weights: Array


def module_of(system: str) -> Any:
    """Import and return the module of a system, which imports the system's library."""
    return import_module(f"bench.bottlenecks.planes.{MODULES[system]}")
