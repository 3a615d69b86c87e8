"""Objects that fill the end of a store's address range to a byte: the store goes on as before."""

from __future__ import annotations

import numpy as np
import pytest

import di_store

SLICE = 2 << 20
HEADER = 64
"""Bytes in front of an array's own, in its block."""


@pytest.mark.parametrize("memory", ["8MiB", "11MiB"])
@pytest.mark.parametrize("run", [1, 2, 3])
def test_objects_of_whole_slices_fit_at_the_end_of_the_store(memory: str, run: int) -> None:
    with di_store.open(memory=memory) as store:
        store.resize(memory=store._backend.session.arena.range_bytes)
        refs = []
        while True:  # a slice each, from the lowest on
            try:
                refs.append(store.put(np.zeros(SLICE // 2 + 1, np.uint8), timeout=0))
            except di_store.StoreFull:
                break
        for more in (-1, 0, 1):
            taken = run + (more > 0)
            assert store.delete(refs[-taken:]) == taken
            del refs[-taken:]
            value = np.arange(run * SLICE + more - HEADER, dtype=np.uint8)
            ref = store.put(value, timeout=0)
            assert store.check() == []
            assert store.check(repair=True) == []
            assert (store.get(ref) == value).all()
            assert store.delete(ref) == 1
            refs += [store.put(np.zeros(SLICE // 2 + 1, np.uint8), timeout=0) for _ in range(taken)]
            with pytest.raises(di_store.StoreFull):
                store.put(np.zeros(SLICE // 2 + 1, np.uint8), timeout=0)
        assert store.check() == []
