"""kill -9 leaves nothing: no files, no bytes, no noise; many objects need few descriptors and maps."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import Program, shm_files, until

import di_store
from di_store import _core

PUT = """
import sys, numpy as np, di_store
with di_store.attach(sys.argv[1], timeout=60) as store:
    number = 0
    print("putting", flush=True)
    while True:
        size = (100, 9_000, 300_000, 3_000_000)[number % 4]
        store.put(np.full(size, number % 256, np.uint8), timeout=60, ttl=3600)
        number += 1
        if number % 20 == 0:
            store.delete(store.keys())
"""


def stored(store: di_store.Store) -> list[int]:
    """What a store's objects take."""
    stats = store.stats()
    return [stats[name] for name in ("objects", "live_objects_bytes", "pinned", "pending")]  # type: ignore[literal-required]


def test_clients_killed_in_put_leave_nothing(
    count: Callable[[int, int], int], store_dir: str, store_name: Callable[[], str]
) -> None:
    """After each: bytes at the baseline, nothing in /dev/shm or the store's folder, nothing printed."""
    rng, shm = random.Random(7), shm_files()
    with di_store.open(store_name(), memory="128MiB") as store:
        arena = _core.Arena.open(store.name, 2, 0, 0, 60.0)
        before = stored(store)
        for _ in range(count(6, 100)):
            with Program(PUT, store.name) as program:
                assert program.line() == "putting"
                pause = threading.Event()
                pause.wait(rng.random() * 0.03)
                program.signal(signal.SIGKILL)
                _, err = program.process.communicate()
                assert err == ""
            arena.reap()
            store.delete(store.keys())
            assert stored(store) == before
            assert [client["pid"] for client in store.stats()["clients"]] == [os.getpid()]
            assert store.check() == []
            assert shm_files() == shm
            assert os.listdir(store_dir) == []
        # All of it can be had again.
        store.put(np.zeros(100 << 20, np.uint8), timeout=60)


def test_killing_all_processes_leaves_nothing(
    count: Callable[[int, int], int], store_dir: str, store_name: Callable[[], str]
) -> None:
    """Creator and clients: the name is free again at once, and the memory with it."""
    shm = shm_files()
    for _ in range(count(2, 50)):
        name = store_name()
        create = (
            f"import di_store\nstore = di_store.open({name!r}, memory='64MiB')\nprint('there', flush=True)\ninput()"
        )
        with Program(create) as creator, Program(PUT, name) as first, Program(PUT, name) as second:
            assert [creator.line(), first.line(), second.line()] == ["there", "putting", "putting"]
            for program in (creator, first, second):
                program.signal(signal.SIGKILL)
            for program in (creator, first, second):
                assert program.process.communicate()[1] == ""
        assert name not in [found.name for found in di_store.list_stores()]
        with pytest.raises(di_store.StoreNotFound):
            di_store.attach(name)
        assert shm_files() == shm
        assert os.listdir(store_dir) == []


MANY = """
import os, resource, sys, numpy as np, di_store
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
count = int(sys.argv[1])
with di_store.open(memory="512MiB") as store:
    refs = [store.put(np.full(300, n % 256, np.uint8), timeout=60) for n in range(count)]
    views = [store.get(ref) for ref in refs]
    assert len(os.listdir("/proc/self/fd")) < 64, len(os.listdir("/proc/self/fd"))
    with open("/proc/self/maps") as file:
        maps = len(file.readlines())
    assert maps < 1_000, maps
    assert all(view[7] == n % 256 for n, view in enumerate(views))
    assert store.stats()["objects"] == count
    del views
    assert store.delete(refs) == count
print("fine")
"""


def test_many_objects_need_few_descriptors(count: Callable[[int, int], int]) -> None:
    """Every one of them viewed at once."""
    with Program(MANY, count(20_000, 100_000)) as program:
        assert program.finish(600)[0] == "fine\n"


def read_and_leave(name: str, ref: Any) -> None:
    """In a child: attach, read, leave."""
    with di_store.attach(name, timeout=60) as store:
        assert store.get(ref).sum() == 1_000


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_readers_that_leave_unlink_nothing(
    count: Callable[[int, int], int], store_name: Callable[[], str], method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Multiprocessing's resource tracker knows nothing of us, so it destroys nothing and says nothing."""
    context = mp.get_context(method)
    with di_store.open(store_name(), memory="32MiB") as store:
        ref = store.put(np.ones(1_000, np.uint8))
        for _ in range(count(2, 333)):
            readers = [context.Process(target=read_and_leave, args=(store.name, ref)) for _ in range(2)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(120)
                assert reader.exitcode == 0
        assert store.get(ref).sum() == 1_000
        arena = _core.Arena.open(store.name, 2, 0, 0, 60.0)
        until(lambda: arena.reap() == 0 and len(store.stats()["clients"]) == 1, "the readers to be settled")
        assert store.check() == []
    assert "resource_tracker" not in capfd.readouterr().err


def test_a_core_dump_excludes_the_store(tmp_path: Path) -> None:
    """A core file of a process with a large store stays small: the arena is not dumped."""
    assert resource.getrlimit(resource.RLIMIT_CORE)[1] != -2
    with di_store.open(memory="64MiB") as store:
        store.put(np.ones(32 << 20, np.uint8))
        flags, mapping = [], ""
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if line.startswith("VmFlags:") and "di-store:" in mapping:
                flags.append(line.split()[1:])
            elif "-" in line.split()[0]:  # an address range begins a mapping
                mapping = line
        assert len(flags) >= 2, "one mapping to write and one to read"
        assert all("dd" in words for words in flags), "a mapping would be dumped"
