"""Groups against a plain model, operation by operation."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import di_store
from di_store import Group, Spec

PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i8")}


class Model:
    """What a table of groups of two holds, one operation after the other."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.live: dict[int, list[int]] = {}  # rows by the first answer's key, in the order of completion
        self.going: dict[int, list[int]] = {}  # by value: keys so far
        self.rows: dict[int, tuple[int, int]] = {}
        self.born: dict[int, int] = {}  # by the first answer's key: when the group began, or was complete
        self.clock = 0
        self.dropped = 0

    def insert(self, value: int, x: int) -> None:
        self.clock += 1
        if value not in self.going:
            while len(self.live) + len(self.going) >= self.capacity:
                self.evict()

    def inserted(self, key: int, value: int, x: int) -> None:
        self.rows[key] = (value, x)
        keys = self.going.setdefault(value, [])
        keys.append(key)
        self.clock += 1
        self.born.setdefault(keys[0], self.clock)
        if len(keys) == 2:
            self.live[keys[0]] = self.going.pop(value)
            self.born[keys[0]] = self.clock

    def evict(self) -> None:
        began = {value: self.born[keys[0]] for value, keys in self.going.items()}
        oldest = min(began, key=lambda value: began[value], default=None)
        first = next(iter(self.live), None)
        if first is None or (oldest is not None and began[oldest] < self.born[first]):
            assert oldest is not None
            self.dropped += 1
            del self.going[oldest]
        else:
            del self.live[first]

    def delete(self, key: int) -> bool:
        for at, keys in list(self.live.items()):
            if key in keys:
                del self.live[at]
                return True
        for value, keys in list(self.going.items()):
            if key in keys:
                self.dropped += 1
                del self.going[value]
                return True
        return False


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert"] * 6 + ["delete", "sample", "peek"]), st.integers(0, 60)), max_size=80
)


@given(OPERATIONS, st.integers(1, 6), st.sampled_from([di_store.Uniform(), di_store.Prioritized(0.6), di_store.Fifo()]))
@settings(max_examples=60, deadline=None)
def test_against_a_model(operations: list[tuple[str, int]], capacity: int, sampler: di_store.Sampler) -> None:
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=capacity, view=Group(2), schema=PLAIN, sampler=sampler)
        model = Model(capacity)
        known: deque[int] = deque(maxlen=20)
        for operation, number in operations:
            if operation == "insert":
                model.insert(number % 7, number)
                key = int(table.insert({"group": number % 7, "x": number})[0])
                model.inserted(key, number % 7, number)
                known.append(key)
            elif operation == "delete" and known:
                key = known[number % len(known)]
                assert table.delete(np.array([key], np.uint64)) == model.delete(key)
            elif operation == "sample" and model.live:
                batch = table.sample(3)
                for key, xs in zip(batch.keys.tolist(), batch.data["x"].tolist(), strict=True):
                    assert xs == [model.rows[each][1] for each in model.live[key]]
            elif operation == "peek" and known:
                key = known[number % len(known)]
                live = any(key in keys for keys in model.live.values())
                assert table.peek(np.array([key], np.uint64)).live[0] == live
            assert table.keys().tolist() == list(model.live)
            counts = table.stats()
            assert (counts["waiting"], counts["groups_dropped"]) == (len(model.going), model.dropped)
        assert store.check() == []
