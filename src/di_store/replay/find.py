"""Finds a table of a store by its name."""

from __future__ import annotations

from functools import partial

from di_store import _core
from di_store.base.errors import TableNotFound
from di_store.policy.options import check_table_name
from di_store.runtime.looks import Missing, until
from di_store.runtime.waits import check_timeout
from di_store.session import Session


def find_table(session: Session, name: str, timeout: float | None) -> _core.Table:
    """The core's table `name`; waits up to `timeout` seconds (None: no limit) for another process to create it.

    Raises:
        TableNotFound: no table of that name existed in that time.
    """
    arena, seconds = session.arena, check_timeout(timeout)
    look = partial(_look, session.name, check_table_name(name))
    return arena.table(name) or until(lambda: session.arena, seconds, f"table {name!r}", look)


def _look(store: str, name: str, arena: _core.Arena) -> _core.Table | Missing[_core.Table]:
    seen = arena.room_seq()
    missing = TableNotFound(f"store {store!r} has no table {name!r}")
    return arena.table(name) or Missing(arena.wait_table, seen, "nobody has created it yet", error=missing)
