"""What `status` and `top` know about a store, as plain values; read without locks."""

from __future__ import annotations

from typing import Any

import di_store
from di_store.cli.common import ATTACH_SECONDS, others
from di_store.errors import StoreError, StoreNotFound
from di_store.sizes import format_size

Report = dict[str, Any]


def reports(only: str | None = None) -> list[Report]:
    """One report for each store of this machine, or for the one named `only`, by name.

    A store that cannot be read has its reason under "error", the others are none the worse for it.
    """
    return [
        found
        for info in sorted(di_store.list_stores(), key=lambda info: info.name)
        if (only is None or info.name == only) and (found := report(info.name, others(info.pids)))
    ]


def report(name: str, pids: list[int]) -> Report | None:
    """One store; None if it went away meanwhile."""
    plain: Report = {"name": name, "pids": pids, "error": None, "bytes": None, "budget": None}
    plain |= {"tables": [], "waiters": [], "clients": [], "memory": {}}
    try:
        store = di_store.attach(name, timeout=ATTACH_SECONDS)
    except StoreNotFound:
        return None
    except StoreError as error:
        return plain | {"error": str(error)}
    try:
        stats = store.stats()
    except StoreError as error:
        return plain | {"error": str(error)}
    finally:
        store.close()
    return plain | described(stats)
