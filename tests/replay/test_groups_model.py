"""Groups against a plain model, operation by operation."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import di_store
from di_store import Group, Spec, _core

PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i8")}
LATE = {**PLAIN, "reward": Spec((), "f4", late=True)}
DEADLINE = 100_500.0


class Answer:
    """A row; `reward`: None while it is missing; `left_out`: its group is drawn without it."""

    def __init__(self, x: int, reward: float | None) -> None:
        self.key = -1
        self.x = x
        self.reward = reward
        self.left_out = False


class Going:
    """A group; `complete`: when it could be drawn, 0 before; `since`: the time when it began."""

    def __init__(self, value: int, late: bool, began: int, since: float) -> None:
        self.value, self.late, self.began, self.since = value, late, began, since
        self.answers: list[Answer] = []
        self.complete = self.draws = 0

    def all_keys(self) -> list[int]:
        return [each.key for each in self.answers]

    def column(self, name: str, size: int) -> list[float]:
        """Of a batch: zeros where an answer is missing."""
        found = [0 if each.left_out else getattr(each, name) for each in self.answers]
        return found + [0] * (size - len(found))

    def mask(self, size: int) -> list[bool]:
        return [not each.left_out for each in self.answers] + [False] * (size - len(self.answers))


class Setting(NamedTuple):
    """Of a table."""

    size: int
    capacity: int
    unique: bool
    judged: bool
    remover: Any
    uses: int
    short: bool | None  # None: no deadline


class Model:
    """What a table of groups holds, one operation after the other."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.capacity = setting.capacity
        self.groups: list[Going] = []  # in the order in which they began
        self.ended: set[int] = set()
        self.left: list[Going] = []
        self.clock = self.dropped = self.late_answers = self.short = 0
        self.time = 0.0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def live(self) -> list[Going]:
        return sorted((each for each in self.groups if each.complete), key=lambda each: each.complete)

    def waiting(self) -> list[Going]:
        return [each for each in self.groups if not each.complete]

    def lacks_answers(self, group: Going) -> bool:
        return len(group.answers) < self.setting.size

    def find(self, key: int) -> Going | None:
        return next((each for each in self.groups if key in each.all_keys()), None)

    def insert(self, value: int, x: int, reward: float | None) -> Answer | None:
        group = next((each for each in self.waiting() if each.value == value and self.lacks_answers(each)), None)
        if group is None:
            late = value in self.ended
            self.late_answers += late
            if late and self.setting.unique:
                return None
            self.shrink(self.capacity - 1)
            group = Going(value, late, self.tick(), self.time)
            self.groups.append(group)
        answer = Answer(x, reward)
        group.answers.append(answer)
        if not self.lacks_answers(group):
            self.ended.add(value)
        self.look(group)
        return answer

    def look(self, group: Going) -> None:
        judged = not self.setting.judged or all(each.reward is not None for each in group.answers)
        if not group.complete and not self.lacks_answers(group) and judged:
            group.complete = self.tick()

    def wait(self, seconds: float) -> None:
        self.time += seconds
        for group in self.waiting():
            if self.setting.short is None or self.time < group.since + DEADLINE:
                continue
            there = [each for each in group.answers if each.reward is not None or not self.setting.judged]
            if not self.setting.short or not there:
                self.remove(group)
                continue
            for answer in group.answers:
                answer.left_out = answer not in there
            self.ended.add(group.value)
            self.short += 1
            group.complete = self.tick()

    def shrink(self, count: int) -> None:
        while len(self.groups) > count:
            live, waiting = self.live(), self.waiting()
            chosen = live[0 if self.setting.remover == di_store.Fifo() else -1] if live else None
            oldest = waiting[0] if waiting else None
            if chosen is None or (oldest is not None and oldest.began < chosen.complete):
                chosen = oldest
            assert chosen is not None
            self.remove(chosen)

    def remove(self, group: Going) -> None:
        self.groups.remove(group)
        self.ended.add(group.value)
        self.left.append(group)
        self.dropped += not group.complete

    def delete(self, key: int) -> int:
        group = self.find(key)
        if group is not None:
            self.remove(group)
        return group is not None

    def update(self, key: int, reward: float) -> int:
        group = self.find(key)
        if group is not None:
            next(each for each in group.answers if each.key == key).reward = reward
            self.look(group)
        return group is not None

    def draw(self, key: int) -> Going:
        group = self.find(key)
        assert group is not None
        assert group.complete
        group.draws += 1
        if self.setting.uses and group.draws == self.setting.uses:
            self.remove(group)
        return group


SETTINGS = st.builds(
    Setting,
    size=st.integers(1, 4),
    capacity=st.integers(1, 6),
    unique=st.booleans(),
    judged=st.booleans(),
    remover=st.sampled_from([di_store.Fifo(), di_store.Lifo()]),
    uses=st.sampled_from([0, 0, 1, 2]),
    short=st.sampled_from([None, True, True, False]),
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert"] * 6 + ["update"] * 4 + ["wait"] * 2 + ["delete", "sample", "resize"]),
        st.lists(st.integers(0, 60), min_size=1, max_size=5),
    ),
    max_size=60,
)


def insert(table: di_store.Table, model: Model, numbers: list[int], known: deque[int]) -> None:
    """Answers of seven prompts in one call; every third number brings its reward, if all of the call do."""
    numbers = numbers[: model.capacity * model.setting.size]
    row: dict[str, Any] = {"group": np.array(numbers) % 7, "x": np.array(numbers)}
    judged = model.setting.judged and numbers[0] % 3 == 0
    if judged:
        row["reward"] = np.float32(numbers)
    placed = [model.insert(number % 7, number, float(number) if judged else None) for number in numbers]
    keys = table.extend(row).tolist()
    for answer, key in zip([each for each in placed if each is not None], keys, strict=True):
        answer.key = key
        known.append(key)


def agree(table: di_store.Table, model: Model) -> None:
    """All that a table shows of its groups."""
    stats = table.stats()
    waiting = model.waiting()
    lacking = [each for each in waiting if model.lacks_answers(each)]
    assert table.keys().tolist() == [each.answers[0].key for each in model.live()]
    assert (stats["waiting"], stats["gathered"]) == (len(waiting), len(waiting) - len(lacking))
    assert (stats["groups_dropped"], stats["late_answers"]) == (model.dropped, model.late_answers)
    assert stats["groups_short"] == model.short
    assert [(each.value, each.missing, each.late, each.keys.tolist()) for each in table.incomplete()] == [
        (each.value, model.setting.size - len(each.answers), each.late and each in lacking, each.all_keys())
        for each in waiting
    ]
    keys = [key for each in model.groups for key in each.all_keys()]
    batch = table.peek(np.array(keys, np.uint64))
    for place, key in enumerate(keys):
        group = model.find(key)
        assert group is not None
        assert batch.live is not None
        assert batch.live[place] == bool(group.complete)
        if group.complete:
            same(batch, place, group, model.setting)


def same(batch: di_store.Batch, place: int, group: Going, setting: Setting) -> None:
    """A group of a batch is that of the model."""
    for name in ("x", "reward") if setting.judged else ("x",):
        assert batch.data[name][place].tolist() == group.column(name, setting.size)
    if setting.short:
        assert batch.data["mask"][place].tolist() == group.mask(setting.size)


@given(OPERATIONS, SETTINGS)
@settings(max_examples=60, deadline=None)
def test_groups_equal_the_model(operations: list[tuple[str, list[int]]], setting: Setting) -> None:
    deadline = None if setting.short is None else DEADLINE
    view = Group(setting.size, unique=setting.unique, deadline=deadline, short=bool(setting.short))
    options = {"remover": setting.remover, "max_times_sampled": setting.uses}
    with di_store.open(memory="32MiB") as store, contextlib.ExitStack() as shifted:
        shifted.callback(_core.shift_clock, 0.0)
        schema = LATE if setting.judged else PLAIN
        table = store.create_table("t", capacity=setting.capacity, view=view, schema=schema, **options)
        model = Model(setting)
        known: deque[int] = deque(maxlen=12)
        gone = table.evicted()
        assert list(gone) == []
        for operation, numbers in operations:
            key = known[numbers[0] % len(known)] if known else 0
            chosen = np.array([key], np.uint64)
            if operation == "insert":
                insert(table, model, numbers, known)
            elif operation == "update" and setting.judged:
                reward = float(numbers[0])
                assert table.update(chosen, {"reward": np.float32([reward])}) == model.update(key, reward)
            elif operation == "delete":
                assert table.delete(chosen) == model.delete(key)
            elif operation == "sample" and model.live():
                batch = table.sample(1)
                group = model.draw(int(batch.keys[0]))
                same(batch, 0, group, setting)
            elif operation == "wait":
                model.wait(1000.0 * numbers[0])
                _core.shift_clock(model.time)
                table.incomplete()  # notices
            elif operation == "resize":
                model.capacity = 1 + numbers[0] % 6
                table.resize(model.capacity)
                model.shrink(model.capacity)
            agree(table, model)
            assert list(gone) == [each.answers[0].key for each in model.left]
            model.left.clear()
        assert store.check() == []
