"""The named loads, and how they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

from di_store.workloads.load import Load
from di_store.workloads.papers import OPERATIONS, PAPERS
from di_store.workloads.rows import ROWS, VARIANTS

GROUPS: Mapping[str, tuple[Load, ...]] = {
    "rows": ROWS,
    "variants": VARIANTS,
    "papers": PAPERS,
    "operations": OPERATIONS,
}
"""By name: the eight rows of the target table, variants of them, loads of papers, small operations (P12, P13)."""

LOADS: Mapping[str, Load] = {load.name: load for loads in GROUPS.values() for load in loads}


def find(name: str) -> tuple[Load, ...]:
    """The loads of a group, the load of that name, or those whose name begins so, up to a hyphen; case is ignored."""
    wanted = name.lower()
    if wanted == "loads":
        return tuple(LOADS.values())
    if wanted in GROUPS:
        return GROUPS[wanted]
    exact = tuple(load for load in LOADS.values() if load.name.lower() == wanted)
    return exact or tuple(load for load in LOADS.values() if load.name.lower().startswith(f"{wanted}-"))
