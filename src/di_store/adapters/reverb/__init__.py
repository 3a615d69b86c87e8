"""Reverb's interface over Di-store tables: no server, no TensorFlow.

Write ``from di_store.adapters import reverb`` instead of ``import reverb``. A `Server` is a store in shared memory, and
its port is a part of the store's name: a `Client` in any process of the machine reaches the tables by
``localhost:port``. On other machines, pass the store to the client instead.
"""

from di_store.adapters.reverb import item_selectors as selectors
from di_store.adapters.reverb import rate_limiters
from di_store.adapters.reverb.client import Client
from di_store.adapters.reverb.errors import DeadlineExceededError, ReverbError
from di_store.adapters.reverb.history import TrajectoryColumn
from di_store.adapters.reverb.reverb_types import ReplaySample, SampleInfo, TensorSpec
from di_store.adapters.reverb.server import Server, Table
from di_store.adapters.reverb.trajectory_dataset import TrajectoryDataset
from di_store.adapters.reverb.trajectory_writer import TrajectoryWriter
from di_store.adapters.reverb.writer import Writer

__all__ = [
    "Client",
    "DeadlineExceededError",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "Table",
    "TensorSpec",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "Writer",
    "rate_limiters",
    "selectors",
]
