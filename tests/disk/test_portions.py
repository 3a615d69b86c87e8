"""Batches of rows on disk are read in portions: the memory that they are unpacked in does not grow with the batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store

ROWS = 40_000

GROWTH = """
import resource, sys
import numpy as np
import di_store
store = di_store.attach(sys.argv[1])
table = store.table("replay")
small = table.sample(16, columns="action")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batch = table.sample(6_000, columns="action")
assert (batch.data["action"] == batch.starts % 7).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def filled(store: di_store.Store, **options: Any) -> di_store.Table:
    """A table whose rows are smaller than the blocks that they are packed in."""
    table = store.create_table("replay", capacity=ROWS, lanes=1, view=di_store.Step(), **options)
    with table.writer() as writer:
        for number in range(ROWS):
            obs = np.full(4_096, number % 100, np.uint8)
            writer.append({"obs": obs, "action": number % 7, "terminated": False, "truncated": False})
    return table


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with di_store.open(memory="24MiB", disk=tmp_path / "disk", disk_capacity="512MiB", seed=1) as opened:
        yield opened


def test_a_large_batch_is_unpacked_in_portions(store: di_store.Store) -> None:
    """6,000 rows of 4 KiB, each read with its block of 64 KiB: 160 MiB if they were all unpacked at once."""
    filled(store)
    assert store.stats()["disk"]["live"] < store.stats()["disk"]["raw"] / 10  # type: ignore[index]
    program = GROWTH.replace('columns="action"', "columns=None")
    done = subprocess.run(
        [sys.executable, "-c", program, store.name], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    batch = 6_000 * 4_096 >> 20
    assert int(done.stdout) < batch + 64


@pytest.mark.parametrize("view", [di_store.Step(), di_store.Sequence(5, frame_stack={"obs": 2})])
@pytest.mark.parametrize("compress", ["auto", None])
def test_rows_from_memory_and_disk_make_one_batch(store: di_store.Store, view: Any, compress: Any) -> None:
    """Values of variable length, some rows on disk and some not, in a batch of many portions."""
    schema = {
        "x": di_store.Spec((), "i8"),
        "tokens": di_store.Spec((None,), "i4", max=3_000),
        "obs": di_store.Spec((500,), "i4"),
    }
    count = 800 if isinstance(view, di_store.Sequence) else 5_000
    table = store.create_table("replay", capacity=count, lanes=1, schema=schema, view=view, compress=compress)
    with table.writer() as writer:
        for number in range(count * 5 if count == 800 else count):
            tokens = np.full(number % 3_000, number, "i4")
            writer.append({"x": number, "tokens": tokens, "obs": np.full(500, number, "i4")})
    assert store.stats()["disk"]["dropped_chunks"] > 0  # type: ignore[index]
    keys = table.keys()
    for wanted in (keys, keys[::-3]):
        batch = table.peek(wanted, columns=("x", "tokens", "obs"))
        x = batch.data["x"].reshape(len(wanted), -1)
        tokens = batch.data["tokens"]
        np.testing.assert_array_equal(tokens.lengths.reshape(x.shape[0], -1)[:, -x.shape[1] :], x % 3_000)
        for i in range(0, len(wanted), 17):
            values = tokens.values[tokens.offsets.reshape(-1)[i] : tokens.offsets.reshape(-1)[i + 1]]
            assert len(set(values.tolist())) <= 1
        obs = batch.data["obs"]
        frames = obs[:, -1] if isinstance(view, di_store.Sequence) else obs
        np.testing.assert_array_equal(frames[..., 0], x[:, -1])
        np.testing.assert_array_equal(frames[..., -1], x[:, -1])
