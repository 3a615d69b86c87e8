"""The peers of `bench/bottlenecks` learn from the same data: what their buffer makes of steps is what a table makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import di_store

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from bench.bottlenecks.planes.ours import schema, settings
from bench.bottlenecks.ring import Message, Messages, ReplayRing, SumTree
from di_store.demo.config import PIXELS
from di_store.demo.envs import MODES, EnvShape, Stepped

SHAPE = EnvShape((2, 3), "uint8", 4)
LANES, ROWS = 3, 120


def steps() -> Iterator[Stepped]:
    """Vector steps of made-up environments with next-step autoreset."""
    rng = np.random.default_rng(1)

    def draw() -> Any:
        return rng.integers(0, 256, (LANES, *SHAPE.obs_shape), np.uint8)

    obs, resetting = draw(), np.zeros(LANES, np.bool_)
    for _ in range(ROWS):
        following = draw()
        terminated = (rng.random(LANES) < 0.1) & ~resetting
        truncated = (rng.random(LANES) < 0.05) & ~resetting & ~terminated
        step = {
            "obs": obs,
            "action": rng.integers(0, 4, LANES),
            "reward": np.where(resetting, 0, rng.random(LANES)).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "discount": np.where((rng.random(LANES) < 0.05) & ~resetting, 0, 1).astype(np.float32),
        }
        yield Stepped(step, {"obs": following}, None, [], int(np.count_nonzero(~resetting)))
        obs, resetting = following, terminated | truncated


def both() -> tuple[Message, list[Message]]:
    """All items of a table, oldest first, and the messages of the other systems."""
    made = []
    options = {**settings(PIXELS), "limiter": di_store.MinSize(1)}
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("table", capacity=1_000, schema=schema(PIXELS, SHAPE), lanes=LANES, **options)
        messages = Messages(LANES)
        with table.writer(lanes=LANES, autoreset=MODES["next-step"]) as writer:
            for stepped in steps():
                writer.append(stepped.step, next=stepped.next)
                if message := messages.add(stepped):
                    made.append(message)
            data = {name: np.array(values) for name, values in table.peek(table.keys()).data.items()}
            writer.end_episode(discard=True)
    return data, made


def by_content(data: Message, names: list[str]) -> dict[bytes, list[Any]]:
    """Items by their first column."""
    return {data[names[0]][i].tobytes(): [data[name][i] for name in names] for i in range(len(data[names[0]]))}


def test_the_numpy_ring_has_the_same_transitions_as_the_table() -> None:
    """The numpy ring makes the table's stacked n-step transitions, and draws none that are not finished."""
    data, messages = both()
    ring = ReplayRing(replace(PIXELS, capacity=60 * LANES), actors=1, lanes=LANES)
    assert sum(ring.add(0, message) for message in messages) > 60 * LANES  # it has gone round
    names = ["obs", "next_obs", "action", "reward", "discount"]
    drawn = [ring.sample(32) for _ in range(50)]
    found: dict[bytes, list[Any]] = {}
    for sample in drawn:
        # After termination nobody reads the next observation; a table repeats the last one there.
        found |= by_content(sample.data, names)
    ours = by_content(data, names)
    for key, values in found.items():
        if values[4] == 0:
            values[1] = ours[key][1]
    assert found
    for key, values in found.items():
        for mine, its in zip(ours[key], values, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-6)


def test_sum_tree_draws_follow_the_leaves() -> None:
    """Draws follow the leaves, whatever the order of updates."""
    tree, rng = SumTree(10), np.random.default_rng(0)
    tree.set(np.arange(10), np.arange(10.0))
    tree.set(np.array([3, 3, 9]), np.array([1.0, 5.0, 0.0]))
    counts = np.bincount(tree.draw(41_000, rng), minlength=10)
    expected = np.array([0, 1, 2, 5, 4, 5, 6, 7, 8, 0])
    assert np.abs(counts - 1_000 * expected * 41 / expected.sum()).max() <= 2
