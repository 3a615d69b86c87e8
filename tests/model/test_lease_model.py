"""Leases against a plain model, operation by operation."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from leasing import LONG, PATIENCE, leased

import di_store
from model.leases import LeaseTable
from model.limiters import Limiter, MinSize, Pace, Queue, SamplesPerInsert
from model.setting import public

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
CAPACITY = 400
"""More than a run inserts: nothing is evicted."""
LIMITERS: list[Limiter] = [MinSize(1), MinSize(3), SamplesPerInsert(2.0, 2, 1.0), SamplesPerInsert(0.5, 3, 0.5)]
PACES: list[Limiter] = [Pace("policy", batch, ahead) for batch, ahead in ((1, 0), (3, 1), (4, 0))]
ENDS = ["ack", "ack, but it does not count", "give_back"]
ONCE = ["Once", "Once in order"]
SAMPLERS = ["Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized", "Queue", *ONCE]


class LeaseMachine(RuleBasedStateMachine):
    """Hypothesis chooses the setting, but for its sampler, and the operations."""

    def __init__(self, sampler: str) -> None:
        super().__init__()
        self.sampler = sampler

    @initialize(
        limiter=st.sampled_from(LIMITERS + PACES),
        uses=st.sampled_from((0, 1, 3)),
        last=st.integers(1, 3),
        group=st.booleans(),
    )
    def begin(self, limiter: Limiter, uses: int, last: int, group: bool) -> None:
        epochs = last if self.sampler in ONCE and isinstance(limiter, (MinSize, Pace)) and uses != 1 else None
        if self.sampler == "Queue":
            limiter, uses = Queue(3), 1
        self.model = LeaseTable(self.sampler, limiter, uses, epochs)
        self.keys: list[int] = []  # by the item's number
        self.answer_keys: list[list[int]] = []
        self.batches: list[tuple[di_store.Batch, set[int]]] = []  # and the numbers of items that are still leased
        self.answers = 2 if group else 1
        self.store = di_store.open(memory="32MiB", seed=1)
        self.of_others = 0
        schema = {name: di_store.Spec((), "i8") for name in ("group", "n")}
        self.table = self.store.create_table(
            "t", capacity=CAPACITY, schema=schema, sampler=self.public(), limiter=public(limiter), lanes=2,
            max_times_sampled=uses, view=di_store.Group(2) if group else di_store.Step(),
        )  # fmt: skip
        self.first_epoch = self.table.stats()["epoch"]
        for _ in range(2):
            self.insert(2, 1)

    def public(self) -> Any:
        if self.sampler in ONCE:
            return di_store.Once(self.model.epochs, self.sampler == "Once")
        return public("Fifo" if self.sampler == "Queue" else self.sampler)

    @rule(count=st.integers(1, 3), priority=st.integers(0, 5))
    def insert(self, count: int, priority: int) -> None:
        """Passes as a whole as soon as one item may."""
        passes = self.model.limiter.may_insert(self.model.counted())
        numbers = np.arange(len(self.keys), len(self.keys) + count)
        epoch = self.table.stats()["epoch"] - self.first_epoch
        rows = {"group": numbers.repeat(self.answers), "n": numbers.repeat(self.answers)}
        try:
            made = self.table.extend(rows, timeout=PATIENCE if passes else 0)
        except di_store.Timeout:
            assert not passes
            return
        assert passes
        keys = made[:: self.answers]
        self.answer_keys += made.reshape(-1, self.answers).tolist()
        self.table.update_priorities(keys, np.full(count, priority, float))
        for number, key in zip(numbers.tolist(), keys.tolist(), strict=True):
            self.keys.append(key)
            self.model.insert(number, float(priority), epoch)
        self.agree()

    @precondition(lambda self: isinstance(self.model.limiter, Pace))
    @rule(other=st.booleans())
    def publish(self, other: bool) -> None:
        """A version, or one of other weights."""
        self.store.publish("other" if other else "policy", None)
        self.model.counts.versions += not other
        self.agree()

    @rule(n=st.integers(1, 5))
    def draw(self, n: int) -> None:
        self.sample(n, None)

    @rule(n=st.integers(1, 5))
    def lease(self, n: int) -> None:
        batch = self.sample(n, LONG)
        if batch is not None:
            self.batches.append((batch, set(self.numbers(batch))))

    @rule(n=st.integers(1, 3), count=st.integers(1, 3), prefetch=st.sampled_from((0, 1, 8)))
    def load(self, n: int, count: int, prefetch: int) -> None:
        """Batches of a loader that is closed then, as if it had drawn nothing ahead."""
        with self.table.loader(n, prefetch=prefetch, lease=LONG, timeout=0) as loader:
            for _ in range(count):
                certain = self.model.must_draw(n, True)
                try:
                    batch = next(loader)
                except di_store.Timeout:
                    assert not certain
                    break
                assert self.model.draw(self.numbers(batch), True)
                self.batches.append((batch, set(self.numbers(batch))))
        self.agree()

    @rule(
        choice=st.lists(st.integers(0, 99), min_size=1, max_size=5), lease=st.sampled_from([None, LONG]),
        least=st.integers(1, 5), given=st.booleans(), answer=st.integers(0, 1),
    )  # fmt: skip
    def choose(self, choice: list[int], lease: float | None, least: int, given: bool, answer: int) -> None:
        """Items by their keys, gone and leased ones too; the key of any answer stands for its group."""
        numbers, least = [each % len(self.keys) for each in choice], min(least, len(choice))
        keys = np.array([self.answer_keys[number][answer % self.answers] for number in numbers], np.uint64)
        chances = np.arange(1.0, 1 + len(keys)) if given else None
        expected = self.model.chosen(numbers, least, lease is not None)
        sample = partial(self.table.sample, keys=keys, probabilities=chances, min_n=least, lease=lease, timeout=0)
        if isinstance(expected, str):
            with pytest.raises({"waits": di_store.Timeout, "unavailable": di_store.ObjectNotFound}[expected]):
                sample()
            self.agree()
            return
        batch = sample()
        assert self.numbers(batch) == [numbers[place] for place in expected]
        assert chances is None or (batch.probabilities == chances[expected]).all()
        self.model.draw_chosen(self.numbers(batch), lease is not None)
        if lease is not None:
            self.batches.append((batch, set(self.numbers(batch))))
        self.agree()

    @rule(n=st.integers(1, 3), call=st.sampled_from(["ack", "give_back"]))
    def expire(self, n: int, call: str) -> None:
        """A lease of no time is over when the next call sees it."""
        batch = self.sample(n, 0)
        if batch is not None:
            assert getattr(self.table, call)(batch) == 0
            self.model.give_back(*self.numbers(batch))
            self.batches.append((batch, set()))
            self.agree()

    @precondition(lambda self: self.batches)
    @rule(choice=st.integers(0, 9), call=st.sampled_from(ENDS), some=st.integers(1, 9))
    def end(self, choice: int, call: str, some: int) -> None:
        """A lease, or by their keys some of its items; of leases that ended earlier, in vain."""
        how, model = self.table.give_back, self.model.give_back
        if call != "give_back":
            counts = call == "ack" or isinstance(self.model.limiter, Queue)
            how, model = partial(self.table.ack, counts=counts), partial(self.model.acknowledge, counts=counts)
        batch, held = self.batches[choice % len(self.batches)]
        ended = set(self.numbers(batch)[:some]) & held
        if some >= len(batch):
            assert how(batch) == len(ended)
        elif ended:
            assert how([self.keys[number] for number in ended]) == len(ended)
        held -= ended
        model(*ended)
        self.agree()

    @precondition(lambda self: self.batches[self.of_others :])
    @rule(choice=st.integers(0, 9))
    def extend(self, choice: int) -> None:
        own = self.batches[self.of_others :]
        batch, held = own[choice % len(own)]
        assert batch.lease.extend(LONG) == len(held)

    @precondition(lambda self: self.model.items)
    @rule(choice=st.integers(0, 99), priority=st.integers(0, 5))
    def update_or_delete(self, choice: int, priority: int) -> None:
        """Of any item, leased or not."""
        number = sorted(self.model.items)[choice % len(self.model.items)]
        if priority:
            assert self.table.update_priorities([self.keys[number]], [priority - 1.0]) == 1
            self.model.prioritize(number, priority - 1.0)
        else:
            assert self.table.delete([self.keys[number]]) == 1
            self.model.delete(number)
            for _, held in self.batches:
                held.discard(number)
        self.agree()

    @precondition(lambda self: not isinstance(self.model.limiter, Queue))
    @rule(choice=st.integers(0, 2))
    def configure(self, choice: int) -> None:
        limiter = (PACES if isinstance(self.model.limiter, Pace) else LIMITERS)[choice]
        if self.model.epochs is None or isinstance(limiter, (MinSize, Pace)):
            self.table.configure(limiter=public(limiter))
            self.model.configure(limiter)
            self.agree()

    @rule()
    def copy(self) -> None:
        """Go on with a restored checkpoint: nothing is leased in it, and leases of the first store count nothing."""
        path = Path(tempfile.mkdtemp(dir=os.environ["DI_STORE_TEST_ROOT"])) / "checkpoint"
        self.store.checkpoint(path)
        self.store.close()
        self.store = di_store.restore(path, memory="32MiB")
        self.table = self.store.table("t")
        self.model.copied()
        self.of_others = len(self.batches)
        for _, held in self.batches:
            held.clear()
        self.agree()

    def sample(self, n: int, lease: float | None) -> di_store.Batch | None:
        """A draw that the model allows, or none."""
        certain = self.model.must_draw(n, lease is not None)
        least = n if isinstance(self.model.limiter, Pace) else None  # a Pace gives fewer rather than let them wait
        try:
            batch = self.table.sample(n, lease=lease, timeout=PATIENCE if certain else 0, min_n=least)
        except di_store.Timeout:
            assert not certain, f"sample({n}, lease={lease}) waits, though the model draws {n}"
            self.agree()
            return None
        assert self.model.draw(self.numbers(batch), lease is not None), f"drew {self.numbers(batch)}"
        if lease != 0:
            self.agree()
        return batch

    def numbers(self, batch: di_store.Batch) -> list[int]:
        """Of its items, each of which is whole."""
        numbers = np.asarray(batch.data["n"]).reshape(len(batch), self.answers)
        assert (numbers == numbers[:, :1]).all()
        assert batch.keys.tolist() == [self.keys[number] for number in numbers[:, 0]]
        return numbers[:, 0].tolist()  # type: ignore[no-any-return]

    def agree(self) -> None:
        """All that the table shows."""
        items, stats = [self.model.items[number] for number in sorted(self.model.items)], self.table.stats()
        assert self.table.keys().tolist() == [self.keys[item.number] for item in self.model.free()]
        assert stats["samples"] == self.model.samples
        assert stats["limiter"]["samples"] == self.model.counts.samples
        assert leased(self.table) == sum(item.leased for item in items)
        found = self.table.peek(np.array([self.keys[item.number] for item in items], np.uint64))
        assert found.live is not None
        assert found.live.all()
        assert found.times_sampled.tolist() == [item.uses for item in items]
        assert found.priorities.tolist() == [item.priority for item in items]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert self.store.check() == []
            self.store.close()


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(name, marks=[pytest.mark.extended] * (name in ("Fifo", "MinHeap", "Once in order")))
        for name in SAMPLERS
    ],
)
def test_leases_equal_the_model(sampler: str) -> None:
    run = settings(max_examples=500 if FULL else 40, stateful_step_count=60 if FULL else 30)
    run_state_machine_as_test(lambda: LeaseMachine(sampler), settings=run)  # type: ignore[no-untyped-call]
