"""No standstill: whatever `create_table` accepts lets one side move.

A learner that asks for batches and writers that append for several lanes are explored exhaustively on the model's
arithmetic: every order of appends and single draws, with the draws that `sample` holds until its batch is complete.
A state in which neither may go on is a standstill. Settings that stand still must be refused by `create_table`.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing as mp
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from model import limiters
from model.limiters import Counts, Limiter

import di_store

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"


@dataclass(frozen=True)
class Load:
    """Who does what: the limiter, the table's bounds, the learner's batch and the writers' lanes."""

    limiter: Limiter
    capacity: int
    uses: int
    batch: int
    lanes: int
    once: bool = False


@dataclass(frozen=True)
class State:
    """All that decides what may happen next.

    Attributes:
        left: for every item in the table, oldest first, the draws it has left (large without a limit).
        error: inserts · ratio − samples, shifted so that equal futures are equal states.
        held: draws of the batch in progress.
    """

    left: tuple[int, ...]
    error: float
    held: int


UNLIMITED = 10**6


def counts(load: Load, state: State) -> Counts:
    """The limiter's counts that belong to a state: only their difference decides."""
    return Counted(len(state.left), state.error, getattr(load.limiter, "ratio", 1.0))


class Counted(Counts):
    """Counts given by the error alone: `inserts` counts as error / ratio, `samples` as 0."""

    def __init__(self, size: int, error: float, ratio: float) -> None:
        super().__init__(size, 0, 0)
        self.inserts = error / ratio  # type: ignore[assignment]


def inserted(load: Load, state: State) -> State:
    """One append of all lanes has passed."""
    left, error = state.left, state.error
    uses = 1 if load.once else load.uses or UNLIMITED
    for _ in range(load.lanes):
        if len(left) >= load.capacity and not isinstance(load.limiter, limiters.Queue):
            left = left[1:]
        left = (*left, uses)
        error += getattr(load.limiter, "ratio", 0.0)
    return replace(state, left=left, error=error)


def draws(load: Load, state: State) -> Iterator[State]:
    """Every outcome of one draw: the oldest, the newest or any in the middle."""
    drawable = [at for at, left in enumerate(state.left) if left > 0]
    for at in {drawable[0], drawable[-1], drawable[len(drawable) // 2]} if drawable else set():
        left = list(state.left)
        if left[at] < UNLIMITED:
            left[at] -= 1
        if left[at] == 0 and not load.once:
            del left[at]
        ratio = getattr(load.limiter, "ratio", None)
        error = state.error - (1.0 if ratio is not None else 0.0)
        yield State(tuple(left), error, (state.held + 1) % load.batch)


def moves(load: Load, state: State) -> list[State]:
    """All states that one side can reach next; none: a standstill."""
    found = []
    seen = counts(load, state)
    if load.limiter.may_insert(seen):
        found.append(inserted(load, state))
    if load.limiter.may_sample(seen):
        found += draws(load, state)
    return found


def standstill(load: Load, limit: int) -> State | None:
    """A reachable state in which nobody can move, among the first `limit` states in breadth-first order."""
    start = State((), 0.0, 0)
    known, front = {start}, [start]
    while front and len(known) < limit:
        following = []
        for state in front:
            reached = moves(load, state)
            if not reached:
                return state
            for each in reached:
                each = replace(each, error=round(each.error, 6))
                if each not in known:
                    known.add(each)
                    following.append(each)
        front = following
    return None


def loads() -> Iterator[Load]:
    """The grid: ratio × min_size × tolerance × capacity × uses × batch × lanes, and queues."""
    grid = itertools.product(
        (0.1, 0.5, 1.0, 3.0, 8.0), (1, 2, 5), (0.0, 0.1, 1.0), (0, 3), (0, 1, 4), (1, 3, 32), (1, 4)
    )
    for ratio, min_size, tolerance, room, uses, batch, lanes in grid:
        limiter = limiters.SamplesPerInsert(ratio, min_size, tolerance)
        yield Load(limiter, min_size + room, uses, batch, lanes)
    bands = itertools.product(
        (0.5, 1.0, 1.5, 3.0), (1, 4), (-3, 0, 2.5), (1, 1.5, 3, 6), (0, 3), (0, 1, 4), (1, 32), (1, 4)
    )
    for ratio, min_size, low, width, room, uses, batch, lanes in bands:
        limiter = limiters.Band(ratio, min_size, 0.0, low, low + width)
        with contextlib.suppress(ValueError):  # too narrow: refused
            public(limiter)
            yield Load(limiter, min_size + room, uses, batch, lanes)
    for size, batch, lanes in itertools.product((1, 2, 7), (1, 3, 32), (1, 2, 5)):
        yield Load(limiters.Queue(size), size, 1, batch, lanes)
    for n, uses, batch, lanes in itertools.product((1, 4), (0, 1, 3), (1, 32), (1, 3)):
        yield Load(limiters.MinSize(n), n + 1, uses, batch, lanes)


def public(limiter: Limiter) -> Any:
    """The store's limiter."""
    fields = dict(vars(limiter))
    if isinstance(limiter, limiters.Band):
        del fields["tolerance"]
    return getattr(di_store, type(limiter).__name__)(**fields)


def options(load: Load) -> dict[str, Any]:
    """What `create_table` is given for a load."""
    if isinstance(load.limiter, limiters.Queue):
        return {"capacity": load.capacity, "limiter": public(load.limiter)}
    sampler = di_store.Once() if load.once else di_store.Uniform()
    given = {"capacity": load.capacity, "limiter": public(load.limiter), "sampler": sampler}
    return given if load.once else {**given, "max_times_sampled": load.uses}


def accepted(store: Any, load: Load) -> bool:
    """Whether `create_table` takes a load's settings; a refusal must explain itself."""
    refusal = ""
    try:
        table = store.create_table("t", schema={"x": di_store.Spec((), "i8")}, **options(load))
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert "ratio" in refusal or "sampler" in refusal
        return False
    if isinstance(load.limiter, limiters.SamplesPerInsert):  # what is explored is what the table goes by
        numbers = table.stats()["limiter"]
        assert (numbers["min_diff"], numbers["max_diff"]) == pytest.approx(load.limiter.bounds)
    store.drop_table("t")
    return True


def test_the_model_finds_a_known_deadlock() -> None:
    """A band too narrow for one insert and one draw: the check can fail."""

    @dataclass(frozen=True)
    class Narrow(limiters.SamplesPerInsert):
        @property
        def bounds(self) -> tuple[float, float]:
            centre = self.ratio * self.min_size
            return centre - 0.4 * self.ratio, centre + 0.4 * self.ratio

    assert standstill(Load(Narrow(8.0, 2, 0.0), 9, 0, 1, 1), 1000) is not None
    drawn_out = Load(limiters.SamplesPerInsert(4.0, 2, 0.0), 9, 0, 1, 1, once=True)
    assert standstill(drawn_out, 1000) is not None


def test_accepted_limiters_never_deadlock() -> None:
    chosen = list(loads())
    if not FULL:
        chosen = random.Random(0).sample(chosen, 250)
    tried = 0
    with di_store.open(memory="64MiB") as store:
        for load in chosen:
            if accepted(store, load):
                stuck = standstill(load, 3_000 if FULL else 400)
                assert stuck is None, f"{load} was accepted and stands still at {stuck}"
                tried += 1
    assert tried > len(chosen) // 3


@pytest.mark.parametrize("ratio", [0.5, 1.0, 4.0])
def test_once_with_a_ratio_limiter_is_refused(ratio: float) -> None:
    """`Once` cannot pay for inserts that wait for draws: refused with the mechanism, or it does not stand still."""
    load = Load(limiters.SamplesPerInsert(ratio, 2, 0.5), 6, 0, 1, 1, once=True)
    with di_store.open(memory="64MiB") as store:
        assert not accepted(store, load) or standstill(load, 5_000) is None


def writer_loop(store: str, lanes: int, rows: int) -> None:
    """Append `rows` rows in every lane, as fast as the limiter lets them pass; then finish."""
    with di_store.attach(store, timeout=60) as attached:
        table = attached.table("t")
        with table.writer(lanes=lanes) as writer:
            for at in range(rows):
                writer.append({"x": np.arange(lanes) + lanes * at}, timeout=120)
        table.finish()


def really_runs(load: Load, rows: int) -> list[int]:
    """A writer process and this learner run to the end; what was drawn."""
    seen: list[int] = []
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", schema={"x": di_store.Spec((), "i8")}, **options(load))
        process = mp.get_context("fork").Process(target=writer_loop, args=(store.name, load.lanes, rows))
        process.start()
        try:
            while process.is_alive() or len(table):
                # Without a use limit the table never gets empty, and the learner goes on until the writer is done.
                batch = table.sample(load.batch, min_n=1, linger=0.05, timeout=120)
                seen += np.asarray(batch.data["x"]).tolist()
                if not process.is_alive() and not load.uses:
                    break
        except di_store.EndOfData:
            pass
        finally:
            process.join(120)
        assert process.exitcode == 0
    return seen


REAL = [
    Load(limiters.SamplesPerInsert(8.0, 5, 0.0), 20, 0, 32, 1),
    Load(limiters.SamplesPerInsert(0.1, 1, 0.0), 4, 0, 32, 4),
    Load(limiters.SamplesPerInsert(1.0, 3, 0.0), 4, 1, 32, 4),
    Load(limiters.SamplesPerInsert(3.0, 2, 0.1), 9, 4, 7, 2),
    Load(limiters.MinSize(4), 4, 1, 32, 3),
    Load(limiters.Queue(1), 1, 1, 32, 1),
    Load(limiters.Queue(1), 1, 1, 32, 5),
    Load(limiters.Queue(7), 9, 1, 3, 2),
]


@pytest.mark.parametrize("load", REAL, ids=str)
def test_the_store_runs_to_the_end_without_deadlock(load: Load) -> None:
    rows = 400 if FULL else 100
    seen = really_runs(load, rows)
    if isinstance(load.limiter, limiters.Queue):
        assert seen == list(range(rows * load.lanes)), "a queue gives everything, once, in order"
    elif load.uses:
        assert max(np.bincount(seen)) <= load.uses


def test_a_queue_of_one_feeds_whole_batches() -> None:
    """All 32 draws of one `sample` come through a queue that holds one item at a time."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=1, limiter=di_store.Queue(1), schema={"x": di_store.Spec((), "i8")})
        process = mp.get_context("fork").Process(target=writer_loop, args=(store.name, 1, 320))
        process.start()
        for at in range(10):
            batch = table.sample(32, timeout=120)
            assert np.asarray(batch.data["x"]).tolist() == list(range(32 * at, 32 * at + 32))
        process.join(60)
        assert process.exitcode == 0
        with pytest.raises(di_store.EndOfData):
            table.sample(1, timeout=60)


def test_a_failed_batch_gives_everything_back() -> None:
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=10, limiter=di_store.Queue(10))
        table.extend({"x": np.arange(5)})
        before = table.keys().tolist()
        with pytest.raises(di_store.Timeout) as caught:
            table.sample(6, timeout=0.05)
        assert issubclass(caught.type, TimeoutError)
        assert caught.value.reason
        assert table.keys().tolist() == before
        assert (len(table), table.stats()["samples"]) == (5, 0)
        partial = table.sample(6, min_n=2, linger=0.0, timeout=60)
        assert np.asarray(partial.data["x"]).tolist() == [0, 1, 2, 3, 4]


def test_a_finished_table_gives_its_remaining_items_and_ends() -> None:
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=10, limiter=di_store.Queue(10))
        table.extend({"x": np.arange(5)})
        table.finish()
        assert np.asarray(table.sample(3, timeout=60).data["x"]).tolist() == [0, 1, 2]
        assert np.asarray(table.sample(3, timeout=60).data["x"]).tolist() == [3, 4]
        for _ in range(2):
            with pytest.raises(di_store.EndOfData):
                table.sample(1, timeout=60)


def test_an_item_removed_before_it_was_drawn_gives_its_insert_back() -> None:
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=2, limiter=di_store.Queue(2))
        keys = table.extend({"x": np.arange(2)})
        with pytest.raises(di_store.Timeout):
            table.insert({"x": 2}, timeout=0.05)
        table.delete(np.asarray(keys)[:1])
        table.insert({"x": 3}, timeout=60)
        assert np.asarray(table.sample(2, timeout=60).data["x"]).tolist() == [1, 3]


def test_a_call_passes_whole_once_one_item_may_pass() -> None:
    """Four lanes into a queue with room for one: lifted above its size, nothing evicted."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=2, limiter=di_store.Queue(2), lanes=4)
        with table.writer(lanes=4) as writer:
            writer.append({"x": np.arange(4)}, timeout=60)
            assert len(table) == 4
            with pytest.raises(di_store.Timeout):
                writer.append({"x": np.arange(4)}, timeout=0.05)
            assert np.asarray(table.sample(3, timeout=60).data["x"]).tolist() == [0, 1, 2]
            writer.append({"x": np.arange(4, 8)}, timeout=60)
            assert np.asarray(table.sample(5, timeout=60).data["x"]).tolist() == [3, 4, 5, 6, 7]


def test_the_ratio_changes_under_load() -> None:
    """Whatever the limiter is changed to, both sides go on, and from then on within its bounds."""
    rng = random.Random(2)
    with di_store.open(memory="64MiB") as store:
        first = di_store.SamplesPerInsert(4.0, 5, 0.1)
        table = store.create_table("t", capacity=50, limiter=first, schema={"x": di_store.Spec((), "i8")})
        process = mp.get_context("fork").Process(target=writer_loop, args=(store.name, 2, 300))
        process.start()
        drawn = 0
        while process.is_alive():
            with contextlib.suppress(di_store.EndOfData):
                for _ in range(20):
                    drawn += len(table.sample(rng.choice((1, 8, 40)), min_n=1, linger=0.0, timeout=120).keys)
            ratio, size = rng.choice((0.25, 1.0, 3.0, 16.0)), rng.choice((1, 5, 50))
            table.configure(limiter=di_store.SamplesPerInsert(ratio, size, rng.choice((0.0, 0.5))))
        process.join(60)
        assert process.exitcode == 0
        assert table.stats()["inserts"] == 600
        assert table.stats()["samples"] == drawn
