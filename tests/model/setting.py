"""One table setting, as the model and as the public call."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import di_store

from .limiters import Band, Limiter, MinSize, Queue, SamplesPerInsert
from .selectors import Once
from .table import ModelTable
from .views import Sequence, Step, Transition, View, Whole
from .world import Columns

ALPHA, BETA = 0.7, 0.5
SAMPLERS: tuple[str | Once, ...] = (
    "Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized", Once(), Once(2), Once(None), Once(1, False)
)  # fmt: skip
REMOVERS = ("Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap")
VIEWS: tuple[View, ...] = (
    Step(),
    Transition(),
    Transition(n_step=3, gamma=0.9),
    Transition(n_step=2, gamma=0.5, frame_stack={"obs/frame": 4}),
    Transition(n_step=3, frame_stack={"obs/frame": 3}, frame_pad="zero"),
    Sequence(3),
    Sequence(4, period=2, burn_in=1),
    Sequence(2, period=1, burn_in=2, tail="drop"),
    Sequence(4, period=3, tail="shift", bootstrap=("obs",)),
    Sequence(3, period=2, first=("state",), frame_stack={"obs/frame": 3}),
    Sequence(3, period=2, bootstrap=("obs",), frame_stack={"obs/frame": 2}),
    Sequence(4, period=2, cross_episodes=True),
    Sequence(5, tail="shift", cross_episodes=True, bootstrap=("obs",)),
    Sequence(3, period=2, burn_in=1, frame_stack={"obs/frame": 3}, bootstrap=("obs",), cross_episodes=True),
    Sequence(3, start="random"),
    Sequence(2, period=4, burn_in=1, tail="drop", start="random", bootstrap=("obs",), frame_stack={"obs/frame": 3}),
    Sequence(3, period=5, start="random", cross_episodes=True, frame_stack={"obs/frame": 2}),
    Sequence(2, stride=2, burn_in=1, first=("state",)),
    Sequence(3, period=2, stride=2, tail="shift", start="random", last={"obs": 1, "reward": 2}),
    Transition(n_step=2, future=("obs",), horizon=4),
    Transition(n_step=3, future=("obs/pos",), horizon=1, frame_stack={"obs/frame": 2}),
    Whole(4),
    Whole(6, bootstrap=("obs",)),
)
SECOND_VIEWS = (None, None, None, Step(), Transition(n_step=2), Sequence(2, period=1), Whole(5))


def public(value: Any) -> Any:
    """The public object of a model's view, sampler, remover or limiter."""
    if isinstance(value, str):
        return di_store.Prioritized(ALPHA, BETA) if value == "Prioritized" else getattr(di_store, value)()
    name = "Episode" if isinstance(value, Whole) else type(value).__name__
    options = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "epoch"}
    if isinstance(value, Band):
        del options["tolerance"]
    return getattr(di_store, name)(**options)


@dataclass(frozen=True)
class Setting:
    """What one run of the model test is about."""

    view: View = field(default_factory=Step)
    sampler: str | Once = "Uniform"
    remover: str = "Fifo"
    limiter: Limiter = field(default_factory=MinSize)
    capacity: int = 7
    lanes: int | None = None
    max_times_sampled: int = 0
    columns: Columns = field(default_factory=Columns)
    second_view: View | None = None
    max_staleness: int | None = None

    def tables(self) -> dict[str, Setting]:
        """The tables of one stream: the one that is tested, and a plain one beside it where there is a second view."""
        if self.second_view is None:
            return {"t": self}
        columns = dataclasses.replace(self.columns, discount=self.columns.discount and not self.columns.apart)
        second = Setting(self.second_view, "Fifo", capacity=20, lanes=self.lanes, columns=columns)
        return {"t": self, "second": second}

    def model(self, name: str) -> ModelTable:
        """The model's table."""
        sampler = dataclasses.replace(self.sampler) if isinstance(self.sampler, Once) else self.sampler
        return ModelTable(
            name, self.view, self.capacity, sampler, self.remover, self.limiter, self.max_times_sampled,
            max_staleness=self.max_staleness, lacks=frozenset(() if self.columns.discount else ("discount",)),
        )  # fmt: skip

    def create(self, store: Any, name: str) -> Any:
        """The store's table."""
        limits: dict[str, Any] = (
            {} if isinstance(self.limiter, Queue) else {"max_times_sampled": self.max_times_sampled}
        )
        if self.max_staleness is not None:
            limits |= {"weights": "policy", "max_staleness": self.max_staleness}
        if self.columns.unbounded:
            limits["max_bytes"] = "2MiB"
        return store.create_table(
            name,
            capacity=self.capacity,
            view=public(self.view),
            schema=self.schema(),
            sampler=public(self.sampler),
            remover=public(self.remover),
            limiter=public(self.limiter),
            lanes=2 * max(self.lanes or 1, 1) + 2,
            seed=0,
            **limits,
        )

    def schema(self) -> dict[str, Any]:
        """The rows of `world.World`, declared."""
        spec = di_store.Spec
        schema: dict[str, Any] = {
            "obs": {"frame": spec((2, 2), np.uint8), "pos": spec((3,), np.float32)},
            "action": spec((), np.int64),
            "reward": spec((), np.float32),
            "terminated": spec((), np.bool_),
            "truncated": spec((), np.bool_),
        }
        if self.columns.discount:
            schema["discount"] = spec((), np.float32)
        if self.columns.state:
            schema["state"] = spec((2,), np.float32)
        if self.columns.tokens:
            schema["tokens"] = spec((None,), np.int32, max=None if self.columns.unbounded else 8)
        if self.columns.version:
            schema["version"] = spec((), np.int64)
        return schema


def random_setting(rng: random.Random, **fixed: Any) -> Setting:
    """Any setting that the contract allows."""
    view = fixed.get("view") or rng.choice(VIEWS)
    capacity = fixed.get("capacity") or rng.choice((1, 3, 7, 1000))
    sampler = fixed.get("sampler") or rng.choice(SAMPLERS)
    limiters: list[Limiter] = [MinSize(1), MinSize(1 + min(capacity, 9) // 2)]
    if not isinstance(sampler, Once):  # drawn out, it could never pay for the inserts that such a limiter waits for
        limiters += [SamplesPerInsert(rng.choice((0.5, 1.0, 4.0)), 1 + min(capacity, 5) // 2, rng.choice((0.1, 1.0)))]
        low, ratio = rng.choice((-6.0, 0.0, 2.0)), rng.choice((0.5, 1.0, 3.0))
        limiters += [Band(ratio, 1 + min(capacity, 5) // 2, 0.0, low, low + rng.choice((4.5, 20.0)))]
    chosen: dict[str, Any] = {
        "view": view,
        "capacity": capacity,
        "sampler": sampler,
        "remover": rng.choice(REMOVERS),
        "limiter": rng.choice(limiters),
        "lanes": rng.choice((None, 1, 3)),
        "max_times_sampled": 0 if isinstance(sampler, Once) else rng.choice((0, 0, 1, 3)),
        "columns": random_columns(rng, view),
        "second_view": rng.choice(SECOND_VIEWS),
    }
    if "sampler" not in fixed and "remover" not in fixed and rng.random() < 0.15:
        queue = {"limiter": Queue(rng.randint(1, capacity)), "sampler": "Fifo", "remover": "Fifo"}
        chosen |= {**queue, "max_times_sampled": 1}
    setting = Setting(**(chosen | fixed))
    if rng.random() < 0.2 and setting.limiter == MinSize(1) and getattr(view, "frame_stack", None) is None:
        columns = dataclasses.replace(setting.columns, version=True)
        setting = dataclasses.replace(setting, columns=columns, max_staleness=rng.randrange(3))
    return setting


def random_columns(rng: random.Random, view: View) -> Columns:
    """Optional columns that this view can take."""
    discount = isinstance(view, Transition) and rng.random() < 0.5
    state = (isinstance(view, Sequence) and bool(view.first)) or rng.random() < 0.2
    tokens = rng.random() < 0.4
    return Columns(discount, state, tokens, unbounded=tokens and rng.random() < 0.5, apart=rng.random() < 0.5)
