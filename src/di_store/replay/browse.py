"""Reads a table's columns and items without drawing them, for tools that show a store to people."""

from __future__ import annotations

import numpy as np

from di_store.columns.schema import Schema
from di_store.replay.batch import Batch, empty_batch
from di_store.replay.lost import without_lost
from di_store.replay.serving import handle_of
from di_store.replay.table import Table
from di_store.runtime import waits


def columns_of(table: Table) -> Schema | None:
    """The table's columns; None until they are declared."""
    return handle_of(table).schema


def oldest(table: Table, start: int, n: int, columns: tuple[str, ...] | None) -> Batch:
    """Up to `n` items as `Table.peek` shows them, oldest first, after skipping the `start` oldest.

    Each item is found and read in one hold of the table's lock, so it cannot be removed in between.
    """
    handle = handle_of(table)
    if handle.read_plan() is None:
        return empty_batch(np.empty(0, np.uint64))
    read, which = handle.reader().peek_oldest, handle.which(columns)
    return handle.batch(without_lost(handle.arena, read, start, n, which, waits.CALL_SECONDS))
