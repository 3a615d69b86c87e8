"""The loads in `loads.json` and `quick.json`, and their selection by name.

A load in a file is a mapping of the fields in `load.py` and `tables.py`; columns, roles and bars are lists of their
fields. Views, samplers, limiters and duties are calls. It may also have

    like      the name of a load whose fields hold where this one gives none; those of its first table, in every table
    each      {"word": [values]}: one load for every combination, "{word}" replaced throughout
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import di_store
from di_store.base.calls import made
from di_store.workloads import duties
from di_store.workloads.load import Bar, Load, Role
from di_store.workloads.table_plans import LoadColumn, TablePlan


def _made(text: str) -> Any:
    """The view, sampler, limiter or duty of a call like `MinSize(n=32)`."""
    return made(text, {**vars(di_store), **vars(duties)})


def _frozen(value: Any) -> Any:
    """Lists of the file as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _table(entry: Mapping[str, Any]) -> TablePlan:
    chosen = {key: _made(entry[key]) for key in ("view", "sampler", "limiter") if key in entry}
    fields: dict[str, Any] = {key: _frozen(value) for key, value in entry.items()}
    columns = tuple(LoadColumn(*column) for column in fields["columns"])
    return TablePlan(**{**fields, **chosen, "columns": columns})


def _load(entry: Mapping[str, Any]) -> Load:
    fields: dict[str, Any] = {key: _frozen(value) for key, value in entry.items()}
    roles = tuple(Role(name, int(count), tuple(map(_made, calls))) for name, count, calls in fields["roles"])
    bars = tuple(Bar(*bar) for bar in fields.get("bars", ()))
    return Load(**{**fields, "tables": tuple(map(_table, entry["tables"])), "roles": roles, "bars": bars})


def _each(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A copy of an entry for every combination of its "each"."""
    words = entry.pop("each", {})
    for values in itertools.product(*words.values()):
        text = json.dumps(entry)
        for word, value in zip(words, values, strict=True):
            text = text.replace(f"{{{word}}}", str(value))
        yield json.loads(text)


def _read(path: Path) -> dict[str, tuple[Load, ...]]:
    """The loads of a file, by group."""
    entries: dict[str, dict[str, Any]] = {}
    groups = {}
    for group, shortened in json.loads(path.read_text()).items():
        names = []
        for entry in itertools.chain.from_iterable(map(_each, shortened)):
            base = entries[entry.pop("like")] if "like" in entry else {}
            first = base.get("tables", [{}])[0]
            tables = [{**first, **table} for table in entry.get("tables", base.get("tables", []))]
            names.append(entry["name"])
            entries[entry["name"]] = {**base, **entry, "tables": tables}
        groups[group] = tuple(_load(entries[name]) for name in names)
    return groups


GROUPS: Mapping[str, tuple[Load, ...]] = _read(Path(__file__).with_name("loads.json"))
"""By name: the eight rows of the target table, variants of them, loads of papers, small operations (P12, P13)."""

LOADS: Mapping[str, Load] = {load.name: load for loads in GROUPS.values() for load in loads}


QUICK: Mapping[str, tuple[Load, ...]] = _read(Path(__file__).with_name("quick.json"))
"""By name: the quick workloads, of which every case is a load of one process."""


def find(name: str) -> tuple[Load, ...]:
    """The loads of a group, the load of that name, or the loads whose names begin with it and a hyphen, in any case."""
    wanted, every = name.lower(), tuple(LOADS.values())
    exact = {"loads": every, **GROUPS, **{load.name.lower(): (load,) for load in every}}
    return exact.get(wanted) or tuple(load for load in every if load.name.lower().startswith(f"{wanted}-"))
