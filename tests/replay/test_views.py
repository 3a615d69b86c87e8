"""What each view hands to the learner, in numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from model.episodes import flatten

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def row(obs: float, reward: float = 0.0, end: str = "", **more: Any) -> dict[str, Any]:
    """A step of a one-number environment."""
    return {
        "obs": np.float32(obs),
        "reward": reward,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        **more,
    }


def made(store: Any, view: Any, *calls: tuple[dict[str, Any], float | None]) -> Any:
    """All items of a table that saw these appends (step, next observation), oldest first."""
    table = store.create_table("t", capacity=100, view=view)
    with table.writer() as writer:
        for step, following in calls:
            writer.append(step, next=None if following is None else {"obs": np.float32(following)})
    return table.peek(table.keys())


def columns(batch: Any, *names: str) -> list[list[Any]]:
    """Columns of a batch as plain lists."""
    data = flatten(batch.data)
    return [np.asarray(data[name]).tolist() for name in names]


def test_a_step_item_is_its_row(store: Any) -> None:
    batch = made(store, di_store.Step(), (row(0, 1.5), None), (row(1, -2, "terminated"), None))
    assert columns(batch, "obs", "reward", "terminated") == [[0, 1], [1.5, -2], [False, True]]
    assert sorted(batch.data) == ["obs", "reward", "terminated", "truncated"]


def test_opaque_stores_any_value(store: Any) -> None:
    table = store.create_table("t", capacity=3, view=di_store.Opaque())
    values = [{"text": "a", "array": np.arange(3)}, ("b", 2.5), None]
    keys = [table.insert(value) for value in values]
    batch = table.peek(np.concatenate([np.atleast_1d(key) for key in keys]))
    assert batch.data[1] == ("b", 2.5)
    assert batch.data[2] is None
    assert batch.data[0]["text"] == "a"
    np.testing.assert_array_equal(batch.data[0]["array"], np.arange(3))


def test_n_step_returns_stop_at_a_termination(store: Any) -> None:
    view = di_store.Transition(n_step=2, gamma=0.5)
    batch = made(store, view, (row(0, 1), 1), (row(1, 2), 2), (row(2, 4, "terminated"), 3))
    assert columns(batch, "obs", "next_obs", "reward", "discount", "steps", "terminated") == [
        [0, 1, 2],
        [2, 3, 3],
        [1 + 0.5 * 2, 2 + 0.5 * 4, 4],
        [0.25, 0, 0],
        [2, 2, 1],
        [False, True, True],
    ]


def test_n_step_to_a_truncation_bootstraps(store: Any) -> None:
    view = di_store.Transition(n_step=3, gamma=0.5)
    batch = made(store, view, (row(0, 1), None), (row(1, 2, "truncated"), 9))
    assert columns(batch, "obs", "next_obs", "reward", "discount", "steps") == [
        [0, 1],
        [9, 9],
        [2, 2],
        [0.25, 0.5],
        [2, 1],
    ]


def test_truncation_without_final_observation_makes_no_item_that_needs_it(store: Any) -> None:
    view = di_store.Transition(n_step=2)
    batch = made(store, view, (row(0), None), (row(1), None), (row(2, end="truncated"), None))
    assert columns(batch, "obs", "next_obs") == [[0], [2]]


def test_termination_without_final_observation_repeats_the_last(store: Any) -> None:
    batch = made(store, di_store.Transition(), (row(0), None), (row(1, end="terminated"), None))
    assert columns(batch, "obs", "next_obs", "discount") == [[0, 1], [1, 1], [pytest.approx(0.99), 0]]


def test_discount_column_stops_the_sum_and_the_episode_goes_on(store: Any) -> None:
    view = di_store.Transition(n_step=3, gamma=0.5)
    life = [1.0, 0.0, 1.0, 1.0]
    calls = [(row(i, 1, discount=np.float32(d)), float(i + 1)) for i, d in enumerate(life)]
    batch = made(store, view, *calls)
    order = np.argsort(batch.starts)
    found = [np.asarray(column)[order].tolist() for column in columns(batch, "reward", "discount", "steps", "next_obs")]
    assert found == [[1.5, 1, 1.5, 1], [0, 0, 0.25, 0.5], [2, 1, 2, 1], [2, 2, 4, 4]]


@pytest.mark.parametrize(("pad", "before"), [("first", 5), ("zero", 0)])
def test_frame_stacks_repeat_the_first_frame(store: Any, pad: Literal["first", "zero"], before: int) -> None:
    view = di_store.Transition(frame_stack={"obs": 3}, frame_pad=pad)
    batch = made(store, view, (row(5), 6), (row(6), 7), (row(7, end="terminated"), 8), (row(9), 10))
    assert columns(batch, "obs", "next_obs") == [
        [[before, before, 5], [before, 5, 6], [5, 6, 7], [9 if before else 0, 9 if before else 0, 9]],
        [[before, 5, 6], [5, 6, 7], [6, 7, 8], [9 if before else 0, 9, 10]],
    ]


@pytest.mark.parametrize(
    ("tail", "starts", "obs", "mask"),
    [
        ("pad", [0, 2, 4], [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 0]], [[1] * 4, [1] * 4, [1, 1, 1, 0]]),
        ("drop", [0, 2], [[0, 1, 2, 3], [2, 3, 4, 5]], [[1] * 4, [1] * 4]),
        ("shift", [0, 2, 3], [[0, 1, 2, 3], [2, 3, 4, 5], [3, 4, 5, 6]], [[1] * 4] * 3),
    ],
)
def test_sequence_tails_follow_the_option(
    store: Any, tail: Literal["pad", "drop", "shift"], starts: list[int], obs: list[Any], mask: list[Any]
) -> None:
    view = di_store.Sequence(3, period=2, burn_in=1, tail=tail)
    calls = [(row(i, end="truncated" if i == 6 else ""), None) for i in range(7)]
    batch = made(store, view, *calls)
    assert batch.starts.tolist() == starts
    assert columns(batch, "obs") == [obs]
    if "mask" in batch.data:
        assert np.asarray(batch.data["mask"]).astype(int).tolist() == mask


def test_sequence_keeps_first_once_and_bootstraps(store: Any) -> None:
    view = di_store.Sequence(2, first=("state",), bootstrap=("obs",), frame_stack={"obs": 2})
    calls: list[Any] = [(row(i, state=np.float32(10 + i)), None) for i in range(4)]
    calls[-1] = (calls[-1][0], 4.0)
    batch = made(store, view, *calls)
    assert columns(batch, "obs", "state", "reward") == [[[0, 0, 1, 2], [1, 2, 3, 4]], [10, 12], [[0, 0], [0, 0]]]


def test_sequences_may_cross_episodes(store: Any) -> None:
    view = di_store.Sequence(3, cross_episodes=True)
    batch = made(store, view, (row(0), None), (row(1, end="terminated"), None), *((row(i), None) for i in (2, 3, 4)))
    assert columns(batch, "obs") == [[[0, 1, 2], [3, 4, 0]]]
    assert np.asarray(batch.data["is_first"]).astype(int).tolist() == [[1, 0, 1], [0, 0, 0]]


def test_a_final_observation_is_no_step_of_a_sequence_across_episodes(store: Any) -> None:
    """Not for its version, and not after a refused call has tried to continue from it."""
    table = store.create_table("t", capacity=4, view=di_store.Sequence(3, cross_episodes=True))
    with table.writer() as writer:
        writer.append(row(0, version=7), next={"obs": np.float32(1)})
        many = {"obs": np.arange(1, 21, dtype=np.float32), "reward": np.zeros(20), "version": np.full(20, 7)}
        flags = {"terminated": np.zeros(20, bool), "truncated": np.zeros(20, bool)}
        with pytest.raises(ValueError, match="capacity"):
            writer.extend({**many, **flags})
        writer.end_episode()
        for obs in (10, 11, 12):
            writer.append(row(obs, version=7), next={"obs": np.float32(obs + 1)})
    batch = table.peek(table.keys())
    assert columns(batch, "obs", "lengths") == [[[0, 10, 11], [12, 0, 0]], [3, 1]]
    assert np.asarray(batch.data["is_first"]).astype(int).tolist() == [[1, 1, 0], [0, 0, 0]]
    assert np.asarray(batch.versions).tolist() == [7, 7]


def test_episodes_are_padded_and_cut(store: Any) -> None:
    view = di_store.Episode(3, bootstrap=("obs",))
    calls = [(row(0), 1.0), (row(1, end="terminated"), 2.0), *((row(10 + i), 11.0 + i) for i in range(5))]
    batch = made(store, view, *calls)
    assert columns(batch, "obs", "lengths") == [[[0, 1, 2, 0], [10, 11, 12, 13]], [2, 3]]
    assert np.asarray(batch.data["mask"]).astype(int).tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("beside", [False, True])
def test_an_episode_far_longer_than_its_view_is_cut(store: Any, beside: bool) -> None:
    """Rows behind `max_length` are of no use to the table and must not fill it, nor a table beside it."""
    tables = [store.create_table("t", capacity=20, view=di_store.Episode(5), lanes=1)]
    if beside:
        tables.append(store.create_table("beside", capacity=20, lanes=1))
    with store.writer(tables) as writer:
        for at in range(5_000):
            writer.append(row(at), timeout=1)
        writer.end_episode()
    batch = tables[0].peek(tables[0].keys())
    assert columns(batch, "obs", "lengths") == [[[0, 1, 2, 3, 4]], [5]]
    assert tables[0].stats()["episodes_cut"] == 1
    if beside:
        assert columns(tables[1].peek(tables[1].keys()), "obs") == [list(range(4_980, 5_000))]


def test_ragged_columns_are_packed(store: Any) -> None:
    schema = {"obs": di_store.Spec((), "f4"), "tokens": di_store.Spec((None,), "i4", max=5)}
    table = store.create_table("t", capacity=10, schema=schema)
    with table.writer() as writer:
        for length in (0, 3, 5, 1):
            writer.append({"obs": np.float32(length), "tokens": np.arange(length, dtype=np.int32)})
    tokens = table.peek(table.keys()).data["tokens"]
    assert np.asarray(tokens.lengths).tolist() == [0, 3, 5, 1]
    assert np.asarray(tokens.offsets).tolist() == [0, 0, 3, 8, 9]
    assert np.asarray(tokens.values).tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    assert tokens.padded(fill=-1, to=6)[1].tolist() == [0, 1, 2, -1, -1, -1]


def test_several_tables_share_one_stream(store: Any) -> None:
    one = store.create_table("one", capacity=10, view=di_store.Transition())
    two = store.create_table("two", capacity=10, view=di_store.Sequence(2, period=1, tail="drop"), columns=("obs",))
    with store.writer([one, two]) as writer:
        writer.append(row(0), next={"obs": np.float32(1)})
        made = writer.append(row(1, end="truncated"), next={"obs": np.float32(2)}, priority={"one": 3.0, "two": 4.0})
    assert {name: items.starts.tolist() for name, items in made.items()} == {"one": [1], "two": [0]}
    assert one.peek(one.keys()).priorities.tolist() == [1.0, 3.0]
    found = two.peek(two.keys())
    assert found.priorities.tolist() == [4.0]
    assert set(found.data) - {"mask", "lengths"} == {"obs"}
    assert columns(found, "obs") == [[[0, 1]]]


def test_finished_transitions_can_be_inserted(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Transition(n_step=3))
    table.insert({**row(1, 2.5), "next_obs": np.float32(4), "discount": np.float32(0.5)})
    batch = table.peek(table.keys())
    assert columns(batch, "obs", "next_obs", "reward", "discount") == [[1], [4], [2.5], [0.5]]


def test_sequences_and_episodes_can_be_inserted(store: Any) -> None:
    for name, view in (("s", di_store.Sequence(2, burn_in=1)), ("e", di_store.Episode(3))):
        table = store.create_table(name, capacity=10, view=view)
        table.insert({"obs": np.arange(3, dtype=np.float32)}, priority=2.0)
        batch = table.peek(table.keys())
        assert columns(batch, "obs") == [[[0, 1, 2]]]
        assert batch.priorities.tolist() == [2.0]


@pytest.mark.parametrize("lanes", [1, 3])
def test_lanes_are_separate_streams(store: Any, lanes: int) -> None:
    table = store.create_table("t", capacity=100, view=di_store.Transition(n_step=2, gamma=1.0))
    reward = np.ones(lanes, np.float32)
    with table.writer(lanes=lanes) as writer:
        for step in range(4):
            obs = np.arange(lanes, dtype=np.float32) * 100 + step
            ended = np.arange(lanes) == step  # lane 0 ends with its first step, lane 1 with its second …
            flags = {"terminated": ended, "truncated": np.zeros(lanes, bool)}
            items = writer.append(
                {"obs": obs, "reward": reward, **flags}, next={"obs": (obs + 1 + 50 * ended).astype(np.float32)}
            )
            assert items.lanes.tolist() == sorted(items.lanes.tolist())
            keep = ~ended
            if ended.any() and keep.any():
                writer.end_episode(lane=np.flatnonzero(keep))
    batch = table.peek(table.keys())
    obs, following = np.asarray(batch.data["obs"]), np.asarray(batch.data["next_obs"])
    assert (obs // 100 == following // 100).all(), "a window crossed lanes"
    # A termination's observation lies 50 ahead; all other windows span exactly `steps` rows.
    gap = following - obs - np.asarray(batch.data["steps"])
    assert set(gap.tolist()) <= {0.0, 50.0}
    assert ((gap == 50) == np.asarray(batch.data["terminated"])).all()


def test_a_lane_subset_leaves_the_others_as_they_are(store: Any) -> None:
    table = store.create_table("t", capacity=100)
    step = {"obs": np.array([0.0, 1.0], np.float32), "reward": np.zeros(2), "terminated": [False] * 2}
    with table.writer(lanes=3) as writer:
        items = writer.append({name: np.asarray(value) for name, value in step.items()}, lane=np.array([2, 0]))
        assert sorted(items.lanes.tolist()) == [0, 2]
        one = writer.append({"obs": np.float32(7), "reward": 0.0, "terminated": False}, lane=2)
        assert one.lanes.tolist() == [2]
        assert one.starts.tolist() == [1]
    batch = table.peek(items.keys)
    lanes = dict(zip(items.lanes.tolist(), np.asarray(batch.data["obs"]).tolist(), strict=True))
    assert lanes == {2: 0.0, 0: 1.0}


def test_extend_equals_many_appends(store: Any) -> None:
    rng = np.random.default_rng(0)
    steps = {
        "obs": rng.random((20, 2), dtype=np.float32),
        "reward": rng.random((20, 2), dtype=np.float32),
        "terminated": rng.random((20, 2)) < 0.1,
        "truncated": rng.random((20, 2)) < 0.1,
    }
    tables = [store.create_table(name, capacity=100, view=di_store.Transition(n_step=3)) for name in ("a", "b")]
    priority = rng.random((20, 2)) + 0.1
    with tables[0].writer(lanes=2) as writer:
        writer.extend(steps, priority=priority)
    with tables[1].writer(lanes=2) as writer:
        for at in range(20):
            writer.append({name: value[at] for name, value in steps.items()}, priority=priority[at])
    one, other = (table.peek(table.keys()) for table in tables)
    for name, value in one.data.items():
        np.testing.assert_array_equal(value, other.data[name], err_msg=name)
    np.testing.assert_array_equal(one.priorities, other.priorities)
    np.testing.assert_array_equal(one.starts, other.starts)


def test_batches_of_a_growing_chunk_are_right(store: Any) -> None:
    table = store.create_table("t", capacity=100)
    with table.writer() as writer:
        for number in range(60):
            writer.append(row(number))
            batch = table.peek(table.keys())
            np.testing.assert_array_equal(batch.data["obs"], np.arange(number + 1))


@pytest.mark.parametrize("view", [di_store.Transition(), di_store.Sequence(3, period=1, cross_episodes=True)])
def test_batches_span_few_or_many_chunks(store: Any, view: Any) -> None:
    table = store.create_table("t", capacity=9_000, view=view, lanes=1)
    numbers = np.arange(8_000)
    wide = np.repeat(numbers[:, None], 256, axis=1).astype(np.float32)
    with table.writer() as writer:
        ends = {"terminated": numbers % 50 == 49, "truncated": np.zeros(8_000, bool)}
        writer.extend({"obs": wide, "number": numbers, "reward": np.ones(8_000, np.float32), **ends})
    keys = table.keys()
    for some in (keys[:1_500], keys[::-1], np.tile(keys[:40], 20), np.random.default_rng(0).permutation(keys)):
        batch = table.peek(some)
        obs, number = batch.data["obs"].reshape(-1, 256), batch.data["number"].reshape(-1)
        np.testing.assert_array_equal(obs[:, 0], number)
        np.testing.assert_array_equal(obs[:, 255], number)
        first = dict(zip(keys.tolist(), range(len(keys)), strict=True))
        starts = batch.data["number"].reshape(len(some), -1)[:, 0]
        np.testing.assert_array_equal(starts, [first[key] for key in some.tolist()])
