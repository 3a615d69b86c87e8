"""What a loader draws ahead: in the order of the program, and never so that writers and learners block each other."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store

BOUND_SECONDS = 60
SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": di_store.Uniform,
    "prioritized": lambda: di_store.Prioritized(0.7, 0.5),
    "once": lambda: di_store.Once(None),
}


def program(folder: Path | None, sampler: str, prefetch: int) -> list[Any]:
    """Steps written, priorities changed and batches taken in turn; what the batches were."""
    rng, found = np.random.default_rng(5), []
    disk: dict[str, Any] = {} if folder is None else {"disk": folder, "disk_capacity": "128MiB", "staging": "64MiB"}
    with di_store.open(memory="64MiB" if folder is None else "16MiB", seed=9, **disk) as store:
        schema = {"n": di_store.Spec((), "i8"), "x": di_store.Spec((1_000,), "f4")}
        view = di_store.Step()
        table = store.create_table("t", capacity=5_000, lanes=1, schema=schema, view=view, sampler=SAMPLERS[sampler]())
        numbers = itertools.count()
        with table.writer() as writer, table.loader(32, prefetch=prefetch, timeout=BOUND_SECONDS) as loader:
            for round_number in range(40):
                for _ in range(200 if folder is not None else 20):
                    n = next(numbers)
                    writer.append({"n": n, "x": np.full(1_000, n, np.float32)})
                for _ in range(round_number % 3):
                    batch = next(loader)
                    assert (batch.data["x"][:, 7] == batch.data["n"]).all()
                    found.append((batch.keys.tolist(), batch.data["n"].tolist(), batch.probabilities.tolist()))
                    table.update_priorities(batch.keys, rng.uniform(size=32))
                if round_number % 10 == 7:
                    found.append(table.sample(16).keys.tolist())
    return found


@pytest.mark.parametrize("prefetch", [0, 1, 5])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("disk", [False, True])
def test_equal_programs_get_equal_batches(tmp_path: Path, disk: bool, sampler: str, prefetch: int) -> None:
    runs = [program(tmp_path / str(run) if disk else None, sampler, prefetch) for run in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 43


def test_prefetched_draws_are_made_inside_next(tmp_path: Path) -> None:
    """Not before and not after, and as many as the data gives without waiting."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=100, limiter=di_store.Queue(100))
        table.extend({"n": np.arange(35)})
        with table.loader(10, prefetch=3) as loader:
            assert table.stats()["samples"] == 0
            next(loader)
            assert table.stats()["samples"] == 30, "5 are left, which are no batch"
            table.extend({"n": np.arange(35, 60)})
            assert table.stats()["samples"] == 30
            assert next(loader).data["n"].tolist() == list(range(10, 20))
            assert table.stats()["samples"] == 50
        assert table.stats()["samples"] == 20
        assert table.sample(40).data["n"].tolist() == list(range(20, 60))


LIMITS = [(0.5, 8, 0.5), (1.0, 10, 1.0), (4.0, 5, 0.5), (8.0, 4, 1.0), (16.0, 16, 0.25)]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4, 16])
@pytest.mark.parametrize(("ratio", "least", "tolerance"), LIMITS)
def test_either_insert_or_next_can_always_proceed(ratio: float, least: int, tolerance: float, prefetch: int) -> None:
    """In one thread, which tries both in any order and waits for neither; the limiter is never passed."""
    rng = random.Random(17 * prefetch + int(ratio))
    limiter = di_store.SamplesPerInsert(ratio, least, tolerance)
    batch_size = max(1, int(ratio * least * tolerance))
    with di_store.open(memory="64MiB", seed=3) as store:
        table = store.create_table("t", capacity=1_000, limiter=limiter, schema={"n": di_store.Spec((), "i8")})
        with table.loader(batch_size, prefetch=prefetch, timeout=0) as loader:
            passed = [0, 0]

            def insert() -> None:
                table.insert({"n": 1}, timeout=0)

            def take() -> None:
                assert len(next(loader)) == batch_size

            for _ in range(400):
                both = [(0, insert), (1, take)]
                if rng.random() < 0.5:
                    both.reverse()
                for number, act in both:
                    try:
                        act()
                    except di_store.Timeout:
                        continue
                    passed[number] += 1
                    break
                else:
                    pytest.fail(f"neither passes after {passed}")
                stats = table.stats()
                error = stats["inserts"] * ratio - stats["samples"]
                band = max(ratio * least * tolerance, ratio, 1)
                assert stats["samples"] == 0 or abs(error - ratio * least) <= band + 1e-9
            assert min(passed) > 20


@pytest.mark.parametrize("prefetch", [0, 1, 3, 16])
@pytest.mark.parametrize("learners", [1, 2])
def test_a_writer_and_learners_reach_the_end(prefetch: int, learners: int) -> None:
    """Batches larger than the limiter lets through at once, beside others that wait for the same items."""
    with di_store.open(memory="64MiB") as store:
        limiter = di_store.SamplesPerInsert(2.0, 20, 0.1)
        table = store.create_table("t", capacity=10_000, limiter=limiter, schema={"n": di_store.Spec((), "i8")})
        failed: list[BaseException] = []

        def learn() -> None:
            try:
                with table.loader(64, prefetch=prefetch, timeout=BOUND_SECONDS) as loader:
                    for _ in range(20):
                        next(loader)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=learn, daemon=True) for _ in range(learners)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                table.insert({"n": 1}, timeout=0.2)
        except di_store.Timeout:
            assert not any(thread.is_alive() for thread in threads) or table.stats()["samples"] > 0
        for thread in threads:
            while thread.is_alive():  # the limiter lets the last draws pass only as inserts go on
                try:
                    table.insert({"n": 1}, timeout=0.2)
                except di_store.Timeout:
                    thread.join(0.1)
        assert not failed


def numbered(store: di_store.Store, n: int, **options: Any) -> di_store.Table:
    table = store.create_table("t", capacity=n, **options)
    table.extend({"n": np.arange(n)})
    return table


def test_threads_share_a_loader() -> None:
    with di_store.open(memory="64MiB") as store:
        table = numbered(store, 2_000, sampler=di_store.Once(1))
        table.finish()
        found: list[int] = []
        with table.loader(16, prefetch=3) as loader:
            threads = [
                threading.Thread(target=lambda: found.extend(n for b in loader for n in b.data["n"].tolist()))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(BOUND_SECONDS)
        assert sorted(found) == list(range(2_000))


def test_next_inside_next_is_refused() -> None:
    with di_store.open(memory="64MiB") as store:
        table = numbered(store, 10, sampler=di_store.Prioritized(1.0))
        inside: list[Iterator[Any]] = []

        def beta(step: int) -> float:
            next(inside[0])
            return 1.0

        with table.loader(2, beta=beta) as loader:
            inside.append(loader)
            with pytest.raises(di_store.StoreError, match="inside a next"):
                next(loader)
