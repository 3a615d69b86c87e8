"""`needed_memory` says what a table takes, and `memory="fit"` gives it that."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.replay import tables

MIB = 1 << 20
FRAMES = {"obs": di_store.Spec((84, 84), "u1"), "reward": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?")}
STATES = {"obs": di_store.Spec((17,), "f4"), "reward": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?")}
TABLES: dict[str, dict[str, Any]] = {
    "frames": {"capacity": 6_000, "schema": FRAMES, "view": di_store.Transition(n_step=3), "lanes": 1},
    "frames, prioritized": {
        "capacity": 6_000,
        "schema": FRAMES,
        "view": di_store.Transition(),
        "sampler": di_store.Prioritized(alpha=0.6),
    },
    "states": {"capacity": 400_000, "schema": STATES, "view": di_store.Transition(), "lanes": 8},
    "random remover": {"capacity": 4_000, "schema": FRAMES, "remover": di_store.Uniform(), "lanes": 1},
    "sequences": {"capacity": 500, "schema": FRAMES, "view": di_store.Sequence(20, period=10), "lanes": 4},
    "bytes": {"capacity": None, "schema": FRAMES, "max_bytes": 60 * MIB, "lanes": 2},
    "ragged": {"capacity": 20_000, "schema": {"t": di_store.Spec((None,), "i4", max=500)}, "lanes": 1},
}


def row(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.zeros([spec.max if each is None else each for each in spec.shape], spec.dtype)
        for name, spec in schema.items()
    }


def fill(table: Any, schema: dict[str, Any], steps: int) -> None:
    step = row(schema)
    with table.writer() as writer:
        for number in range(steps):
            ended = number % 1_000 == 999
            if "terminated" in schema:
                step["terminated"] = ended
            writer.append(step, next={"obs": step["obs"]} if ended and "obs" in schema else None, timeout=60)


@pytest.mark.memory_only
@pytest.mark.parametrize("name", TABLES)
def test_needed_memory_is_enough_and_tight(name: str) -> None:
    """The least memory in which it can be made, within 5 %; and it holds its capacity there."""
    options = TABLES[name]
    needed = di_store.needed_memory(**options)
    with pytest.raises(di_store.CapacityError), di_store.open(memory=round(needed * 0.95 - 2 * MIB)) as store:
        store.create_table("t", **options)
    with di_store.open(memory=needed) as store:
        table = store.create_table("t", **options)
        least = 64 if options["capacity"] is None else options["capacity"]
        steps = min(round(1.1 * least * options.get("view", di_store.Step()).rows_added), 30_000)
        fill(table, options["schema"], steps)
        assert table.stats()["evicted_for_room"] == 0 or options["capacity"] is None
        assert len(table.sample(64)) == 64
        if options["capacity"] is not None and options["capacity"] < steps:
            assert len(table) == options["capacity"]
        assert store.check() == []


def test_several_processes_find_room_in_a_fitted_store(tmp_path: Any) -> None:
    """Each process notes its pins and draws in memory of the store's own."""
    options = TABLES["frames, prioritized"]
    with di_store.open(memory=di_store.needed_memory(**options)) as store:
        table = store.create_table("t", **options)
        context = mp.get_context("spawn")
        actors = [context.Process(target=fill, args=(table, options["schema"], 2_000)) for _ in range(4)]
        for actor in actors:
            actor.start()
        learners = [context.Process(target=learn, args=(table,)) for _ in range(4)]
        for learner in learners:
            learner.start()
        for process in (*actors, *learners):
            process.join(120)
            assert process.exitcode == 0
        assert len(table) == options["capacity"]


def learn(table: Any) -> None:
    with table.loader(64, prefetch=2) as loader:
        for _ in range(50):
            batch = next(loader)
            table.update_priorities(batch.keys, np.ones(len(batch)))


@pytest.mark.memory_only
def test_memory_fit_grows_to_the_tables() -> None:
    with di_store.open(memory="fit") as store:
        base = store.stats()["memory"]
        assert 200 * MIB < base <= 256 * MIB
        for number, options in enumerate(TABLES.values()):
            before, available = store.stats()["memory"], store._backend.session.arena.available(0, 10)
            table = store.create_table(f"t{number}", **options)
            grown = store.stats()["memory"] - before
            assert grown == 0 or grown + available <= 1.05 * di_store.needed_memory(**options) + available
            fill(table, options["schema"], 200)
        assert store.stats()["memory"] >= sum(di_store.needed_memory(**each) for each in TABLES.values()) * 0.9


@pytest.mark.memory_only
def test_a_table_without_schema_grows_the_store_at_its_first_step() -> None:
    """A table without a schema asks for its memory at its first step, in whichever process."""
    with di_store.open(memory="fit") as store:
        table = store.create_table("t", capacity=100_000)
        assert store.stats()["memory"] <= 256 * MIB
        process = mp.get_context("spawn").Process(target=first_step, args=(table,))
        process.start()
        process.join(120)
        assert process.exitcode == 0
        assert store.stats()["memory"] > 700 * MIB
        table.resize(200_000)
        assert store.stats()["memory"] > 1_400 * MIB
        assert store.check() == []


def first_step(table: Any) -> None:
    table.insert(row(FRAMES))


def test_two_tables_of_one_stream_fit() -> None:
    """The larger table keeps rows that the other one no longer needs, with all columns: the store grows for that."""
    with di_store.open(memory="fit") as store:
        large = store.create_table("large", capacity=60_000, schema=STATES)
        small = store.create_table("small", capacity=100, schema=STATES | {"extra": di_store.Spec((4_000,), "f4")})
        before = store.stats()["memory"]
        with store.writer([large, small]) as writer:
            assert store.stats()["memory"] > before + 900 * MIB
            writer.append(row(STATES) | {"extra": np.zeros(4_000, np.float32)})
        assert store.check() == []


@pytest.mark.memory_only
def test_growing_beyond_the_machine_is_refused() -> None:
    with di_store.open(memory="fit") as store:
        before = store.stats()["memory"]
        with pytest.raises(di_store.CapacityError, match=r'memory="fit" and would grow to .* this machine allows'):
            store.create_table("t", capacity=200_000_000, schema=FRAMES)
        assert store.stats()["memory"] == before
        table = store.create_table("t", capacity=100, schema=STATES)
        with pytest.raises(di_store.CapacityError, match="this machine allows"):
            table.resize(200_000_000)
        assert table.capacity == 100


@pytest.mark.memory_only
def test_attached_handles_and_resizes_grow_a_fitted_store() -> None:
    with di_store.open("fitting-store", memory="fit") as store, di_store.attach("fitting-store") as other:
        other.create_table("t", capacity=100_000, schema=FRAMES)
        assert store.stats()["memory"] > 700 * MIB
        store.drop_table("t")
        store.resize("64MiB")
        other.create_table("u", capacity=20_000, schema=FRAMES)
        assert store.stats()["memory"] > 140 * MIB


@pytest.mark.memory_only
def test_two_tables_made_at_once_grow_a_fitted_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that another process makes between the look at the room and the making takes that room."""
    look, made = tables.make_room, []

    with di_store.open("fitting-two", memory="fit") as store, di_store.attach("fitting-two") as other:

        def look_and_lose(*arguments: Any, **options: Any) -> None:
            look(*arguments, **options)
            if not made:
                made.append("theirs")
                other.create_table("theirs", capacity=20_000, schema=FRAMES)

        monkeypatch.setattr(tables, "make_room", look_and_lose)
        store.create_table("ours", capacity=20_000, schema=FRAMES)
        assert sorted(store.stats()["tables"]) == ["ours", "theirs"]
        assert store.check() == []


def test_insufficient_arguments_of_needed_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="needs schema="):
        di_store.needed_memory(capacity=100)
    assert di_store.needed_memory(capacity=None, max_bytes="10MiB", view=di_store.Opaque()) > 10 * MIB
    with pytest.raises(ValueError, match="min_size"):
        di_store.needed_memory(capacity=100, schema=STATES, limiter=di_store.MinSize(1_000))
    with pytest.raises(ValueError, match="not a size"):
        di_store.open(memory="fitting")
