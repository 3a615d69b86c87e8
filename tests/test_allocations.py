"""An allocation that fails, anywhere in any call: `MemoryError`, and nothing miscounted, lost or left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import di_store
from di_store import _core


def test_the_nth_allocation_of_the_thread_fails(store_name: Callable[[], str]) -> None:
    """What `fail_allocation` promises: once, the n-th, on the calling thread only."""
    with di_store.open(store_name(), memory="16MiB") as store:
        store.stats()
        _core.fail_allocation(0)
        store.stats()
        made = _core.allocations()
        assert made > 1
        for number in range(1, made + 1):
            _core.fail_allocation(number)
            with pytest.raises(MemoryError):
                store.stats()
            assert _core.allocations() >= number
            store.stats()  # only once
        _core.fail_allocation(1)
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(store.stats()))
        thread.start()
        thread.join()
        _core.fail_allocation(0)
        assert answers
