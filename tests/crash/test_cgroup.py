"""A budget larger than the cgroup: a typed error in time, never the kernel's killer."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

import di_store
from crash.zygote import Crew

MIB = 1 << 20
LIMIT = 200 * MIB
_NUMBERS = itertools.count()


class Group:
    """A memory cgroup of our own below the one this process is in, v1 or v2.

    Raises:
        OSError: none can be made here.
    """

    def __init__(self, limit: int) -> None:
        self.v1, folder = _own_folder()
        self.path = folder / f"di-store-test-{os.getpid()}-{next(_NUMBERS)}"
        if not self.v1:
            (folder / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        try:
            (self.path / ("memory.limit_in_bytes" if self.v1 else "memory.max")).write_text(str(limit))
            if not self.v1 and (self.path / "memory.swap.max").exists():
                (self.path / "memory.swap.max").write_text("0")
        except OSError:
            self.path.rmdir()
            raise

    def peak(self) -> int:
        """The most bytes it ever held."""
        return int((self.path / ("memory.max_usage_in_bytes" if self.v1 else "memory.peak")).read_text())

    def killed(self) -> int:
        """How often the kernel killed for it."""
        text = (self.path / ("memory.oom_control" if self.v1 else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def close(self) -> None:
        """Remove it; its processes are gone."""
        self.path.rmdir()


def _own_folder() -> tuple[bool, Path]:
    """Whether v1, and the folder of this process's memory cgroup."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        root = Path("/sys/fs/cgroup/memory")
        if "memory" in controllers.split(",") and root.is_dir():
            own = root / path.lstrip("/")
            return True, own if own.is_dir() else root
    for _, controllers, path in lines:
        own = Path("/sys/fs/cgroup") / path.lstrip("/")
        if (not controllers and (own / "memory.max").exists()) or (own / "cgroup.controllers").exists():
            return False, own
    raise OSError("no memory cgroup")


@contextlib.contextmanager
def made_group() -> Iterator[Group | None]:
    """A group of 200 MiB; None where this user may not make one: then limits of the process stand in."""
    try:
        made = Group(LIMIT)
    except OSError:
        yield None
        return
    yield made
    made.close()


@pytest.fixture(scope="module")
def group() -> Iterator[Group | None]:
    """The group of most tests."""
    with made_group() as made:
        yield made


@pytest.fixture
def own_group() -> Iterator[Group | None]:
    """A group whose peak is that of one test."""
    with made_group() as made:
        yield made


def enter(path: str | None) -> None:
    """In a child: move into the group; without one, limit the address space instead."""
    if path is None:
        resource.setrlimit(resource.RLIMIT_AS, (3 * LIMIT, 3 * LIMIT))
    else:
        Path(path, "cgroup.procs").write_text(str(os.getpid()))


def fill(path: str | None, name: str) -> None:
    """In a child: a store of ten times the limit is filled with objects until it says no; then it serves on."""
    enter(path)
    refused = (di_store.StoreFull, di_store.CapacityError)
    try:
        store = di_store.open(name, memory=10 * LIMIT)
    except refused:
        assert path is None, "a store may promise more than there is"
        return
    refs = []
    with pytest.raises(refused) as caught:
        for number in range(2_000):
            refs.append(store.put(np.full(MIB, number % 256, np.uint8), timeout=0.2))
    assert "memory" in str(caught.value)
    assert len(refs) < 210
    for number, ref in enumerate(refs):
        assert (store.get(ref) == number % 256).all()
    half = len(refs) // 2
    assert store.delete(refs[:half]) == half
    assert store.get(store.put(np.full(4 * MIB, 3, np.uint8), timeout=60)).sum() == 12 * MIB
    assert store.check() == []
    store.close()


def fill_table(path: str | None, name: str) -> None:
    """In a child: a table whose chunks don't fit the cgroup; appends raise, what is in it stays readable."""
    enter(path)
    refused = (di_store.StoreFull, di_store.CapacityError)
    try:
        store = di_store.open(name, memory=10 * LIMIT)
    except refused:
        assert path is None
        return
    with pytest.raises(refused):
        table = store.create_table("t", capacity=100_000, schema={"obs": di_store.Spec((84, 84), "u1")})
        with table.writer() as writer:
            for number in range(100_000):
                writer.append({"obs": np.full((84, 84), number % 256, np.uint8)}, timeout=0.2)
    for held in store.stats()["tables"]:
        table = store.table(held)
        if len(table):
            batch = table.sample(64, timeout=60)
            assert (batch.data["obs"] == batch.data["obs"][:, :1, :1]).all()
    store.close()


def fill_disk(path: str | None, name: str) -> None:
    """In a child: a store with a disk, whose memory doesn't fit the cgroup: rows go to disk, nobody waits for ever."""
    enter(path)
    with tempfile.TemporaryDirectory() as folder:
        memory = LIMIT // 4 if path is None else 2 * LIMIT
        with di_store.open(name, memory=memory, disk=folder, disk_capacity=4 * LIMIT) as store:
            schema = {"obs": di_store.Spec((MIB,), "u1")}
            table = store.create_table("t", capacity=400, schema=schema, lanes=1, compress=None)
            with table.writer() as writer:
                for number in range(400):
                    writer.append({"obs": np.full(MIB, number % 256, np.uint8)}, timeout=60)
            disk = store.stats()["disk"]
            assert disk is not None
            assert disk["dropped_chunks"] > 100
            batch = table.sample(16, timeout=60)
            assert (batch.data["obs"].min(axis=1) == batch.data["obs"].max(axis=1)).all()
            assert store.check() == []


def hold_batches(path: str | None, name: str) -> None:
    """In a child: batches are held until one does not fit the cgroup. It is refused and its draw given back."""
    enter(path)
    with di_store.open(name, memory=LIMIT // 4) as store:
        schema = {"obs": di_store.Spec((MIB,), "u1")}
        table = store.create_table("t", capacity=16, schema=schema, lanes=1)
        with table.writer() as writer:
            for number in range(16):
                writer.append({"obs": np.full(MIB, number, np.uint8)}, timeout=60)
        held = []
        with pytest.raises(di_store.StoreFull, match=r"MiB does not fit|no addresses") as caught:
            for _ in range(100):
                held.append(table.sample(16))
        print(caught.value)
        assert table.stats()["samples"] == 16 * len(held), "what a refused call had drawn goes back"
        if path is not None:
            with pytest.raises(di_store.StoreFull):
                table.peek(held[0].keys)
        assert table.stats()["samples"] == 16 * len(held)
        if re.search("only [01] MiB", str(caught.value)):  # by chance: too little for the smallest batch too
            del held[-1]
        assert table.sample(1).data["obs"].shape == (1, MIB), "small batches find room below the margin"
        for batch in held:
            assert (batch.data["obs"].min(axis=1) == batch.data["obs"].max(axis=1)).all()
        count = len(held)
        del batch, caught
        for size in (15, 14, 12, 9, 7, 5) * 3:  # of other sizes than the unused buffers have: those are given back
            held.clear()
            held.extend(table.sample(size) for _ in range(8 * count // size))
        held.clear()
        if path is not None:  # a large buffer that comes back while memory is short is not kept
            with pytest.raises(di_store.StoreFull):
                for _ in range(100):
                    held.append(table.sample(36))
            before = usage(path)
            del held[0]
            assert usage(path) < before - 30 * MIB
        assert store.check() == []


def table_of_16(name: str) -> tuple[di_store.Store, di_store.Table]:
    """A store with a table of 16 items of 1 MiB."""
    store = di_store.open(name, memory=LIMIT // 4)
    table = store.create_table("t", capacity=16, schema={"obs": di_store.Spec((MIB,), "u1")}, lanes=1)
    table.extend({"obs": np.arange(16, dtype=np.uint8)[:, None].repeat(MIB, axis=1)})
    return store, table


def hold_until_refused(table: di_store.Table, barrier: Barrier) -> None:
    """In a learner: batches are held until one does not fit, and then until that is so for all learners."""
    held = []
    barrier.wait(60)
    with pytest.raises(di_store.StoreFull):
        while len(held) < 100:
            held.append(table.sample(16))
    barrier.wait(60)


def many_learners(path: str | None, name: str) -> None:
    """In a child: children of its own that start at once."""
    enter(path)
    count = 2 if path is None else 8  # without a group each learner takes up to its own limit
    fork = multiprocessing.get_context("fork")
    store, table = table_of_16(name)
    barrier = fork.Barrier(count)
    learners = [fork.Process(target=hold_until_refused, args=(table, barrier)) for _ in range(count)]
    for learner in learners:
        learner.start()
    for learner in learners:
        learner.join(120)
    assert [learner.exitcode for learner in learners] == [0] * count
    assert table.stats()["samples"] % 16 == 0
    assert store.check() == []
    store.close()


def few_addresses(path: None, name: str) -> None:
    """In a child: unused buffers give their addresses to a batch of another size."""
    store, table = table_of_16(name)
    held = [table.sample(16) for _ in range(6)]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 24 * MIB,) * 2)
    with pytest.raises(di_store.StoreFull, match=r"no addresses .* raise `ulimit -v`"):
        table.sample(60)
    with pytest.raises(di_store.StoreFull, match="no addresses"):
        store.mix({"t": 1}).sample(60)
    assert table.stats()["samples"] == 6 * 16
    held.clear()
    assert table.sample(60).data["obs"].shape == (60, MIB)
    assert table.stats()["samples"] == 6 * 16 + 60


def usage(path: str) -> int:
    """Bytes that a group holds."""
    exact = Path(path, "memory.current")
    return int((exact if exact.exists() else Path(path, "memory.usage_in_bytes")).read_text())


def attach_from_outside(path: str | None, name: str) -> None:
    """In a child within the group: a store made outside; what it commits is charged to its own group."""
    if path is not None:  # the store's addresses are more than `enter` leaves
        enter(path)
    with di_store.attach(name, timeout=60) as store:
        refs = [store.put(np.full(MIB, number % 256, np.uint8), timeout=60) for number in range(80)]
        for number in range(80, 300):
            assert store.delete([refs[number % 80]]) == 1
            refs[number % 80] = store.put(np.full(MIB, number % 256, np.uint8), timeout=60)
        for number in range(220, 300):
            assert (store.get(refs[number % 80])[::4096] == number % 256).all()
        if path is not None:
            with pytest.raises((di_store.StoreFull, di_store.CapacityError)) as caught:
                for number in range(2_000):
                    store.put(np.full(MIB, number % 256, np.uint8), timeout=0.2)
            assert "cgroup" in str(caught.value)


def test_a_process_in_a_smaller_cgroup_gets_its_own_limit(crew: Crew, group: Group | None, store_name: object) -> None:
    """It is refused by its own group's limit, and no kill; the store goes on for everybody else."""
    name = store_name()  # type: ignore[operator]
    with di_store.open(name, memory=6 * LIMIT) as store:
        hand = crew.start("crash.test_cgroup:attach_from_outside", None if group is None else str(group.path), name)
        assert hand.join(240) == 0, hand.printed()
        if group is not None:
            assert group.killed() == 0
            assert group.peak() <= LIMIT
        refs = [store.put(np.full(MIB, number % 256, np.uint8), timeout=60) for number in range(300)]
        assert all((store.get(ref)[::4096] == number % 256).all() for number, ref in enumerate(refs))
        assert store.check() == []


@pytest.mark.memory_only
@pytest.mark.parametrize("work", ["fill", "fill_table", "fill_disk", "hold_batches"])
def test_exceeding_the_cgroup_raises_instead_of_a_kill(
    crew: Crew, group: Group | None, store_dir: str, store_name: object, work: str
) -> None:
    name = store_name()  # type: ignore[operator]
    hand = crew.start("crash.test_cgroup:" + work, None if group is None else str(group.path), name)
    assert hand.join(240) == 0, hand.printed()
    if group is not None:
        assert group.killed() == 0
        assert group.peak() <= LIMIT


def test_many_learners_leave_a_margin(crew: Crew, own_group: Group | None, store_dir: str, store_name: object) -> None:
    """Learners that look at the same time see the same room; together they leave half of what one of them would."""
    name = store_name()  # type: ignore[operator]
    hand = crew.start("crash.test_cgroup:many_learners", None if own_group is None else str(own_group.path), name)
    hand.finish(240)
    if own_group is not None:
        assert own_group.killed() == 0
        assert own_group.peak() < LIMIT - 8 * MIB


def test_unused_buffers_give_back_addresses(crew: Crew, store_dir: str, store_name: object) -> None:
    crew.start("crash.test_cgroup:few_addresses", None, store_name()).finish()  # type: ignore[operator]


def test_open_by_share_respects_the_group(crew: Crew, group: Group | None, store_name: object) -> None:
    """`memory="25%"` is a share of what the cgroup allows."""
    name = store_name()  # type: ignore[operator]
    crew.start("crash.test_cgroup:open_share", None if group is None else str(group.path), name).finish()


def open_share(path: str | None, name: str) -> None:
    """In a child."""
    if path is not None:  # the store's addresses are more than `enter` leaves
        enter(path)
    with di_store.open(name, memory="25%") as store:
        if path is not None:
            assert store.stats()["budget"] <= LIMIT // 4
        assert store.get(store.put(np.ones(MIB, np.uint8))).sum() == MIB
