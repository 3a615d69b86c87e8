"""`di_store.restore`: a store from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from di_store.base.config import function
from di_store.checkpoint.folder import Folder
from di_store.opening import open_filled
from di_store.session import Session
from di_store.snapshot import durable
from di_store.snapshot.files import reading
from di_store.snapshot.filling import Filling, read_manifest
from di_store.snapshot.taking import Progress
from di_store.store import Store


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
    """A new store with all that a checkpoint holds: tables with items, priorities and counts; objects and weights.

    The next draws are those that the store would have made. Draws that were under way count as given back; rows of open
    episodes that no item needed yet are not there, as after the death of their writer.

    Args:
        path: folder of the checkpoint (`Store.checkpoint`).
        name: of the new store, which must not exist; None: one of its own.
        memory: as `open`.
        disk: as `open`: a folder of its own, not that of the store that was saved.
        disk_capacity: as `open`.
        tables: by table, what it gets in place of its own: ``{"replay": {"capacity": 1000, "limiter": MinSize(1)}}``.
            `capacity`, `limiter`, `max_bytes` and `compress` may be given. With a smaller capacity items go as the
            remover picks them. A limiter that is given counts anew.
        progress: called with the chunks that are read, and how many there are.

    Raises:
        CorruptData: no checkpoint is there, or a file is damaged or missing. LayoutMismatch: of another
        version. CapacityError: it does not fit `memory` and `disk`. StoreError: the store exists.

    Other processes find the store once all is there: `attach(timeout=)` and `open` wait for that.
    """
    function("progress", progress)
    with reading(Folder(path)):
        folder, manifest = read_manifest(path)
        filling = Filling(folder, manifest, {} if tables is None else tables)

        def fill(session: Session) -> None:
            filling.fill(session, progress)
            durable.begin(session.arena)

        return open_filled(
            fill, name, memory=memory, mode="x", seed=manifest.seed, disk=disk, disk_capacity=disk_capacity
        )
