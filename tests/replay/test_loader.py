"""Loaders: order, prefetch, giving back, ends, errors, tensors."""

from __future__ import annotations

import gc
import multiprocessing as mp
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.runtime import background, chores


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened


def numbered(store: Any, n: int, **options: Any) -> Any:
    table = store.create_table("t", capacity=n, seed=3, **options)
    table.extend({"n": np.arange(n)})
    return table


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_loader_gives_the_same_batches_as_sample(store: Any, prefetch: int) -> None:
    table = numbered(store, 100, sampler=di_store.Once(1))
    table.finish()
    with table.loader(8, prefetch=prefetch) as loader:
        batches = [batch.data["n"].tolist() for batch in loader]
        assert list(loader) == [], "at its end for good"
    assert [len(batch) for batch in batches] == [8] * 12 + [4]
    assert sorted(number for batch in batches for number in batch) == list(range(100))


def test_drop_last_drops_the_last_partial_batch(store: Any) -> None:
    table = numbered(store, 20, sampler=di_store.Once(1))
    table.finish()
    assert [len(batch) for batch in table.loader(8, drop_last=True)] == [8, 8]


def test_close_gives_back_prefetched_draws(store: Any) -> None:
    table = numbered(store, 100, limiter=di_store.Queue(100))
    loader = table.loader(10, prefetch=3)
    first = next(loader).data["n"].tolist()
    loader.close()
    loader.close()
    with pytest.raises(di_store.StoreClosed):
        next(loader)
    assert table.stats()["samples"] == 10
    assert first + table.sample(90, timeout=60).data["n"].tolist() == list(range(100))


def test_a_garbage_collected_loader_gives_back_its_draws(store: Any) -> None:
    table = numbered(store, 50, limiter=di_store.Queue(50))
    loader = table.loader(10)
    next(loader)
    del loader
    gc.collect()
    while table.stats()["samples"] != 10:  # its thread gives them back
        pass
    assert table.sample(40, timeout=60).data["n"].tolist() == list(range(10, 50))


def test_prefetched_draws_count_as_samples(store: Any) -> None:
    table = numbered(store, 100, limiter=di_store.Queue(100))
    with table.loader(10, prefetch=3) as loader:
        next(loader)
        while table.stats()["samples"] < 40:
            pass
        assert len(table) == 60


@pytest.mark.parametrize("prefetch", [0, 2])
def test_close_ends_a_blocked_next(store: Any, prefetch: int) -> None:
    table = store.create_table("t", capacity=10)
    loader = table.loader(4, prefetch=prefetch)

    def close() -> None:
        while not store.stats()["waiters"]:
            pass
        loader.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(di_store.StoreClosed):
        next(loader)
    thread.join(60)


def test_errors_surface_in_the_consumer(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    with table.loader(4, timeout=0.02) as loader:
        with pytest.raises(di_store.Timeout):
            next(loader)
        table.insert({"n": 5})
        assert next(loader).data["n"].tolist() == [5] * 4, "it goes on when asked again"

    def beta(step: int) -> float:
        raise ZeroDivisionError(step)

    with table.loader(4, beta=beta) as loader, pytest.raises(ZeroDivisionError):
        next(loader)
    for wrong in ({"prefetch": -1}, {"beta": -1.0}, {"device": "nowhere"}, {"drop_last": 3}):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            table.loader(4, **wrong)


def test_a_thread_that_cannot_start_is_named_and_retried(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = numbered(store, 10)

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", refuse)
        chores._stop()  # as in a process that opens its first loader
        loader = table.loader(4, timeout=60)  # does without the thread for chores
        for _ in range(2):
            with pytest.raises(MemoryError, match="prefetch=0"):
                next(loader)
    assert len(next(loader)) == 4
    loader.close()
    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", refuse)
        with table.loader(4) as loader, pytest.raises(MemoryError, match="prefetch=0"):
            next(loader)
        with table.loader(4, prefetch=0) as loader:
            assert len(next(loader)) == 4


def test_a_dropped_table_ends_its_loader(store: Any) -> None:
    table = numbered(store, 10, limiter=di_store.Queue(10))
    with table.loader(10) as loader:
        next(loader)
        store.drop_table("t")
        with pytest.raises(di_store.TableNotFound):
            next(loader)


def test_beta_may_be_a_function_of_the_step(store: Any) -> None:
    table = numbered(store, 10, sampler=di_store.Prioritized(1.0))
    table.update_priorities(table.keys(), np.arange(10) + 1.0)
    steps: list[int] = []

    def beta(step: int) -> float:
        steps.append(step)
        return float(step)

    with table.loader(64, beta=beta, prefetch=1) as loader:
        assert set(next(loader).weights.tolist()) == {1.0}
        assert len(set(next(loader).weights.tolist())) > 3
    assert steps[:2] == [0, 1]


def test_batches_that_are_held_never_change(store: Any) -> None:
    table = numbered(store, 1000, sampler=di_store.Once(None))
    with table.loader(16, prefetch=2) as loader:
        held = [next(loader).data["n"] for _ in range(40)]
        copies = [array.copy() for array in held]
        for _ in range(40):
            next(loader)
        for array, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_gives_cpu_tensors(store: Any, prefetch: int) -> None:
    torch = pytest.importorskip("torch")
    schema = {
        "x": {"a": di_store.Spec((3,), "f4")},
        "flag": di_store.Spec((), "?"),
        "u": di_store.Spec((None,), "i4", max=4),
    }
    table = store.create_table("t", capacity=10, schema=schema)
    for n in range(10):
        table.insert({"x": {"a": np.full(3, n, np.float32)}, "flag": n % 2 == 0, "u": np.arange(n % 4, dtype=np.int32)})
    with table.loader(5, device="cpu", prefetch=prefetch) as loader:
        batch = next(loader)
    assert isinstance(batch.data["x"]["a"], torch.Tensor)
    assert batch.data["x"]["a"].shape == (5, 3)
    assert batch.data["flag"].dtype == torch.bool
    assert isinstance(batch.weights, torch.Tensor)
    assert isinstance(batch.data["u"].values, torch.Tensor)
    assert isinstance(batch.keys, np.ndarray)
    assert batch.data["u"].lengths.sum() == len(batch.data["u"].values)


def test_a_loader_gives_gpu_tensors(store: Any) -> None:
    """Ready on the current stream, from page-locked buffers; where there is no GPU asking for one says so."""
    torch = pytest.importorskip("torch")
    table = numbered(store, 1000, sampler=di_store.Once(None))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no GPU"):
            table.loader(10, device="cuda")
        return
    with table.loader(100, device="cuda") as loader:
        seen = torch.cat([next(loader).data["n"] for _ in range(10)])
        assert seen.device.type == "cuda"
        assert sorted(seen.tolist()) == list(range(1000))
    with table.loader(100, pin_memory=True) as loader:
        assert torch.from_numpy(next(loader).data["n"]).is_pinned()


def use(loader: Any, pipe: Any) -> None:
    try:
        next(loader)
    except di_store.StoreClosed as error:
        pipe.send(str(error))


def test_a_loader_is_closed_in_a_fork(store: Any) -> None:
    table = numbered(store, 100)
    with table.loader(4) as loader:
        next(loader)
        ours, theirs = mp.Pipe()
        child = mp.get_context("fork").Process(target=use, args=(loader, theirs))
        child.start()
        assert ours.poll(60)
        assert "fork" in ours.recv()
        child.join(60)
        assert child.exitcode == 0
        assert len(next(loader)) == 4


def draw_and_die(name: str, pipe: Any) -> None:
    with di_store.attach(name) as store:
        loader = store.table("t").loader(10, prefetch=2)
        first = next(loader).data["n"].tolist()
        while store.table("t").stats()["samples"] < 30:
            pass
        pipe.send(first)
        threading.Event().wait()


def test_a_killed_learners_prefetched_batches_are_given_back(store: Any) -> None:
    table = numbered(store, 50, limiter=di_store.Queue(50))
    ours, theirs = mp.Pipe()
    child = mp.get_context("spawn").Process(target=draw_and_die, args=(store.name, theirs))
    child.start()
    assert ours.poll(120)
    first = ours.recv()
    child.kill()
    child.join(60)
    assert first + table.sample(40, timeout=60).data["n"].tolist() == list(range(50))
    stats = table.stats()
    assert stats["samples"] == stats["limiter"]["samples"] == 50


def test_a_loader_whose_thread_ends_early_raises(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is used up a thread may start and never come to its work."""
    table = numbered(store, 10)
    monkeypatch.setattr(background, "MOST_STARTS", 3)
    with monkeypatch.context() as starved:
        starved.setattr(background._thread, "start_new_thread", lambda *_: 0)
        with table.loader(2) as loader, pytest.raises(MemoryError, match="prefetch=0"):
            next(loader)
    with table.loader(2) as loader:
        assert len(next(loader)) == 2


def test_a_loader_of_no_columns_gives_keys_only(store: Any) -> None:
    table = store.create_table("values", capacity=10, view=di_store.Opaque())
    table.extend([{"a": 1}, [2]])
    assert table.peek(table.keys(), columns=()).data == table.sample(2, columns=()).data == []


def test_prefetch_beyond_the_data_is_harmless() -> None:
    with di_store.open(memory="16MiB") as store:
        table = store.create_table("t", capacity=8)
        with pytest.raises(ValueError, match="prefetch=1025 is above 1024"):
            table.loader(2, prefetch=1025)
        table.loader(2, prefetch=1024).close()
