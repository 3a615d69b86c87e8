"""Later checkpoints in the same folder; restoring with other settings, and beside writers."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from checkpoint.stores import MEMORY, REMOVERS, Options, same_draws, sound, write
from di_store import (
    CapacityError,
    Fifo,
    Group,
    MinSize,
    Once,
    Opaque,
    Prioritized,
    Spec,
    Step,
    Timeout,
    Uniform,
)
from di_store.checkpoint.store import renewal

# -- later checkpoints --------------------------------------------------------------------------------------------
from di_store.replay.importing import Import


def sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith("disk-"))


def test_a_later_checkpoint_writes_only_changes(options: Callable[[], Options], tmp_path: Path) -> None:
    """New rows, and about 56 bytes for each item that was touched."""
    folder = tmp_path / "c"
    with di_store.open(**options(), seed=2) as store:
        table = store.create_table("t", capacity=20_000, sampler=Prioritized(alpha=0.5, beta=0.5))
        write(table, 20_000)
        store.checkpoint(folder)
        before = {path.name for path in folder.iterdir()}
        keys = table.sample(500).keys
        table.update_priorities(keys, np.arange(500, dtype=np.float64))
        store.checkpoint(folder)
        fresh = [path for path in folder.iterdir() if path.name not in before and path.name.startswith("items-")]
        touched = len(np.unique(keys))
        assert len(fresh) == 1
        assert fresh[0].stat().st_size < 60 * touched + 2_000
        for turn in range(4):
            write(table, 700, 50_000 + 1_000 * turn)
            store.checkpoint(folder)
        with di_store.restore(folder, **options()) as again:
            same_draws(table, again.table("t"))
            sound(again)


@pytest.mark.parametrize("remover", [Fifo(), Uniform()])
def test_rows_are_rarely_written_again(remover: Any, tmp_path: Path) -> None:
    """Rows are written once, and files of which little is needed go before they take more than is needed."""
    folder, rng, wide = tmp_path / "c", np.random.default_rng(0), 4_096
    with di_store.open(memory="192MiB") as store:
        schema = {"x": Spec((wide,), "uint8")}
        table = store.create_table("t", capacity=4_000, schema=schema, remover=remover, lanes=1, max_bytes="96MiB")
        lying: dict[str, int] = {}
        written = 0
        with table.writer() as writer:
            for turn in range(40):
                writer.extend({"x": rng.integers(0, 256, (1_000, wide), np.uint8)})
                store.checkpoint(folder)
                before = lying
                lying = {path.name: path.stat().st_size for path in folder.glob("segment-*")}
                written += sum(size for name, size in lying.items() if name not in before)
                needed = table.stats()["used_bytes"]
                assert sum(lying.values()) <= 2.5 * needed + 4_000 * wide, turn
        assert written <= 1.5 * 40_000 * wide


def test_mostly_dead_files_are_rewritten(tmp_path: Path) -> None:
    """So a folder of many checkpoints holds at most twice the rows."""
    folder = tmp_path / "c"
    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=4_000)
        write(table, 4_000)
        store.checkpoint(folder)
        first = sizes(folder)
        for turn in range(12):
            write(table, 1_500, 10_000 * (turn + 1))
            store.checkpoint(folder)
            assert sizes(folder) < 3 * first
        with di_store.restore(folder, memory=MEMORY) as again:
            same_draws(table, again.table("t"))


def test_many_checkpoints_keep_few_files(
    options: Callable[[], Options], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that stay leave a small file at each checkpoint; there are never many."""
    monkeypatch.setattr(renewal, "MOST_SMALL", 8)
    folder = tmp_path / "c"
    with di_store.open(**options(), seed=3) as store:
        table = store.create_table("t", capacity=20_000)
        for turn in range(40):
            write(table, 300, 1_000 * turn)
            store.checkpoint(folder)
            files = list(folder.glob("segment-*"))
            assert len(files) <= 8 + 5, "small ones, and what this checkpoint has written"
        with di_store.restore(folder, **options()) as again:
            same_draws(table, again.table("t"))
            sound(again)


def test_rows_on_disk_are_linked_not_copied(tmp_path: Path) -> None:
    """Of rows on disk only heads are written. An open chunk, which the next checkpoint lacks, leaves no file."""
    folder, wide = tmp_path / "c", 4_096
    with di_store.open(memory="64MiB", disk=tmp_path / "d", disk_capacity="256MiB") as store:
        table = store.create_table("t", capacity=50_000, schema={"x": Spec((wide,), "uint8")}, compress=None, lanes=1)
        with table.writer() as writer:
            for _turn in range(20):
                writer.extend({"x": np.zeros((600, wide), np.uint8)})
                store.checkpoint(folder)
        assert sizes(folder) < 8 << 20


def test_a_checkpoint_of_another_store_starts_from_scratch(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for value in range(3):
        with di_store.open(memory=MEMORY) as store:
            store.create_table("t", capacity=10).insert({"x": value})
            store.checkpoint(folder)
        with di_store.restore(folder, memory=MEMORY) as again:
            assert again.table("t").sample(1).data["x"][0] == value


def test_linked_files_do_not_change_with_the_store(tmp_path: Path) -> None:
    """The store goes on, and all its rows are replaced: the checkpoint is what it was."""
    folder = tmp_path / "c"
    with di_store.open(memory="32MiB", disk=tmp_path / "d", disk_capacity="160MiB", seed=1) as store:
        table = store.create_table("t", capacity=10_000, compress=None, schema={"x": Spec((8_192,), "uint8")}, lanes=1)
        rng = np.random.default_rng(0)

        def fill() -> None:
            with table.writer() as writer:
                for _ in range(10_000):
                    writer.append({"x": rng.integers(0, 255, 8_192, np.uint8)})

        fill()
        store.checkpoint(folder)
        assert any(path.name.startswith("disk-") for path in folder.iterdir())
        keys = table.keys(0, 64)
        expected = table.peek(keys).data["x"].copy()
        fill()
        fill()
        with di_store.restore(folder, memory="32MiB", disk=tmp_path / "e", disk_capacity="96MiB") as again:
            assert (again.table("t").peek(keys).data["x"] == expected).all()
            sound(again)
        sound(store)


@pytest.mark.parametrize("how", ["no links", "a copied folder"])
def test_copied_files_follow_later_changes(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another filesystem: the next checkpoint has what was added to a file, and what it was used again for."""

    def no_link(*_names: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if how == "no links":
        monkeypatch.setattr(os, "link", no_link)
    folder = tmp_path / "c0"
    with di_store.open(memory="32MiB", disk=tmp_path / "d", disk_capacity="64MiB", seed=1) as store:
        table = store.create_table("t", capacity=2_000, compress=None, schema={"x": Spec((8_192,), "uint8")}, lanes=1)
        rng = np.random.default_rng(0)
        for turn, count in enumerate((300, 300, 2_000, 500, 2_000, 100)):
            with table.writer() as writer:
                for _ in range(count):
                    writer.append({"x": rng.integers(0, 255, 8_192, np.uint8)})
            store.checkpoint(folder)
            if how == "a copied folder":
                folder = Path(shutil.copytree(folder, tmp_path / f"c{turn + 1}"))
            assert len(list(folder.glob("disk-*"))) <= 2 * 64 // 4
            with di_store.restore(folder, memory="32MiB", disk=tmp_path / f"e{turn}", disk_capacity="64MiB") as again:
                keys = table.keys(0, 2_000)[::7]
                assert (again.table("t").peek(keys).data["x"] == table.peek(keys).data["x"]).all()
                sound(again)


# -- other stores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remover", REMOVERS, ids=repr)
def test_a_smaller_capacity_evicts_in_remover_order(
    remover: Any, options: Callable[[], Options], tmp_path: Path
) -> None:
    """Items go as the remover would have picked them."""
    with di_store.open(**options(), seed=1) as store:
        table = store.create_table("t", capacity=300, remover=remover, sampler=Prioritized(alpha=1))
        write(table, 300)
        keys = table.keys(0, 300)
        table.update_priorities(keys, np.random.default_rng(0).permutation(300).astype(np.float64) + 1)
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options(), tables={"t": {"capacity": 120}}) as again:
            restored = again.table("t")
            assert len(restored) == restored.capacity == 120
            table.resize(120)
            if remover != Uniform():
                assert sorted(restored.keys(0, 300).tolist()) == sorted(table.keys(0, 300).tolist())
            restored.sample(64)
            write(restored, 50, 1_000)
            assert len(restored) == 120
            sound(again)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_much_smaller_capacity_keeps_its_newest_items(tmp_path: Path, on_disk: bool) -> None:
    """The restored chunks were made for a larger one, and hold the newest items beside old ones."""
    tier: dict[str, Any] = {"disk": tmp_path / "disk", "disk_capacity": "256MiB"} if on_disk else {}
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=2_000, schema={"x": Spec((4096,), "u1"), "n": Spec((), "i8")}, lanes=1)
        with table.writer() as writer:
            writer.extend({"x": np.zeros((2_000, 4096), np.uint8), "n": np.arange(2_000)})
        store.checkpoint(tmp_path / "c")
    with di_store.restore(tmp_path / "c", memory="64MiB", **tier, tables={"t": {"capacity": 50}}) as again:
        table = again.table("t")
        wanted = table.stats()["reserve_wanted"]
        with table.writer() as writer:
            for n in range(2_000, 2_300):
                writer.append({"x": np.zeros(4096, np.uint8), "n": n})
                assert table.peek(table.keys()).data["n"].tolist() == list(range(n - 49, n + 1))
        stats = table.stats()
        assert stats["evicted_for_room"] == 0
        assert stats["reserve_wanted"] == wanted == stats["reserve_bytes"]
        assert again.check() == []


GROUPS = {"by": Spec((), "int64"), "x": Spec((), "int64"), "score": Spec((), "float32", late=True)}


@pytest.mark.parametrize("smaller", [None, 3])
def test_ended_groups_are_restored(options: Callable[[], Options], tmp_path: Path, smaller: int | None) -> None:
    """Also from the second checkpoint of a folder, which holds changes, and with a smaller capacity."""
    schema = {"group": di_store.Spec((), "i8"), "x": di_store.Spec((), "i8")}
    view, chosen = di_store.Group(2, unique=True), {} if smaller is None else {"tables": {"t": {"capacity": smaller}}}

    def rows(*groups: int) -> dict[str, Any]:
        return {"group": np.array(groups), "x": np.arange(len(groups))}

    with di_store.open(**options()) as store:
        table = store.create_table("t", capacity=4, view=view, schema=schema, max_times_sampled=1)
        table.extend(rows(1, 1))
        store.checkpoint(tmp_path / "all")
        table.extend(rows(2, 2))
        assert len(table.sample(2)) == 2
        table.extend(rows(3, 1))
        store.checkpoint(tmp_path / "all")
    with di_store.restore(tmp_path / "all", **options(), **chosen) as restored:
        again = restored.table("t")
        again.extend(rows(1, 2, 3, 4))
        assert (again.stats()["late_answers"], len(again)) == (3, 1)
        assert [each.value for each in again.incomplete()] == [4]
        assert restored.check() == []


def test_groups_are_restored_whole(options: Callable[[], Options], tmp_path: Path) -> None:
    """A full table comes back whole, and with a smaller capacity groups go with all their rows."""
    with di_store.open(**options(), seed=1) as store:
        table = store.create_table("t", capacity=6, view=Group(4, by="by"), schema=GROUPS)
        keys = np.array([table.insert({"by": i // 4, "x": i}) for i in range(40)], np.uint64)[-24:]
        table.update(keys[[*range(12), *range(16, 20)]], {"score": np.zeros(16, np.float32)})
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", **options()) as again:
            restored = again.table("t")
            assert len(restored) == len(table) == 4
            assert restored.stats()["waiting"] == 2
            same_draws(table, restored)
            sound(again)
        for capacity in (3, 2):
            table.resize(capacity)
            with di_store.restore(tmp_path / "c", **options(), tables={"t": {"capacity": capacity}}) as again:
                restored = again.table("t")
                assert (restored.keys(0, 6) == table.keys(0, 6)).all()
                for name in ("size", "waiting", "removed"):
                    assert restored.stats()[name] == table.stats()[name], name  # type: ignore[literal-required]
                sound(again)


def test_undelivered_draws_count_outside_the_capacity(tmp_path: Path) -> None:
    """They are given back; no item goes for them."""
    with di_store.open(memory=MEMORY, seed=1) as store:
        table = store.create_table("t", capacity=100, max_times_sampled=1, sampler=Fifo())
        with table.loader(5, prefetch=3) as loader:
            write(table, 50)
            next(loader)
            while table.stats()["held"] < 15:
                pass
            write(table, 100, 1_000)
            there = table.stats()["size"] + table.stats()["held"]
            assert there > 100
            store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", memory=MEMORY) as again:
            assert len(again.table("t")) == there
            sound(again)


def test_an_epoch_continues_with_a_smaller_capacity(tmp_path: Path) -> None:
    """What was drawn in it is not drawn again."""
    with di_store.open(memory=MEMORY, seed=1) as store:
        table = store.create_table("t", capacity=100, sampler=Once(epochs=2))
        for i in range(100):
            table.insert({"x": i})
        drawn = set(table.sample(70).data["x"].tolist())
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", memory=MEMORY, tables={"t": {"capacity": 60}}) as again:
            rest = sorted(set(range(40, 100)) - drawn)
            assert sorted(again.table("t").sample(len(rest)).data["x"].tolist()) == rest
            sound(again)


def test_a_given_limiter_replaces_the_saved_one(tmp_path: Path) -> None:
    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=100, limiter=MinSize(50))
        write(table, 20)
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", memory=MEMORY) as again, pytest.raises(Timeout):
            again.table("t").sample(1, timeout=0)
        with di_store.restore(tmp_path / "c", memory=MEMORY, tables={"t": {"limiter": MinSize(5)}}) as again:
            again.table("t").sample(1, timeout=0)
            assert again.table("t").stats()["limiter"]["min_size"] == 5


def test_resized_and_configured_tables_are_restored(tmp_path: Path) -> None:
    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=100, sampler=Prioritized(alpha=0.5, beta=0.4))
        write(table, 100)
        table.resize(400)
        table.configure(alpha=0.9, beta=0.7, limiter=MinSize(2))
        write(table, 300, 100)
        table.finish()
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", memory=MEMORY) as again:
            restored = again.table("t")
            assert restored.capacity == 400
            now, then = restored.stats(), table.stats()
            for name in ("alpha", "beta", "finished", "inserts", "samples", "removed", "max_priority", "size"):
                assert now[name] == then[name], name  # type: ignore[literal-required]
            same_draws(table, restored)


def test_a_table_with_a_lowered_limiter_is_restored(tmp_path: Path) -> None:
    """The limiter in force counts, also where another capacity is chosen."""
    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=100, limiter=MinSize(80))
        table.configure(limiter=MinSize(15))
        table.resize(20)
        write(table, 40)
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", memory=MEMORY) as again:
            same_draws(table, again.table("t"))
            again.checkpoint(tmp_path / "d")
        with di_store.restore(tmp_path / "d", memory=MEMORY) as again:
            assert again.table("t").capacity == len(again.table("t")) == 20
        with pytest.raises(ValueError, match="min_size=15 > capacity=10"):
            di_store.restore(tmp_path / "c", memory=MEMORY, tables={"t": {"capacity": 10}})


def test_python_values_fit_the_memory_they_came_from(tmp_path: Path) -> None:
    """A table of many small ones fits the memory that it came from."""
    with di_store.open(memory="48MiB") as store:
        table = store.create_table("t", capacity=100_000, view=Opaque())
        for i in range(100):
            table.insert(i)
        store.checkpoint(tmp_path / "c")
        with di_store.restore(tmp_path / "c", memory="48MiB") as again:
            for name in ("item_bytes", "reserve_bytes"):
                assert again.table("t").stats()[name] == table.stats()[name], name  # type: ignore[literal-required]
            same_draws(table, again.table("t"))


@pytest.mark.memory_only
def test_too_little_memory_is_refused_unless_there_is_a_disk(tmp_path: Path) -> None:
    """What does not fit is refused with both figures; with a disk tier it fits."""
    with di_store.open(memory="128MiB") as store:
        table = store.create_table("t", capacity=6_000, schema={"x": Spec((16_384,), "uint8")}, lanes=1)
        rng = np.random.default_rng(0)
        with table.writer() as writer:
            for _ in range(6_000):
                writer.append({"x": rng.integers(0, 255, 16_384, np.uint8)})
        store.checkpoint(tmp_path / "c")
        with pytest.raises(CapacityError, match="memory"):
            di_store.restore(tmp_path / "c", memory="32MiB")
        tier: Options = {"memory": "32MiB", "disk": tmp_path / "d", "disk_capacity": "192MiB"}
        with di_store.restore(tmp_path / "c", **tier) as again:
            keys = table.keys(0, 6_000)[::100]
            assert (again.table("t").peek(keys).data["x"] == table.peek(keys).data["x"]).all()
            sound(again)


def test_files_being_read_are_not_removed(tmp_path: Path) -> None:
    """Checkpoints that are made meanwhile remove them later."""
    folder = tmp_path / "c"
    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=1_000)
        write(table, 1_000)
        store.checkpoint(folder)
        old = {path.name for path in folder.glob("segment-*")}

        def meanwhile(done: int, _total: int) -> None:
            if done == 1:
                for turn in (1, 2):
                    write(table, 1_000, 1_000 * turn)
                    store.checkpoint(folder)
                assert old <= {path.name for path in folder.glob("segment-*")}

        with di_store.restore(folder, memory=MEMORY, progress=meanwhile) as again:
            rewards = again.table("t").peek(again.table("t").keys(0, 1_000)).data["reward"]
            assert (rewards == np.arange(1_000)).all()
        store.checkpoint(folder)
        assert not old & {path.name for path in folder.glob("segment-*")}


def test_a_table_that_is_being_imported_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = Import._insert
    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=100)
        write(table, 100)
        table.export(tmp_path / "t.zip")

        def between(*arguments: Any) -> Any:
            store.checkpoint(tmp_path / "c")
            return insert(*arguments)

        monkeypatch.setattr(Import, "_insert", between)
        store.import_table(tmp_path / "t.zip", "again")
        assert len(store.table("again")) == 100
        with di_store.restore(tmp_path / "c", memory=MEMORY) as restored:
            assert list(restored.stats()["tables"]) == ["t"]
            same_draws(table, restored.table("t"))
            sound(restored)


def test_a_checkpoint_is_of_one_instant(tmp_path: Path) -> None:
    """Beside a writer over two tables, both end with the same row in every checkpoint."""
    with di_store.open(memory=MEMORY) as store:
        tables = [store.create_table(name, capacity=500, view=Step()) for name in ("a", "b")]
        stop = threading.Event()

        def work() -> None:
            with store.writer(tables) as writer:
                for i in itertools.count():
                    if stop.is_set():
                        return
                    writer.append({"i": i})

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(4):
                while not len(tables[1]):
                    pass
                store.checkpoint(tmp_path / "c")
                with di_store.restore(tmp_path / "c", memory=MEMORY) as again:
                    a, b = (again.table(name) for name in "ab")
                    rows = [each.peek(each.keys(0, 500)).data["i"] for each in (a, b)]
                    assert (rows[0] == rows[1]).all()
                    assert (np.diff(rows[0]) == 1).all()
                    sound(again)
        finally:
            stop.set()
            thread.join()
