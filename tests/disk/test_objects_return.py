"""Which objects on disk come back into memory, and how `get` gives the others."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store

VALUE = np.zeros(10_000, np.uint8)


def disk_of(store: di_store.Store) -> Any:
    return store.stats()["disk"]


@pytest.mark.parametrize("kept", [1.6, 4.0])
def test_regularly_read_objects_return_to_memory(tmp_path: Path, kept: float) -> None:
    """A tenth of memory, all of it on disk, in turns beside others that are put and deleted."""
    with di_store.open(memory="32MiB", disk=tmp_path, disk_capacity="512MiB") as store:
        refs = deque[di_store.Ref]()
        while disk_of(store)["objects"] == 0:
            refs.append(store.put(VALUE))
        most = len(refs)
        hot = [refs.popleft() for _ in range(most // 10)]

        def put(count: int) -> None:
            for _ in range(count):
                refs.append(store.put(VALUE, timeout=60))
                if len(refs) > (kept - 0.1) * most:
                    store.delete(refs.popleft())

        put(2 * most)
        begin = disk_of(store)["loaded_objects"]
        for _ in range(8):
            read = disk_of(store)["loaded_objects"]
            for ref in hot:
                store.get(ref)
                put(7)
        assert disk_of(store)["loaded_objects"] - begin >= len(hot)
        assert disk_of(store)["loaded_objects"] - read < len(hot) / 2, "in the last of eight turns"


def test_an_object_larger_than_memory_can_be_read(tmp_path: Path) -> None:
    with di_store.open(memory="64MiB", disk=tmp_path, disk_capacity="512MiB") as store:
        large = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8)
        refs = [store.put(large, timeout=60) for _ in range(4)]
        store.resize(memory="16MiB")
        for ref in refs:
            assert np.array_equal(store.get(ref), large)


def test_copies_are_read_only_and_stay_valid(tmp_path: Path) -> None:
    with di_store.open(memory="14MiB", disk=tmp_path, disk_capacity="256MiB") as store:
        sizes = (0, 1, 63, 4_096, 70_000)
        values = [np.full(sizes[number % 5], number % 251, np.uint8) for number in range(1_500)]
        refs = [store.put({"x": value}) for value in values]
        assert disk_of(store)["objects"] > 300
        found = [store.get(ref)["x"] for ref in refs[:300]]
        for ref in refs[:300]:
            store.delete(ref)
        for number, array in enumerate(found):
            assert not array.flags.writeable
            assert array.ctypes.data % 8 == 0
            assert np.array_equal(array, values[number])
