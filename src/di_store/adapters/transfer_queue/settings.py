"""The section `backend.DiStore` of TransferQueue's configuration."""

from __future__ import annotations

from typing import Any

from di_store.base import config

BACKEND = "DiStore"
"""The name in `backend.storage_backend`, and of the section of the configuration with this backend's settings."""
CLIENT = "DiStoreClient"
TABLE = "samples"
OWN = ("memory", "disk", "disk_capacity", "name")
"""Settings of a store of TransferQueue's own."""
_SETTINGS = frozenset({*OWN, "store", "table", "timeout", "durability", "registration", "client_name", "keeper"})


def settings(section: Any) -> dict[str, Any]:
    """The section as a dict.

    Raises:
        ValueError: there is no such setting, or two contradict each other.
    """
    given: dict[str, Any] = dict(section or {})
    if unknown := sorted(map(str, given.keys() - _SETTINGS)):
        raise ValueError(
            f"backend.DiStore: there is no setting {unknown[0]!r}; there are memory, disk, disk_capacity, name, store, "
            "table, timeout and durability"
        )
    if given.get("store") is not None and (own := [name for name in OWN if given.get(name) is not None]):
        raise ValueError(
            f"backend.DiStore.{own[0]} is for a store of TransferQueue's own, and backend.DiStore.store gives one: "
            'leave one of them out, or write store: {"memory": …, "disk": …}'
        )
    config.choice("backend.DiStore.durability", durability(given), ("memory", "disk"))
    return given


def durability(given: dict[str, Any]) -> str:
    """What `Store.put` takes for each sample."""
    return given.get("durability") or "memory"
