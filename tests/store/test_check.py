"""`store.check`: it finds what contradicts what it is derived from, changes nothing, and repairs when told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program, status, until

import di_store
from store.test_shm_format import Memory


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as opened:
        table = opened.create_table("t", capacity=100, sampler=di_store.Prioritized(alpha=1.0))
        table.extend({"x": np.arange(50)}, priority=np.arange(1.0, 51.0))
        opened.put(np.zeros(5000), id="ab" * 20)
        yield opened


def add(store: Any, field: str, delta: int) -> None:
    """Falsify a figure of the heap or of table 0 behind everybody's back."""
    fd = store._backend.session.arena.fd_number
    memory = Memory(fd)
    part = "heap" if field.startswith("HeapHeader") else "tables"
    offset, size = memory.fields[field]
    at = memory.number(f"ArenaHeader.{part}", 0) + offset
    value = int.from_bytes(os.pread(fd, size, at), "little") + delta
    os.pwrite(fd, value.to_bytes(size, "little"), at)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("HeapHeader.live_bytes", "live bytes"),
        ("HeapHeader.pinned_bytes", "pinned bytes"),
        ("HeapHeader.live_objects", "live objects"),
        ("HeapHeader.table_charge", "table charge"),
        ("TableHeader.size", "table 't': items"),
        ("TableHeader.writers", "open writers"),
        ("TableHeader.free_slots", "free slots"),
    ],
)
def test_check_finds_and_repairs_damage(store: Any, field: str, words: str) -> None:
    assert store.check() == []
    add(store, field, 3)
    first = store.check()
    assert any(words in finding for finding in first), first
    assert store.check() == first, "a check that was not told to repair repaired"
    assert any(words in finding for finding in store.check(repair=True))
    assert store.check() == []
    assert len(store.table("t").sample(20)) == 20
    assert store.get("ab" * 20).shape == (5000,)


def chunks_of(memory: Memory) -> list[int]:
    """Offsets of the descriptors of all chunks."""
    return [at for at in memory.descriptors().values() if memory.number("Descriptor.word", at) >> 48 & 0xFF == 1]


@pytest.mark.parametrize(
    ("field", "left"), [("first_table", 6), ("first_uses", 6), ("rows", 6), ("first_table", 0), ("rows", 0)]
)
def test_check_repairs_chunk_descriptors(store: Any, field: str, left: int) -> None:
    """Of two tables on one stream, with uses of their own; also where the first one has let the chunk go."""
    memory = Memory(store._backend.session.arena.fd_number)
    before = chunks_of(memory)
    steps = store.create_table("steps", capacity=100)
    pairs = store.create_table("pairs", capacity=100, view=di_store.Sequence(2))
    with store.writer([steps, pairs]) as writer:
        for n in range(9):
            writer.append({"n": n})
    steps.delete(steps.keys(n=9 - left))
    assert store.check() == []
    place, size = memory.fields[f"ChunkSummary.{field}"]
    start = memory.fields["Descriptor.name"][0] + place
    for at in set(chunks_of(memory)) - set(before):
        value = int.from_bytes(memory.raw(at + start, size), "little") ^ 1
        os.pwrite(memory.fd, value.to_bytes(size, "little"), at + start)
    name = "steps" if left else "pairs"
    assert any(f"'{name}'" in finding for finding in store.check())
    store.check(repair=True)
    assert store.check() == []
    assert len(pairs.sample(5)) == 5
    assert len(steps) == left
    for table in (steps, pairs):
        store.drop_table(table.name)
    assert chunks_of(memory) == before


def di_store_check(store: Any, *options: str) -> tuple[int, Any]:
    """Exit status and JSON of the command."""
    command = [sys.executable, "-m", "di_store", "check", store.name, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout)


def test_the_command_repairs_only_with_repair(store: Any) -> None:
    code, found = di_store_check(store, "--repair")
    assert (code, found["findings"], found["repaired"]) == (0, [], False)
    add(store, "HeapHeader.live_bytes", 4096)
    for _ in range(2):
        code, found = di_store_check(store)
        assert code == 1
        assert len(found["findings"]) == 1
        assert not found["repaired"]
    code, found = di_store_check(store, "--repair")
    assert (code, len(found["findings"]), found["repaired"], found["left"]) == (0, 1, True, [])


def test_a_check_beside_readers_finds_nothing(store: Any) -> None:
    """Pins, doomed objects and dropped views are no contradiction, and a check does not end them."""
    view = store.get("ab" * 20)
    store.delete("ab" * 20)
    dropped = store.get(store.put(np.ones(100)))
    del dropped
    assert store.check() == store.check(repair=True) == []
    assert store.stats()["pending"] > 0
    assert view.sum() == 0


COUNTING = """
import sys, di_store
from di_store import _core
store = di_store.attach(sys.argv[1], timeout=60)
_core.arm_fault("table.rebuild_middle:1:stop")
found = store.check()
print("checked" if found == [] else found, flush=True)
"""


def test_no_chunk_is_freed_while_its_uses_are_counted(store: Any) -> None:
    """A check reads headers of chunks in place: a freed block would soon hold something else."""
    with Program(COUNTING, store.name) as program:
        until(lambda: status(program.pid)["State"].startswith("T"), "the check to stop in the middle")
        with pytest.raises(di_store.Timeout) as caught:
            store.put(np.zeros(5000), timeout=0.3)
        assert str(program.pid) in str(caught.value.culprit)
        program.signal(signal.SIGCONT)
        assert program.line() == "checked"
    store.put(np.zeros(5000), timeout=60)


RESIZE = """
import sys, di_store
from di_store import _core
table = di_store.attach(sys.argv[1], timeout=60).table("t")
_core.arm_fault("undo.after_commit:2")
table.resize(10)
"""


def test_inserts_finish_a_killed_resize(store_name: Callable[[], str]) -> None:
    """Killed between two holds of the lock it leaves more items than capacity, which nobody gave back."""
    with di_store.open(store_name(), memory="64MiB") as opened:
        table = opened.create_table("t", capacity=300)
        table.extend({"x": np.arange(300)})
        with Program(RESIZE, opened.name) as program:
            assert program.process.wait(120) == -signal.SIGKILL
        assert table.stats()["capacity"] == 10 < len(table) < 300
        for number in range(300):
            table.insert({"x": number}, timeout=60)
        assert len(table) == 10
        assert table.peek(table.keys()).data["x"].tolist() == list(range(290, 300))
        assert opened.check() == []


GRASP = """
import fcntl, os, sys
pid, name = sys.argv[1:]
folder = f"/proc/{pid}/fd"
found = []
for entry in os.listdir(folder):
    try:
        if f":{name}:" in os.readlink(f"{folder}/{entry}"):
            found.append(f"{folder}/{entry}")
    except FileNotFoundError:
        pass
file = os.open(found[0], os.O_RDONLY)
reader, writer = os.pipe()
fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
for at in range(0, os.fstat(file).st_size, 2 << 20):
    try:
        if os.lseek(file, at, os.SEEK_DATA) == at:
            os.splice(file, writer, 4096, offset_src=at)
    except OSError:
        break  # no more data
print("grasped", flush=True)
sys.stdin.readline()
"""
"""Puts the first page of every slice into a pipe: while it is in there, a huge page it belongs to stays whole."""


def test_the_rest_of_a_punched_huge_page_stays_counted(store_name: Callable[[], str]) -> None:
    """A punched part of a huge page may stay there: the budget must know it, or the store outgrows it."""
    with di_store.open(store_name(), memory="96MiB") as opened:
        refs = [opened.put(np.full(65_000, number % 251, np.uint8)) for number in range(640)]
        while opened._backend.session.arena.chore():  # whole slices become huge pages, where the kernel has them
            pass
        kept = refs[::31]  # at least one in every slice
        with Program(GRASP, os.getpid(), opened.name) as program:
            assert program.line() == "grasped"
            opened.delete(set(refs) - set(kept))
            with suppress(di_store.CapacityError):
                opened.resize("16MiB")
            stats = opened.stats()
            assert stats["present"] <= stats["committed"] + MIB // 4
        opened.resize("16MiB")
        stats = opened.stats()
        assert stats["present"] <= stats["committed"] + MIB // 4 <= 16 * MIB
        assert [int(opened.get(ref)[0]) for ref in kept] == [number % 251 for number in range(0, 640, 31)]
        assert opened.check() == []
