"""Figures beside the loss: the values are those of `stats()`, and no writer disturbs the program."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import Program, until

import di_store
from di_store import observe
from di_store.observe import scalars


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as made:
        table = made.create_table("a/b", capacity=100, limiter=di_store.SamplesPerInsert(2, 10, 0.5))
        table.extend({"x": np.ones((20, 4), "f4")})
        table.sample(5)
        made.create_table("empty", capacity=10)
        yield made


class Values:
    """A function as a writer."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []

    def __call__(self, name: str, value: float, step: int) -> None:
        self.seen.append((name, value, step))

    def last(self) -> dict[str, tuple[float, int]]:
        return {name: (value, step) for name, value, step in self.seen}


def test_values_are_those_of_the_statistics(store: di_store.Store) -> None:
    """Written when the log is closed, at the number of inserts, or at the step that the program gives."""
    values, stepped = Values(), Values()
    with observe.log_to(values, store), observe.log_to(stepped, store, step=lambda: 77):
        store.table("a/b").sample(5)
    found, stats = values.last(), store.stats()["tables"]["a/b"]
    for name in ("size", "inserts", "samples", "sample_age", "stale_dropped", "evicted_for_room"):
        assert found[f"di_store/a/b/{name}"] == (stats[name], 20), name  # type: ignore[literal-required]
    assert found["di_store/a/b/samples_per_insert"] == (0.5, 20)
    assert found["di_store/a/b/limiter_difference"] == (20 * 2 - 10, 20)
    assert found["di_store/a/b/samples_per_second"][0] > 0
    assert found["di_store/a/b/inserts_per_second"][0] == 0
    assert 0 < found["di_store/memory_share"][0] < 1
    assert found["di_store/clients"] == (1, 20), "this process"
    assert found["di_store/empty/size"] == (0, 0)
    assert "di_store/empty/sample_age" not in found, "there is none"
    assert {name: value for name, (value, _) in stepped.last().items() if "per_second" not in name} == {
        name: value for name, (value, _) in found.items() if "per_second" not in name
    }
    assert {step for _, _, step in stepped.seen} == {77}


def test_values_are_written_again_and_again(store: di_store.Store) -> None:
    values = Values()
    with observe.log_to(values, store, every=0.01):
        until(lambda: [name for name, _, _ in values.seen].count("di_store/waiters") > 3, "the fourth look")


LEARNER = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
store.table("empty").sample(1, timeout=None)
"""


def test_waiting_threads_are_counted(store: di_store.Store) -> None:
    values = Values()
    with observe.log_to(values, store, every=0.01), Program(LEARNER, store.name):
        until(lambda: values.last().get("di_store/empty/waiting_to_sample") == (1, 0), "a learner that waits")
        assert values.last()["di_store/a/b/waiting_to_sample"] == (0, 20)


@pytest.mark.extended
def test_tensorboard_shows_the_values(store: di_store.Store, tmp_path: Path) -> None:
    """Its own reader finds them in the files, at the steps of the loss."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for update in range(3):
            store.table("a/b").sample(5)
            writer.add_scalar("loss", 1.0, update)
            observe.log_to(writer, store, step=lambda update=update: update).close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) >= {
        "loss",
        "di_store/memory_share",
        "di_store/a/b/samples",
        "di_store/empty/size",
    }
    assert [(each.step, each.value) for each in read.Scalars("di_store/a/b/samples")] == [(0, 10), (1, 15), (2, 20)]
    assert [each.value for each in read.Scalars("di_store/a/b/samples_per_insert")] == [0.5, 0.75, 1.0]


class RunLike:
    """Has the `log` of a run of Weights & Biases, and nothing else of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], int | None, bool | None]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.calls.append((data, step, commit))


def test_a_run_gets_one_call_for_each_look(store: di_store.Store) -> None:
    """Without a step the values join the program's next call; else they are of that step."""
    run, stepped = RunLike(), RunLike()
    with observe.log_to(run, store), observe.log_to(stepped, store, step=lambda: 3):
        pass
    ((data, step, commit),) = run.calls
    assert (step, commit) == (None, False)
    assert data["di_store/a/b/inserts"] == 20
    ((data, step, commit),) = stepped.calls
    assert (step, commit) == (3, None)


@pytest.mark.parametrize("error", [OSError("no space left on device"), SystemExit("wrong option")])
def test_a_writer_that_raises_is_told_once(
    store: di_store.Store, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """And asked again at each look, also if it calls `sys.exit`, which a thread takes for its silent end."""
    calls: list[int] = []

    def step() -> int:
        calls.append(1)
        return 1

    def raises(*_: object) -> None:
        raise error

    with caplog.at_level(logging.WARNING, "di_store"), observe.log_to(raises, store, every=0.01, step=step):
        until(lambda: len(calls) > 5, "a few looks")
    (record,) = caplog.records
    told = f"figures of store {store.name!r} cannot be written: {type(error).__name__}: {error}"
    assert record.getMessage() == told


def test_a_writer_that_hangs_does_not_hold_the_program_up(
    store: di_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its end; and a forked child waits for nothing."""
    monkeypatch.setattr(scalars, "END_SECONDS", 0.1)
    hangs, go_on = threading.Event(), threading.Event()

    def writer(*_: object) -> None:
        hangs.set()
        go_on.wait()

    with observe.log_to(writer, store, every=0.01):
        assert hangs.wait(120)
    go_on.set()


def test_the_log_of_a_closed_store_ends(store: di_store.Store) -> None:
    before = threading.active_count()
    log = observe.log_to(Values(), store, every=0.01)
    store.close()
    until(lambda: threading.active_count() == before, "its thread to end")
    log.close()


@pytest.mark.parametrize(
    ("writer", "options", "error", "text"),
    [
        (3, {}, TypeError, "writer=3: give a SummaryWriter, a run of Weights & Biases, or a function"),
        (print, {"every": 0}, ValueError, "every=0.0: give a finite number at least 0.01"),
        (print, {"every": "1"}, TypeError, "every='1' is a str"),
        (print, {"step": 3}, TypeError, "step=3: give a function, or None"),
    ],
)
def test_wrong_arguments_are_refused(
    store: di_store.Store, writer: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        observe.log_to(writer, store, **options)
