"""Table and store passed to a Ray actor and to DataLoader workers; first programs twice at once and in a row."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import di_store
from crash import board as words

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    """A store with a table of 200 stamped rows."""
    with di_store.open(store_name(), memory="64MiB") as made:
        table = made.create_table("t", capacity=1_000, schema=words.rows(0), sampler=di_store.Prioritized(alpha=1.0))
        table.extend(words.rows(np.arange(200)), timeout=60)
        yield made


class Batches(IterableDataset[Any]):
    """What a user writes: the table is an attribute, each worker samples from it."""

    def __init__(self, store: Any, table: Any, count: int) -> None:
        self.store, self.table, self.count = store, table, count

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for _ in range(self.count):
            batch = self.table.sample(16, timeout=60)
            self.table.update_priorities(batch.keys, np.ones(16))
            assert self.store.get(self.store.put(1)) == 1
            yield {
                "n": batch.data["n"],
                "obs": batch.data["obs"],
                "worker": info.id if info else -1,
                "pid": os.getpid(),
            }


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.extended), "forkserver"])
def test_handles_work_in_data_loader_workers(store: Any, method: str) -> None:
    dataset = Batches(store, store.table("t"), 5)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120)
    pids, count = set(), 0
    for batch in loader:
        assert torch.equal(batch["obs"], torch.from_numpy(words.stamp(batch["n"].numpy())))
        pids.add(int(batch["pid"]))
        count += 1
    assert count == 10
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert store.check() == []
    assert store.table("t").stats()["samples"] == 160


RAY = """
import sys, os
import numpy as np, ray, di_store
from crash import board as words

@ray.remote
class Learner:
    def __init__(self, store, table):
        self.store, self.table = store, table
    def learn(self, ref):
        batch = self.table.sample(16, timeout=60)
        assert (batch.data["obs"] == words.stamp(batch.data["n"])).all()
        self.table.update_priorities(batch.keys, np.ones(16))
        return self.store.get(ref), os.getpid(), self.store.put(os.getpid())

@ray.remote
def act(table):
    with table.writer() as writer:
        for number in range(50):
            writer.append(words.rows(number), timeout=60)

if __name__ == "__main__":
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=1_000, schema=words.rows(0), sampler=di_store.Prioritized(alpha=1.0))
        ray.get([act.remote(table) for _ in range(2)])
        learners = [Learner.remote(store, table) for _ in range(2)]
        found = ray.get([learner.learn.remote(store.put("hello")) for learner in learners])
        assert [value for value, _, _ in found] == ["hello", "hello"]
        pids = {pid for _, pid, _ in found}
        assert len(pids) == 2 and os.getpid() not in pids
        assert [store.get(ref) for _, _, ref in found] == [pid for _, pid, _ in found]
        assert table.stats()["inserts"] == 100
        assert store.check() == []
    ray.shutdown()
    print("fine")
"""


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_handles_work_in_ray_actors(tmp_path: Path) -> None:
    """Handles travel through Ray's own pickling, into actors and tasks."""
    tests = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([tests, *filter(None, sys.path)])
    program = tmp_path / "program.py"
    program.write_text(RAY)
    done = subprocess.run(
        [sys.executable, str(program)],
        env=dict(os.environ, PYTHONPATH=path, RAY_USAGE_STATS_ENABLED="0"),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("fine\n")


def readme_program() -> str:
    """The first Python block of the README that is a whole program."""
    blocks = [block.partition("```")[0] for block in (ROOT / "README.md").read_text().split("```python\n")[1:]]
    return next(block for block in blocks if "__main__" in block)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["README.md", pytest.param("quickstart.py", marks=pytest.mark.extended)])
def test_a_first_program_can_run_twice(name: str, tmp_path: Path, store_dir: str) -> None:
    """Each run has a store of its own; nothing of one is in the way of another, nothing is left."""
    program = tmp_path / "program.py"
    quickstart = (ROOT / "examples/quickstart.py").read_text().replace("range(200)", "range(50)")
    program.write_text(readme_program() if name == "README.md" else quickstart)
    for _ in range(2):
        runs = [
            subprocess.Popen(
                [sys.executable, str(program)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        for run in runs:
            out, err = run.communicate(timeout=300)
            assert run.returncode == 0, (out + err).decode()
            assert b"transitions" in out
            assert b"Traceback" not in err, err.decode()
    assert os.listdir(store_dir) == []
