"""The ring of rows that adapters share, beside a model of arrays. It needs no framework."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.adapters.ring import Ring

SPECS: dict[str, Any] = {
    "obs": {"walker/pos": di_store.Spec((2,), "f4"), "none": di_store.Spec((0,), "f4")},
    "action": di_store.Spec((), "i8"),
}
COLUMNS = ("obs", "action", "next_obs")


class Lockstep(Ring):
    """Lanes that are written together; it also keeps where episodes were cut off."""

    by_time = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self.cuts: list[tuple[int, list[Any]]] = []
        super().__init__(*args, **options)

    def _cut_off(self, first: int, cut: Any) -> None:
        self.cuts.append((first, cut.tolist()))


def _obs(numbers: Any) -> dict[str, Any]:
    numbers = np.asarray(numbers, np.float32)
    return {"walker/pos": np.stack((numbers, -numbers), axis=-1), "none": np.zeros((*numbers.shape, 0), np.float32)}


def _leaves(obs: dict[str, Any]) -> list[Any]:
    return [obs["walker/pos"], obs["none"]]


@pytest.fixture(params=["own", "given"])
def place(request: pytest.FixtureRequest) -> Any:
    """Options of a ring in a store of its own, and in a given one."""
    if request.param == "own":
        yield {}
        return
    with di_store.open(memory="32MiB") as store:
        yield {"store": store, "table": "mine"}


def _same(ring: Ring, numbers: Any, following: Any = None) -> None:
    """The ring has these numbers in its slots; −1: nothing."""
    held = numbers >= 0
    data, live = ring.peek(np.arange(ring.slots), COLUMNS if following is not None else COLUMNS[:2])
    np.testing.assert_array_equal(live, held)
    np.testing.assert_array_equal(data["action"][held], numbers[held])
    np.testing.assert_array_equal(data["obs"]["walker/pos"][held], _obs(numbers)["walker/pos"][held])
    assert not data["action"][~held].any()
    if following is not None:
        np.testing.assert_array_equal(data["next_obs"]["walker/pos"][held, 0], following[held])
    column = ring.column("obs", np.arange(ring.slots))["walker/pos"]
    assert column.shape == (ring.slots, 2)
    np.testing.assert_array_equal(column[held, 1], -numbers[held])


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_no_stream_lie_at_their_slots(place: dict[str, Any], seed: int) -> None:
    """Also of writes that jump, or that go on from a pickle."""
    random = np.random.default_rng(seed)
    ring, expected, number, slot = Ring(SPECS, 23, chunk=3, option="size=", **place), np.full(23, -1), 0, 0
    for step in range(150):
        if random.random() < 0.1:
            slot = int(random.integers(23))
        count = min(int(random.integers(1, ring.limit + 1)), 23 - slot)
        staged, part = ring.place(slot, count)
        values = np.arange(number, number + count)
        staged["obs"]["walker/pos"][part], staged["action"][part] = _obs(values)["walker/pos"], values
        expected[slot : slot + count] = values
        number, slot = number + count, (slot + count) % 23
        if ring.given or random.random() < 0.2:
            ring.flush()
        if step % 25 == 24:
            ring = pickle.loads(pickle.dumps(ring))
            _same(ring, expected)
    order = (np.arange(23) + slot) % 23
    copied = Ring(SPECS, 23, option="size=")
    for slots, data in ring.pieces(order, ("obs", "action")):
        copied.write(slots, data)
    _same(copied, expected)
    ring.clear()
    _same(ring, np.full(23, -1))


@pytest.mark.parametrize("seed", range(3))
def test_lanes_move_independently(place: dict[str, Any], seed: int) -> None:
    """Some lanes at a time, with observations that do not always follow those before."""
    random, lanes, each = np.random.default_rng(seed), 3, 7
    ring = Ring(SPECS, lanes * each, lanes=lanes, follows=True, option="size=", **place)
    expected, following = np.full(lanes * each, -1), np.full(lanes * each, -1)
    times, numbers = np.zeros(lanes, int), np.arange(lanes) * 1_000
    for _ in range(120):
        some = (
            None
            if random.random() < 0.5
            else tuple(random.permutation(lanes)[: random.integers(1, lanes + 1)].tolist())
        )
        chosen = list(range(lanes)) if some is None else list(some)
        numbers[chosen] += np.where(random.random(len(chosen)) < 0.15, 10, 0)  # a gap
        now, after = numbers[chosen], numbers[chosen] + 1
        ends = random.random(len(chosen)) < 0.1
        flags = [np.ones(len(chosen)), ends, np.zeros(len(chosen), bool)]
        ring.stage([*_leaves(_obs(now)), now, *flags, *_leaves(_obs(after))], some)
        slots = np.array(chosen) * each + times[chosen] % each
        ring.commit(slots, some)
        expected[slots], following[slots] = now, after
        times[chosen] += 1
        numbers[chosen] += 1
        if random.random() < 0.2:
            _same(ring, expected, following)
    _same(ring, expected, following)
    assert len(ring.table) == lanes * each
    if ring.given:
        other = Ring(SPECS, lanes * each, lanes=lanes, follows=True, option="size=", **place)
        held = other.take_over(("action",))
        np.testing.assert_array_equal(other.keys, ring.keys)
        np.testing.assert_array_equal(held.data["action"], expected[held.slots])


def test_lanes_in_lockstep_end_an_episode_at_a_gap(place: dict[str, Any]) -> None:
    ring, expected, following = (
        Lockstep(SPECS, 12, lanes=2, follows=True, option="size=", **place),
        *np.full((2, 12), -1),
    )
    for step in range(20):
        now = np.array([step, step + 500 + 100 * (step >= 8)])  # the second lane has a gap before step 8
        flags = [np.ones(2), np.zeros(2, bool), np.zeros(2, bool)]
        ring.stage([*_leaves(_obs(now)), now, *flags, *_leaves(_obs(now + 1))])
        ring.commit(step % 6 * 2)
        expected[step % 6 * 2 :][:2], following[step % 6 * 2 :][:2] = now, now + 1
        if step % 3 == 2:
            _same(ring, expected, following)
    ring.flush()
    assert [cut for _, cuts in ring.cuts for cut in cuts if any(cut)] == [[False, True]]
    if ring.given:
        other = Lockstep(SPECS, 12, lanes=2, follows=True, option="size=", **place)
        held = other.take_over()
        np.testing.assert_array_equal(other.keys, ring.keys)
        assert other.newest == 19 % 6 * 2 + 1
        assert held.last.sum() == 2


def test_large_rows_are_written_as_they_are_given(place: dict[str, Any]) -> None:
    """Without being gathered, also where their type or shape is another one."""
    specs: dict[str, Any] = {"obs": di_store.Spec((5_000,), "f4"), "action": di_store.Spec((), "i8")}
    ring = Lockstep(specs, 6, lanes=2, follows=True, option="size=", **place)
    assert ring.limit == 1
    for step in range(8):
        kind = np.float32 if step % 2 else np.float64
        obs, after = (np.full((2, 5_000), number, kind) for number in (step, step + 1))
        ring.stage([obs, np.full(2, step), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), after])
        ring.commit(step % 3 * 2)
    assert ring.read(np.arange(6), ("action",))["action"].tolist() == [6, 6, 7, 7, 5, 5]
    with pytest.raises(di_store.SchemaMismatch, match="obs is float32"):
        ring.stage([np.full((2, 5_000), 1e300), np.full(2, 9), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), after])
    assert ring.read(np.arange(6), ("obs",))["obs"][:, 7].tolist() == [6, 6, 7, 7, 5, 5]
