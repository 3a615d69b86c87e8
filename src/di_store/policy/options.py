"""The options of `Store.create_table` as given, and their conversion to the checked settings of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from di_store.base import config, tree
from di_store.base.errors import shown
from di_store.base.sizes import parse_size
from di_store.columns.schema import Schema
from di_store.policy.combination import MAX_CAPACITY, check_combination
from di_store.policy.compression import check_compress
from di_store.policy.limiters import Limiter, MinSize, Queue, Stack, check_limiter
from di_store.policy.samplers import Fifo, Lifo, Remover, Sampler, Uniform, check_remover, check_sampler
from di_store.policy.settings import Settings
from di_store.policy.views import Opaque, Step, View, check_view

_NAME_BYTES = 100


class NotGiven(Enum):
    """The type of `NOT_GIVEN`, which distinguishes a default from an argument of the same value."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = NotGiven.NOT_GIVEN


@dataclass(frozen=True)
class TableOptions:
    """The options of a new table as a caller gave them, not checked yet. `Store.create_table` explains each option."""

    capacity: int | None
    view: View
    schema: Any
    sampler: Sampler | NotGiven
    remover: Remover | NotGiven
    limiter: Limiter | NotGiven
    max_times_sampled: int | NotGiven
    max_bytes: int | str | None
    lanes: int
    weights: str | None
    max_staleness: int | None
    initial_priority: float | str
    columns: str | Iterable[str] | None
    durability: str
    seed: int | None
    compress: Any = "auto"
    sync_every: float = 10.0


_DEFAULTS: dict[str, Any] = {
    "view": Step(),
    "schema": None,
    "sampler": NOT_GIVEN,
    "remover": NOT_GIVEN,
    "limiter": NOT_GIVEN,
    "max_times_sampled": NOT_GIVEN,
    "max_bytes": None,
    "lanes": 64,
    "weights": None,
    "max_staleness": None,
    "initial_priority": "max",
    "columns": None,
    "durability": "memory",
    "seed": None,
    "compress": "auto",
    "sync_every": 10.0,
}


def table_options(capacity: int | None, given: dict[str, Any]) -> TableOptions:
    """Options of which some were given, by their names in `Store.create_table`; TypeError for any other name."""
    if unknown := given.keys() - _DEFAULTS.keys():
        raise TypeError(f"create_table() got an unexpected keyword argument {min(unknown)!r}")
    return TableOptions(capacity, **{**_DEFAULTS, **given})


def check_options(options: TableOptions, own_seed: int) -> Settings:
    """Fill in options that were not given, and refuse settings that cannot work.

    The defaults are Uniform(), Fifo(), MinSize(1) and no limit of uses; `Queue` and `Stack` set the other three.

    Args:
        options: the options as given.
        own_seed: the table's seed if none was given.

    Raises:
        TypeError: an option of the wrong type.
        ValueError: options that contradict each other, or with which calls would wait for ever; the text explains why.
    """
    limiter = MinSize(1) if options.limiter is NOT_GIVEN else check_limiter(options.limiter)
    times = options.max_times_sampled
    if times is not NOT_GIVEN:
        times = config.count("max_times_sampled", times, minimum=0, why="0 stands for no limit")
    sampler = options.sampler if options.sampler is NOT_GIVEN else check_sampler(options.sampler)
    remover = options.remover if options.remover is NOT_GIVEN else check_remover(options.remover)
    if isinstance(limiter, (Queue, Stack)):
        sampler, remover, times = _implied(limiter, sampler, remover, times)
    capacity, max_bytes = _room(options.capacity, options.max_bytes)
    view = check_view(options.view)
    seed = options.seed
    seed = own_seed if seed is None else config.count("seed", seed, minimum=0, maximum=2**63 - 1)
    config.choice("durability", options.durability, ("memory", "disk"))
    for option, given in (("schema", options.schema), ("columns", options.columns)):
        if given is not None and isinstance(view, Opaque):
            raise ValueError(
                f"{option}= with view=Opaque(): it keeps whole Python values and has no columns; leave {option}= out, "
                "or use view=Step()"
            )
    lanes = config.count("lanes", options.lanes, minimum=1, maximum=2**20, why="a table has at least one writer lane")
    settings = Settings(
        view=view,
        schema=_declared(options.schema),
        sampler=Uniform() if sampler is NOT_GIVEN else sampler,
        remover=Fifo() if remover is NOT_GIVEN else remover,
        limiter=limiter,
        max_times_sampled=0 if times is NOT_GIVEN else times,
        capacity=capacity,
        max_bytes=max_bytes,
        lanes=lanes,
        weights=check_weights(options.weights),
        max_staleness=_staleness(options.max_staleness, options.weights),
        initial_priority=initial_priority(options.initial_priority),
        columns=None if options.columns is None else config.names("columns", options.columns),
        seed=seed,
        compress=check_compress(options.compress),
        durability=options.durability,
        sync_every=config.real("sync_every", options.sync_every, minimum=1.0, maximum=86_400.0, why="seconds"),
    )
    check_combination(settings)
    return settings


def imported_settings(
    settings: Settings, capacity: int | NotGiven | None, sampler: Sampler | NotGiven, limiter: Limiter | NotGiven
) -> Settings:
    """The checked settings of an exported table, with the options that the importer changed.

    Raises:
        TypeError, ValueError: as in `check_options`.
    """
    chosen = {"durability": "memory", "capacity": capacity, "sampler": sampler, "limiter": limiter}
    own = {each.name: getattr(settings, each.name) for each in fields(TableOptions)}
    given = {name: value for name, value in chosen.items() if value is not NOT_GIVEN}
    return check_options(TableOptions(**{**own, **given}), settings.seed)


def checked_again(settings: Settings) -> Settings:
    """Settings from another machine, checked like those of a local caller; raises as `check_options`."""
    own = {each.name: getattr(settings, each.name) for each in fields(TableOptions)}
    return replace(check_options(TableOptions(**own), settings.seed), made=settings.made)


def _declared(schema: Any) -> Schema | None:
    return schema if schema is None or isinstance(schema, Schema) else Schema.from_tree(space_tree(schema))


def _implied(limiter: Queue | Stack, sampler: Any, remover: Any, times: Any) -> tuple[Sampler, Remover, int]:
    name = type(limiter).__name__
    order: Fifo | Lifo = Fifo() if isinstance(limiter, Queue) else Lifo()
    why = {
        "sampler": f"a {name.lower()} gives its items out {'oldest' if order == Fifo() else 'newest'} first",
        "remover": f"a {name.lower()} never evicts, and keeps its items in one order",
        "max_times_sampled": f"a {name.lower()} gives every item out exactly once",
    }
    wanted: dict[str, Any] = {"sampler": order, "remover": order, "max_times_sampled": 1}
    for option, given in (("sampler", sampler), ("remover", remover), ("max_times_sampled", times)):
        if given is not NOT_GIVEN and given != wanted[option]:
            raise ValueError(
                f"{option}={shown(given)} contradicts limiter={limiter!r}: {why[option]}. "
                f"Leave {option}= out, or use MinSize or SamplesPerInsert"
            )
    return order, order, 1


def _room(capacity: Any, max_bytes: Any) -> tuple[int | None, int | None]:
    if capacity is None and max_bytes is None:
        raise ValueError("capacity=None needs max_bytes=: without either the table could grow past the store's memory")
    if capacity is not None:
        why = "a table holds at least one item"
        capacity = config.count("capacity", capacity, minimum=1, maximum=MAX_CAPACITY, why=why)
    return capacity, None if max_bytes is None else parse_size(max_bytes, option="max_bytes")


def space_tree(declared: Any, depth: int = 0) -> Any:
    """Gymnasium's Dict spaces as dicts, down to the depth that column names may have; everything else is unchanged."""
    if depth > tree.MAX_DEPTH + 1:  # `tree.flatten` refuses it
        return declared
    spaces = getattr(declared, "spaces", None)
    if isinstance(spaces, dict):
        declared = spaces
    if isinstance(declared, dict):
        return {key: space_tree(value, depth + 1) for key, value in declared.items()}
    return declared


def check_table_name(name: Any) -> str:
    """`name` if it can name a table; ValueError otherwise."""
    if not config.is_name(name, _NAME_BYTES):
        raise ValueError(f"name={shown(name)}: a table's name is 1 to {_NAME_BYTES} bytes of text")
    return name


def check_weights(name: Any) -> str | None:
    """`name` if it can name weights, or None; ValueError otherwise."""
    if name is None:
        return None
    if not config.is_name(name, _NAME_BYTES):
        raise ValueError(f"weights={shown(name)}: give the name that store.publish() uses, 1 to 100 bytes of text")
    return name


def _staleness(value: Any, weights: Any) -> int | None:
    if value is None:
        return None
    staleness = config.count("max_staleness", value, minimum=0, why="0 keeps only items of the newest version")
    if weights is None:
        raise ValueError(
            'max_staleness counts versions of published weights: name them with weights="policy", '
            "as in store.publish(name, …)"
        )
    return staleness


def initial_priority(value: Any) -> float | str:
    """The value, if it is a finite number that is not negative, or "max"."""
    if isinstance(value, str):
        if value != "max":
            raise ValueError(
                f'initial_priority={shown(value)}: give "max" (the largest given, at least 1.0) or a number'
            )
        return value
    return config.real("initial_priority", value, maximum=math.inf, why="it is a priority")
