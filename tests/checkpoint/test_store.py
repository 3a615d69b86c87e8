"""`Store.checkpoint` and `restore`: the restored store goes on as the other one would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from checkpoint.stores import REMOVERS, Options, same, same_draws, sound, step, write
from di_store import (
    Episode,
    Fifo,
    Group,
    Lifo,
    MaxHeap,
    MinHeap,
    Once,
    Opaque,
    Prioritized,
    Queue,
    Sequence,
    Spec,
    Transition,
    Uniform,
)

SAMPLERS = (Uniform(), Prioritized(alpha=0.6, beta=0.4), MinHeap(), MaxHeap(), Fifo(), Lifo(), Once(epochs=None))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_the_next_draws_are_the_same(sampler: Any, options: Callable[[], Options], tmp_path: Path) -> None:
    """For each remover: without inserts, and with those of one writer."""
    with di_store.open(**options(), seed=3) as store:
        for number, remover in enumerate(REMOVERS):
            table = store.create_table(f"t{number}", capacity=300, sampler=sampler, remover=remover, view=Transition(3))
            write(table, 450)
            keys = table.sample(64).keys
            if isinstance(sampler, Prioritized):
                table.update_priorities(keys, np.random.default_rng(0).random(64))
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options()) as again:
            for number in range(len(REMOVERS)):
                ours, theirs = store.table(f"t{number}"), again.table(f"t{number}")
                same_draws(ours, theirs)
                for first in range(1_000, 1_400, 50):
                    write(ours, 50, first)
                    write(theirs, 50, first)
                    same(ours.sample(20), theirs.sample(20))
            sound(store, again)


VIEWS: dict[str, Any] = {
    "sequence": Sequence(length=80, period=40, burn_in=10),
    "random": Sequence(length=20, start="random"),
    "episode": Episode(max_length=40),
    "stack": Transition(n_step=2, gamma=0.9, frame_stack={"obs": 3}),
}


def test_tables_of_all_views_are_restored(options: Callable[[], Options], tmp_path: Path) -> None:
    """Several tables over one stream, whose items cover several chunks."""
    with di_store.open(**options(), seed=3) as store:
        tables = [store.create_table(name, capacity=200, view=view, lanes=1) for name, view in VIEWS.items()]
        rng = np.random.default_rng(0)
        with store.writer(tables) as writer:
            for i in range(900):
                writer.append(step(i, rng, 77))
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options()) as again:
            for table in tables:
                same_draws(table, again.table(table.name))
            sound(store, again)


def test_ragged_and_python_values_are_restored(options: Callable[[], Options], tmp_path: Path) -> None:
    """Ragged columns, Python values, items inserted whole."""
    schema = {"tokens": Spec((None,), "int32"), "score": Spec((), "float32")}
    with di_store.open(**options(), seed=3) as store:
        ragged = store.create_table("ragged", capacity=200, schema=schema, max_bytes="8MiB")
        opaque = store.create_table("opaque", capacity=200, view=Opaque())
        whole = store.create_table("whole", capacity=200, view=Transition())
        for i in range(300):
            ragged.insert({"tokens": np.arange(i % 60, dtype=np.int32), "score": np.float32(i)})
            opaque.insert({"words": ["a" * (i % 40)], "i": i})
        rows = {"obs": np.ones((30, 4), np.float32), "action": np.arange(30), "reward": np.ones(30)}
        whole.extend(rows | {"next_obs": np.zeros((30, 4), np.float32), "discount": np.ones(30, "f4")})
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options()) as again:
            for table in (ragged, opaque, whole):
                same_draws(table, again.table(table.name))
            sound(store, again)


def test_late_columns_and_groups_are_restored(options: Callable[[], Options], tmp_path: Path) -> None:
    """Values that are there come back, and items that wait go on waiting for those that are not."""
    schema = {"x": Spec((), "int64"), "score": Spec((), "float32", late=True)}
    groups = {"by": Spec((), "int64"), "x": Spec((), "int64"), "score": Spec((), "float32", late=True)}
    with di_store.open(**options(), seed=3) as store:
        late = store.create_table("late", capacity=100, schema=schema)
        group = store.create_table("group", capacity=100, view=Group(4, by="by"), schema=groups)
        keys = [late.insert({"x": i}) for i in range(60)]
        late.update(np.array(keys[:40], np.uint64), {"score": np.arange(40, dtype=np.float32)})
        members = [group.insert({"by": i // 4, "x": i}) for i in range(42)]
        group.update(np.array(members[:24], np.uint64), {"score": np.arange(24, dtype=np.float32)})
        store.checkpoint(tmp_path / "c")
        late.update(np.array(keys[:40], np.uint64), {"score": np.full(40, 9, np.float32)})
        with di_store.restore(tmp_path / "c", **options()) as again:
            table = again.table("late")
            assert len(table) == 40
            batch = table.sample(64)
            assert (batch.data["score"] == batch.data["x"]).all()
            table.update(np.array(keys[40:], np.uint64), {"score": np.arange(40, 60, dtype=np.float32)})
            assert len(table) == 60
            assert len(again.table("group")) == len(group) == 6
            again.table("group").update(np.array(members[24:], np.uint64), {"score": np.zeros(18, np.float32)})
            for i in (42, 43):
                again.table("group").update(
                    np.array([again.table("group").insert({"by": i // 4, "x": i})], np.uint64),
                    {"score": np.zeros(1, "f4")},
                )
            assert len(again.table("group")) == 11
            sound(store, again)


def test_objects_and_weights_are_restored(options: Callable[[], Options], tmp_path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 255, 12 << 20, np.uint8)
    with di_store.open(**options()) as store:
        refs = [store.put({"i": i, "a": np.full(i, i)}) for i in range(100)]
        store.put(large, id="ab" * 20)
        store.put("gone soon", id="cd" * 20, ttl=3600)
        for version in range(5):
            store.publish("policy", {"w": np.full(3, version)}, keep=2)
        store.publish("elsewhere", None)
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options()) as again:
            assert all((again.get(ref)["a"] == i).all() for i, ref in enumerate(refs))
            assert (again.get("ab" * 20) == large).all()
            assert again.get("cd" * 20) == "gone soon"
            newest = again.latest("policy")
            assert newest is not None
            assert newest.version == 5
            assert newest.value["w"][0] == 4
            older = again.latest("policy", version=4)
            assert older is not None
            assert older.value["w"][0] == 3
            assert again.latest("policy", version=3) is None
            assert again.publish("policy", 1) == 6
            assert again.publish("elsewhere", 1) == 2
            sound(again)


def test_undelivered_draws_are_given_back(options: Callable[[], Options], tmp_path: Path) -> None:
    with di_store.open(**options(), seed=1) as store:
        table = store.create_table("t", capacity=100, limiter=Queue(100))
        for i in range(50):
            table.insert({"x": i})
        with table.loader(5, prefetch=3) as loader:
            next(loader)
            while table.stats()["samples"] < 20:
                pass
            store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options()) as again:
            restored = again.table("t")
            assert restored.sample(45).data["x"].tolist() == list(range(5, 50))
            assert restored.stats()["limiter"]["samples"] == 50
            sound(again)
