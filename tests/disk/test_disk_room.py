"""What tables may ask of memory and disk together: what is accepted holds, what does not fit is refused."""

from __future__ import annotations

import multiprocessing as mp
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store

MIB = 1 << 20
IN_BOTH = r"memory and disk have .* left for tables"
IN_MEMORY = "in memory, even with a disk tier, and .* of the store's memory are available"
TURNS = [0, *(pytest.param(turn, marks=pytest.mark.extended) for turn in (1, 2))]


def of_bytes(count: int) -> dict[str, Any]:
    return {"x": di_store.Spec((count,), "u1")}


def fill(table: di_store.Table, rows: int, row_bytes: int) -> None:
    """With rows that do not shrink on disk, 1 MiB at a time."""
    random = np.random.default_rng(0)
    with table.writer() as writer:
        for first in range(0, rows, MIB // row_bytes):
            count = min(MIB // row_bytes, rows - first)
            writer.extend({"x": random.integers(0, 256, (count, row_bytes), np.uint8)}, timeout=60)


def largest(store: di_store.Store, row_bytes: int, **options: Any) -> int:
    """The largest capacity for which a table is accepted, within 1 %."""
    low, high = 1, 400 * MIB // row_bytes
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        try:
            store.create_table("tried", capacity=middle, lanes=1, schema=of_bytes(row_bytes), **options)
        except di_store.CapacityError:
            high = middle
        else:
            store.drop_table("tried")
            low = middle
    return low * 99 // 100  # what tables leave behind takes some KiB


def check_the_largest(store: di_store.Store, row_bytes: int) -> None:
    """It holds its capacity, also once its first rows have left."""
    capacity = largest(store, row_bytes, compress=None)
    table = store.create_table("t", capacity=capacity, lanes=1, schema=of_bytes(row_bytes), compress=None)
    fill(table, capacity + capacity // 10, row_bytes)
    assert len(table) == capacity
    assert table.stats()["evicted_for_room"] == 0


@pytest.mark.memory_only
@pytest.mark.parametrize(
    ("memory", "disk", "row_bytes"),
    [("128MiB", "128MiB", 100), ("32MiB", "256MiB", 1_000), ("32MiB", "256MiB", 20_000)],
)
def test_the_largest_table_holds_its_capacity(tmp_path: Path, memory: str, disk: str, row_bytes: int) -> None:
    """Also where its item slots take about as much as its rows."""
    with di_store.open(memory=memory, disk=tmp_path / "disk", disk_capacity=disk) as store:
        check_the_largest(store, row_bytes)
        assert store.check() == []


@pytest.mark.memory_only
@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_table_beside_objects_holds_its_capacity(tmp_path: Path, durability: str) -> None:
    """Objects stay until somebody deletes them, in memory or on disk."""
    random = np.random.default_rng(1)
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        values = [random.integers(0, 256, 2 * MIB, np.uint8) for _ in range(24)]
        ids = [store.put(value, durability=durability) for value in values]
        check_the_largest(store, 4_000)
        for number, value in zip(ids, values, strict=True):
            assert np.array_equal(store.get(number), value)
        assert store.check() == []


@pytest.mark.memory_only
@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_table_beside_pinned_objects_holds_its_capacity(tmp_path: Path, durability: str) -> None:
    """What somebody holds stays in memory, also where it lies on disk."""
    random = np.random.default_rng(1)
    with di_store.open(memory="128MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        refs = [store.put(random.integers(0, 256, 2 * MIB, np.uint8), durability=durability) for _ in range(90)]
        held = [store.get(ref) for _ in range(3) for ref in refs[:45]]  # what is read again enters memory
        check_the_largest(store, 4_000)
        assert len(held) == 135
        assert store.check() == []


def test_limits_can_be_raised_after_objects_filled_the_store(tmp_path: Path) -> None:
    """Tables and objects take more than there is: each larger limit is taken, the present ones too, no smaller ones."""
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        capacity = largest(store, 4_000)
        table = store.create_table("t", capacity=capacity, lanes=1, schema=of_bytes(4_000))
        for number in range(24):
            store.put(np.full(2 * MIB, number, np.uint8))
        for limits in ({"memory": "64MiB"}, {"disk_capacity": "256MiB"}):
            store.resize(**limits)
        for limits in ({"memory": "60MiB"}, {"disk_capacity": "240MiB"}):
            with pytest.raises(di_store.CapacityError, match="delete objects"):
                store.resize(**limits)
        table.resize(capacity // 2)
        store.resize("80MiB", disk_capacity="300MiB")
        table.resize(capacity // 2 + 10)


def test_raising_the_limit_as_advised_suffices(tmp_path: Path) -> None:
    """A limit that is raised by as much as the error says is enough."""
    for number, (limit, rows, row_bytes) in enumerate(
        [
            ("memory", 2_000_000, 8),
            ("memory", 2_000_000, 200),
            ("memory", 150_000, 4_000),
            ("disk_capacity", 150_000, 4_000),
        ]
    ):
        with di_store.open(memory="64MiB", disk=tmp_path / str(number), disk_capacity="256MiB") as store:
            now = {"memory": 64, "disk_capacity": 256}
            with pytest.raises(di_store.CapacityError) as short:
                store.create_table("t", capacity=rows, lanes=1, schema=of_bytes(row_bytes), compress=None)
            (by,) = re.findall(f"{limit}= by ([0-9]+) MiB", str(short.value))
            store.resize(**{limit: (now[limit] + int(by)) * MIB})
            store.create_table("t", capacity=rows, lanes=1, schema=of_bytes(row_bytes), compress=None)


def test_a_store_that_fits_grows_for_what_the_disk_lacks(tmp_path: Path) -> None:
    """Memory grows for a table as far as memory and disk do not hold it, and not for one that is refused."""
    with di_store.open(memory="fit", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        before = store.stats()["memory"]
        with pytest.raises(di_store.CapacityError, match="would grow to"):
            store.create_table("t", capacity=2**27, lanes=1, schema=of_bytes(4_000), compress=None)
        assert store.stats()["memory"] == before
        store.create_table("t", capacity=140_000, lanes=1, schema=of_bytes(4_000), compress=None)
        assert 100 * MIB < store.stats()["memory"] - before < 250 * MIB
        now = store.stats()["memory"]
        store.table("t").resize(150_000)
        assert 40 * MIB < store.stats()["memory"] - now < 80 * MIB


@pytest.mark.parametrize("again", ["opened", "restored"])
def test_tables_can_be_recreated_after_objects_filled_the_store(tmp_path: Path, again: str) -> None:
    """However much of their room these take: what could be made once can be made again with the same limits."""
    limits: dict[str, Any] = {"memory": "32MiB", "disk": tmp_path / "disk", "disk_capacity": "128MiB"}
    with di_store.open(**limits) as store:
        capacity = largest(store, 4_000)
        table = store.create_table("t", capacity=capacity, lanes=1, schema=of_bytes(4_000), durability="disk")
        late = store.create_table("late", capacity=1_000, lanes=1, durability="disk")
        fill(table, 2_000, 4_000)
        late.insert({"x": np.zeros(8, np.uint8)})
        refs = [store.put(np.full(2 * MIB, number, np.uint8), durability="disk") for number in range(24)]
        with pytest.raises(di_store.CapacityError, match=IN_BOTH):
            store.create_table("another", capacity=4_000, lanes=1, schema=of_bytes(4_000))
        if again == "restored":
            store.checkpoint(tmp_path / "saved")
        store.sync()
    elsewhere = limits | {"disk": tmp_path / "elsewhere"}
    made = di_store.open(**limits) if again == "opened" else di_store.restore(tmp_path / "saved", **elsewhere)
    with made as store:
        assert (len(store.table("t")), len(store.table("late"))) == (2_000, 1)
        assert all((store.get(ref) == number).all() for number, ref in enumerate(refs))
        assert store.check() == []


def test_existing_slots_do_not_count_as_room_for_rows(tmp_path: Path) -> None:
    """Of a table that was larger before: what memory and disk lack is refused as that."""
    with di_store.open(memory="256MiB", disk=tmp_path / "disk", disk_capacity="64MiB") as store:
        first = store.create_table("first", capacity=1_000_000, lanes=1, schema=of_bytes(56))
        first.resize(1_000)
        store.create_table("second", capacity=150_000, lanes=1, schema=of_bytes(1_000))
        with pytest.raises(di_store.CapacityError, match=IN_BOTH):
            first.resize(1_000_000)
        first.resize(300_000)


def test_a_table_with_large_open_chunks_gives_room_back(tmp_path: Path) -> None:
    """Open chunks are not expected to shrink on disk, in what it has as in what it needs."""
    schema = of_bytes(10_000)
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        compress = di_store.Compress(expect=8)
        table = store.create_table("first", capacity=20_000, lanes=16, schema=schema, compress=compress)
        store.create_table("second", capacity=18_500, lanes=1, schema=schema)
        table.resize(20_000)
        table.resize(19_000)


def test_the_first_rows_are_refused_before_their_columns_are_declared(tmp_path: Path) -> None:
    """A reserve of bytes that may lie on disk is no room for item slots."""
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="1GiB") as store:
        table = store.create_table("t", capacity=3_000_000, max_bytes="400MiB", lanes=1)
        for _ in range(2):
            with pytest.raises(di_store.CapacityError, match=IN_MEMORY):
                table.insert({"x": np.zeros(8, np.uint8)})
        assert table.schema is None
        store.resize("256MiB")
        table.insert({"x": np.zeros(8, np.uint8)})
        assert table.stats()["slots"] > 3_000_000


def test_a_resize_needs_room_only_for_new_slots(tmp_path: Path) -> None:
    """Each slot takes some 80 bytes: the table's own are not asked for again."""
    with di_store.open(memory="128MiB", disk=tmp_path / "disk", disk_capacity="64MiB") as store:
        table = store.create_table("t", capacity=900_000, lanes=1, schema=of_bytes(8))
        table.resize(table.stats()["slots"] + 1_000)
        assert table.capacity == table.stats()["capacity"]


def test_rows_of_other_tables_make_room_for_a_table(tmp_path: Path) -> None:
    """Also for a smaller memory limit, and for another table's slots, wherever rows fill memory."""
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="1GiB") as store:
        first = store.create_table("first", capacity=12_000, lanes=1, schema=of_bytes(10_000), compress=None)
        fill(first, 12_000, 10_000)
        second = store.create_table("second", capacity=200_000, lanes=1, schema=of_bytes(100), compress=None)
        fill(second, 20_000, 100)
        first.sample(64)
        second.resize(400_000)
        with pytest.raises(di_store.CapacityError, match=IN_MEMORY):
            store.create_table("third", capacity=2_000_000, lanes=1, schema=of_bytes(100))
        fill(first, 8_000, 10_000)
        store.drop_table("second")
        fill(first, 8_000, 10_000)
        store.resize("32MiB")
        assert (len(first), first.stats()["evicted_for_room"]) == (12_000, 0)
        assert store.check() == []


def test_the_least_memory_is_named(tmp_path: Path) -> None:
    """Without the rows that would leave for the disk."""
    with di_store.open(memory="128MiB", disk=tmp_path / "disk", disk_capacity="512MiB") as store:
        slots = store.create_table("slots", capacity=300_000, lanes=1, schema=of_bytes(8))
        rows = store.create_table("rows", capacity=10_000, lanes=1, schema=of_bytes(10_000), compress=None)
        fill(rows, 10_000, 10_000)
        with pytest.raises(di_store.CapacityError, match="bytes in use or set aside") as short:
            store.resize("16MiB")
        (least,) = re.findall("less than the ([0-9]+) bytes", str(short.value))
        assert 24 * MIB < int(least) < 48 * MIB
        store.resize(int(least) + MIB)
        assert (len(rows), slots.capacity) == (10_000, 300_000)
        assert rows.stats()["evicted_for_room"] == 0


@pytest.mark.memory_only
def test_chunks_that_end_within_a_page_hold_their_capacity(tmp_path: Path) -> None:
    """Small ones, as rows leave in any order: each takes more pages on disk than bytes in memory."""
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1) as store:
        options: dict[str, Any] = {"remover": di_store.Uniform(), "compress": None}
        capacity = largest(store, 1_000, **options)
        table = store.create_table("t", capacity=capacity, lanes=1, schema=of_bytes(1_000), **options)
        fill(table, 4 * capacity, 1_000)
        assert (len(table), table.stats()["evicted_for_room"]) == (capacity, 0)


@pytest.mark.memory_only
def test_chunks_with_large_heads_hold_their_capacity(tmp_path: Path) -> None:
    """Small columns lie in them, and a file holds them twice: as many chunks fit as without."""
    schema = {**of_bytes(1_000), "reward": np.float32(0), "terminated": False, "truncated": False}
    random = np.random.default_rng(0)
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1) as store:
        view = di_store.Sequence(8, period=4)
        table = store.create_table("t", capacity=52_000, lanes=1, schema=schema, view=view, compress=None)
        flags = {"reward": np.zeros(1_000, "f4"), "truncated": np.zeros(1_000, bool)}
        flags["terminated"] = np.arange(1_000) % 50 == 49
        with table.writer() as writer:
            for _ in range(400):
                writer.extend({"x": random.integers(0, 256, (1_000, 1_000), np.uint8), **flags}, timeout=60)
        assert (len(table), table.stats()["evicted_for_room"]) == (52_000, 0)


def _append(table: di_store.Table, steps: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    with table.writer() as writer:
        for number in range(steps):
            obs = noise[number * 7_919 % 1_000_000 :][:4_096]
            writer.append({"obs": obs, "reward": 0.0, "terminated": number % 50 == 49, "truncated": False}, timeout=60)


@pytest.mark.memory_only
@pytest.mark.parametrize("turn", TURNS)
def test_tables_of_several_writers_hold_their_capacity(tmp_path: Path, turn: int) -> None:
    """Bodies of all lie in the same files, and leave in order: these are half dead for long, and the disk is full."""
    capacity, fork = 15_600, mp.get_context("fork")
    schema = {
        "obs": di_store.Spec((4_096,), "u1"),
        "reward": di_store.Spec((), "f4"),
        "terminated": di_store.Spec((), "bool"),
        "truncated": di_store.Spec((), "bool"),
    }
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=turn) as store:
        view = di_store.Transition(n_step=3)
        options: dict[str, Any] = {"capacity": capacity, "schema": schema, "lanes": 2, "view": view}
        tables = [store.create_table(f"t{i}", sampler=di_store.Prioritized(alpha=0.6), **options) for i in range(3)]
        writers = [fork.Process(target=_append, args=(table, 3 * capacity)) for table in tables for _ in range(2)]
        for writer in writers:
            writer.start()
        while running := [writer for writer in writers if writer.is_alive()]:
            running[0].join(0.05)
            for table in tables:
                table.sample(16, timeout=60)
        assert [writer.exitcode for writer in writers] == 6 * [0]
        assert [len(table) for table in tables] == 3 * [capacity]
        assert [table.stats()["evicted_for_room"] for table in tables] == 3 * [0]
        assert store.check() == []


def _append_noise(name: str, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    with di_store.attach(name) as store, store.table("rows").writer() as writer:
        for _ in range(rows):
            writer.append({"x": random.integers(0, 256, 28 << 10, np.uint8)}, timeout=60)


def _draw(name: str, end: Any) -> None:
    with di_store.attach(name) as store:
        while not end.is_set():
            store.table("rows").sample(32, timeout=60)


@pytest.mark.memory_only
@pytest.mark.parametrize("turn", TURNS)
def test_a_table_that_is_drawn_from_all_the_time_holds_its_capacity(tmp_path: Path, turn: int) -> None:
    """Whoever empties a file waits for readers of what lies in it, and others wait for whoever empties one."""
    capacity, fork = 4_870, mp.get_context("fork")
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=turn) as store:
        options: dict[str, Any] = {"schema": of_bytes(28 << 10), "remover": di_store.Uniform(), "compress": None}
        table = store.create_table("rows", capacity=capacity, lanes=2, **options)
        end = fork.Event()
        args = store.name, capacity * 4 // 5
        writers = [fork.Process(target=_append_noise, args=(*args, 10 * turn + each)) for each in range(3)]
        samplers = [fork.Process(target=_draw, args=(store.name, end)) for _ in range(2)]
        for process in writers + samplers:
            process.start()
        for writer in writers:
            writer.join(120)
        end.set()
        for sampler in samplers:
            sampler.join(60)
        assert [process.exitcode for process in writers + samplers] == 5 * [0]
        assert (len(table), table.stats()["evicted_for_room"]) == (capacity, 0)
        assert store.check() == []


def _write_both(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    with di_store.attach(name) as store, store.writer(["fifo", "any"]) as writer:
        for _ in range(300):
            writer.extend({"x": random.integers(0, 256, (250, 2_000), np.uint8)}, timeout=60)


def test_several_writers_over_two_tables_never_stall(tmp_path: Path) -> None:
    """Each raises what the tables set aside, while rows of others fill memory: nobody keeps a table's lock for that."""
    spawn = mp.get_context("spawn")
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        options: dict[str, Any] = {"schema": of_bytes(2_000), "lanes": 8, "compress": None}
        fifo = store.create_table("fifo", capacity=50_000, **options)
        store.create_table("any", capacity=18_000, remover=di_store.Uniform(), **options)
        writers = [spawn.Process(target=_write_both, args=(store.name, seed)) for seed in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(120)
            assert writer.exitcode == 0
        assert len(fifo) == 50_000
        assert store.check() == []


def test_a_writer_over_two_tables_has_smaller_chunks_than_one_of_them(tmp_path: Path) -> None:
    """More heads, but smaller ones."""
    random = np.random.default_rng(0)
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        options: dict[str, Any] = {"schema": of_bytes(4_000), "lanes": 8, "compress": None}
        fifo = store.create_table("fifo", capacity=25_000, **options)
        drawn = store.create_table("any", capacity=9_000, remover=di_store.Uniform(), **options)
        before = fifo.stats()
        with store.writer([fifo, drawn]) as writer:
            for _ in range(120):
                writer.extend({"x": random.integers(0, 256, (250, 4_000), np.uint8)}, timeout=60)
        for name in ("chunk_block", "chunk_head"):
            assert fifo.stats()[name] == drawn.stats()[name] < before[name]
        assert [(len(table), table.stats()["evicted_for_room"]) for table in (fifo, drawn)] == [(25_000, 0), (9_000, 0)]
        assert store.check() == []


def test_smaller_chunks_whose_heads_do_not_fit_are_refused(tmp_path: Path) -> None:
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        table = store.create_table("t", capacity=10_000, schema=of_bytes(4_000), compress=None)
        native, before = table._backend.handle.native, table.stats()
        size, open_bytes = before["reserve_wanted"], before["reserve_open"]
        assert size > 40 * MIB
        seen = before["capacity"], size, open_bytes
        with pytest.raises(di_store.CapacityError):
            native.resize(before["capacity"], before["slots"], (size, open_bytes, 4_096, 4_096), seen, 60.0)
        assert {name for name, value in table.stats().items() if value != before[name]} <= {"seconds_since_insert"}


def _make_and_fill(name: str, started: Any) -> None:
    with di_store.attach(name) as store:
        started.set()
        table = store.create_table("beside", capacity=100_000, lanes=1, schema=of_bytes(100), compress=None)
        fill(table, 10_000, 100)


def test_a_table_is_added_while_another_is_written(tmp_path: Path) -> None:
    spawn = mp.get_context("spawn")
    started = spawn.Event()
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="1GiB") as store:
        first = store.create_table("first", capacity=12_000, lanes=1, schema=of_bytes(10_000), compress=None)
        fill(first, 12_000, 10_000)
        child = spawn.Process(target=_make_and_fill, args=(store.name, started))
        child.start()
        while child.is_alive() or not started.is_set():
            fill(first, 1_000, 10_000)
            child.join(0)
        assert child.exitcode == 0
        assert len(store.table("beside")) == 10_000
        assert first.stats()["evicted_for_room"] == 0
        assert store.check() == []


@pytest.mark.filterwarnings("ignore:table .* items were evicted before capacity:RuntimeWarning")
def test_rows_that_fill_memory_and_disk_can_be_read(tmp_path: Path) -> None:
    """Small chunks that leave in random order: no page is left, and who reads still finds some for its notes."""
    random = np.random.default_rng(0)
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="64MiB", seed=1) as store:
        ref = store.put(np.arange(64))
        held = []
        promised = di_store.Compress(expect=4)  # in vain: noise does not shrink
        table = store.create_table("replay", capacity=20_000, lanes=1, remover=di_store.Uniform(), compress=promised)
        with table.writer() as writer:
            for turn in range(1_200):
                rows = random.integers(0, 256, (50, 700), np.uint8)
                writer.extend({"x": rows, "sum": rows.sum(axis=1, dtype=np.int64)}, timeout=60)
                if turn >= 1_000 and turn % 5 == 0:
                    held += [store.get(ref) for _ in range(255)]  # a ledger block of a page
                    data = table.sample(256).data
                    assert (data["x"].sum(axis=1, dtype=np.int64) == data["sum"]).all()
        assert all((array == np.arange(64)).all() for array in held[::255])
        assert store.check() == []
