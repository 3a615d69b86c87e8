"""Stores, tables, mixtures and refs travel: fork, spawn, forkserver, cloudpickle, a DataLoader's workers."""

from __future__ import annotations

import gc
import multiprocessing as mp
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def use(store: Any, table: Any, mixture: Any, ref: Any, pipe: Any) -> None:
    """All four work in this process, whatever way they came."""
    table.insert({"n": 7})
    with table.writer() as writer:
        writer.append({"n": 8})
    value = store.get(ref)["x"].sum()
    store.put("answer", id="aa" * 20)
    pipe.send((int(value), len(mixture.sample(4)), table.name, store.name))


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_handles_work_in_another_process(store: Any, start: str) -> None:
    table = store.create_table("t", capacity=10)
    table.insert({"n": 1})
    table.sample(1)
    ref = store.put({"x": np.arange(5)})
    context = mp.get_context(start)
    ours, theirs = context.Pipe()
    arguments = (store, table, store.mix({"t": 1}), ref, theirs)
    process = context.Process(target=use, args=arguments)  # type: ignore[attr-defined]
    process.start()
    assert ours.poll(120)
    assert ours.recv() == (10, 4, "t", store.name)
    process.join(60)
    assert process.exitcode == 0
    assert table.peek(table.keys()).data["n"].tolist() == [1, 7, 8]
    assert store.get("aa" * 20) == "answer"
    assert len(table.sample(2)) == 2


def test_handles_are_pickled_by_name(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    table.insert({"n": 1})
    for handle in (store, table, store.mix({"t": 1}), store.put(1)):
        data = pickle.dumps(handle)
        assert len(data) < 500
        again = pickle.loads(data)
        assert type(again) is type(handle)
    assert pickle.loads(pickle.dumps(table)).sample(1).data["n"].tolist() == [1]


def test_unpickling_a_handle_of_a_gone_store_raises() -> None:
    with di_store.open(memory="32MiB") as store:
        data = pickle.dumps(store)
        table = pickle.dumps(store.create_table("t", capacity=1))
        store.drop_table("t")
        with pytest.raises(di_store.TableNotFound):
            pickle.loads(table)
    gc.collect()
    with pytest.raises(di_store.StoreNotFound):
        pickle.loads(data)


def test_closures_over_handles_can_be_cloudpickled(store: Any) -> None:
    """As Ray ships functions and actors: by cloudpickle, to a fresh interpreter."""
    cloudpickle = pytest.importorskip("cloudpickle")
    table = store.create_table("t", capacity=10)

    def task() -> int:
        table.insert({"n": 3})
        return len(table) + store.get(ref)

    ref = store.put(10)
    code = "import sys, cloudpickle; print(cloudpickle.loads(sys.stdin.buffer.read())())"
    done = subprocess.run([sys.executable, "-c", code], input=cloudpickle.dumps(task), capture_output=True, timeout=120)
    assert done.stdout.strip() == b"11", done.stderr.decode()


def test_handles_work_in_data_loader_workers(store: Any) -> None:
    torch = pytest.importorskip("torch")
    table = store.create_table("t", capacity=100, sampler=di_store.Once(1))
    table.extend({"n": np.arange(100)})
    table.finish()

    class Drawn(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[Any]:
            for batch in table.loader(5, prefetch=1):
                yield batch.data["n"].copy()

    loader = torch.utils.data.DataLoader(Drawn(), batch_size=None, num_workers=2)
    seen = np.concatenate([np.asarray(each) for each in loader])
    assert sorted(seen.tolist()) == list(range(100))


def test_a_fork_during_calls_of_other_threads_is_safe(store: Any) -> None:
    """A child forked in the middle of other threads' calls works, and its parent goes on."""
    table = store.create_table("t", capacity=1000)
    table.extend({"n": np.arange(100)})
    context = mp.get_context("fork")
    with table.loader(8) as loader, table.writer() as writer:
        for n in range(20):
            next(loader)
            writer.append({"n": n})
            ours, theirs = context.Pipe()
            child = context.Process(target=lambda end=theirs: end.send(len(table.sample(4))))
            child.start()
            assert ours.poll(60)
            assert ours.recv() == 4
            child.join(60)
    assert len(table) == 120
