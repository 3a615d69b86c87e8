"""The peers of `bench/bottlenecks` learn from the same data: what their buffers make of steps is what a table makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import di_store

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from bench.bottlenecks.agents.impala import stacks
from bench.bottlenecks.fragments import Fragments, Message
from bench.bottlenecks.loads import PENDULUM, QBERT, UNROLLS, Load
from bench.bottlenecks.planes.ours import schema, settings
from bench.bottlenecks.ring import ReplayRing, SumTree
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import MODES, Stepped

SHAPE = Shape((2, 3), "uint8", 4, (), "int64", 1.0)
LANES, ROWS = 3, 120


def steps(load: Load) -> Iterator[tuple[Stepped, Any, Message]]:
    """Vector steps of made-up environments in the load's autoreset mode, what the policy sees next, further columns."""
    rng = np.random.default_rng(1)
    same_step = load.autoreset == "same-step"

    def draw() -> Any:
        return rng.integers(0, 256, (LANES, *SHAPE.obs_shape), np.uint8)

    obs, resetting = draw(), np.zeros(LANES, np.bool_)
    seen = np.repeat(obs[:, None], 4, 1)
    for _ in range(ROWS):
        following = draw()
        terminated = (rng.random(LANES) < 0.1) & ~resetting
        truncated = (rng.random(LANES) < 0.05) & ~resetting & ~terminated
        ended = terminated | truncated
        step = {
            "obs": obs,
            "action": rng.integers(0, 4, LANES),
            "reward": np.where(resetting, 0, rng.random(LANES)).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "discount": np.where((rng.random(LANES) < 0.05) & ~resetting, 0, 1).astype(np.float32),
        }
        if not load.demo.pixels:
            del step["discount"]
        final = np.full(LANES, None, object)
        if same_step:
            for lane in np.flatnonzero(ended):
                final[lane] = rng.integers(0, 256, SHAPE.obs_shape, np.uint8)
        fresh = ended if same_step else resetting
        seen = np.concatenate([seen[:, 1:], following[:, None]], 1)
        seen[fresh] = following[fresh][:, None]
        rows = int(np.count_nonzero(~resetting))
        extra = {"logp": rng.random(LANES).astype(np.float32)} if load.kind == "unrolls" else {}
        yield Stepped(step, {"obs": following}, final if same_step else None, [], rows), seen, extra
        obs, resetting = following, np.zeros(LANES, np.bool_) if same_step else ended


def both(load: Load) -> tuple[Message, list[Message]]:
    """All items of a table, oldest first, and the messages of the other systems."""
    messages = []
    options = settings(load) if load.kind == "unrolls" else {**settings(load), "limiter": di_store.MinSize(1)}
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("table", capacity=1_000, schema=schema(load, SHAPE), lanes=LANES, **options)
        fragments = Fragments(load)
        with table.writer(lanes=LANES, autoreset=MODES[load.autoreset]) as writer:
            for stepped, seen, extra in steps(load):
                writer.append({**stepped.step, **extra}, next=stepped.next, final=stepped.final)
                if message := fragments.add(stepped, seen, extra):
                    messages.append(message)
            data = {name: np.array(values) for name, values in table.peek(table.keys()).data.items()}
            writer.end_episode(discard=True)
    return data, messages


def by_content(data: Message, names: list[str]) -> dict[bytes, list[Any]]:
    """Items by their first column."""
    return {data[names[0]][i].tobytes(): [data[name][i] for name in names] for i in range(len(data[names[0]]))}


def same(ours: dict[bytes, list[Any]], theirs: dict[bytes, list[Any]]) -> None:
    """Every item of theirs is one of ours."""
    assert theirs
    for key, values in theirs.items():
        for mine, its in zip(ours[key], values, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-6)


def test_prioritized_ring() -> None:
    """The numpy ring makes the table's stacked n-step transitions, and draws none that are not finished."""
    load = replace(QBERT, actors=1, lanes=LANES, capacity=60 * LANES)
    data, messages = both(load)
    ring = ReplayRing(load, SHAPE)
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
    same(ours, found)


def test_states() -> None:
    """Finished transitions of the messages are the table's."""
    data, messages = both(replace(PENDULUM, lanes=LANES))
    joined = {name: np.concatenate([message[name] for message in messages]) for name in messages[0]}
    names = ["obs", "action", "reward", "next_obs", "discount"]
    ours, theirs = by_content(data, names), by_content(joined, names)
    for key, values in theirs.items():
        if values[4] == 0:
            values[3] = ours[key][3]
    same(ours, theirs)
    assert len(joined["reward"]) == len(data["reward"])


def test_unrolls() -> None:
    """Stacks and columns of the messages are those of the table's sequences."""
    load = replace(UNROLLS, lanes=LANES, capacity=ROWS)
    data, messages = both(load)
    data["discount"] = np.where(data["terminated"] | data["truncated"], np.float32(0), data["discount"])
    data["stacks"] = stacks(data["obs"], data["is_first"], 4)[:, :-1]
    joined = {name: np.concatenate([message[name] for message in messages]) for name in messages[0]}
    joined["stacks"] = stacks(joined["frames"], joined["is_first"], 4)[:, :-1]
    assert len(joined["stacks"]) == len(data["stacks"])
    names = ["stacks", "action", "reward", "discount", "logp"]
    same(by_content(data, names), by_content(joined, names))


def test_sum_tree() -> None:
    """Draws follow the leaves, whatever the order of updates."""
    tree, rng = SumTree(10), np.random.default_rng(0)
    tree.set(np.arange(10), np.arange(10.0))
    tree.set(np.array([3, 3, 9]), np.array([1.0, 5.0, 0.0]))
    counts = np.bincount(tree.draw(41_000, rng), minlength=10)
    expected = np.array([0, 1, 2, 5, 4, 5, 6, 7, 8, 0])
    assert np.abs(counts - 1_000 * expected * 41 / expected.sum()).max() <= 2
