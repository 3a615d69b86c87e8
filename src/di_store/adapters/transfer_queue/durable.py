"""The state of TransferQueue's controller in the store, beside the durable samples that it describes.

The state says which samples there are, under which keys, and which task has taken which. It is saved twice a second. It
is also saved before samples are deleted: TransferQueue has told the controller by then that they go, and gives their
indexes to other samples afterwards. So no saved state takes the values of one sample for those of another.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transfer_queue.client import TransferQueueClient
from transfer_queue.controller import PartitionIndexManager

import di_store
from di_store.adapters.transfer_queue.client import StorageClient
from di_store.adapters.transfer_queue.ids import Ids

_SAVE_SECONDS = 0.5
_logger = logging.getLogger("di_store")
_KEYS = ("even", "odd")
"""The last two states, by their number. While one is replaced, the other one stays."""


class _State:
    """A state as the controller has pickled it. A pickle itself: a store that loads none of others' refuses it."""

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data


class SavedController:
    """Loads the controller's last state from the store, and saves its state from then on. Thread-safe.

    Args:
        store: the store of the samples, with a disk tier.
        table: the name of the samples.
        info: where the controller is reached. It runs on this machine.

    Raises:
        di_store.NodeUnavailable: a node of the cluster does not answer, and may have the state.
    """

    def __init__(self, store: di_store.Store, table: str, info: Any) -> None:
        self._samples = StorageClient({"store": store, "durability": "disk", "table": table})
        self._states = StorageClient({"store": store, "durability": "disk", "table": f"{table}/controller"})
        self._controller = TransferQueueClient("DiStoreKeeper", info)
        self._folder = tempfile.TemporaryDirectory(prefix="di-store-")
        self._path = str(Path(self._folder.name, "controller"))
        self._lock = threading.Lock()
        self._begun = float("-inf")  # when the last save began
        self._last = _State(0, b"")
        self._resume()
        self.save()
        self._ended = threading.Event()
        threading.Thread(target=self._keep_saving, daemon=True).start()

    def save(self) -> None:
        """Save the present state. Calls that wait for each other share one save."""
        asked = time.monotonic()
        with self._lock:
            begins = time.monotonic()
            if self._begun >= asked:
                return
            data = self._present()
            if data != self._last.data:
                state = _State(self._last.number + 1, data)
                self._states.put([_KEYS[state.number % 2]], [state])
                self._last = state
            self._begun = begins

    def forget(self) -> None:
        """Take the state out of the store, until the controller has another one than now."""
        with self._lock:
            self._last = _State(self._last.number, self._present())
            self._states.clear(list(_KEYS))

    def _present(self) -> bytes:
        self._controller.save_controller_checkpoint(self._path)
        return Path(self._path).read_bytes()

    def _keep_saving(self) -> None:
        failed = False
        while not self._ended.wait(_SAVE_SECONDS):
            try:
                self.save()
                failed = False
            except Exception as error:  # whatever it is, the next attempt may do better
                if not failed and not self._ended.is_set():
                    _logger.warning("the state of TransferQueue's controller is not saved: %s", error)
                failed = True

    def end(self) -> None:
        """Save a last time."""
        self._ended.set()
        self.save()
        self._controller.close()
        self._folder.cleanup()

    def _resume(self) -> None:
        if (last := max(self._saved(), key=lambda each: each.number, default=None)) is None:
            return
        state = pickle.loads(last.data)
        there = self._samples.stored()
        described = mended(state, self._samples.owner, there)
        self._samples.delete(there - described)
        Path(self._path).write_bytes(pickle.dumps(state))
        self._controller.load_controller_checkpoint(self._path)
        self._last = _State(last.number, b"")

    def _saved(self) -> Iterator[_State]:
        for key in _KEYS if self._states.stored() else ():  # a read waits for what is not there
            with contextlib.suppress(KeyError):
                yield self._states.get([key])[0]


def mended(state: dict[str, Any], owner: str, there: set[str]) -> set[str]:
    """Take out of a controller's state what is not in the store.

    Args:
        state: as the controller saves it; it is changed.
        owner: common prefix of the samples' ids.
        there: ids of the values in the store.

    Returns:
        The ids of values that the state describes. Others were put after the state was saved, or their samples were
        being cleared.
    """
    described: set[str] = set()
    indexes = PartitionIndexManager()
    vars(indexes).update(state["index_manager"])
    for name, partition in state["partitions"].items():
        partition.ensure_samples_capacity(max(partition.global_indexes, default=-1) + 1)
        for field, column in partition.field_name_mapping.items():
            produced = partition.production_status[:, column].nonzero().flatten().tolist()
            ids = Ids(owner, [field], produced)
            described.update(ids)
            lost = [index for index, each in zip(produced, ids, strict=True) if each not in there]
            partition.production_status[lost, column] = 0
            if field in partition.field_metadata:
                partition.field_metadata[field].remove_samples(lost)
        empty = [index for index in partition.global_indexes if not partition.production_status[index].any()]
        partition.clear_data(empty)
        indexes.release_indexes(name, empty)
    state["index_manager"] = {key: getattr(indexes, key) for key in state["index_manager"]}
    return described
