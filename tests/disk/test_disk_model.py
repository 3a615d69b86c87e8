"""Tables of a store with a disk tier against plain Python: all values of a batch follow from its rows' numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Sequence, Spec, Transition, Uniform

SIDE, EPISODE = 45, 23
SCHEMA = {
    "obs": Spec((SIDE, SIDE), "u1"),
    "text": Spec((None,), "i4", max=100),
    "reward": Spec((), "f4"),
    "number": Spec((), "i8"),
    "note": Spec((3,), "f4", late=True),
    "terminated": Spec((), "?"),
    "truncated": Spec((), "?"),
}
SAMPLERS = (Uniform(), Fifo(), Lifo(), MinHeap(), MaxHeap(), Prioritized(0.7, 0.4))
REMOVERS = (Fifo(), Fifo(), Uniform(), Lifo(), MinHeap(), MaxHeap())


def frames(numbers: np.ndarray) -> np.ndarray:
    """Frames of these rows, uint8 [n, SIDE, SIDE]."""
    return (numbers[:, None] * 7 + np.arange(SIDE * SIDE) * 3).astype(np.uint8).reshape(-1, SIDE, SIDE)


def text(number: int) -> np.ndarray:
    return np.arange(number % 100, dtype=np.int32) * number


def rows(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {
        "obs": frames(numbers),
        "text": [text(int(number)) for number in numbers],
        "reward": (numbers % 11).astype(np.float32),
        "number": numbers,
        "note": np.repeat(numbers[:, None], 3, 1).astype(np.float32),
        "terminated": numbers % EPISODE == EPISODE - 1,
        "truncated": np.zeros(count, bool),
    }


class Model:
    """One table and what is known of its items, by key, oldest first: number of the first row, and priority."""

    def __init__(self, table: di_store.Table, dice: random.Random, sampler: Any, remover: Any) -> None:
        self.table, self.dice, self.sampler, self.remover = table, dice, sampler, remover
        self.number: dict[int, int] = {}
        self.priority: dict[int, float] = {}

    def learn(self) -> None:
        """What the table evicted and took in since the last call."""
        live = self.table.keys().tolist()
        gone = self.number.keys() - set(live)
        if isinstance(self.remover, Fifo) and gone:
            assert gone == set(list(self.number)[: len(gone)]), "not the oldest ones were evicted"
        for key in gone:
            del self.number[key], self.priority[key]
        fresh = [key for key in live if key not in self.number]
        for at in range(0, len(fresh), 500):
            some = np.array(fresh[at : at + 500])
            for key, number in zip(some.tolist(), self.firsts(self.table.peek(some)), strict=True):
                self.number[key], self.priority[key] = number, 1.0
        assert len(self.number) == len(self.table)

    @staticmethod
    def firsts(batch: di_store.Batch) -> list[int]:
        found = np.asarray(batch.data["number"])
        return [int(number) for number in (found if found.ndim == 1 else found[:, 0])]

    def delete(self) -> None:
        keys = self.dice.sample(sorted(self.number), min(len(self.number), self.dice.randrange(1, 200)))
        assert self.table.delete(np.array(keys, np.int64)) == len(keys)
        for key in keys:
            del self.number[key], self.priority[key]

    def update(self) -> None:
        keys = self.dice.sample(sorted(self.number), min(len(self.number), 50))
        values = [self.dice.randrange(1, 1_000) / 10 for _ in keys]
        assert self.table.update_priorities(np.array(keys, np.int64), np.array(values)) == len(keys)
        self.priority.update(zip(keys, values, strict=True))

    def annotate(self, notes: dict[int, int]) -> None:
        keys = self.dice.sample(sorted(self.number), min(len(self.number), 30))
        values = [self.dice.randrange(1 << 20) for _ in keys]
        assert self.table.update(
            np.array(keys, np.int64), {"note": np.repeat(np.float32(values)[:, None], 3, 1)}
        ) == len(keys)
        notes.update(zip((self.number[key] for key in keys), values, strict=True))

    def sample(self, notes: dict[int, int]) -> None:
        batch = self.table.sample(self.dice.choice((1, 7, 64, 300)), timeout=10)
        self.judge(batch, notes)
        if isinstance(self.sampler, MaxHeap):
            assert self.priority[int(batch.keys[0])] == max(self.priority.values())
        if isinstance(self.sampler, MinHeap):
            assert self.priority[int(batch.keys[0])] == min(self.priority.values())
        if isinstance(self.sampler, Fifo):
            assert int(batch.keys[0]) == next(iter(self.number))
        if isinstance(self.sampler, Lifo):
            assert int(batch.keys[0]) == next(reversed(self.number))

    def peek(self, notes: dict[int, int]) -> None:
        keys = self.dice.sample(sorted(self.number), min(len(self.number), 100))
        self.judge(self.table.peek(np.array(keys, np.int64)), notes)

    def judge(self, batch: di_store.Batch, notes: dict[int, int]) -> None:
        firsts = np.array([self.number[int(key)] for key in batch.keys])
        data = batch.data
        if isinstance(self.table.view, Transition):
            steps = np.minimum(self.table.view.n_step, EPISODE - firsts % EPISODE)
            assert (data["number"] == firsts).all()
            assert (data["obs"] == frames(firsts)).all()
            inside = firsts % EPISODE + self.table.view.n_step < EPISODE
            assert (data["next_obs"][inside] == frames(firsts + self.table.view.n_step)[inside]).all()
            assert (data["steps"] == steps).all()
            reward = [sum(0.5**i * ((n + i) % 11) for i in range(k)) for n, k in zip(firsts, steps, strict=True)]
            assert np.allclose(data["reward"], reward)
            assert [float(note[0]) for note in data["note"]] == [notes.get(int(n), int(n)) for n in firsts]
            for i, number in enumerate(firsts):
                at = data["text"].offsets
                assert (data["text"].values[at[i] : at[i + 1]] == text(int(number))).all()
            return
        for time in range(data["mask"].shape[1]):
            valid = np.asarray(data["mask"][:, time]) > 0
            assert (data["number"][valid, time] == firsts[valid] + time).all()
            assert (data["obs"][valid, time] == frames(firsts[valid] + time)).all()


def views(dice: random.Random) -> Any:
    return dice.choice(
        (Transition(n_step=1, gamma=0.5), Transition(n_step=dice.randrange(2, 9), gamma=0.5), Sequence(length=6))
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_equal_the_model(tmp_path: Path, seed: int, full: bool) -> None:
    """Writers of one and two tables, deletes, updates of priorities and late columns, draws, resets and resizes."""
    dice = random.Random(seed)
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=seed) as store:
        models = []
        for i in range(2):
            sampler, remover = dice.choice(SAMPLERS), dice.choice(REMOVERS)
            capacity = dice.choice((1_000, 4_000, 7_000))
            table = store.create_table(
                f"t{i}",
                capacity=capacity,
                lanes=1,
                schema=SCHEMA,
                sampler=sampler,
                remover=remover,
                view=views(dice),
                initial_priority=1.0,
            )
            models.append(Model(table, dice, sampler, remover))
        notes: dict[int, int] = {}
        number = 0
        with store.writer([model.table for model in models]) as writer:
            for turn in range(400 if full else 60):
                count = EPISODE * dice.randrange(1, 40)
                made = rows(number, count)
                for at in range(count):
                    writer.append({name: column[at] for name, column in made.items()}, timeout=60)
                number += count
                for model in models:
                    model.learn()
                    for _ in range(3):
                        act = dice.choice(
                            (model.sample, model.sample, model.peek, model.delete, model.update, model.annotate)
                        )
                        if model.number:
                            act(notes) if act in (model.sample, model.peek, model.annotate) else act()
                if turn % 25 == 24:
                    assert not store.check()
                if turn % 40 == 39:
                    dice.choice(models).table.reset()
        stats = store.stats()
        assert stats["disk"] is not None
        assert stats["disk"]["read"] > 0
        assert stats["committed"] <= 16 << 20
        assert not store.check()
