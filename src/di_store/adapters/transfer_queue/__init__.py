"""TransferQueue's samples in a Di-store.

After `register()`, the configuration `backend.storage_backend: DiStore` keeps the samples in one store instead of
TransferQueue's storage actors. Every process of the machine reads the store in place.

A value of a sample is an object. Its id follows from TransferQueue's key, so any process finds it without asking. A
tensor is stored as a numpy array, which the store writes and reads fastest; see `forms.form`.
"""

from __future__ import annotations

try:
    import ray  # noqa: F401
    import torch  # noqa: F401
    import transfer_queue
    import transfer_queue.storage.bootstrap
    import transfer_queue.storage.clients.base
    import transfer_queue.storage.managers.base
except ImportError as error:
    if error.name is not None and error.name.startswith("transfer_queue."):
        raise ImportError(
            "di_store.adapters.transfer_queue works with TransferQueue 0.1.10 and later 0.1 versions: "
            "pip install di-store[transfer_queue]"
        ) from error
    raise ImportError(
        "di_store.adapters.transfer_queue needs TransferQueue: pip install di-store[transfer_queue]"
    ) from error

from di_store.adapters.transfer_queue.versions import refusal

if (reason := refusal(transfer_queue.__version__)) is not None:
    raise ImportError(reason)

from di_store.adapters.transfer_queue.client import StorageClient
from di_store.adapters.transfer_queue.manager import StorageManager
from di_store.adapters.transfer_queue.settings import BACKEND
from di_store.adapters.transfer_queue.starting import register

__all__ = ["BACKEND", "StorageClient", "StorageManager", "register"]
