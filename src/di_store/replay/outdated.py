"""Which handles end when another node takes their tables over."""

from __future__ import annotations

from typing import Any

from di_store.base.errors import TableNotFound
from di_store.replay.handle import TableHandle
from di_store.replay.local_table import LocalTable
from di_store.replay.local_writer import LocalWriter
from di_store.replay.writer import Writer, backend_of


def why_outdated(follower: Any) -> TableNotFound | None:
    """The error with which a handle of a session ends: its table was taken over since the handle was opened.

    The core itself refuses rows, draws and priorities, of every handle. Handles opened later read the old rows.
    """
    if isinstance(follower, LocalTable):
        handles = [] if follower.handle is None else [follower.handle]
    elif isinstance(follower, Writer) and isinstance(own := backend_of(follower), LocalWriter):
        stream = own.stream
        handles = [] if stream is None else list(stream.handles)
    else:
        return None
    lost = next((each for each in handles if _is_outdated(each)), None)
    if lost is None:
        return None
    text = f"another node of the cluster has table {lost.name!r} now, and the rows in this store are outdated"
    remedy = "store.table() opens it there; di_store.attach(NAME).table() reads the rows here"
    return TableNotFound(text, remedy=remedy)


def _is_outdated(handle: TableHandle) -> bool:
    return not handle.opened_outdated and handle.native.live and handle.native.taken_over
