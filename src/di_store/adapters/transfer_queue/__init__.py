"""TransferQueue's samples in a Di-store.

After `register()`, the configuration `backend.storage_backend: DiStore` keeps the samples in one store instead of
TransferQueue's storage actors. Every process of the machine reads the store in place.

A value of a sample is an object. Its id follows from TransferQueue's key, so any process finds it without asking. A
tensor is stored as a numpy array, which the store writes and reads fastest; see `forms.form`.
"""

from di_store.adapters.framework import require

require("transfer_queue", "transfer_queue transfer_queue.storage.bootstrap ray torch", ">=0.1.10,<0.2")

from di_store.adapters.transfer_queue.client import StorageClient
from di_store.adapters.transfer_queue.manager import StorageManager
from di_store.adapters.transfer_queue.settings import BACKEND
from di_store.adapters.transfer_queue.starting import register

__all__ = ["BACKEND", "StorageClient", "StorageManager", "register"]
