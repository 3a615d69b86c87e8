"""What a table does beside the views: reading, changing, bytes set aside, Python values, ragged columns."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.columns.schema import Schema
from di_store.layout import reserve
from di_store.layout.plan import make_layout
from di_store.runtime import waits


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened


def test_items_can_be_inserted_without_a_writer(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    assert table.insert({"x": 1.5}).dtype == np.uint64
    keys = table.extend({"x": np.arange(3, dtype=np.float32)}, priority=[1.0, 2.0, 3.0])
    batch = table.peek(keys)
    assert batch.data["x"].tolist() == [0, 1, 2]
    assert batch.priorities.tolist() == [1, 2, 3]
    assert batch.live.all()


def test_a_finished_transition_is_inserted(store: Any) -> None:
    view = di_store.Transition(n_step=3, gamma=0.9, frame_stack={"obs/frame": 2})
    table = store.create_table("t", capacity=10, view=view)
    whole = {
        "obs": {"frame": np.array([[1, 2], [3, 4]], np.uint8), "speed": np.float32(1)},
        "action": 3,
        "reward": 2.5,
        "terminated": False,
        "next_obs": {"frame": np.array([[3, 4], [5, 6]], np.uint8), "speed": np.float32(2)},
        "discount": 0.81,
        "steps": 2,
    }
    table.insert(whole)
    with table.writer() as writer:  # a stream beside it, in the same table
        row = {"obs": {"frame": np.array([7, 8], np.uint8), "speed": np.float32(3)}, "action": 4, "reward": 1.0}
        writer.append({**row, "terminated": True}, next={"obs": row["obs"]})
    batch = table.peek(table.keys())
    assert batch.data["obs"]["frame"].tolist() == [[[1, 2], [3, 4]], [[7, 8], [7, 8]]]
    assert batch.data["next_obs"]["frame"].tolist() == [[[3, 4], [5, 6]], [[7, 8], [7, 8]]]
    assert batch.data["reward"].tolist() == [2.5, 1.0]
    np.testing.assert_allclose(batch.data["discount"], [0.81, 0])
    assert batch.data["steps"].tolist() == [2, 1]
    assert batch.data["action"].tolist() == [3, 4]


def test_many_finished_transitions_are_inserted(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Transition())
    obs = np.arange(8, dtype=np.float32)
    batch = {"obs": obs, "reward": obs, "next_obs": obs + 1, "discount": np.full(8, 0.5, np.float32)}
    keys = table.extend(batch, priority=np.arange(8) + 1.0)
    found = table.peek(keys)
    assert found.data["next_obs"].tolist() == (obs + 1).tolist()
    assert found.data["discount"].tolist() == [0.5] * 8
    assert found.priorities.tolist() == list(range(1, 9))
    with pytest.raises(di_store.SchemaMismatch, match="next_obs"):
        table.insert({"obs": np.float32(0), "reward": 0.0, "discount": 1.0})


def test_whole_sequences_keep_bootstrap_rows_and_first_columns(store: Any) -> None:
    view = di_store.Sequence(3, first=("state",), bootstrap=("obs",))
    table = store.create_table("t", capacity=10, view=view)
    whole = {"obs": np.arange(4, dtype=np.float32), "action": np.arange(3), "state": np.full(200, 7, np.float32)}
    table.insert(whole)
    table.insert({"obs": np.arange(2, dtype=np.float32), "action": np.arange(2), "state": np.full(200, 8, np.float32)})
    batch = table.peek(table.keys())
    assert batch.data["obs"].tolist() == [[0, 1, 2, 3], [0, 1, 1, 0]]
    assert batch.data["action"].tolist() == [[0, 1, 2], [0, 1, 0]]
    assert batch.data["state"][:, 0].tolist() == [7, 8]
    assert batch.data["lengths"].tolist() == [3, 2]
    assert batch.data["mask"].tolist() == [[True] * 3, [True, True, False]]
    assert table.extend(
        {"obs": np.zeros((2, 3), np.float32), "action": np.zeros((2, 3), int), "state": np.zeros((2, 200), np.float32)}
    ).shape == (2,)
    with pytest.raises(di_store.SchemaMismatch, match="1 to 3"):
        table.insert({"obs": np.zeros(5, np.float32), "action": np.zeros(5, int), "state": np.zeros(200, np.float32)})


def test_python_values_are_stored(store: Any) -> None:
    table = store.create_table("t", capacity=50, view=di_store.Opaque())
    values = [{"n": i, "array": np.full(i * 500, i)} for i in range(30)]
    table.extend(values[:20])
    with table.writer() as writer:
        for value in values[20:]:
            writer.append(value)
    batch = table.sample(64)
    for value in batch.data:
        assert (value["array"] == value["n"]).all()
        assert len(value["array"]) == value["n"] * 500
    with table.writer(lanes=2) as writer:
        items = writer.append(["left", "right"])
        assert items.lanes.tolist() == [0, 1]
    assert table.peek(items.keys).data == ["left", "right"]


def test_ragged_columns_are_stored(store: Any) -> None:
    schema = {"units": di_store.Spec((None, 2), "f4", max=5), "n": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=20, schema=schema)
    with table.writer() as writer:
        for n in range(6):
            writer.append({"units": np.full((n, 2), n, np.float32), "n": n})
        with pytest.raises(di_store.SchemaMismatch, match="max=5"):
            writer.append({"units": np.zeros((6, 2), np.float32), "n": 6})
    batch = table.peek(table.keys())
    units = batch.data["units"]
    assert units.lengths.tolist() == [0, 1, 2, 3, 4, 5]
    assert [len(row) for row in units] == [0, 1, 2, 3, 4, 5]
    padded = units.padded(fill=-1, to=7)
    assert padded.shape == (6, 7, 2)
    assert (padded[2, :2] == 2).all()
    assert (padded[2, 2:] == -1).all()
    with pytest.raises(ValueError, match="longest"):
        units.padded(to=3)
    with pytest.raises(ValueError, match="max_bytes"):
        store.create_table("u", capacity=10, schema={"units": di_store.Spec((None, 2), "f4")})
    free = store.create_table("u", capacity=None, max_bytes="1MiB", schema={"units": di_store.Spec((None, 2), "f4")})
    for n in range(300):
        free.insert({"units": np.zeros((1000 + n, 2), np.float32)})
    assert 0 < len(free) < 300, "as many as fit"
    assert free.stats()["used_bytes"] <= 1 << 20


def test_sequences_of_ragged_rows_are_stored(store: Any) -> None:
    schema = {"tokens": di_store.Spec((None,), "i4", max=9)}
    table = store.create_table("t", capacity=20, view=di_store.Sequence(2), schema=schema)
    with table.writer() as writer:
        for n in range(3):
            writer.append({"tokens": np.arange(n, dtype=np.int32)})
    tokens = table.peek(table.keys()).data["tokens"]
    assert tokens.lengths.tolist() == [[0, 1], [2, 0]]
    assert tokens.padded().shape == (2, 2, 2)


def test_a_batch_holds_only_the_requested_columns(store: Any) -> None:
    table = store.create_table("t", capacity=10, columns=("obs", "a"))
    table.insert({"obs": {"x": 1.0, "y": 2}, "a": 3, "b": 4})
    assert sorted(table.sample(1).data) == ["a", "obs"]
    assert sorted(table.sample(1).data["obs"]) == ["x", "y"]
    assert list(table.sample(2, columns="obs/y").data["obs"]) == ["y"]
    with pytest.raises(ValueError, match="'b'"):
        table.sample(1, columns=("b",))


def test_sample_waits_for_the_first_step(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(1, timeout=0.01)
    assert "min_size=1" in caught.value.reason
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(table.sample(3, timeout=60)))
    thread.start()
    table.insert({"x": 5})
    thread.join(60)
    assert found[0].data["x"].tolist() == [5, 5, 5]


def test_a_queue_feeds_batches_larger_than_itself(store: Any) -> None:
    table = store.create_table("t", capacity=1, limiter=di_store.Queue(1))

    def feed() -> None:
        with table.writer() as writer:
            for n in range(64):
                writer.append({"n": n}, timeout=60)

    thread = threading.Thread(target=feed)
    thread.start()
    assert [table.sample(32, timeout=60).data["n"].tolist() for _ in range(2)] == [
        list(range(32)),
        list(range(32, 64)),
    ]
    thread.join(60)


def test_a_failed_sample_leaves_no_trace(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.Queue(5))
    table.extend({"n": np.arange(4)})
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(9, timeout=0.02)
    assert "4 of 9" in caught.value.reason
    assert len(table) == 4
    assert table.stats()["samples"] == 0
    assert table.sample(4).data["n"].tolist() == [0, 1, 2, 3]


def test_min_n_and_linger_give_partial_batches(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.Queue(10))
    table.extend({"n": np.arange(4)})
    assert len(table.sample(9, min_n=2, linger=0.01)) == 4
    table.extend({"n": np.arange(4)})
    assert len(table.sample(9, min_n=4, timeout=0.05)) == 4, "the rest of the timeout brought no more"
    table.extend({"n": np.arange(1)})
    with pytest.raises(di_store.Timeout):
        table.sample(9, min_n=2, linger=0.01, timeout=0.05)
    table.extend({"n": np.arange(3)})
    table.finish()
    assert len(table.sample(9, timeout=60)) == 4, "finished: what remains"
    with pytest.raises(di_store.EndOfData):
        table.sample(9, timeout=60)


def test_finish_ends_and_reset_empties_a_table(store: Any) -> None:
    table = store.create_table("t", capacity=10, sampler=di_store.Once(epochs=2))
    table.extend({"n": np.arange(5)})
    table.finish()
    drawn = table.sample(7).data["n"].tolist() + table.sample(7).data["n"].tolist()
    assert sorted(drawn) == sorted(2 * list(range(5)))
    with pytest.raises(di_store.EndOfData):
        table.sample(1)
    table.reset()
    assert len(table) == 0
    table.insert({"n": 9})
    assert table.sample(1).data["n"].tolist() == [9]


def test_initial_priority_max_is_the_largest_ever_given_and_at_least_one(store: Any) -> None:
    table = store.create_table("t", capacity=8, sampler=di_store.Prioritized(1.0))
    first = table.insert({"n": 0})
    table.update_priorities(first, [0.2])
    second = table.insert({"n": 1})
    third = table.insert({"n": 2}, priority=0.3)
    fourth = table.insert({"n": 3})
    assert table.peek(np.concatenate([first, second, third, fourth])).priorities.tolist() == [0.2, 1.0, 0.3, 1.0]
    table.insert({"n": 4}, priority=5.0)
    table.delete(table.keys(start=4))
    assert table.peek(table.insert({"n": 5})).priorities.tolist() == [5.0], "of an item that has gone, too"
    assert table.stats()["max_priority"] == 5.0
    table.reset()
    assert table.peek(table.insert({"n": 6})).priorities.tolist() == [5.0]
    low = store.create_table("low", capacity=8, sampler=di_store.Prioritized(1.0), initial_priority=0.1)
    assert low.peek(low.insert({"n": 0})).priorities.tolist() == [0.1]


def test_configure_changes_settings(store: Any) -> None:
    table = store.create_table("t", capacity=100, sampler=di_store.Prioritized(1.0, beta=None), weights="w")
    keys = table.extend({"n": np.arange(4)}, priority=[1.0, 1.0, 1.0, 5.0])
    assert table.sample(8).weights.tolist() == [1] * 8
    table.configure(beta=1.0)
    assert len(set(table.sample(64).weights.tolist())) == 2
    table.configure(alpha=0.0)
    assert set(table.peek(keys).probabilities.tolist()) == {0.25}
    table.configure(beta=None, limiter=di_store.MinSize(50))
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)
    for wrong in (
        {"limiter": di_store.Queue(5)},
        {"limiter": di_store.MinSize(101)},
        {"alpha": -1.0},
        {"beta": float("nan")},
        {"max_staleness": -1},
    ):
        with pytest.raises(ValueError):
            table.configure(**wrong)
    plain = store.create_table("u", capacity=10)
    with pytest.raises(ValueError, match="Prioritized"):
        plain.configure(alpha=0.5)
    with pytest.raises(ValueError, match="weights"):
        plain.configure(max_staleness=3)


def test_resize_works_during_use(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    table.extend({"n": np.arange(10)})
    table.resize(4)
    assert table.peek(table.keys()).data["n"].tolist() == [6, 7, 8, 9]
    table.resize(5_000)
    table.extend({"n": np.arange(4_000)})
    assert len(table) == 4_004
    assert table.stats()["evicted_for_room"] == 0


def test_peek_and_keys_read_without_sampling(store: Any) -> None:
    table = store.create_table("t", capacity=3)
    keys = table.extend({"n": np.arange(3)})
    gone = keys[:1].copy()
    table.insert({"n": 3})
    batch = table.peek(np.concatenate([gone, keys[1:]]))
    assert batch.live.tolist() == [False, True, True]
    assert batch.data["n"].tolist() == [0, 1, 2]
    assert table.keys(1).tolist() == [keys[2], table.keys()[2]]
    assert table.keys(0, 2).tolist() == keys[1:].tolist()
    assert table.delete(gone) == 0
    assert table.delete(keys[1:]) == 2
    assert table.stats()["samples"] == 0


def test_priorities_may_be_tensors(store: Any) -> None:
    torch = pytest.importorskip("torch")
    table = store.create_table("t", capacity=10, sampler=di_store.Prioritized(1.0))
    keys = table.extend({"n": np.arange(3)})
    values = torch.tensor([1.0, 2.0, 0.5], requires_grad=True)
    assert table.update_priorities(keys, values) == 3
    assert table.update_priorities(torch.from_numpy(keys.astype(np.int64)), values.to(torch.bfloat16)) == 3
    assert table.peek(keys).priorities.tolist() == [1.0, 2.0, 0.5]
    assert table.update_priorities(np.array([keys[0], keys[0]]), [5.0, 7.0]) in (1, 2)
    assert table.peek(keys[:1]).priorities.tolist() == [7.0], "the last counts"


SHAPES = [
    ({"x": di_store.Spec((), "f4")}, 1),
    ({"x": di_store.Spec((84, 84), "u1"), "a": di_store.Spec((), "i8")}, 8),
    ({"x": di_store.Spec((105,), "u1")}, 3),
    ({"x": di_store.Spec((600,), "u1"), "y": di_store.Spec((700,), "u1"), "z": di_store.Spec((), "?")}, 20),
]


@pytest.mark.memory_only
@pytest.mark.parametrize(("schema", "least"), SHAPES)
@pytest.mark.parametrize("capacity", [8, 3_000])
def test_chunks_are_planned_as_writers_cut_them(store: Any, schema: Any, least: int, capacity: int) -> None:
    """One lane's chunks take what `reserve` says, to the byte."""
    view = di_store.Sequence(least, period=1, tail="drop")
    table = store.create_table("t", capacity=capacity, lanes=1, schema=schema, view=view)
    settings, columns = table._backend.handle.settings, Schema.from_tree(schema)
    needed = reserve.table_needs(settings, columns, capacity)
    rows, block = reserve.chunk_rows(make_layout(columns), needed.cut.target, needed.cut.least_rows, 0)
    row = {name: np.zeros(spec.shape, spec.dtype) for name, spec in schema.items()}
    with table.writer() as writer:
        for _ in range(rows):
            writer.append(row)
        assert table.stats()["used_bytes"] == block
        writer.append(row)
        assert table.stats()["used_bytes"] == 2 * block


REACHED: list[dict[str, Any]] = [
    {"view": di_store.Transition(n_step=3, frame_stack={"obs": 4})},
    {"view": di_store.Step()},
    {"view": di_store.Sequence(5, bootstrap=("obs",))},
    {"view": di_store.Episode(10)},
    {"remover": di_store.Uniform()},
    {"remover": di_store.Lifo()},
    {"remover": di_store.MinHeap()},
    {"sampler": di_store.Prioritized(1.0), "max_times_sampled": 2},
]


@pytest.mark.parametrize("options", REACHED, ids=lambda options: str(options)[:50])
@pytest.mark.parametrize("capacity", [16, 500])
def test_a_table_really_holds_its_capacity(store: Any, options: dict[str, Any], capacity: int) -> None:
    """Reckoned bytes suffice: 4 lanes, episodes of ten steps, three times around, in a store that is full otherwise."""
    frame = np.zeros((4, 30, 30), np.uint8)
    rng = np.random.default_rng(0)
    schema = {
        "obs": di_store.Spec((30, 30), "u1"),
        "reward": di_store.Spec((), "f4"),
        "terminated": di_store.Spec((), "?"),
    }
    table = store.create_table("t", capacity=capacity, lanes=4, schema=schema, **options)
    free = store.stats()["free"]
    while free > 1 << 20:  # so that only the reserve is left
        try:
            store.put(np.zeros(free // 2, np.uint8), timeout=0)
        except (di_store.StoreFull, di_store.Timeout):  # Timeout: an agent has not answered so soon
            pass
        free //= 2
    with warnings.catch_warnings(), table.writer(lanes=4) as writer:
        warnings.simplefilter("error")
        for at in range(
            3 * capacity * (4 if "Sequence" in str(options) else 10 if "Episode" in str(options) else 1) // 4
        ):
            step = {"obs": frame, "reward": np.zeros(4, np.float32), "terminated": np.full(4, at % 10 == 9)}
            writer.append(step, next={"obs": frame}, priority=rng.random(4) + 0.1)
            if "max_times_sampled" in options and len(table):
                table.sample(2)
    assert table.stats()["evicted_for_room"] == 0
    assert "max_times_sampled" in options or len(table) == capacity


def test_one_warning_when_rows_need_more_than_estimated(store: Any) -> None:
    table = store.create_table(
        "t",
        capacity=200,
        lanes=1,
        view=di_store.Transition(),
        schema={
            "obs": di_store.Spec((4000,), "u1"),
            "reward": di_store.Spec((), "f4"),
            "terminated": di_store.Spec((), "?"),
        },
    )
    store.put(np.zeros(int(store.stats()["free"] - (3 << 20)), np.uint8), timeout=0)
    frame = np.zeros(4000, np.uint8)
    with table.writer() as writer:
        for _ in range(1500):
            writer.append({"obs": frame, "reward": 0.0, "terminated": True}, next={"obs": frame})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stats = table.stats()
    if stats["evicted_for_room"]:
        assert [each.category for each in caught] in ([RuntimeWarning], [])
    assert 80 <= len(table) <= 200, "episodes of one step need two rows each"


@pytest.mark.memory_only
def test_a_table_beyond_the_budget_is_refused_at_once(store: Any) -> None:
    before = store.stats()
    schema = {"frame": di_store.Spec((84, 84), "u1"), "action": di_store.Spec((), "i8")}
    with pytest.raises(di_store.CapacityError) as caught:
        store.create_table("t", capacity=100_000, schema=schema)
    text = str(caught.value)
    for word in ("needs", "available", "'frame'", "memory=", "capacity="):
        assert word in text
    after = store.stats()
    assert (before["reserved"], before["meta"]) == (after["reserved"], after["meta"])


def test_public_names_are_those_of_the_contract() -> None:
    for name in ("Batch", "Ragged", "Items", "Ref", "Store", "Table", "Mixture", "Writer", "Loader", "Published"):
        assert hasattr(di_store, name)


def test_waiting_for_a_table_without_writers_ends(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "ABANDONED_SECONDS", 0.3)
    table = store.create_table("t", capacity=10, limiter=di_store.MinSize(2))
    table.insert({"n": 1})
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(1)
    assert "no writer of the table was open" in caught.value.reason
    found: list[Any] = []
    with table.writer() as writer:
        thread = threading.Thread(target=lambda: found.append(table.sample(1)))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive(), "an open writer may still write"
        writer.append({"n": 2})
        thread.join(60)
    assert len(found) == 1


def test_a_long_wait_names_its_reason(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "LOG_SECONDS", 0.15)
    table = store.create_table("t", capacity=10, limiter=di_store.MinSize(2))
    table.insert({"n": 1})
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0.6)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 4
    assert all("'t'" in line and "1 of min_size=2 items" in line for line in lines)


def test_several_threads_insert_without_blocking_each_other(store: Any) -> None:
    """One that waits keeps no other from its own timeout, and none is lost."""
    table = store.create_table("t", capacity=100, limiter=di_store.Queue(1))
    table.insert({"n": -1})

    def put(n: int) -> None:
        table.insert({"n": n}, timeout=60)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    with pytest.raises(di_store.Timeout):
        table.insert({"n": 99}, timeout=0.02)
    seen = table.sample(9, timeout=60).data["n"].tolist()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(-1, 8))
