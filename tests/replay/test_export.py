"""`Table.export` and `Store.import_table`: what comes back, what is shared, and exports of tables in use."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing as mp
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exported import STEP, content, moved, write_episodes
from model.compare import check_items
from model.drive import one
from model.harness import Harness
from model.limiters import MinSize as ModelMinSize
from model.setting import REMOVERS, SAMPLERS, VIEWS, random_setting
from pains import until

import di_store
from di_store import Spec
from di_store.replay import exporting


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=5) as opened:
        yield opened


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view", [*VIEWS[::2], *(pytest.param(each, marks=pytest.mark.extended) for each in VIEWS[1::2])], ids=str
)
def test_an_imported_table_equals_the_model(
    view: Any, tmp_path: Path, count: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random runs of writers, draws, deletions and kills, with every sampler and remover in turn."""
    rng = random.Random(str(view))
    for _ in range(count(2, 40)):
        sampler, remover = rng.choice(SAMPLERS), rng.choice(REMOVERS)
        setting = random_setting(rng, view=view, sampler=sampler, remover=remover, capacity=rng.choice((5, 30, 1000)))
        harness = Harness(setting, rng)
        try:
            for _ in range(60):
                one(harness, rng)
            side = harness.side
            monkeypatch.setattr(exporting, "_MOST_ITEMS", rng.choice((1, 3, 8_192)))
            again = moved(side.table, tmp_path / "t.npz")
            assert len(again) == len(side.model)
            assert content(again) == content(side.table)
            batch = again.peek(again.keys())
            check_items(batch, side.model.items, SimpleNamespace(owners=side.owners, episodes={}))
        except BaseException:
            print(setting)
            raise
        finally:
            harness.close()


@pytest.mark.parametrize(
    "remover", [REMOVERS[0], *(pytest.param(each, marks=pytest.mark.extended) for each in REMOVERS[1:])]
)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_draws_and_evictions_continue_after_an_import(sampler: Any, remover: str, tmp_path: Path) -> None:
    """The copy draws and evicts as its sampler and remover say: the model, told of the same items, agrees."""
    rng = random.Random(f"{sampler}{remover}")
    fixed = {"limiter": ModelMinSize(1), "max_times_sampled": 0, "second_view": None}
    setting = random_setting(rng, view=VIEWS[0], sampler=sampler, remover=remover, capacity=7, **fixed)
    setting = dataclasses.replace(setting, max_staleness=None)  # versions count anew in another store
    harness = Harness(setting, rng)
    try:
        for _ in range(40):
            one(harness, rng)
        side = harness.side
        while harness.pens:
            harness.end_writer(harness.pens[0], "close")
        old = side.table.keys().tolist()
        again = moved(side.table, tmp_path / "t.npz")
        numbers = [side.numbers[key] for key in old]
        side.table, side.evicted_for_room = again, 0
        side.keys, side.numbers = {}, {}
        for number, key in zip(numbers, again.keys().tolist(), strict=True):
            side.keys[number], side.numbers[key] = key, number
        side.episodes.clear()
        side.model.inserts, side.model.samples = len(side.model), 0
        for _ in range(10):
            side.sample(rng.choice((1, 2, 5)))
            harness.insert(rng.choice((None, 2.5)))
        side.peek()
    finally:
        harness.close()


def test_tables_with_all_kinds_of_rows_come_back(store: di_store.Store, tmp_path: Path) -> None:
    """Stream rows beside transitions inserted whole: two folders of rows, one order of items."""
    view = di_store.Transition(n_step=2, gamma=0.5)
    table = store.create_table("t", capacity=200, view=view, schema=STEP, sampler=di_store.Prioritized(0.7, 0.5))
    whole = {"obs": np.ones((2, 3), "f4"), "next_obs": np.zeros((2, 3), "f4"), "discount": np.float32([0.5, 0])}
    whole |= {"reward": np.float32([1, 2]), "terminated": np.array([False, True]), "truncated": np.zeros(2, bool)}
    for part in range(3):
        write_episodes(table, 9, seed=part)
        table.extend(whole, priority=[part + 0.25, part + 0.5])
    table.sample(50)
    assert content(moved(table, tmp_path / "t.npz")) == content(table)
    with np.load(tmp_path / "t.npz", allow_pickle=False) as file:
        assert set(file["items/flags"].tolist()) >= {0, 4}
        assert file["whole/00000/data/next_obs"].shape == (6, 3)
        assert file["items/key"].tolist() == table.keys().tolist()


def test_rows_that_items_share_are_stored_once(store: di_store.Store, tmp_path: Path) -> None:
    """Overlapping sequences with stacked frames: each row once in the file, and once in the copy."""
    frames = {"obs": Spec((16, 16), "u1"), "reward": Spec((), "f4"), "truncated": Spec((), "?")}
    view = di_store.Sequence(20, period=2, frame_stack={"obs": 4}, bootstrap=("obs",))
    table = store.create_table("t", capacity=2_000, view=view, schema=frames, lanes=2)
    rng = np.random.default_rng(0)
    with table.writer(lanes=2) as writer:
        for t in range(600):
            rows = {"obs": rng.integers(0, 256, (2, 16, 16), np.uint8), "reward": rng.random(2, np.float32)}
            writer.append(rows | {"truncated": np.full(2, t % 100 == 99)})
    written = table.export(tmp_path / "t.npz")
    again = di_store.open(memory="64MiB").import_table(tmp_path / "t.npz")
    assert content(again) == content(table)
    assert len(table) > 400
    assert (
        written.rows == 1_200 - 2 * 6
    )  # without the last step of an episode, whose sequence has no observation behind
    assert written.bytes - 60 * written.items < 1.05 * written.rows * (256 + 5)
    assert again.stats()["bytes_stored"] <= 1.05 * table.stats()["bytes_stored"]


def test_python_values_need_consent_to_pickles(store: di_store.Store, tmp_path: Path) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Opaque())
    values = [{"a": np.arange(3), "b": "text" * 600}, [1, 2.5, None], np.float32([1, 2]), (1, "x")]
    table.extend(values)
    assert str(moved(table, tmp_path / "t.npz").peek(table.keys()).data) == str(values)
    table.insert(SimpleNamespace(a=1))
    table.export(tmp_path / "t.npz")
    with pytest.raises(ValueError, match="allow_pickle=True"):
        store.import_table(tmp_path / "t.npz", "u")
    with pytest.raises(di_store.TableNotFound):
        store.table("u")
    again = store.import_table(tmp_path / "t.npz", "u", allow_pickle=True)
    assert again.peek(again.keys()).data[-1] == SimpleNamespace(a=1)


def test_late_values_and_waiting_items_come_back(store: di_store.Store, tmp_path: Path) -> None:
    schema = {"x": Spec((), "i8"), "tokens": Spec((None,), "i4", max=9), "reward": Spec((2,), "f4", late=True)}
    table = store.create_table("t", capacity=100, schema=schema, sampler=di_store.Fifo())
    tokens = [np.arange(i % 4, dtype="i4") for i in range(20)]
    keys = table.extend({"x": np.arange(20), "tokens": tokens})
    table.update(keys[[7, 3, 11]], {"reward": np.float32([[7, 7], [3, 3], [11, 11]])})
    again = moved(table, tmp_path / "t.npz")
    assert content(again) == content(table)
    assert (len(again), again.stats()["waiting"]) == (3, 17)
    with np.load(tmp_path / "t.npz") as file:
        old = file["items/key"]
    waiting = again._backend.open().native.waiting(1.0)
    assert again.update(waiting, {"reward": np.zeros((17, 2), "f4")}) == 17
    assert again.peek(again.keys()).data["x"].tolist() == [7, 3, 11, *(i for i in range(20) if i not in (3, 7, 11))]
    assert old.tolist() == keys[[7, 3, 11, *(i for i in range(20) if i not in (3, 7, 11))]].tolist()


def test_current_settings_are_exported_and_can_be_overridden(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    limiter = di_store.SamplesPerInsert(2, min_size=5, tolerance=1.0)
    sampler = di_store.Prioritized(0.6, 0.4)
    table = store.create_table("t", capacity=50, schema={"x": Spec((), "i8")}, sampler=sampler, limiter=limiter, seed=7)
    table.extend({"x": np.arange(20)}, priority=9.0)
    table.sample(15)
    table.resize(30)
    table.configure(alpha=0.9, beta=None)
    again = moved(table, path)
    assert (again.capacity, again.sampler) == (30, di_store.Prioritized(0.9, None))
    assert again.stats()["limiter"]["min_size"] == 5
    same = {"view": table.view, "sampler": sampler, "schema": {"x": Spec((), "i8")}, "capacity": 1, "exist_ok": True}
    assert di_store.attach(again._backend.session.name).create_table("t", **same).capacity == 30
    again.insert({"x": 1})
    assert again.peek(again.keys()).priorities[-1] == 9  # the largest priority ever given
    text = np.load(path)["table.json"]
    assert json.loads(text)["counts"]["rng_counter"] > 0
    other = moved(table, path, name="other", capacity=20, sampler=di_store.Uniform(), limiter=di_store.MinSize(3))
    assert (other.name, other.capacity, other.sampler) == ("other", 20, di_store.Uniform())
    assert len(other.sample(4)) == 4
    with pytest.raises(di_store.CapacityError, match="20 items"):
        store.import_table(path, "u", capacity=19)
    with pytest.raises(ValueError, match="min_size"):
        store.import_table(path, "u", capacity=20, limiter=di_store.MinSize(21))
    with pytest.raises(di_store.TableExists, match="'t'"):
        store.import_table(path)
    with pytest.raises(di_store.CapacityError):
        di_store.open(memory="8MiB").import_table(path, capacity=1_000_000)
    assert list(store.stats()["tables"]) == ["t"]


def test_an_imported_queue_continues(store: di_store.Store, tmp_path: Path) -> None:
    table = store.create_table("q", capacity=10, schema={"x": Spec((), "i8")}, limiter=di_store.Queue(4))
    table.extend({"x": np.arange(3)})
    assert table.sample(1).data["x"].tolist() == [0]
    again = moved(table, tmp_path / "q.npz")
    again.extend({"x": np.arange(3, 5)})
    with pytest.raises(di_store.Timeout, match="full"):
        again.insert({"x": 9}, timeout=0)
    assert again.sample(4).data["x"].tolist() == [1, 2, 3, 4]


def test_empty_tables_are_exported(store: di_store.Store, tmp_path: Path) -> None:
    for name, schema in (("declared", STEP), ("bare", None)):
        table = store.create_table(name, capacity=10, view=di_store.Transition(), schema=schema)
        assert table.export(tmp_path / "t.npz").items == 0
        again = di_store.open(memory="16MiB").import_table(tmp_path / "t.npz")
        write_episodes(again, 3)
        assert len(again) > 0


def test_a_table_full_by_bytes_fits(store: di_store.Store, tmp_path: Path) -> None:
    schema = {"tokens": Spec((None,), "i4"), "x": Spec((), "i8")}
    table = store.create_table("t", capacity=None, max_bytes="2MiB", schema=schema, remover=di_store.Uniform())
    rng = np.random.default_rng(0)
    for x in range(3_000):
        table.insert({"tokens": np.full(rng.integers(0, 2_000), x, "i4"), "x": x})
    again = moved(table, tmp_path / "t.npz")
    assert content(again) == content(table)
    for x in range(2_000):  # it evicts as before
        again.insert({"tokens": np.full(500, x, "i4"), "x": x})
    assert again.stats()["bytes_stored"] <= 1.1 * table.stats()["bytes_stored"]


def test_extension_types_are_exported(store: di_store.Store, tmp_path: Path) -> None:
    schema = {
        "h": Spec((3,), "bfloat16"),
        "when": Spec((), "M8[s]"),
        "name": Spec((), "U4"),
        "odd name": {"∂": Spec((), "i1")},
    }
    table = store.create_table("t", capacity=10, schema=schema)
    import ml_dtypes

    row = {"h": np.arange(3).astype(ml_dtypes.bfloat16), "when": np.datetime64(5, "s"), "name": "abcd"}
    table.insert(row | {"odd name": {"∂": np.int8(3)}})
    again = moved(table, tmp_path / "t.npz")
    assert again.peek(again.keys()).data["h"].tolist() == [[0, 1, 2]]
    assert content(again) == content(table)


def test_a_step_used_earlier_as_an_observation_is_exported(
    store: di_store.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A discount of 0 ends the windows before it early: their last row is a step of an item two further on."""
    monkeypatch.setattr(exporting, "_MOST_ITEMS", 1)
    schema = {**STEP, "discount": Spec((), "f4"), "x": Spec((), "i8")}
    table = store.create_table("t", capacity=50, view=di_store.Transition(n_step=3), schema=schema)
    with table.writer() as writer:
        for x in range(20):
            ends = {"terminated": False, "truncated": x == 19}
            row = {"obs": np.full(3, x, "f4"), "reward": 1.0, "discount": float(x % 5 != 1), "x": x + 1}
            writer.append(row | ends, next={"obs": np.full(3, x + 1, "f4")})
    assert content(moved(table, tmp_path / "t.npz")) == content(table)


# --- in use -----------------------------------------------------------------------------------------------------------


def test_an_export_during_writes_and_draws_holds_whole_items(store: di_store.Store, tmp_path: Path) -> None:
    """Items that leave are skipped, all others are whole: every row says which one it is."""
    schema = {"x": Spec((), "i8"), "obs": Spec((64,), "i8"), "reward": Spec((), "f4"), "truncated": Spec((), "?")}
    view = di_store.Transition(n_step=3, gamma=1.0)
    table = store.create_table("t", capacity=3_000, view=view, schema=schema, sampler=di_store.Prioritized(0.6))
    stop = threading.Event()

    def write(x: int) -> None:
        with table.writer() as writer:
            while not stop.is_set():
                x += 1
                row = {"x": x, "obs": np.full(64, x), "reward": 1.0, "truncated": x % 50 == 49}
                writer.append(row, next={"obs": np.full(64, x + 1)})

    def learn() -> None:
        while not stop.is_set():
            batch = table.sample(32, timeout=30)
            table.update_priorities(batch.keys, batch.data["x"] + 1.0)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1_000_000)]
    threads.append(threading.Thread(target=learn))
    for each in threads:
        each.start()
    try:
        until(lambda: len(table) == 3_000, "a full table")
        done = [table.export(tmp_path / f"{i}.npz") for i in range(3)]
    finally:
        stop.set()
        for each in threads:
            each.join()
    for number, written in enumerate(done):
        with di_store.open(memory="64MiB") as other:
            again = other.import_table(tmp_path / f"{number}.npz")
            assert len(again) == written.items == 3_000 - written.skipped
            data = again.peek(again.keys()).data
            assert (data["obs"] == data["x"][:, None]).all()
            assert (data["next_obs"] > data["obs"]).all()
            assert (data["reward"] == data["steps"]).all()
            assert other.check() == []


def import_slowly(name: str, path: str, stage: str) -> None:
    store = di_store.attach(name)
    from di_store.replay import importing

    def stop(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(importing._Kind, stage, stop)
    store.import_table(path, "u")


@pytest.mark.parametrize("stage", ["_insert", "close"])
def test_a_half_imported_table_gives_no_draws(store: di_store.Store, tmp_path: Path, stage: str) -> None:
    """Killed before there are items, and before they have their order."""
    path = tmp_path / "t.npz"
    table = store.create_table("t", capacity=50, schema={"x": Spec((), "i8")})
    table.extend({"x": np.arange(50)})
    table.export(path)
    child = mp.get_context("fork").Process(target=import_slowly, args=(store.name, str(path), stage))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    half = store.table("u")
    for call in (lambda: half.sample(1, timeout=0), lambda: half.insert({"x": 1}, timeout=0)):
        with pytest.raises(di_store.Timeout, match="drop_table"):
            call()
    changes = (
        lambda: half.configure(limiter=di_store.MinSize(1)),
        half.finish,
        half.reset,
        lambda: half.resize(10),
    )
    for change in changes:
        with pytest.raises(di_store.StoreError, match=r"import_table.*drop_table"):
            change()
    store.drop_table("u")
    assert content(store.import_table(path, "u")) == content(table)
    assert store.check() == []
