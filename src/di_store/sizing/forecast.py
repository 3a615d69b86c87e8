"""Estimates the memory, disk and drive speed that the tables of a job need, before it runs: `di-store plan`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from di_store import _core
from di_store.base import calls, config
from di_store.base.disk import LEAST_BYTES
from di_store.base.errors import shown
from di_store.base.sizes import parse_size
from di_store.base.tree import did_you_mean
from di_store.columns.schema import Schema, Spec
from di_store.layout.native_views import finished_schema
from di_store.layout.plan import read_plan
from di_store.layout.reserve import TableNeeds, table_needs
from di_store.policy import compression, limiters, samplers, views
from di_store.policy.options import TableOptions, check_options, check_table_name
from di_store.policy.settings import Settings
from di_store.replay.loader import MAX_PREFETCH
from di_store.sizing.needed_memory import OWN_BYTES

_DAY = 86_400
_LEAST_MEMORY = 8 << 20
_OWN_SHARE = 64
"""One part in so many of a store's memory, and `OWN_BYTES`, are not available for rows."""

_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "view": {cls.__name__: cls for cls in views.VIEWS},
    "sampler": {cls.__name__: cls for cls in samplers.SAMPLERS},
    "remover": {cls.__name__: cls for cls in samplers.REMOVERS},
    "limiter": {cls.__name__: cls for cls in limiters.LIMITERS},
    "compress": {"Compress": compression.Compress},
}
_OPTIONS = ("capacity", "max_bytes", "max_times_sampled", "lanes", "columns", "schema", *_CLASSES)
_RATES = ("inserts", "samples", "batch", "prefetch")
_BATCH, _PREFETCH = 256, 2
_JOB = ("memory", "disk", "tables")
_HOW = "write a dtype and a shape, such as u1[84, 84], or Spec((None,), 'i4', max=64) as in Python"
_TYPE = re.compile(r"\s*([^\[\]\s]+)\s*(?:\[([\d_\s,]*)\])?\s*", re.ASCII)


@dataclass(frozen=True)
class TableForecast:
    """The needs of one table: bytes, or bytes per second.

    Attributes:
        items: number of items; None: as many as fit `max_bytes`.
        item_bytes: bytes of an item's rows.
        rows_bytes: bytes reserved for rows in memory, with room for changes.
        on_disk_bytes: the same on disk, by `Compress(expect=)`.
        fixed_bytes: bytes that always stay in memory: item slots, trees, open chunks, heads with late columns.
        fill_seconds: seconds until the table is full; None: no rate is known.
        inserted: bytes per second of rows as they are stored; sampled: bytes per second of batches as learners get
            them.
        read: bytes per second from the drive if all rows were read from disk.
        ahead_bytes: bytes of the batches that a loader holds.
    """

    name: str
    items: int | None
    item_bytes: int
    rows_bytes: int
    on_disk_bytes: int
    fixed_bytes: int
    fill_seconds: float | None
    inserted: float
    sampled: float
    read: float
    ahead_bytes: int


@dataclass(frozen=True)
class Forecast:
    """The needs of a job.

    Attributes:
        tables: the needs of each table.
        in_memory: the least ``memory=`` with which no disk is needed.
        memory: memory of the planned store.
        disk_capacity: disk capacity that the job also needs; 0: no disk.
        least_memory: memory below which no disk helps.
        hot: share of the rows, without late columns, that memory holds; only these rows may leave memory.
        staging: ``staging=`` of a process that has a loader of each table.
        written_a_day: bytes written to the drive per day; read: bytes read from it per second; both at most.
    """

    tables: tuple[TableForecast, ...]
    in_memory: int
    memory: int
    disk_capacity: int
    least_memory: int
    hot: float
    staging: int
    written_a_day: float
    read: float


def forecast(job: Any) -> Forecast:
    """Estimate the needs of a job's tables.

    Args:
        job: the content of a file for `di-store plan`: ``tables`` by name, and optionally the available ``memory`` and
            ``disk``. A table has options of `Store.create_table`. Its view and other policies are calls like
            ``"MinSize(100)"``. Its schema is like ``{"obs": "u1[84, 84]", "text": "Spec((None,), 'u1', max=64)"}``. It
            may also have ``inserts`` and ``samples`` in items per second, and ``batch`` and ``prefetch`` of its loader.

    Raises:
        ValueError, TypeError: a description that is not valid; the text names the table and the option.
        CapacityError: no store can hold such rows or so many items.
    """
    _check_names("the file", job, _JOB)
    if not job.get("tables"):
        raise ValueError("the file has no tables: write `tables:` and, for each, its name and options")
    _check_names("tables", job["tables"], None)
    found = [_table(str(name), options) for name, options in job["tables"].items()]
    tables = tuple(table for table, _ in found)
    needed = [needs for _, needs in found]
    fixed = sum(each.in_memory for each in needed)
    in_memory = _least(sum(each.total for each in needed) + OWN_BYTES)
    least = _least(fixed + OWN_BYTES)
    memory = in_memory if job.get("memory") is None else parse_size(job["memory"], total=_core.memory_total())
    rows = sum(each.in_tiers for each in needed)
    disk = 0
    if memory < in_memory:
        for_rows = max(0, memory - OWN_BYTES - memory // _OWN_SHARE - sum(each.own_bytes for each in needed))
        disk = max(LEAST_BYTES, _core.least_disk(rows, for_rows))
    may_leave = sum(each.reserve.bytes - each.reserve.in_memory for each in needed)
    hot = 1.0 if disk == 0 else min(1.0, max(0, memory - fixed) / max(1, may_leave))
    return Forecast(
        tables,
        in_memory,
        memory,
        disk,
        least,
        hot,
        sum(table.ahead_bytes for table in tables),
        sum(table.inserted for table in tables) * _DAY if disk else 0.0,
        sum(table.read for table in tables) * (1 - hot),
    )


def _least(needed: int) -> int:
    """The least ``memory=`` of a store with this many bytes for tables."""
    return max(_LEAST_MEMORY, _core.least_budget(needed))


def _check_names(where: str, given: Any, known: tuple[str, ...] | None) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{where}: {shown(given)} is a {type(given).__name__}: write names and values")
    for name in given:
        if known is not None and name not in known:
            raise ValueError(f"{where}: there is no {shown(name)}{did_you_mean(str(name), known)}")


def _table(name: str, given: Any) -> tuple[TableForecast, TableNeeds]:
    where = f"table {name!r}"
    _check_names(where, given, (*_OPTIONS, *_RATES))
    try:
        check_table_name(name)
        settings = check_options(_options(given), 0)
        inserts, samples = (config.real(each, given.get(each, 0.0)) for each in ("inserts", "samples"))
        batch = config.count("batch", given.get("batch", _BATCH), minimum=1)
        prefetch = config.count("prefetch", given.get("prefetch", _PREFETCH), minimum=0, maximum=MAX_PREFETCH)
        if settings.schema is None:
            raise ValueError("write its schema, such as `schema: {obs: 'u1[84, 84]', reward: f4}`")
        needs = table_needs(settings, settings.schema, settings.capacity)
        return _forecast(name, settings, needs, inserts, samples, batch * (prefetch + 1)), needs
    except (ValueError, TypeError) as error:
        raise type(error)(f"{where}: {error}") from None


def _forecast(
    name: str, settings: Settings, needs: TableNeeds, inserts: float, samples: float, ahead: int
) -> TableForecast:
    assert settings.schema is not None
    view, stored = settings.view, needs.item_bytes / settings.expect
    output = _example_bytes(settings, settings.schema)
    return TableForecast(
        name,
        settings.capacity,
        needs.item_bytes,
        needs.reserve.bytes,
        needs.in_tiers,
        needs.in_memory,
        settings.capacity / inserts if inserts and settings.capacity else None,
        inserts * stored,
        samples * output,
        samples * stored / view.rows_added * view.rows_spanned * views.answers_of(view),
        ahead * output,
    )


def _example_bytes(settings: Settings, schema: Schema) -> int:
    """Bytes of a batch for each example; rows of ragged columns count with their largest length."""
    plan, columns = read_plan(settings.view, schema, settings.columns), finished_schema(settings.view, schema)
    total = plan.item_bytes
    for at, (_, rows) in plan.ragged.items():
        column = columns[columns.names[plan.native["outputs"][at]["column"]]]
        total += max(1, rows) * (column.row_bytes or 0)
    return total


def _options(given: Mapping[str, Any]) -> TableOptions:
    chosen: dict[str, Any] = {"capacity": None}
    for option in _OPTIONS:
        value = given.get(option)
        if value is not None:
            known = _CLASSES.get(option)
            chosen[option] = calls.made(value, known) if known and isinstance(value, str) and "(" in value else value
    if given.get("schema") is not None:
        chosen["schema"] = _specs(given["schema"])
    return cast(TableOptions, chosen)


def _specs(declared: Any) -> Any:
    """A schema of the file as nested dict of `Spec`: "f4", "u1[84, 84]", a call as "Spec((None,), 'i4', max=64)"."""
    if isinstance(declared, str) and "(" in declared:
        return calls.made(declared, {"Spec": Spec})
    if isinstance(declared, str):
        match = _TYPE.fullmatch(declared)
        if match is None:
            raise ValueError(f"schema: {shown(declared)}: {_HOW}")
        sizes = [int(size) for size in (match[2] or "").replace("_", "").split(",") if size.strip()]
        return Spec(tuple(sizes), match[1])
    if not isinstance(declared, Mapping):
        raise TypeError(f"schema: {shown(declared)}: {_HOW}")
    if "dtype" in declared and not isinstance(declared["dtype"], Mapping):
        return Spec(**{**declared, "shape": tuple(declared.get("shape", ()))})
    return {str(name): _specs(each) for name, each in declared.items()}


def read_job(path: str) -> Any:
    """The description in a YAML or JSON file.

    Raises:
        ValueError: the text cannot be read; the message names the place.
    """
    try:
        with open(path, "rb") as file:
            return msgspec.yaml.decode(file.read())
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
