"""One copy in, zero out: put makes one copy, get in other processes makes none, and results are read-only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pains import MIB, Program

import di_store

PUT = """
import sys, threading, numpy as np, di_store
from pains import private_bytes
kind, size, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
import os
if kind != "numpy":
    import torch
store = di_store.attach(name, timeout=60)
if kind == "numpy":
    value = np.ones(size, np.uint8)
elif kind == "torch":
    value = torch.ones(size // 4)
else:
    value = torch.ones(size // 2, dtype=torch.bfloat16)
store.put(value[:1000].clone() if kind != "numpy" else value[:1000].copy(), timeout=60)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")                      # VmHWM starts anew
before = private_bytes(os.getpid())
with open("/proc/self/status") as file:
    peak_before = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
committed = store.stats()["committed"]
store.put(value, id="ab" * 20, timeout=60)
with open("/proc/self/status") as file:
    text = file.read()
peak = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))
committed = store.stats()["committed"] - committed
print(private_bytes(os.getpid()) - before, (peak - peak_before) * 1024, committed, flush=True)
sys.stdin.readline()
"""

GET = """
import os, sys, numpy as np, di_store
from pains import private_bytes
kind, name = sys.argv[1], sys.argv[2]
if kind != "numpy":
    import torch
store = di_store.attach(name, timeout=60)
store.get(store.put(np.ones(10, np.uint8), timeout=60))
before = private_bytes(os.getpid())
value = store.get(di_store.Ref.parse("ab" * 20), copy=None if kind == "numpy" else False)
total = float(value.sum()) if kind == "numpy" else float(value.float()[:1000].sum())
print(private_bytes(os.getpid()) - before, total, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.extended), "bfloat16"])
def test_a_put_copies_once_and_a_get_not_at_all(
    count: Callable[[int, int], int], store_name: Callable[[], str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = count(64, 1024) * MIB
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    with di_store.open(store_name(), memory=2 * size) as store, Program(PUT, kind, size, store.name) as putter:
        private, peak, shared = map(int, putter.line().split())
        assert shared <= 1.02 * size + 16 * MIB, "more than one copy in the store"
        # Private memory does not grow at all; the peak holds the mapped copy itself.
        assert private <= 0.02 * size + 16 * MIB
        assert peak <= 1.1 * size + 32 * MIB
        readers = [Program(GET, kind, store.name) for _ in range(2)]
        with readers[0], readers[1]:
            for reader in readers:
                grown, total = reader.line().split()
                assert int(grown) <= 16 * MIB
                assert float(total) == (size if kind == "numpy" else 1000)


def test_results_are_read_only(store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="64MiB") as store:
        ref = store.put({"a": np.arange(100), "b": torch.arange(100), "c": [np.zeros((3, 4), np.float32)]})
        value = store.get(ref)
        for array in (value["a"], value["c"][0]):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
            with pytest.raises(ValueError, match=r"read-only|readonly|WRITEABLE"):
                np.add(array, 1, out=array)
        # torch knows no read-only tensors, so by default it gets a copy of its own.
        value["b"][0] = 77
        assert int(store.get(ref)["b"][0]) == 0
        copies = store.get(ref, copy=True)
        copies["a"][0] = 77
        assert store.get(ref)["a"][0] == 0


WRITE_THROUGH = """
import ctypes, sys, numpy as np, di_store
if sys.argv[2] == "torch":
    import torch
store = di_store.attach(sys.argv[1], timeout=60)
value = store.get(di_store.Ref.parse("ab" * 20), copy=False if sys.argv[2] == "torch" else None)
print("reading", float(value[0]), flush=True)
if sys.argv[2] == "torch":
    value[0] = 2
else:
    ctypes.memset(value.ctypes.data, 2, 1)
print("corrupted", flush=True)
"""


@pytest.mark.parametrize("kind", ["torch", "ctypes"])
def test_writing_despite_the_flag_kills_the_process(store_name: Callable[[], str], kind: str) -> None:
    """It kills the one who writes, and leaves the bytes as they are."""
    with di_store.open(store_name(), memory="64MiB") as store:
        store.put(torch.ones(100) if kind == "torch" else np.ones(100), id="ab" * 20)
        with Program(WRITE_THROUGH, store.name, kind) as program:
            assert program.line() == "reading 1.0"
            out, _ = program.process.communicate(timeout=60)
            assert program.process.returncode == -11
            assert "corrupted" not in out
        assert float(np.asarray(store.get(di_store.Ref.parse("ab" * 20))).sum()) == 100
        assert store.check() == []
