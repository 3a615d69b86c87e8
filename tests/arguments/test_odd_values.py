"""Every public call with values that make no sense: a typed error of ours that says so, and nothing else."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import di_store

SOURCES = str(Path(di_store.__file__).parent)
TYPED = (di_store.StoreError, ValueError, TypeError)
RAW = (
    "incompatible function",
    "bad_cast",
    "_M_range",
    "NoneType' object",
    "not callable",
    "has no attribute",
    "broadcast",
)
SPOKEN = (
    "memory=",
    "a step is",
    "final=",
    "lane=",
    "priority=",
    "priorities ",
    "update_priorities: ",
    "next=",
)  # by the core

NUMBERS: list[Any] = [None, True, -1, 0, 3, 2**31 - 1, 2**31, 2**64, -(2**63) - 1, 10**400, 1.5, -0.5, float("nan")]
NUMBERS += [float("inf"), 1e308, 1j, Decimal(1), np.int8(3), np.uint64(2**64 - 1), np.float16(1.5), np.bool_(True)]
TEXTS: list[Any] = ["", "x", "n", b"n", "t\0", "é" * 300, "\ud800", np.str_("n")]
NESTS: list[Any] = [
    [],
    (),
    {},
    [1],
    ["n"],
    [None],
    {"n": 1},
    {1: 2},
    {"t": "x"},
    {"t": None},
    set(),
    range(3),
    [[1], [1, 2]],
]
ARRAYS: list[Any] = [
    np.zeros(0),
    np.zeros(3),
    np.zeros((2, 2)),
    np.array(["a"]),
    np.array([None]),
    np.array([1, 2], object),
]
ARRAYS += [np.array(5), np.array([1.5]), np.array([np.nan]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")])]
ARRAYS += [np.array([2**63], np.uint64), np.array([-1]), torch.zeros(3), torch.zeros(0), torch.tensor(1)]
ARRAYS += [torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.bfloat16), torch.eye(2).to_sparse(), torch.float32]
OTHERS: list[Any] = [object(), int, print, iter([1]), slice(1), Ellipsis, NotImplemented, Exception(), type]
ODD = NUMBERS + TEXTS + NESTS + ARRAYS + OTHERS

Call = Callable[..., Any]


class Scene:
    """What the calls are made on; nothing of it changes by a call that is refused."""

    def __init__(self, store: Any) -> None:
        number = {"n": di_store.Spec((), "i8")}
        schema = {**number, "r": di_store.Spec((None,), "f4", max=4)}
        step = {"reward": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?"), **number}
        self.store = store
        self.t = store.create_table("t", capacity=8, schema=schema, sampler=di_store.Prioritized(0.6, 0.4))
        self.runs = store.create_table("runs", capacity=8, view=di_store.Sequence(2), schema=number)
        self.pairs = store.create_table("pairs", capacity=8, view=di_store.Transition(obs=("n",)), schema=step)
        self.values = store.create_table("values", capacity=8, view=di_store.Opaque())
        self.row = {"n": 1, "r": np.zeros(2, np.float32)}
        self.rows = {"n": np.arange(2), "r": [np.zeros(1, np.float32)] * 2}
        self.step = {"n": np.arange(2), "reward": np.zeros(2, np.float32), "terminated": np.zeros(2, np.bool_)}
        self.steps = {name: np.stack([value, value]) for name, value in self.step.items()}
        self.pair = {"n": 1, "reward": 1.0, "terminated": False, "next_n": 1, "discount": 1.0}
        self.keys = np.concatenate([self.t.insert(self.row) for _ in range(6)])
        self.ref = store.put(1)
        self.writer, self.lanes = self.t.writer(), self.pairs.writer(lanes=2)
        self.batch = self.t.sample(4)

    @cached_property
    def mix(self) -> di_store.Mixture:
        return self.store.mix({"t": 1})

    def created(self, **options: Any) -> None:
        self.store.create_table(**{"name": "new", "capacity": 4, "timeout": 0.01, **options})
        self.store.drop_table("new" if "name" not in options else str(options["name"]))

    def drawn(self, **options: Any) -> None:
        with self.t.loader(**{"batch_size": 2, "prefetch": 0, "timeout": 0.01, **options}) as loader:
            next(loader)


SOON = {"timeout": 0.01}
CALLS: dict[str, tuple[str, Callable[[Scene], Call]]] = {
    "open": ("name memory mode seed disk", lambda s: lambda **o: di_store.open(**{"memory": "16MiB", **o}).close()),
    "attach": ("name", lambda s: lambda **o: di_store.attach(**o)),
    "store.resize": ("memory", lambda s: s.store.resize),
    "check": ("repair", lambda s: s.store.check),
    "put": ("id ttl durability timeout", lambda s: lambda **o: s.store.delete(s.store.put(1, **o))),
    "get": ("ref timeout copy", lambda s: lambda **o: s.store.get(**{"ref": s.ref, **o})),
    "put_many": (
        "values ids durability timeout",
        lambda s: lambda **o: s.store.put_many(**{"values": [1], **SOON, **o}),
    ),
    "get_many": ("refs timeout copy", lambda s: lambda **o: s.store.get_many(**{"refs": [s.ref], **SOON, **o})),
    "wait": ("refs num_returns", lambda s: lambda **o: s.store.wait(**{"refs": [s.ref], **SOON, **o})),
    "contains": ("ref", lambda s: s.store.contains),
    "delete": ("refs", lambda s: s.store.delete),
    "keys": ("start n", lambda s: s.store.keys),
    "publish": (
        "name keep group durability timeout",
        lambda s: lambda **o: s.store.publish(**{"name": "w", "tree": 1, **o}),
    ),
    "latest": ("name newer_than version", lambda s: lambda **o: s.store.latest(**{"name": "w", **o})),
    "table": ("name", lambda s: s.store.table),
    "drop_table": ("name timeout", lambda s: lambda **o: s.store.drop_table(**{"name": "no", **o})),
    "create_table": (
        "name capacity view schema sampler remover limiter max_times_sampled max_bytes lanes weights max_staleness "
        "initial_priority columns durability seed exist_ok timeout",
        lambda s: s.created,
    ),
    "store.writer": ("tables lanes autoreset", lambda s: lambda **o: s.store.writer(**{"tables": ["t"], **o}).close()),
    "mix": ("weights seed", lambda s: lambda **o: s.store.mix(**{"weights": {"t": 1}, **o})),
    "table.writer": ("lanes autoreset", lambda s: lambda **o: s.t.writer(**o).close()),
    "insert": ("value priority", lambda s: lambda **o: s.t.insert(**{"value": s.row, **SOON, **o})),
    "insert-column": ("n r", lambda s: lambda **o: s.t.insert({**s.row, **o}, **SOON)),
    "extend": ("batch priority", lambda s: lambda **o: s.t.extend(**{"batch": s.rows, **SOON, **o})),
    "extend-column": ("n r", lambda s: lambda **o: s.t.extend({**s.rows, **o}, **SOON)),
    "runs.insert": (
        "value priority",
        lambda s: lambda **o: s.runs.insert(**{"value": {"n": np.arange(2)}, **SOON, **o}),
    ),
    "runs.extend": (
        "batch priority",
        lambda s: lambda **o: s.runs.extend(**{"batch": {"n": np.zeros((2, 2), int)}, **SOON, **o}),
    ),
    "runs.column": ("n", lambda s: lambda n: s.runs.extend({"n": n}, **SOON)),
    "pairs.insert": ("value priority", lambda s: lambda **o: s.pairs.insert(**{"value": s.pair, **SOON, **o})),
    "values.extend": ("batch priority", lambda s: lambda **o: s.values.extend(**{"batch": [1, 2], **SOON, **o})),
    "sample": ("n min_n linger beta columns out", lambda s: lambda **o: s.t.sample(**{"n": 2, **SOON, **o})),
    "peek": ("keys columns", lambda s: lambda **o: s.t.peek(**{"keys": s.keys, **o})),
    "table.keys": ("start n timeout", lambda s: s.t.keys),
    "update": (
        "keys priorities timeout",
        lambda s: lambda **o: s.t.update_priorities(**{"keys": s.keys, "priorities": np.ones(6), **o}),
    ),
    "mix.update": (
        "keys priorities timeout",
        lambda s: lambda **o: s.mix.update_priorities(**{"keys": s.keys, "priorities": np.ones(6), **o}),
    ),
    "mix.sample": ("n min_n linger beta columns out", lambda s: lambda **o: s.mix.sample(**{"n": 2, **SOON, **o})),
    "table.delete": ("keys timeout", lambda s: lambda **o: s.t.delete(**{"keys": s.keys[:0], **o})),
    "reset": ("timeout", lambda s: s.values.reset),
    "resize": ("capacity timeout", lambda s: lambda **o: s.t.resize(**{"capacity": 8, **o})),
    "configure": ("limiter alpha beta max_staleness timeout", lambda s: s.t.configure),
    "loader": ("batch_size prefetch device pin_memory beta columns drop_last", lambda s: s.drawn),
    "loader-beta": ("beta", lambda s: lambda beta: s.drawn(beta=lambda _: beta)),
    "append": ("step next final lane priority", lambda s: lambda **o: s.writer.append(**{"step": s.row, **SOON, **o})),
    "append-lanes": (
        "step next final lane priority",
        lambda s: lambda **o: s.lanes.append(**{"step": s.step, **SOON, **o}),
    ),
    "writer.extend": (
        "steps next final lane priority",
        lambda s: lambda **o: s.lanes.extend(**{"steps": s.steps, **SOON, **o}),
    ),
    "end_episode": ("final lane discard", lambda s: lambda **o: s.lanes.end_episode(**{**SOON, **o})),
    "parse": ("text", lambda s: di_store.Ref.parse),
    "batch.to": ("device", lambda s: s.batch.to),
    "Prioritized": (
        "alpha beta stratified normalize",
        lambda s: lambda **o: di_store.Prioritized(**{"alpha": 1.0, **o}),
    ),
    "Once": ("epochs shuffle", lambda s: di_store.Once),
    "MinSize": ("n", lambda s: di_store.MinSize),
    "SamplesPerInsert": (
        "ratio min_size tolerance",
        lambda s: lambda **o: di_store.SamplesPerInsert(**{"ratio": 1, "min_size": 1, "tolerance": 1, **o}),
    ),
    "Queue": ("size", lambda s: di_store.Queue),
    "Transition": ("n_step gamma frame_stack frame_pad obs reward", lambda s: di_store.Transition),
    "Sequence": (
        "length period burn_in tail frame_stack first bootstrap cross_episodes",
        lambda s: lambda **o: di_store.Sequence(**{"length": 2, **o}),
    ),
    "Episode": ("max_length bootstrap", lambda s: lambda **o: di_store.Episode(**{"max_length": 2, **o})),
    "Spec": ("shape dtype max", lambda s: lambda **o: di_store.Spec(**{"shape": (), "dtype": "f4", **o})),
}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with di_store.open(memory="64MiB") as store:
        yield Scene(store)


def fault(error: BaseException) -> str:
    """What is wrong with an error; "" for one of ours."""
    text, last = str(error), traceback.extract_tb(error.__traceback__)[-1]
    if not isinstance(error, TYPED) or any(raw in text for raw in RAW) or not text:
        return "no typed error with a text of ours"
    if error.__context__ is not None and not error.__suppress_context__:
        return "two errors, chained"
    ours = last.filename.startswith(SOURCES) and (last.line or "").startswith(("raise", "return", '"'))
    if isinstance(error, di_store.StoreError) or ours or text.startswith(SPOKEN):
        return ""
    return f"it comes from {last.filename}:{last.lineno}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "option"), [(name, each) for name in CALLS for each in CALLS[name][0].split()])
def test_an_odd_argument_raises_a_documented_error(
    scene: Scene, name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # an odd path may be a good one
    call = CALLS[name][1](scene)
    found = []
    for value in ODD:
        try:
            call(**{option: value})
        except Exception as error:
            if wrong := fault(error):
                found.append(f"{option}={value!r:.60}: {error!r:.200}: {wrong}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("n", [2**31 - 1, 2**24])
def test_a_batch_that_no_memory_holds_is_refused_before_it_is_drawn(scene: Scene, n: int) -> None:
    for call in (
        lambda: scene.t.sample(n),
        lambda: scene.t.sample(n, timeout=0, min_n=1),
        lambda: scene.mix.sample(n),
        lambda: scene.t.loader(n),
        lambda: scene.mix.loader(n),
    ):
        before = scene.t.stats()["samples"]
        with pytest.raises(di_store.CapacityError, match=f"n={n}"):
            call()
        assert scene.t.stats()["samples"] == before


def test_a_batch_beyond_the_machines_memory_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di_store.replay.sampling.machine_bytes", lambda: 2**20)
    assert len(scene.t.sample(1_000)) == 1_000
    for call in (
        lambda: scene.t.sample(70_000),
        lambda: scene.mix.sample(10_000),
        lambda: scene.drawn(batch_size=10_000),
    ):
        with pytest.raises(di_store.CapacityError, match=r"n=\d+ examples"):
            call()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_without_sizes_are_named() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.strided)
    with di_store.open(memory="64MiB") as store:
        windows = store.create_table("windows", capacity=10, view=di_store.Sequence(length=3, period=3))
        calls = (windows.insert, windows.extend, windows.writer().extend)
        for call in calls:
            with pytest.raises(di_store.SchemaMismatch, match=r"layout=torch\.jagged"):
                call({"x": nested})
            with pytest.raises(di_store.SchemaMismatch, match="leading axis"):
                call({"x": 1.0})
