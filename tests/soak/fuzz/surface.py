"""The public surface, taken from the package itself: every call, on what it is made, and valid arguments for it."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import di_store
from di_store.policy.options import OPTIONS
from di_store.replay.loader import LOADER_OPTIONS
from soak.fuzz.world import CAPACITY, KINDS, LANES, MEMORY, World, observation, settings, step

MADE_BY_THE_STORE = (
    "Store",
    "Table",
    "Writer",
    "Mixture",
    "Loader",
    "Batch",
    "Lease",
    "Items",
    "Draft",
    "IncompleteGroup",
    "Exported",
    "Published",
    "StoreInfo",
)
"""Classes whose constructors are not for users."""
METHODS = ("__len__", "__iter__", "__next__", "__getitem__", "__enter__", "__exit__", "__hash__", "__eq__", "__repr__")
"""Special methods that users call by syntax."""
INSIDE = ("outputs", "become", "bounds", "rows_added", "rows_spanned")
"""Methods without an underscore that only the package itself calls."""
EXTRA = ("pickle", "copy")
"""Calls of every object: a copy through pickle, and through `copy`."""
HANDLE_CLASSES = ("Store", "Table", "Writer", "Mixture", "Loader", "Batch", "Lease", "Ragged", "Items", "Ref")
TYPED = {"Unpack[TableOptions]": OPTIONS, "Unpack[LoaderOptions]": LOADER_OPTIONS}
"""Names of the arguments that a call takes as a typed dict."""
WRITERS = (
    "steps",
    "steps/3",
    "transitions/3",
    "windows",
    "episodes/3",
    "values",
    "ragged/3",
    "queue",
    "bare",
    "many/3",
    "groups/3",
)


@dataclass(frozen=True)
class Call:
    """One public call.

    Attributes:
        owner: the class whose method it is; "" for functions and constructors.
        parameters: names; those with keyword-only use are given by keyword.
        positional: how many of them are given by position.
    """

    name: str
    owner: str
    parameters: tuple[str, ...]
    positional: int


def public_calls() -> dict[str, Call]:
    """Every public function, constructor, method and property of `di_store`, by name."""
    found: dict[str, Call] = {}
    for name in sorted(dir(di_store)):
        thing = getattr(di_store, name)
        if name.startswith("_") or inspect.ismodule(thing) or _is_error(thing):
            continue
        if inspect.isclass(thing):
            if name not in MADE_BY_THE_STORE:
                found[name] = _call(name, "", thing)
            for method in _methods(thing):
                found[f"{name}.{method}"] = _call(f"{name}.{method}", name, inspect.getattr_static(thing, method))
        elif callable(thing):
            found[name] = _call(name, "", thing)
    for owner in HANDLE_CLASSES:
        found |= {f"{owner}.{extra}": Call(f"{owner}.{extra}", owner, (), 0) for extra in EXTRA}
    return found


def _is_error(thing: Any) -> bool:
    """Users catch errors; the package makes them."""
    return inspect.isclass(thing) and issubclass(thing, Exception)


def _methods(cls: type) -> list[str]:
    names = {name for base in cls.__mro__ if base.__module__.startswith("di_store") for name in vars(base)}
    return sorted(
        name
        for name in names
        if name in METHODS or (not name.startswith("_") and name not in INSIDE and _is_called(cls, name))
    )


def _is_called(cls: type, name: str) -> bool:
    found = inspect.getattr_static(cls, name)
    return callable(found) or isinstance(found, (property, classmethod, staticmethod))


def _call(name: str, owner: str, thing: Any) -> Call:
    if not callable(thing) and not isinstance(thing, (classmethod, staticmethod)):
        return Call(name, owner, (), 0)  # a property or a slot
    if isinstance(thing, (classmethod, staticmethod)):
        thing = thing.__func__
    every = list(inspect.signature(thing).parameters.values())
    if owner:
        every = every[1:]
    kinds = [each.kind for each in every]
    taken = [each for each in every if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    positional = kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in taken]
    for each in every:
        names += TYPED.get(each.annotation, ())
    return Call(name, owner, tuple(names), positional)


# -- on what ----------------------------------------------------------------------------------------------------------


def choose_target(rng: random.Random, call: Call) -> str:
    """What the call is made on, by name."""
    unusual = rng.random()
    if call.owner == "Store":
        return "closed" if unusual < 0.04 else "reader" if unusual < 0.08 else "store"
    if call.owner == "Table":
        kind = rng.choice(KINDS)
        return "closed" if unusual < 0.03 else f"reader/{kind}" if unusual < 0.06 else kind
    if call.owner == "Writer":
        return rng.choice(WRITERS)
    if call.owner in ("Batch", "Items", "Ragged"):
        return rng.choice(("steps", "windows", "values", "ragged"))
    return ""


def target(world: World, call: Call, on: str, rng: random.Random) -> Any:
    """The object itself; those that a call ends are made for it."""
    if (make := MADE_IN_A_WORLD.get(call.owner)) is not None:
        return make(world, call, on, rng)
    return constructed(call.owner) if call.owner else None


def constructed(name: str) -> Any:
    """One of the plain classes."""
    makers: dict[str, Callable[[], Any]] = {
        "Episode": lambda: di_store.Episode(5),
        "Group": lambda: di_store.Group(4, by="n"),
        "Sequence": lambda: di_store.Sequence(5),
        "Prioritized": lambda: di_store.Prioritized(0.5),
        "MinSize": lambda: di_store.MinSize(3),
        "Band": lambda: di_store.Band(3, 2.0, -5.0, 10.0),
        "Pace": lambda: di_store.Pace("policy", 8),
        "GoneKey": lambda: di_store.GoneKey(3, "stale"),
        "Queue": lambda: di_store.Queue(3),
        "Stack": lambda: di_store.Stack(3),
        "SamplesPerInsert": lambda: di_store.SamplesPerInsert(2.0, 5, 0.5),
        "IncompleteGroup": lambda: di_store.IncompleteGroup(3, 1, False, np.arange(3, dtype=np.uint64), 1.5),
        "Exported": lambda: di_store.Exported(items=1, skipped=0, rows=2, bytes=300),
        "Published": lambda: di_store.Published(1, None),
        "StoreInfo": lambda: di_store.StoreInfo("x", (1,), 2),
    }
    return makers.get(name, getattr(di_store, name))()


def _store(world: World, call: Call, on: str) -> Any:
    if on in ("closed", "reader"):
        return getattr(world, on)
    ends = call.name in ("Store.close", "Store.__exit__", "Store.__enter__")
    return di_store.attach(world.store.name, timeout=60) if ends else world.store


def _table(world: World, on: str) -> Any:
    if on == "closed":
        return world.closed_table
    where, _, kind = on.partition("/")
    if where == "reader":
        world.table(kind)
        return world.reader.table(f"{world.name}-{kind}")
    return world.table(on)


MADE_IN_A_WORLD: dict[str, Callable[[World, Call, str, random.Random], Any]] = {
    "Store": lambda world, call, on, rng: _store(world, call, on),
    "Table": lambda world, call, on, rng: _table(world, on),
    "Writer": lambda world, call, on, rng: world.writer(on),
    "Mixture": lambda world, call, on, rng: world.mixture(),
    "Loader": lambda world, call, on, rng: world.loader(rng),
    "Batch": lambda world, call, on, rng: world.batch(on),
    "Lease": lambda world, call, on, rng: world.leased("steps").lease,
    "Ragged": lambda world, call, on, rng: world.batch("ragged").data["text"],
    "Draft": lambda world, call, on, rng: world.store.reserve({"x": di_store.Spec((3,), "f4")}),
    "Items": lambda *_: di_store.Items(np.arange(3, dtype=np.uint64), np.zeros(3, np.int32), np.zeros(3, np.int64)),
    "Ref": lambda world, call, on, rng: rng.choice(world.refs),
    "Spec": lambda *_: di_store.Spec((None, 3), "f4", max=9),
}
"""How an object of a class is had that no constructor makes for a user; others: `constructed`."""


# -- with what --------------------------------------------------------------------------------------------------------


def known(call: Call, parameter: str) -> str:
    """Under which name valid values of a parameter are listed; "" if none are."""
    names = (f"{call.name}({parameter})", f"{call.owner}({parameter})", parameter)
    return next((name for name in names if name in VALUES), "")


def valid(world: World, call: Call, on: str, parameter: str, rng: random.Random) -> Any:
    """A valid value of a parameter; `MISSING` where it is best left out."""
    return VALUES[known(call, parameter)](world, rng, on)


class Missing:
    """An argument that is left out."""


MISSING = Missing()


def _kind(on: str) -> str:
    kind = on.rpartition("/")[2] if on.startswith("reader") else on.partition("/")[0]
    return kind if kind in KINDS else "steps"


def _lead(on: str) -> tuple[int, ...]:
    return (int(on.partition("/")[2]),) if "/" in on and not on.startswith("reader") else ()


def _inserted(world: World, rng: random.Random, on: str) -> Any:
    kind = _kind(on)
    return step(rng, kind, (rng.choice((1, 4)),) if kind in ("windows", "episodes") else (), finished=True)


def _batch(world: World, rng: random.Random, on: str) -> Any:
    kind, n = _kind(on), rng.choice((1, 3, 17))
    return step(rng, kind, (n, 4) if kind in ("windows", "episodes") else (n,), finished=True)


def _keys(world: World, rng: random.Random, on: str) -> Any:
    own = world.keys.get(_kind(on), np.empty(0, np.uint64))
    every = [own, own[:1], own[::2], world.keys.get("queue", own), np.arange(5, dtype=np.uint64)]
    with suppress(di_store.StoreError):
        every += [world.table(_kind(on)).keys(0, 20), world.other.table("other").keys()]
    return rng.choice(every).copy()


def _leased(world: World, rng: random.Random, on: str) -> Any:
    batch = world.leased(_kind(on))
    return rng.choice((batch, batch.lease, batch.keys))


def _some(*values: Any) -> Callable[[World, random.Random, str], Any]:
    return lambda world, rng, on: copy.copy(rng.choice(values))


def _refs(world: World, rng: random.Random, on: str) -> Any:
    return [rng.choice(world.refs) for _ in range(rng.randrange(1, 4))]


def _settings(name: str) -> Callable[[World, random.Random, str], Any]:
    def find(world: World, rng: random.Random, on: str) -> Any:
        found = settings(rng.choice(KINDS)).get(name, MISSING)
        return MISSING if rng.random() < 0.5 else found

    return find


def _name(world: World, rng: random.Random, on: str) -> str:
    return f"{world.name}-{rng.choice((*KINDS, 'new-0', 'new-1'))}"


def _priorities(world: World, rng: random.Random, on: str) -> Any:
    return np.full(rng.choice((1, 3, 6)), rng.choice((0.0, 0.5, 3.0)))


def _fresh_id(world: World, rng: random.Random, on: str) -> Any:
    world.put += 1
    return rng.choice((None, f"{world.put:08x}" * 5))


def _final(world: World, rng: random.Random, on: str) -> Any:
    return rng.choice((None, None, None, observation(_lead(on))))


def _small_store(world: World, rng: random.Random, on: str) -> Any:
    return rng.choice((None, world.store.name, f"{world.store.name}.x"))


NUMBER, TEXT, NOTHING, FLAG = _some(1, 2, 4), _some("policy"), _some(None), _some(False, True)
COLUMNS = _some(None, None, "obs", ("n", "reward"), ["obs"])
VALUES: dict[str, Callable[[World, random.Random, str], Any]] = {
    "ack": FLAG,
    "alpha": _some(0.0, 0.6, 1.0),
    "allow_pickle": FLAG,
    "autoreset": _some(None, None, "NextStep", "SameStep", "Disabled"),
    "batch": _batch,
    "batch_size": _some(1, 2, 5),
    "beta": _some(None, 0.0, 0.4),
    "bootstrap": _some((), ("obs",)),
    "burn_in": _some(0, 2),
    "by": _some("n", "group"),
    "capacity": _some(CAPACITY, 60, 300),
    "columns": COLUMNS,
    "compress": _some("auto", None),
    "copy": _some(None, True, False),
    "counts": FLAG,
    "Store.create_table(columns)": NOTHING,
    "Store.create_table(draw)": NOTHING,
    "Store.create_table(node)": _some("here"),
    "Store.create_table(shards)": NOTHING,
    "Store.put(copies)": _some(1),
    "Store.sync(copies)": NOTHING,
    "cross_episodes": FLAG,
    "device": _some(None, "cpu"),
    "discard": FLAG,
    "disk": NOTHING,
    "disk_capacity": NOTHING,
    "staging": NOTHING,
    "write_budget": NOTHING,
    "drop_last": FLAG,
    "dtype": _some("f4", np.uint8, "bfloat16"),
    "durability": _some("memory"),
    "epochs": _some(None, 2),
    "error": NOTHING,
    "exist_ok": _some(True, True, False),
    "fill": _some(0, 1.5),
    "final": _final,
    "first": _some(()),
    "frame_pad": _some("first", "zero"),
    "frame_stack": _some(None, {"obs": 2}),
    "future": _some((), ("obs",)),
    "gamma": _some(0.9, 1.0),
    "group": NOTHING,
    "id": _fresh_id,
    "ids": NOTHING,
    "initial_priority": _some("max", 0.5),
    "horizon": _some(1, 9),
    "high": _some(10.0, 40.0, float("inf")),
    "keep": NUMBER,
    "keys": _keys,
    "kind": NOTHING,
    "lane": NOTHING,
    "lanes": _some(None, LANES),
    "last": _some(None, {"obs": 1}),
    "late": _some(False),
    "lead": NOTHING,
    "lease": _some(None, None, 0, 0.02, 60.0),
    "leased": _leased,
    "length": _some(3, 5),
    "limiter": _settings("limiter"),
    "linger": _some(None, 0, 0.01),
    "low": _some(-5.0, 0.0, float("-inf")),
    "max": NOTHING,
    "Compress(expect)": _some(1.5, 4.0),
    "max_bytes": _settings("max_bytes"),
    "max_length": _some(4, 9),
    "max_staleness": NOTHING,
    "max_times_sampled": _some(MISSING, 0, 2),
    "memory": _some(MEMORY, "32MiB", 40 << 20, "fit"),
    "min_n": _some(None, None, 1),
    "min_size": _some(1, 5),
    "missing": _some(0, 1),
    "mode": _some("rw", "x", "r"),
    "n": _some(1, 2, 5),
    "n_step": _some(1, 3),
    "name": _name,
    "newer_than": _some(None, 0, 1),
    "next": _final,
    "normalize": _some("batch", "table"),
    "num_returns": _some(1),
    "obs": _some(("obs",), "obs", ()),
    "offsets": _some(np.array([0, 1, 3])),
    "other": lambda world, rng, on: rng.choice(world.refs),
    "out": lambda world, rng, on: rng.choice((None, None, world.batch(_kind(on)))),
    "load(into)": NOTHING,
    "load(shard)": _some(None, (0, 1)),
    "restore(disk)": NOTHING,
    "restore(disk_capacity)": NOTHING,
    "progress": NOTHING,
    "restore(tables)": NOTHING,
    "save(shard)": _some(None, (0, 1)),
    "path": _some("table.zip", "other.zip"),
    "period": _some(None, 2),
    "pin_memory": _some(False),
    "positions": _some(0, [0, -1], np.arange(3)),
    "prefetch": _some(0, 1, 2),
    "priorities": _priorities,
    "priority": _some(None, None, 0.5),
    "ratio": _some(1.0, 4.0),
    "raw": _some(b"\xee" * 20),
    "ref": lambda world, rng, on: rng.choice(world.refs),
    "refs": _refs,
    "remover": _settings("remover"),
    "repair": FLAG,
    "replace": FLAG,
    "reward": _some("reward"),
    "row": _some(0, -1),
    "sampler": _settings("sampler"),
    "schema": _settings("schema"),
    "seconds": _some(0, 0.5, 60.0),
    "seed": _some(None, 7),
    "shape": _some((3,), (None, 3), ()),
    "shuffle": FLAG,
    "size": _some(20, 50),
    "spec": _some(di_store.Spec((3,), "f4"), {"x": np.zeros((2, 2)), "y": {"z": di_store.Spec((), "i8")}}),
    "start": _some(0, 1),
    "step": lambda world, rng, on: step(rng, _kind(on), _lead(on)),
    "steps": lambda world, rng, on: step(rng, _kind(on), (rng.choice((1, 3, 17)), *_lead(on))),
    "stratified": FLAG,
    "stride": _some(1, 2),
    "tables": lambda world, rng, on: [world.table(kind) for kind in rng.sample(KINDS, rng.choice((1, 2)))],
    "tail": _some("pad", "drop", "shift"),
    "sync_every": _some(1.0, 10.0),
    "text": lambda world, rng, on: str(rng.choice(world.refs)),
    "timeout": _some(0, 0.0, 0.005, 0.02),
    "to": _some(None, 9),
    "tolerance": _some(0.5, 2.0),
    "trace": NOTHING,
    "unique": FLAG,
    "tree": _some({"w": np.ones(5)}, None),
    "ttl": _some(None, None, 0.01),
    "value": _some(3, "text", {"a": np.ones(4), "b": [1, 2]}),
    "values": _some([1, "x"], [np.ones(3)]),
    "version": NOTHING,
    "view": _settings("view"),
    "weights": NOTHING,
    "Batch(n)": _some(0, 2),
    "GoneKey(key)": NUMBER,
    "GoneKey(reason)": _some("stale", ""),
    "Group(deadline)": _some(None, 60.0),
    "Group(short)": FLAG,
    "Pace(ahead)": _some(0, 1),
    "Pace(batch)": NUMBER,
    "Pace(weights)": TEXT,
    "Batch.split(ranks)": _some(1, 2),
    "Mixture(columns)": COLUMNS,
    "MinSize(n)": _some(3),
    "Ragged(values)": _some(np.arange(3)),
    "Sequence(start)": _some("grid", "random"),
    "Spec(max)": NOTHING,
    "Store(start)": lambda world, rng, on: rng.choice((None, *world.refs)),
    "Store.create_table(lanes)": _some(4, 8),
    "Store.create_table(weights)": _some(None, "policy"),
    "Store.latest(name)": TEXT,
    "Store.mix(weights)": lambda world, rng, on: {f"{world.name}-steps": 1.0, f"{world.name}-once": 2},
    "Store.publish(name)": TEXT,
    "Table.insert(value)": _inserted,
    "attach(name)": lambda world, rng, on: world.store.name,
    "open(name)": _small_store,
    "open(memory)": _some(MEMORY, "8MiB"),
}


# -- the call itself --------------------------------------------------------------------------------------------------


def invoke(call: Call, on: Any, arguments: dict[str, Any]) -> Any:
    """Make the call."""
    member = call.name.rpartition(".")[2]
    if call.owner and member == "pickle":
        return pickle.loads(pickle.dumps(on))
    if call.owner and member == "copy":
        return copy.copy(on)
    thing = getattr(on, member) if call.owner else getattr(di_store, call.name)
    if not callable(thing):
        return thing  # a property
    given = [arguments[name] for name in call.parameters[: call.positional] if name in arguments]
    return thing(*given, **{name: arguments[name] for name in call.parameters[call.positional :] if name in arguments})
