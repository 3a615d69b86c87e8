"""`di_store.restore`: a store from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from di_store.base.config import function
from di_store.checkpoint.store import durable
from di_store.checkpoint.store.capture import Progress
from di_store.checkpoint.store.files import reading
from di_store.checkpoint.store.loading import StoreLoad, read_manifest
from di_store.checkpoint.tree.folder import Folder
from di_store.session import Session
from di_store.store.handle import Store
from di_store.store.opening import open_filled


def restore(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    memory: int | float | str = "25%",
    disk: str | os.PathLike[str] | None = None,
    disk_capacity: int | str | None = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> Store:
    """Make a new store from a checkpoint: tables with items, priorities and counts; objects and weights.

    The next draws are those that the saved store would have made. Draws that were not delivered count as given back.
    Rows of open episodes that no item needed yet are lost, as after the death of their writer.

    Args:
        path: folder of the checkpoint (`Store.checkpoint`).
        name: name of the new store, which must not exist; None: a generated name.
        memory: as in `open`.
        disk: as in `open`. It must differ from the folder of the saved store.
        disk_capacity: as in `open`.
        tables: changed options by table: ``{"replay": {"capacity": 1000, "limiter": MinSize(1)}}``. Only `capacity`,
            `limiter`, `max_bytes` and `compress` can be changed. If the capacity is smaller, the remover chooses the
            items to drop. A new limiter starts counting as after `Table.configure`.
        progress: called with the number of chunks read so far and the total.

    Raises:
        CorruptData: `path` holds no checkpoint, or a file is damaged or missing. LayoutMismatch: another version of
        Di-store wrote the checkpoint. CapacityError: the checkpoint does not fit `memory` and `disk`. StoreError: the
        store exists.

    Other processes find the store once it is complete: `attach(timeout=)` and `open` wait for this.
    """
    function("progress", progress)
    with reading(Folder(path)):
        folder, manifest = read_manifest(path)
        filling = StoreLoad(folder, manifest, {} if tables is None else tables)

        def fill(session: Session) -> None:
            filling.fill(session, progress)
            durable.begin(session.arena)

        return open_filled(
            fill, name, memory=memory, mode="x", seed=manifest.seed, disk=disk, disk_capacity=disk_capacity
        )
