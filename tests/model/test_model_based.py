"""The store against the plain-Python model, operation by operation.

`DI_STORE_TEST_SCALE=full` runs 10⁵ operations and more; the default is a small share of that.
A failure prints the setting and the seed; hypothesis shrinks the operations of its own machine.
"""

from __future__ import annotations

import itertools
import os
import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from model.drive import drive, write
from model.harness import Harness, Pen
from model.limiters import MinSize, Queue, SamplesPerInsert
from model.selectors import Once
from model.setting import REMOVERS, SAMPLERS, VIEWS, Setting, random_setting
from model.views import Sequence, Step, Transition, View

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"


class StoreMachine(RuleBasedStateMachine):
    """Hypothesis chooses setting and operations; `Harness` does them on both sides."""

    harness: Harness

    @initialize(seed=st.integers(0, 2**20))
    def begin(self, seed: int) -> None:
        rng = random.Random(seed)
        self.harness = Harness(random_setting(rng), rng)
        self.harness.open_writer()

    def pen(self, choice: int) -> Pen:
        pens = self.harness.pens
        return pens[choice % len(pens)]

    @precondition(lambda self: self.harness.pens)
    @rule(
        choice=st.integers(0, 3),
        subset=st.integers(1, 7),
        with_next=st.booleans(),
        ends=st.booleans(),
        priority=st.booleans(),
    )
    def append(self, choice: int, subset: int, with_next: bool, ends: bool, priority: bool) -> None:
        pen = self.pen(choice)
        lanes = [lane for lane in range(len(pen.worlds)) if subset >> lane & 1] or [0]
        self.harness.append(pen, lanes, with_next=with_next, end_chance=0.4 * ends, priority=priority)

    @precondition(lambda self: self.harness.pens)
    @rule(choice=st.integers(0, 3), steps=st.integers(1, 9), with_next=st.booleans(), ends=st.booleans())
    def extend(self, choice: int, steps: int, with_next: bool, ends: bool) -> None:
        self.harness.extend(self.pen(choice), steps, with_next=with_next, end_chance=0.3 * ends)

    @precondition(lambda self: self.harness.pens)
    @rule(choice=st.integers(0, 3), with_final=st.booleans(), discard=st.booleans())
    def end_episode(self, choice: int, with_final: bool, discard: bool) -> None:
        pen = self.pen(choice)
        lanes = list(range(len(pen.worlds)))
        self.harness.end_episode(pen, lanes, with_final=with_final, discard=discard)

    @rule(in_child=st.sampled_from([None, None, "fork"]))
    def open_writer(self, in_child: str | None) -> None:
        if len(self.harness.pens) < 2:
            self.harness.open_writer(in_child)

    @precondition(lambda self: self.harness.pens)
    @rule(choice=st.integers(0, 3), how=st.sampled_from(["close", "kill", "kill within"]))
    def end_writer(self, choice: int, how: str) -> None:
        self.harness.end_writer(self.pen(choice), how)

    @rule(n=st.integers(1, 12))
    def sample(self, n: int) -> None:
        self.harness.sample(n)

    @rule()
    def peek(self) -> None:
        self.harness.peek()

    @rule(count=st.integers(0, 8), zero=st.booleans())
    def update_priorities(self, count: int, zero: bool) -> None:
        self.harness.update_priorities(count, zero)

    @rule(count=st.integers(0, 3))
    def delete_or_attach(self, count: int) -> None:
        if count:
            self.harness.delete(count)
        else:
            self.harness.attach_again()

    @rule(capacity=st.integers(0, 9))
    def resize_or_publish(self, capacity: int) -> None:
        if capacity:
            self.harness.resize(capacity)
        else:
            self.harness.publish()

    @rule(n=st.integers(1, 3))
    def reset_or_configure(self, n: int) -> None:
        if n == 1:
            self.harness.configure(None)
        elif isinstance(self.harness.setting.limiter, MinSize) and self.harness.setting.max_staleness is None:
            self.harness.configure(MinSize(min(n, self.harness.side.model.capacity)))

    @precondition(lambda self: isinstance(self.harness.setting.view, Step))
    @rule(priority=st.sampled_from([None, 0.0, 2.5]))
    def insert(self, priority: float | None) -> None:
        self.harness.insert(priority)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.peek()
            self.harness.close()


StoreMachine.TestCase.settings = settings(
    max_examples=400 if FULL else 12,
    stateful_step_count=60 if FULL else 25,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
test_any_setting_any_operations = StoreMachine.TestCase


@pytest.mark.parametrize("remover", REMOVERS)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_every_sampler_with_every_remover_equals_the_model(sampler: str | Once, remover: str) -> None:
    for seed, capacity in enumerate((1, 3, 7, 1000) if FULL else (3,)):
        rng = random.Random(f"{sampler} {remover} {seed}")
        setting = random_setting(rng, sampler=sampler, remover=remover, capacity=capacity, view=Transition(n_step=2))
        drive(setting, rng, operations=400 if FULL else 40)


@pytest.mark.parametrize("lanes", [None, pytest.param(1, marks=pytest.mark.extended), 3])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_every_view_equals_the_model(view: View, lanes: int | None) -> None:
    for seed, capacity in enumerate((1, 3, 7, 1000) if FULL else (7,)):
        rng = random.Random(f"{view} {lanes} {seed}")
        setting = random_setting(rng, view=view, lanes=lanes, capacity=capacity)
        drive(setting, rng, operations=200 if FULL else 40)


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize("tail", ["pad", "drop", "shift"])
def test_every_kind_of_sequence_equals_the_model(tail: str, crosses: bool) -> None:
    """Each combination of a sequence's options: episodes of all lengths, ended, discarded and abandoned."""
    for burn_in, period, bootstrap, stack in itertools.product((0, 2), (None, 1, 6), ((), ("obs",)), (None, 3)):
        stacks = {"obs/frame": stack} if stack else None
        view = Sequence(4, period, burn_in, tail=tail, frame_stack=stacks, bootstrap=bootstrap, cross_episodes=crosses)
        for seed in range(20 if FULL else 1):
            rng = random.Random(f"{view} {seed}")
            write(Setting(view, lanes=rng.choice((None, 2)), capacity=1000), rng)


@pytest.mark.parametrize("capacity", [1, *(pytest.param(each, marks=pytest.mark.extended) for each in (3, 1000)), 7])
@pytest.mark.parametrize(
    "limiter", [MinSize(1), SamplesPerInsert(2.0, 1, 0.5), SamplesPerInsert(0.25, 1, 0.0), Queue(1)], ids=str
)
def test_every_limiter_equals_the_model(limiter: MinSize | SamplesPerInsert | Queue, capacity: int) -> None:
    rng = random.Random(f"{limiter} {capacity}")
    uses = 1 if isinstance(limiter, Queue) else 0
    setting = Setting(Transition(n_step=3), "Fifo", "Fifo", limiter, capacity, 3, uses)
    drive(setting, rng, operations=2000 if FULL else 60)


@pytest.mark.parametrize("start", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.extended)])
def test_killed_writers_equal_the_model(start: str) -> None:
    """A child that writes is killed, idle or in the middle of an append; others go on."""
    for seed in range(30 if FULL else 2):
        rng = random.Random(f"{start} {seed}")
        harness = Harness(random_setting(rng, capacity=rng.choice((3, 7, 1000))), rng)
        for _ in range(4):
            pen = harness.open_writer(start)
            for _ in range(rng.randrange(8)):
                harness.append(
                    pen, list(range(len(pen.worlds))), with_next=rng.random() < 0.5, end_chance=0.2, priority=False
                )
                harness.sample(1)
            harness.end_writer(pen, rng.choice(("kill", "kill within")))
            harness.peek()
            harness.attach_again()
        harness.close()


def test_a_long_run_equals_the_model() -> None:
    """Wrap-around many times over in one small table."""
    rng = random.Random(1)
    drive(Setting(Step(), "Uniform", "Fifo", MinSize(1), 7, 3), rng, operations=20_000 if FULL else 300)
