"""The options of `Store.create_table` as given, and their conversion to the checked settings of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from di_store.base import config, tree
from di_store.base.errors import shown
from di_store.base.sizes import parse_size
from di_store.columns.schema import Schema
from di_store.policy.combination import MAX_CAPACITY, check_combination
from di_store.policy.compression import Compression, check_compress
from di_store.policy.limiters import Limiter, MinSize, Queue, Stack, check_limiter
from di_store.policy.samplers import Fifo, Lifo, Remover, Sampler, Uniform, check_remover, check_sampler
from di_store.policy.settings import Settings
from di_store.policy.views import Opaque, Step, View, check_view

if TYPE_CHECKING:
    from typing_extensions import Required

LANES = 64
"""Lanes for which a table reserves room if `lanes=` is not given."""
CLUSTER_LANES = 1024
"""The same, for a table of a cluster: hundreds of writers on other nodes have one each."""
_NAME_BYTES = 100


class NotGiven(Enum):
    """The type of `NOT_GIVEN`, which distinguishes a default from an argument of the same value."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = NotGiven.NOT_GIVEN


class TableOptions(TypedDict, total=False):
    """The options of a new table as a caller gave them, not checked yet. `Store.create_table` explains each option.

    To add an option, add it here and, with its default, in `check_options`.
    """

    capacity: Required[int | None]
    view: View
    schema: Any
    sampler: Sampler
    remover: Remover
    limiter: Limiter
    max_times_sampled: int
    max_bytes: int | str | None
    lanes: int
    weights: str | None
    max_staleness: int | None
    initial_priority: float | str
    columns: str | Iterable[str] | None
    durability: str
    seed: int | None
    compress: Compression
    sync_every: float


OPTIONS: tuple[str, ...] = tuple(TableOptions.__annotations__)
"""The names of the options."""


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
    _check_known(options)
    limiter = check_limiter(options.get("limiter", MinSize(1)))
    times = options.get("max_times_sampled", NOT_GIVEN)
    if times is not NOT_GIVEN:
        times = config.count("max_times_sampled", times, minimum=0, why="0 stands for no limit")
    sampler = check_sampler(options["sampler"]) if "sampler" in options else NOT_GIVEN
    remover = check_remover(options["remover"]) if "remover" in options else NOT_GIVEN
    if isinstance(limiter, (Queue, Stack)):
        sampler, remover, times = _implied(limiter, sampler, remover, times)
    capacity, max_bytes = _room(options["capacity"], options.get("max_bytes"))
    view = check_view(options.get("view", Step()))
    seed = options.get("seed")
    seed = own_seed if seed is None else config.count("seed", seed, minimum=0, maximum=2**63 - 1)
    durability = config.choice("durability", options.get("durability", "memory"), ("memory", "disk"))
    schema, columns = options.get("schema"), options.get("columns")
    for option, given in (("schema", schema), ("columns", columns)):
        if given is not None and isinstance(view, Opaque):
            raise ValueError(
                f"{option}= with view=Opaque(): it keeps whole Python values and has no columns; leave {option}= out, "
                "or use view=Step()"
            )
    lanes = options.get("lanes", LANES)
    settings = Settings(
        view=view,
        schema=_declared(schema),
        sampler=Uniform() if sampler is NOT_GIVEN else sampler,
        remover=Fifo() if remover is NOT_GIVEN else remover,
        limiter=limiter,
        max_times_sampled=0 if times is NOT_GIVEN else times,
        capacity=capacity,
        max_bytes=max_bytes,
        lanes=config.count("lanes", lanes, minimum=1, maximum=2**20, why="a table has at least one writer lane"),
        weights=check_weights(options.get("weights")),
        max_staleness=_staleness(options.get("max_staleness"), options.get("weights")),
        initial_priority=initial_priority(options.get("initial_priority", "max")),
        columns=None if columns is None else config.names("columns", columns),
        seed=seed,
        compress=check_compress(options.get("compress", "auto")),
        durability=durability,
        sync_every=config.real(
            "sync_every", options.get("sync_every", 10.0), minimum=1.0, maximum=86_400.0, why="seconds"
        ),
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
    return changed(settings, {name: value for name, value in chosen.items() if value is not NOT_GIVEN})


def changed(settings: Settings, chosen: Mapping[str, Any]) -> Settings:
    """The checked settings of a table like this one except for these options; raises as `check_options`."""
    own = {name: getattr(settings, name) for name in OPTIONS}
    return check_options(cast(TableOptions, {**own, **chosen}), settings.seed)


def checked_again(settings: Settings) -> Settings:
    """Settings from another machine, checked like those of a local caller; raises as `check_options`."""
    return msgspec.structs.replace(changed(settings, {}), made=settings.made)


def _check_known(options: TableOptions) -> None:
    """Refuse unknown options and a missing `capacity`, as Python refuses arguments."""
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(f"create_table() got an unexpected keyword argument {min(unknown)!r}")
    if "capacity" not in options:
        raise TypeError("create_table() missing 1 required keyword-only argument: 'capacity'")


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
