"""Writers of remote sessions, as the process has them that makes the calls of a writer on another machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import di_store
from di_store import _core
from di_store.replay.stream import autoreset_mode, build_native

SCHEMA = {"call": di_store.Spec((), "i8"), "at": di_store.Spec((), "i8")}
"""Each row tells which call wrote it, and which row of that call it is."""

Mark = tuple[int, int, bool]
"""Number of the call, how many of its items are in, whether these are all."""


class SessionWriter:
    """A core writer of a session. Each call takes its number first.

    Args:
        tables: that it writes to, with the columns of `SCHEMA`.
        session: 16 bytes.
        lanes: as `Table.writer`.
    """

    def __init__(self, *tables: di_store.Table, session: bytes, lanes: int | None = None) -> None:
        handles = sorted((table._backend.handle for table in tables), key=lambda handle: handle.native.index)
        self.native: _core.Writer = build_native(handles, lanes, autoreset_mode(None), 60.0, session)[0]

    def extend(self, seq: int, rows: int) -> Any:
        """Append that many rows of one lane; the lists of keys by table, or a `Blocked`."""
        self.native.begin_call(seq)
        return self.native.extend(rows_of(seq, rows), None, None, None, None, rows)

    def end_episode(self, seq: int) -> Any:
        """End the episodes of all lanes."""
        self.native.begin_call(seq)
        return self.native.end_episode(None, None, False)


def rows_of(seq: int, rows: int) -> dict[str, Any]:
    """The rows of a call."""
    return {"call": np.full(rows, seq), "at": np.arange(rows)}


def marks_of(store: di_store.Store, session: bytes) -> dict[str, Mark]:
    """What the session's marks say, by table."""
    return store._backend.session.arena.session_marks(session)


def items_by_call(table: di_store.Table) -> Counter[int]:
    """How many items of the table end with a row of each call; none is there twice."""
    keys = table.keys()
    if not len(keys):
        return Counter()
    data = table.peek(keys).data
    last = [np.asarray(data[name]).reshape(len(keys), -1)[:, -1] for name in ("call", "at")]
    pairs = Counter(zip(last[0].tolist(), last[1].tolist(), strict=True))
    assert max(pairs.values()) == 1
    return Counter(call for call, _ in pairs)
