"""The named loads, read from `loads.json`, and how they are asked for.

A load in the file is its fields as `load.py`, `tables.py` and `duties.py` name them, shortened:

    columns   "name dtype shape; …", shape as "4,84,84", "*" for a ragged dimension, and its lengths as "~mean,sigma,…"
    roles     {"name xPROCESSES": ["Duty(…)", …]}
    most      labels let go in one phase, joined by " + "
    bars      "figure relation value: text"
    like      the name of a load whose fields hold where this one gives none; those of its first table, in every table
    each      {"word": [values]}: one load for every combination, "{word}" replaced throughout
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import di_store
from di_store.workloads import duties
from di_store.workloads.load import Bar, Load, Role
from di_store.workloads.tables import Column, TablePlan


def _made(text: str) -> Any:
    """The view, sampler, limiter or duty of a call like `MinSize(n=32)`; arguments are literals."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    kind = getattr(duties, call.func.id, None) or getattr(di_store, call.func.id)
    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return kind(**options)


def _column(text: str) -> Column:
    name, dtype, *rest = text.split()
    shape = tuple(None if each == "*" else int(each) for each in rest[0].split(",")) if rest else ()
    if len(rest) < 2:
        return Column(name, dtype, shape)
    mean, sigma, least, most = rest[1].removeprefix("~").split(",")
    return Column(name, dtype, shape, (float(mean), float(sigma), int(least), int(most)))


def _table(entry: dict[str, Any]) -> TablePlan:
    made: dict[str, Any] = {key: _made(entry[key]) for key in ("view", "sampler", "limiter") if key in entry}
    columns = tuple(map(_column, entry["columns"].split("; ")))
    fields: dict[str, Any] = {**entry, **made, "columns": columns, "sizes": tuple(entry.get("sizes", (0, 0)))}
    return TablePlan(**fields)


def _role(name: str, calls: list[str]) -> Role:
    name, _, processes = name.rpartition(" x")
    return Role(name, int(processes), tuple(map(_made, calls)))


def _bar(text: str) -> Bar:
    rule, _, text = text.partition(": ")
    figure, relation, value = rule.rsplit(" ", 2)
    return Bar(figure, relation, float(value), text)


def _load(entry: dict[str, Any]) -> Load:
    parts = {
        "tables": tuple(map(_table, entry.get("tables", ()))),
        "roles": tuple(_role(*role) for role in entry["roles"].items()),
        "most": tuple(tuple(phase.split(" + ")) for phase in entry.get("most", ())),
        "bars": tuple(map(_bar, entry.get("bars", ()))),
    }
    return Load(**{**entry, **parts})


def _each(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An entry once for every combination of its "each"."""
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


def find(name: str) -> tuple[Load, ...]:
    """The loads of a group, the load of that name, or those whose name begins so, up to a hyphen; case is ignored."""
    wanted = name.lower()
    if wanted == "loads":
        return tuple(LOADS.values())
    if wanted in GROUPS:
        return GROUPS[wanted]
    exact = tuple(load for load in LOADS.values() if load.name.lower() == wanted)
    return exact or tuple(load for load in LOADS.values() if load.name.lower().startswith(f"{wanted}-"))
