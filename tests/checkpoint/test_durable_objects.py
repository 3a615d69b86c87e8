"""Objects and weights with `durability="disk"`: there again when a store is opened with the folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import WARM

import di_store
from di_store import CapacityError, ObjectExists, ObjectNotFound, StoreError, StoreFull, _core

IDS = [f"{i:040x}" for i in range(10)]


def opened(folder: Path, name: str | None = None, **options: Any) -> di_store.Store:
    return di_store.open(name, **{"memory": "32MiB", "disk": folder, "disk_capacity": "64MiB", **options})


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("objects-*"))


def found(store: di_store.Store) -> set[str]:
    return {ref.id for ref in store.keys(n=1_000_000)}


def test_durable_objects_come_back(tmp_path: Path) -> None:
    """What was put and not deleted, whatever it is; and so again after more of it."""
    values: dict[str, Any] = {
        IDS[0]: {"a": np.arange(9.0), "b": "text"},
        IDS[1]: np.arange(1_000_000, dtype=np.uint8).reshape(1_000, 1_000),
        IDS[2]: b"",
        IDS[3]: [1, None, {"x": np.zeros(0, np.float32)}],
    }
    with opened(tmp_path) as store:
        for id, value in values.items():
            assert store.put(value, id=id, durability="disk").id == id
        gone = store.put("gone", durability="disk")
        many = store.put_many(["one", "two"], ids=IDS[4:6], durability="disk")
        store.put("memory", id=IDS[6])
        store.put("old", id=IDS[7], durability="disk")
        assert store.delete([gone, many[0], IDS[7]]) == 3
        assert store.put("new", id=IDS[7], durability="disk").id == IDS[7]
        assert store.delete(gone) == 0
    values |= {IDS[5]: "two", IDS[7]: "new"}
    for turn in range(3):
        with opened(tmp_path) as store:
            assert found(store) == set(values)
            for id, value in values.items():
                di_store_equal(store.get(id), value)
            with pytest.raises(ObjectExists):
                store.put(1, id=IDS[5], durability="disk")
            store.delete(IDS[turn])
            del values[IDS[turn]]
            assert not store.check()


def di_store_equal(one: Any, other: Any) -> None:
    np.testing.assert_equal(one, other)


def test_a_ttl_continues_after_reopening(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        short = store.put("short", ttl=0.05, durability="disk")
        store.put("long", id=IDS[1], ttl=1_000, durability="disk")
        while store.contains(short):
            os.sched_yield()
    with opened(tmp_path) as store:
        assert found(store) == {IDS[1]}


def test_durable_weights_come_back(tmp_path: Path) -> None:
    """The newest that was durable, and those it kept; also when later ones were not."""
    with opened(tmp_path) as store:
        for i in range(1, 6):
            assert store.publish("kept", {"w": np.full(9, i)}, keep=2, durability="disk") == i
        assert store.publish("mixed", "one", durability="disk") == 1
        assert store.publish("mixed", "two") == 2
        assert store.publish("mixed", "three") == 3
        assert store.latest("mixed", version=1).value == "one"  # type: ignore[union-attr]
        assert store.latest("mixed", version=2) is None
        store.publish("memory", 1)
        with pytest.raises(ValueError, match="None"):
            store.publish("mixed", None, durability="disk")
    for turn in range(2):
        kept = before = mixed = None  # their arrays keep the store before
        with opened(tmp_path) as store:
            kept, before = store.latest("kept"), store.latest("kept", version=4 + turn)
            assert kept is not None
            assert before is not None
            assert (kept.version, kept.value["w"][0]) == (5 + turn, 5 + turn)
            assert before.value["w"][0] == 4 + turn
            assert store.latest("kept", version=3 + turn) is None
            assert store.latest("memory") is None
            mixed = store.latest("mixed")
            assert mixed is not None
            assert (mixed.version, mixed.value) == ((1, "one"), (2, "again"))[turn]
            if turn == 0:
                assert store.publish("kept", {"w": np.full(9, 6)}, keep=2, durability="disk") == 6
                assert store.publish("mixed", "again", durability="disk") == 2
                assert store.latest("mixed", version=1) is None
            assert not store.check()


def test_version_numbers_known_to_tables_are_not_reused(tmp_path: Path) -> None:
    """A durable table remembers the newest version; the weights that are read are those that are there."""
    with opened(tmp_path) as store:
        store.create_table("t", capacity=10, durability="disk").insert({"x": 1})
        store.publish("w", "durable", durability="disk")
        for _ in range(3):
            store.publish("w", "memory")
    with opened(tmp_path) as store:
        latest = store.latest("w")
        assert latest is not None
        assert (latest.version, latest.value) == (1, "durable")
        assert store.latest("w", newer_than=1) is None
        assert store.publish("w", "next") == 5
        latest = store.latest("w")
        assert latest is not None
        assert (latest.version, latest.value) == (5, "next")


def test_mostly_dead_log_files_are_compacted(tmp_path: Path) -> None:
    """Far more is put than the disk holds; what stays is copied out of files that are mostly unneeded."""
    rng = np.random.default_rng(0)
    with opened(tmp_path) as store:
        stay = {store.put(rng.bytes(9_000), durability="disk"): i for i in range(5)}
        expected = {}
        for i in range(120):
            refs = store.put_many([rng.bytes(200_000) for _ in range(5)], durability="disk")
            if i % 8 == 0:
                expected[refs[0].id] = bytes(store.get(refs[0]))
                refs = refs[1:]
            store.delete(refs)
        expected |= {ref.id: bytes(store.get(ref)) for ref in stay}
        assert sum(path.stat().st_size for path in logs(tmp_path)) <= 64 << 20
        assert store.stats()["disk"]["files"] <= 64 << 20
        assert not store.check()
    with opened(tmp_path) as store:
        assert found(store) == set(expected)
        for id, value in expected.items():
            assert store.get(id) == value
        store.delete(list(expected))
        store.sync()
    with opened(tmp_path) as store:
        assert not found(store)
        assert not logs(tmp_path)


def test_a_full_disk_raises_store_full_and_puts_nothing(tmp_path: Path) -> None:
    """StoreFull, and nothing was put or published; after a delete there is room."""
    with opened(tmp_path, memory="128MiB") as store:
        big = os.urandom(22 << 20)
        first = store.put(big, durability="disk")
        store.put(big, durability="disk", id=IDS[1])
        with pytest.raises(StoreFull, match="disk_capacity"):
            store.put(big, id=IDS[0], durability="disk", timeout=0.1)
        with pytest.raises(StoreFull, match="disk_capacity"):
            store.publish("w", big, durability="disk", timeout=0.1)
        assert not store.contains(IDS[0])
        assert store.latest("w") is None
        store.delete(first)
        store.put(big, id=IDS[0], durability="disk", timeout=5)
    with opened(tmp_path, memory="128MiB") as store:
        assert found(store) == set(IDS[:2])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("file.preallocate:1:ENOSPC", StoreFull),
        ("file.write:1:ENOSPC", StoreFull),
        ("file.write:2:ENOSPC", StoreFull),
        ("file.sync:1:EIO", StoreError),
        ("file.sync:2:EIO", StoreError),
        ("file.open:1:EIO", StoreError),
    ],
)
def test_a_failing_drive_keeps_no_refused_object(fault: str, error: type[Exception], tmp_path: Path) -> None:
    """What was refused is not there, now or later; the next call goes through."""
    with opened(tmp_path) as store:
        _core.arm_fault(fault)
        with pytest.raises(error):
            store.put("refused", id=IDS[0], durability="disk", timeout=0)
        assert not store.contains(IDS[0])
        store.put("kept", id=IDS[1], durability="disk")
        assert not store.check()
    with opened(tmp_path) as store:
        assert found(store) == {IDS[1]}


@pytest.mark.memory_only
def test_impossible_calls_are_refused(tmp_path: Path) -> None:
    with di_store.open(memory="16MiB") as store:
        for call in (
            lambda: store.put(1, durability="disk"),
            lambda: store.put_many([1], durability="disk"),
            lambda: store.publish("w", 1, durability="disk"),
        ):
            with pytest.raises(ValueError, match="disk="):
                call()
        with pytest.raises(ValueError, match="durability"):
            store.put(1, durability="tape")
    with opened(tmp_path) as store:
        store.put(os.urandom(20 << 20), durability="disk")
    with pytest.raises(StoreError, match="durable objects"):
        opened(tmp_path, mode="x")
    with pytest.raises(CapacityError, match="memory="):
        opened(tmp_path, memory="16MiB")
    (tmp_path / "epoch").rename(tmp_path / "aside")
    with pytest.raises(di_store.CorruptData, match="epoch"):
        opened(tmp_path)
    (tmp_path / "aside").rename(tmp_path / "epoch")
    with opened(tmp_path) as store:
        assert len(found(store)) == 1


def test_checkpoints_keep_objects_and_not_their_durability(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        store.put("value", id=IDS[0], durability="disk")
        store.publish("w", 1, durability="disk")
        store.checkpoint(tmp_path / "c")
    with di_store.restore(tmp_path / "c", memory="32MiB", disk=tmp_path / "b", disk_capacity="64MiB") as store:
        assert store.get(IDS[0]) == "value"
        assert store.latest("w").value == 1  # type: ignore[union-attr]
    with opened(tmp_path / "b") as store:
        assert not found(store)
        assert store.latest("w") is None


def test_a_large_put_survives_concurrent_deletions(tmp_path: Path) -> None:
    """Its first records lie in files that are full before it is done; nobody takes these for unneeded."""
    ends = threading.Event()
    rng = np.random.default_rng(0)
    with opened(tmp_path, memory="64MiB", disk_capacity="256MiB") as store:

        def put_and_delete() -> None:
            while not ends.is_set():
                store.delete(store.put(1, durability="disk"))

        thread = threading.Thread(target=put_and_delete)
        thread.start()
        try:
            values = [rng.integers(0, 256, 1 << 20, np.uint8) for _ in range(30)]
            refs = store.put_many(values, durability="disk")
        finally:
            ends.set()
            thread.join(60)
        files = sum(path.stat().st_size for path in logs(tmp_path))
        assert files > 30 << 20
    with opened(tmp_path, memory="64MiB", disk_capacity="256MiB") as store:
        for ref, value in zip(refs, values, strict=True):
            assert np.array_equal(store.get(ref), value)


def test_threads_can_put_at_the_same_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:

        def work(number: int) -> None:
            for i in range(8):
                ref = store.put((number, i), durability="disk")
                if i % 2:
                    store.delete(ref)
                store.publish("w", number, durability="disk")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not store.check()
    with opened(tmp_path) as store:
        assert sorted(store.get(id) for id in found(store)) == [(n, i) for n in range(16) for i in range(0, 8, 2)]
        assert store.latest("w").version == 16 * 8  # type: ignore[union-attr]


def put_and_delete(name: str, number: int, pipe: Any) -> None:
    with di_store.attach(name) as store:
        for i in range(12):
            store.put((number, i), id=f"{number:020x}{i:020x}", durability="disk")
        pipe.send(number)
        pipe.recv()
        for i in range(0, 12, 3):  # of both processes, by both at once
            store.delete([f"{other:020x}{i:020x}" for other in (1, 2)])


def test_several_processes_and_forked_children_put(tmp_path: Path) -> None:
    """Two processes put, and delete the same objects at once; a forked child has a log of its own."""
    with opened(tmp_path) as store:
        pipes = [WARM.Pipe() for _ in range(2)]
        children = [
            WARM.Process(target=put_and_delete, args=(store.name, number, far))
            for number, (_, far) in enumerate(pipes, 1)
        ]
        for child in children:
            child.start()
        for near, _ in pipes:
            assert near.poll(60)
            near.recv()
        for near, _ in pipes:
            near.send("go")
        store.put("parent", id=IDS[1], durability="disk")
        forked = os.fork()
        if forked == 0:
            try:
                store.put("child", id=IDS[2], durability="disk")
                store.delete(IDS[1])
            finally:
                os._exit(0)
        assert os.waitpid(forked, 0)[1] == 0
        store.put("after", id=IDS[3], durability="disk")
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        expected = {f"{n:020x}{i:020x}" for n in (1, 2) for i in range(12) if i % 3} | set(IDS[2:4])
        assert found(store) == expected
        assert not store.check()
    with opened(tmp_path) as store:
        assert found(store) == expected
        assert store.get(IDS[2]) == "child"


def test_two_stores_cannot_share_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(1, id=IDS[0], durability="disk")
        with pytest.raises(StoreError, match="another store"):
            opened(tmp_path)
        assert store.get(IDS[0]) == 1


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_calls_equals_a_dict(seed: int, tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """Against a dict: objects and weights of all sizes, put, deleted, published, in stores one after the other."""
    rng = np.random.default_rng(seed)
    objects: dict[str, bytes] = {}
    weights: dict[str, tuple[int, bytes]] = {}
    for _ in range(count(10, 100)):
        with opened(tmp_path, memory="24MiB") as store:
            assert found(store) == set(objects)
            for id, value in objects.items():
                assert store.get(id) == value
            for name, (version, value) in weights.items():
                latest = store.latest(name)
                assert latest is not None
                assert (latest.version, latest.value) == (version, value)
            for _ in range(int(rng.integers(1, 60))):
                id = IDS[rng.integers(len(IDS))]
                value = rng.bytes(int(rng.choice([0, 10, 1_000, 70_000, 400_000])))
                what = rng.integers(4)
                if what == 0 and id not in objects:
                    store.put(value, id=id, durability="disk")
                    objects[id] = value
                elif what == 1:
                    assert store.delete(id) == (id in objects)
                    objects.pop(id, None)
                elif what == 2:
                    name = f"w{rng.integers(3)}"
                    weights[name] = store.publish(name, value, durability="disk"), value
                elif what == 3 and id in objects:
                    with pytest.raises(ObjectExists):
                        store.put(value, id=id, durability="disk", timeout=0)
            assert not store.check()


def test_a_missing_object_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(1, id=IDS[0], durability="disk")
        store.delete(IDS[0])
        with pytest.raises(ObjectNotFound):
            store.get(IDS[0])
