"""Moves batches between TransferQueue's TensorDicts and the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordict import TensorDict
from transfer_queue.storage.managers.base import KVStorageManager

import di_store
from di_store.adapters.transfer_queue.forms import StoredForms, column, rows
from di_store.adapters.transfer_queue.ids import Ids
from di_store.adapters.transfer_queue.settings import CLIENT, settings

_CHECKPOINT = "di_store"
"""Folder of a checkpoint's parts, each of which `di_store.save` writes."""


class StorageManager(KVStorageManager):  # type: ignore[misc]
    """Moves batches between TransferQueue's TensorDicts and the store."""

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        super().__init__(controller_info, {**settings(config), "client_name": CLIENT}, zmq_context=zmq_context)

    @property
    def store(self) -> di_store.Store:
        """The store of the samples. The samples are objects: there is no table."""
        found: di_store.Store = self.storage_client.store
        return found

    def _generate_keys(self, field_names: list[str], global_indexes: list[int]) -> list[str]:
        """The ids of the objects, in place of keys in the same order, for `StorageClient`."""
        return Ids(self.storage_client.owner, sorted(field_names), global_indexes)

    @staticmethod
    def _generate_values(data: Any) -> list[Any]:
        """Values in the order of the keys: by field, then by sample."""
        forms = StoredForms()
        for field in sorted(data.keys()):
            forms.extend(rows(data[field]))
        return forms

    async def get_data(self, metadata: Any) -> Any:
        """The fields of a batch as a TensorDict."""
        size = len(metadata.global_indexes)
        if not metadata.field_names or not size:
            return TensorDict({}, batch_size=size)
        fields = sorted(metadata.field_names)
        forms = self.storage_client.forms(self._generate_keys(fields, metadata.global_indexes))
        columns = {field: column(forms[at * size : (at + 1) * size]) for at, field in enumerate(fields)}
        return TensorDict(columns, batch_size=size)

    async def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write all samples to a folder inside the given one, for `transfer_queue.save_checkpoint`."""
        self.storage_client.save(Path(checkpoint_dir) / _CHECKPOINT)

    async def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Replace all samples with those that `save_checkpoint` wrote."""
        path = Path(checkpoint_dir) / _CHECKPOINT
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there: this checkpoint was not saved with backend DiStore")
        self.storage_client.load(path)

    def close(self) -> None:
        """Close the connection to the controller, and this process's handle of the store."""
        super().close()
        if (client := getattr(self, "storage_client", None)) is not None:
            client.close()
