"""Ctrl-C at any step of `export`, `save` and `checkpoint` comes out as KeyboardInterrupt, and leaves no descriptor."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import Interrupt
from pains import until

import di_store
from di_store import Spec
from di_store.checkpoint.store import capture, files
from di_store.checkpoint.tree import folder, ranks, saving
from di_store.replay import archive

FILES = {str(module.__file__) for module in (folder, ranks, saving, archive, files, capture, contextlib)}


@pytest.fixture(scope="module")
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="16MiB") as made:
        table = made.create_table("t", capacity=100, lanes=1, schema={"x": Spec((4,), "f4")})
        table.extend({"x": np.ones((10, 4), np.float32)})
        yield made


CALLS: dict[str, Callable[[di_store.Store, Path], Any]] = {
    "export": lambda store, path: store.table("t").export(path / "table"),
    "save": lambda store, path: di_store.save(path / "tree", {"x": np.arange(10)}),
    "checkpoint": lambda store, path: store.checkpoint(path / "checkpoint"),
}


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _interrupted(call: Callable[[], Any], at: int) -> bool:
    """Whether the call was interrupted at its step of this number; False: it has fewer."""
    interrupt = Interrupt(at, FILES)
    gc.disable()  # what a callback of the collector raises is only printed
    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return interrupt.left <= 0  # it came where nobody listens any more: in a destructor


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_during_a_save_leaks_no_descriptor(name: str, store: di_store.Store, tmp_path: Path, count: Any) -> None:
    call = CALLS[name]
    call(store, tmp_path)
    before, at, step, times = _open_files(), 1, count(101, 1), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        while _interrupted(lambda: call(store, tmp_path), at):
            at, times = at + step, times + 1
    assert times > 10
    until(lambda: _open_files() <= before, "what the interrupted calls had open to be closed")
    call(store, tmp_path)
