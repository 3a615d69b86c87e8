"""`Table.export` and `Store.import_table`: what comes back, what is shared, and what damaged files do."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import multiprocessing as mp
import os
import pickle
import random
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from model.compare import check_items
from model.drive import one
from model.harness import Harness
from model.limiters import MinSize as ModelMinSize
from model.setting import REMOVERS, SAMPLERS, VIEWS, random_setting
from pains import until

import di_store
from di_store import Spec

STEP: dict[str, Any] = {
    "obs": Spec((3,), "f4"),
    "reward": Spec((), "f4"),
    "terminated": Spec((), "?"),
    "truncated": Spec((), "?"),
}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=5) as opened:
        yield opened


def flat(data: Any, path: str = "") -> dict[str, Any]:
    """The leaves of a batch by path; a ragged one as its rows."""
    if isinstance(data, dict):
        return {name: leaf for key, value in data.items() for name, leaf in flat(value, f"{path}/{key}").items()}
    if isinstance(data, di_store.Ragged):
        return {path: [row.tolist() for row in data]}
    return {path: data if isinstance(data, list) else data.tolist()}


def content(table: di_store.Table) -> dict[str, Any]:
    """All that a table shows of its items, in their order; episodes are numbered as they come."""
    batch = table.peek(table.keys())
    numbers: dict[int, int] = {}
    return {
        **flat(batch.data),
        "priorities": batch.priorities.tolist(),
        "times_sampled": batch.times_sampled.tolist(),
        "versions": batch.versions.tolist(),
        "starts": batch.starts.tolist(),
        "episodes": [numbers.setdefault(number, len(numbers)) for number in batch.episodes.tolist()],
        "waiting": table.stats()["waiting"],
        "settings": (table.view, table.sampler, table.capacity),
    }


def moved(table: di_store.Table, path: Path, **options: Any) -> di_store.Table:
    """The table, exported and imported into another store."""
    table.export(path)
    found = di_store.open(memory="64MiB").import_table(path, **options)
    assert found._session.arena.check(False, 10.0) == []
    return found


def write_episodes(table: di_store.Table, steps: int, length: int = 7, lanes: int = 3, seed: int = 0) -> None:
    """Interleaved episodes with final observations; every third ends by termination."""
    rng = np.random.default_rng(seed)
    with table.writer(lanes=lanes) as writer:
        for t in range(steps):
            ends = np.arange(lanes) * 2 % length == t % length
            row = {
                "obs": rng.random((lanes, 3), np.float32),
                "reward": rng.random(lanes, np.float32),
                "terminated": ends & (t % 3 == 0),
                "truncated": ends & (t % 3 != 0),
            }
            writer.append(row, final={"obs": rng.random((lanes, 3), np.float32)} if ends.any() else None)


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_a_table_comes_back_as_the_model_has_it(view: Any, tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """Random runs of writers, draws, deletions and kills, with every sampler and remover in turn."""
    rng = random.Random(str(view))
    for _ in range(count(4, 40)):
        sampler, remover = rng.choice(SAMPLERS), rng.choice(REMOVERS)
        setting = random_setting(rng, view=view, sampler=sampler, remover=remover, capacity=rng.choice((5, 30, 1000)))
        harness = Harness(setting, rng)
        try:
            for _ in range(60):
                one(harness, rng)
            side = harness.side
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


@pytest.mark.parametrize(("sampler", "remover"), list(itertools.product(SAMPLERS, REMOVERS)), ids=str)
def test_draws_and_evictions_go_on(sampler: Any, remover: str, tmp_path: Path) -> None:
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


def test_all_kinds_of_rows_in_one_table(store: di_store.Store, tmp_path: Path) -> None:
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


def test_late_values_and_items_that_wait_for_them(store: di_store.Store, tmp_path: Path) -> None:
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
    waiting = again._open().native.waiting(1.0)
    assert again.update(waiting, {"reward": np.zeros((17, 2), "f4")}) == 17
    assert again.peek(again.keys()).data["x"].tolist() == [7, 3, 11, *(i for i in range(20) if i not in (3, 7, 11))]
    assert old.tolist() == keys[[7, 3, 11, *(i for i in range(20) if i not in (3, 7, 11))]].tolist()


def test_settings_as_they_are_now_and_as_the_caller_wants_them(store: di_store.Store, tmp_path: Path) -> None:
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


def test_a_queue_goes_on_where_it_was(store: di_store.Store, tmp_path: Path) -> None:
    table = store.create_table("q", capacity=10, schema={"x": Spec((), "i8")}, limiter=di_store.Queue(4))
    table.extend({"x": np.arange(3)})
    assert table.sample(1).data["x"].tolist() == [0]
    again = moved(table, tmp_path / "q.npz")
    again.extend({"x": np.arange(3, 5)})
    with pytest.raises(di_store.Timeout, match="full"):
        again.insert({"x": 9}, timeout=0)
    assert again.sample(4).data["x"].tolist() == [1, 2, 3, 4]


def test_an_empty_table_and_one_without_columns(store: di_store.Store, tmp_path: Path) -> None:
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


def test_element_types_without_a_numpy_type(store: di_store.Store, tmp_path: Path) -> None:
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


# --- the file ---------------------------------------------------------------------------------------------------------


def small_table(store: di_store.Store) -> di_store.Table:
    """A table whose file has all kinds of members, and always the same bytes."""
    schema = {**STEP, "tokens": Spec((None,), "i4", max=5), "value": Spec((), "f4", late=True)}
    table = store.create_table(
        "golden", capacity=20, view=di_store.Transition(n_step=2, obs=("obs", "tokens")), schema=schema, seed=1
    )
    with table.writer(lanes=2) as writer:
        for t in range(6):
            row = {
                "obs": np.full((2, 3), t, "f4"),
                "reward": np.full(2, t, "f4"),
                "terminated": np.array([t == 3, False]),
            }
            row |= {"truncated": np.zeros(2, bool), "tokens": [np.arange(t % 5, dtype="i4")] * 2}
            ends = {"obs": np.full((1, 3), 9, "f4"), "tokens": [np.int32([7, 7])]} if t == 3 else None
            made = writer.append(row, final=ends, priority=t + 1.0)
            table.update(made.keys[:1], {"value": np.full(len(made.keys[:1]), t, "f4")})
    return table


GOLDEN = Path(__file__).parent / "golden" / "table_1.npz"


def test_the_file_has_the_golden_bytes(store: di_store.Store, tmp_path: Path) -> None:
    """Another layout of the file needs another `archive.VERSION`, and a new golden file beside the old one."""
    table = small_table(store)
    table.export(tmp_path / "t.npz")
    assert (tmp_path / "t.npz").read_bytes() == GOLDEN.read_bytes()
    assert content(store.import_table(GOLDEN, "again")) == content(table)


def test_damaged_files_are_refused(store: di_store.Store, tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """Cut, flipped, overwritten and foreign: `CorruptData`, or the same table where the bytes mean nothing."""
    sound, path = GOLDEN.read_bytes(), tmp_path / "t.npz"
    expected = content(store.import_table(GOLDEN, "sound"))
    rng, refused = random.Random(1), 0
    for _ in range(count(250, 20_000)):
        damaged, how = bytearray(sound), rng.randrange(4)
        at = rng.randrange(len(sound))
        if how == 0:
            del damaged[at:]
        elif how == 1:
            damaged[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            damaged[at : at + 8] = rng.randbytes(8)
        else:
            damaged[at:at] = rng.randbytes(rng.randrange(1, 64))
        path.write_bytes(damaged)
        try:
            table = store.import_table(path, "damaged")
        except (di_store.CorruptData, di_store.LayoutMismatch):
            refused += 1
            continue
        assert content(table) == expected, (how, at)
        store.drop_table("damaged")
    assert refused > 200
    assert list(store.stats()["tables"]) == ["sound"]
    assert store.check() == []


def rewritten(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The golden file with changed members and right checksums."""
    with zipfile.ZipFile(GOLDEN) as old:
        members: dict[str, Any] = {name: old.read(name) for name in old.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
    return out.getvalue()


def packed(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_files_that_lie_are_refused(store: di_store.Store, tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """Right checksums and wrong numbers: refused, or a table whose items can be read or are refused one by one."""
    with np.load(GOLDEN) as file:
        arrays = {name: file[name] for name in file.files if name != "table.json" and file[name].size}
        manifest = json.loads(file["table.json"])
    rng, path = random.Random(2), tmp_path / "t.npz"
    for _ in range(count(150, 5_000)):
        name = rng.choice([*arrays, "table.json"])

        def change(members: dict[str, Any], name: str = name) -> None:
            if name == "table.json":
                plain = json.loads(json.dumps(manifest))
                key = rng.choice([*plain, *plain["settings"], *plain["counts"]])
                for part in (plain, plain["settings"], plain["counts"]):
                    if key in part:
                        part[key] = rng.choice([None, -1, 0, 1, 2**70, "x", [], {}, [5], 1e300])
                members[name] = json.dumps(plain)
                return
            wrong = arrays[name].copy()
            at = rng.randrange(wrong.size)
            wrong.reshape(-1).view(np.uint8)[at * wrong.itemsize : (at + 1) * wrong.itemsize] = list(
                rng.randbytes(wrong.itemsize)
            )
            if rng.random() < 0.5 and wrong.dtype.kind in "iu":
                wrong.reshape(-1)[at] = rng.choice([0, 1, 2, 3, 5, 100])
            members[name + ".npy"] = packed(wrong)

        path.write_bytes(rewritten(change))
        try:
            table = store.import_table(path, "lie")
        except (di_store.CorruptData, di_store.LayoutMismatch, di_store.CapacityError):
            continue
        try:
            table.peek(table.keys())
            table.sample(3, timeout=0)
        except (di_store.CorruptData, di_store.Timeout):
            pass
        store.drop_table(table.name)
    assert list(store.stats()["tables"]) == []
    assert store.check() == []


def test_other_files(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with pytest.raises(FileNotFoundError):
        store.import_table(path)
    np.savez(path, a=np.arange(3))
    with pytest.raises(di_store.CorruptData, match="export the table again"):
        store.import_table(path)
    path.write_bytes(b"")
    with pytest.raises(di_store.CorruptData):
        store.import_table(path)

    def later(members: dict[str, Any]) -> None:
        members["table.json"] = members["table.json"].replace(b'"version": 1', b'"version": 2')

    path.write_bytes(rewritten(later))
    with pytest.raises(di_store.LayoutMismatch, match="version 2"):
        store.import_table(path)
    with pytest.raises(FileNotFoundError):
        store.create_table("t", capacity=5).export(tmp_path / "missing" / "t.npz")


# --- in use -----------------------------------------------------------------------------------------------------------


def test_an_export_beside_writers_and_learners(store: di_store.Store, tmp_path: Path) -> None:
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


def export_for_ever(name: str, path: str) -> None:
    table = di_store.attach(name).table("t")
    while True:
        table.export(path)


def test_a_kill_leaves_the_old_file_or_the_new_one(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    table = store.create_table("t", capacity=2_000, schema={"x": Spec((), "i8"), "obs": Spec((500,), "u1")})
    table.extend({"x": np.arange(2_000), "obs": np.zeros((2_000, 500), "u1")})
    table.export(path)
    expected = content(table)
    rng = random.Random(3)
    for number in range(5):
        child = mp.get_context("fork").Process(target=export_for_ever, args=(store.name, str(path)))
        child.start()
        until(lambda: os.path.exists(f"{path}.part"), "an export")
        time.sleep(rng.random() / 20)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        copy = store.import_table(path, f"copy{number}")
        assert content(copy) == expected
        store.drop_table(copy.name)
    table.export(path)  # uses the file that the last one left
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.npz"]
    assert store.check() == []


def test_two_exports_to_one_path(store: di_store.Store, tmp_path: Path) -> None:
    table = store.create_table("t", capacity=5, schema={"x": Spec((), "i8")})
    from di_store.replay.archive import ArchiveWriter

    path = str(tmp_path / "t.npz")
    with pytest.raises(RuntimeError, match="given up"), ArchiveWriter(path):
        with pytest.raises(di_store.StoreError, match="another export"):
            table.export(path)
        raise RuntimeError("given up")
    assert list(tmp_path.iterdir()) == []
    table.export(path)
    with di_store.attach(store.name) as reader:
        assert pickle.loads(pickle.dumps(reader.table("t"))).export(path).items == 0


def import_slowly(name: str, path: str) -> None:
    store = di_store.attach(name)
    from di_store.replay import importing

    def stop(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    importing.Import._insert = stop  # type: ignore[method-assign]
    store.import_table(path, "u")


def test_nothing_is_drawn_from_a_table_that_is_not_complete(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    table = store.create_table("t", capacity=50, schema={"x": Spec((), "i8")})
    table.extend({"x": np.arange(50)})
    table.export(path)
    child = mp.get_context("fork").Process(target=import_slowly, args=(store.name, str(path)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    half = store.table("u")
    for call in (lambda: half.sample(1, timeout=0), lambda: half.insert({"x": 1}, timeout=0)):
        with pytest.raises(di_store.Timeout, match="drop_table"):
            call()
    store.drop_table("u")
    assert content(store.import_table(path, "u")) == content(table)
    assert store.check() == []


def test_the_digest_of_the_format_page(tmp_path: Path) -> None:
    """docs/table_format.md names the members of the golden file."""
    page = (Path(__file__).parents[1] / "docs" / "table_format.md").read_text()
    with zipfile.ZipFile(GOLDEN) as file:
        for name in file.namelist():
            assert name.rpartition("/")[2].removesuffix(".npy") in page, name
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest()[:16] in page
