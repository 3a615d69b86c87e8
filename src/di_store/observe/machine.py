"""Reports of all stores of this machine. Each look attaches, reads and detaches: it keeps no store."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from di_store import _core
from di_store.base.errors import StoreError, StoreNotFound
from di_store.observe.report import StoreReport, report, unreadable
from di_store.observe.stats import StoreStats, store_stats
from di_store.replay.tables import Tables
from di_store.session import Session

Holders: TypeAlias = list[_core.Holder]
"""The processes that hold one store."""

ATTACH_SECONDS = 5.0
"""How long attaching may wait for another process that attaches at the same time."""


def held_stores(only: Collection[str] = ()) -> dict[str, Holders]:
    """The processes that hold each store of this user, by its name, sorted; `only`: the names wanted, empty: all."""
    found: dict[str, Holders] = {}
    for holder in _core.list_holders():
        if not holder.removed and (not only or holder.name in only):
            found.setdefault(holder.name, []).append(holder)
    return dict(sorted(found.items()))


def pids_of(holders: Holders) -> tuple[int, ...]:
    """The pids of these processes, sorted."""
    return tuple(sorted({each.pid for each in holders}))


def session_stats(session: Session, locks: bool = True) -> StoreStats:
    """`Store.stats` of a store in this process's memory; `locks`: as in `table_stats`."""
    return store_stats(session.arena, Tables(session).stats(locks))


def reports(only: str | None = None) -> list[StoreReport]:
    """One report for each store of this machine, sorted by name, or only for the one named `only`.

    The report of a store that cannot be read has the reason in "error".
    """
    me, wanted = _core.proc_pid(), () if only is None else (only,)
    found = ((_report(name, holders), pids_of(holders)) for name, holders in held_stores(wanted).items())
    return [{**each, "pids": [pid for pid in pids if pid != me]} for each, pids in found if each is not None]


def _report(name: str, holders: Holders) -> StoreReport | None:
    """The report of one store; None: it has ended or was removed meanwhile."""
    try:
        session = Session(_core.Arena.attach(name, holders, ATTACH_SECONDS), readonly=True)
        try:
            return report(session_stats(session))
        finally:
            session.close()
    except StoreNotFound:
        return None
    except StoreError as error:
        return unreadable(name, str(error))
