"""What `import di_store` loads: little, but all that a process without file descriptors needs later."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest

import di_store

LOADED = "import sys, numpy, msgspec; known = set(sys.modules); import di_store; print(*set(sys.modules) - known)"
HEAVY = set(
    "asyncio click concurrent ctypes fractions hashlib html http inspect json multiprocessing rich secrets socket ssl "
    "subprocess tempfile torch xml yaml".split()
)
OF_FEW = {f"di_store.{name}" for name in "adapters broadcast client cluster compat protocol server workloads".split()}
NEEDED_LATER = {"_blake2", "difflib", "logging", "zipfile"}


def test_the_import_loads_little() -> None:
    """Each of these takes milliseconds, and few jobs need it."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & HEAVY
    assert not loaded & {*OF_FEW, "di_store.replay.notebook"}
    assert loaded >= NEEDED_LATER


NO_DESCRIPTORS = """
import os, resource, di_store
store = di_store.open(memory="64MiB", seed=1)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
table = store.create_table("replay", capacity=100)  # its seed is a hash of the store's
table.insert({"x": 1})
for call in (
    lambda: di_store.Band(1, 1.0, 0.0, 0.5),
    lambda: di_store.Transition(frame_stack=3),
    lambda: di_store.Sequence(4, tail="cut"),
    lambda: table.sample(1, columns="y", timeout=0),
    lambda: table.insert({"x": 1, "y": 2}),
    lambda: store.create_table("replay", capacity=1),
    lambda: setattr(di_store.Fifo(), "x", 1),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__)
"""


def test_errors_need_no_file_descriptor() -> None:
    done = subprocess.run([sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True, timeout=120)
    named = "ValueError TypeError ValueError ValueError SchemaMismatch TableExists FrozenInstanceError"
    assert (done.stdout.split(), done.stderr) == (named.split(), "")


STACKED = di_store.Transition(n_step=3, frame_stack={"obs": 4})


@pytest.mark.parametrize("made", [di_store.Fifo(), di_store.Prioritized(0.6), STACKED, di_store.Spec((2,), "f4")])
def test_options_cannot_be_changed(made: object) -> None:
    name = next((each.name for each in dataclasses.fields(made)), "x")  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.other = 1  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(made, name)


def test_options_are_compared_and_shown_by_their_fields() -> None:
    assert repr(di_store.Queue(3)) == "Queue(size=3)"
    assert repr(di_store.Lifo()) == "Lifo()"
    queue: Any = di_store.Queue(3)
    assert queue == di_store.Queue(3)
    assert queue != di_store.Stack(3)
    fifo: Any = di_store.Fifo()
    assert fifo == di_store.Fifo()
    assert fifo != di_store.Lifo()
    assert len({di_store.Queue(3), di_store.Queue(3), di_store.Queue(4), STACKED, di_store.Transition(3)}) == 4
    assert dataclasses.replace(STACKED, n_step=2).frame_stack == {"obs": 4}
    for again in (copy.deepcopy(STACKED), pickle.loads(pickle.dumps(STACKED))):
        assert again == STACKED
    with pytest.raises(TypeError, match=r"Fifo.__init__\(\) takes 1 positional argument but 2 were given"):
        di_store.Fifo(3)  # type: ignore[call-arg]
