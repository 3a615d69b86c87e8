"""Bad input gets a typed error that names what helps, and leaves nothing half-done."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


@pytest.fixture
def table(store: Any) -> Any:
    schema = {
        "obs": {"image": di_store.Spec((2, 2), "u1"), "speed": di_store.Spec((), "f4")},
        "reward": di_store.Spec((), "f4"),
    }
    return store.create_table("t", capacity=10, schema=schema, sampler=di_store.Prioritized(0.6, 0.4))


def good(n: int | None = None) -> dict[str, Any]:
    """A step that fits."""
    lead = () if n is None else (n,)
    image = np.zeros((*lead, 2, 2), np.uint8)
    return {"obs": {"image": image, "speed": np.zeros(lead, np.float32)}, "reward": np.zeros(lead, np.float32)}


def unchanged(table: Any) -> tuple[Any, ...]:
    """What a refused call must leave as it was."""
    stats = table.stats()
    return len(table), table.keys().tolist(), stats["inserts"], stats["samples"]


def with_leaf(step: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A step with one leaf replaced (or added); None removes it."""
    *inner, leaf = path.split("/")
    node = step
    for name in inner:
        node = node[name]
    if value is None:
        del node[leaf]
    else:
        node[leaf] = value
    return step


WRONG = [
    ("obs/image", np.zeros((2, 3), np.uint8), ["obs/image", "(2, 2)", "(2, 3)"]),
    ("obs/image", np.zeros((2, 2), np.float32), ["obs/image", "uint8", "float32"]),
    ("obs/image", np.zeros((4, 2, 2), np.uint8), ["obs/image", "(2, 2)", "(4, 2, 2)"]),
    ("obs/speed", None, ["obs/speed"]),
    ("obs/speedy", np.float32(1), ["obs/speedy"]),
    ("reward", "much", ["reward"]),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG, ids=lambda each: str(each)[:20])
@pytest.mark.parametrize("way", ["append", "insert"])
def test_wrong_shapes_dtypes_and_keys_are_refused(
    table: Any, way: str, path: str, value: Any, words: list[str]
) -> None:
    with table.writer() as writer:
        call = writer.append if way == "append" else table.insert
        call(good())
        before = unchanged(table)
        with pytest.raises(di_store.SchemaMismatch) as caught:
            call(with_leaf(good(), path, value))
        for word in words:
            assert word in str(caught.value)
        assert unchanged(table) == before
        call(good())
    assert len(table) == 2


def test_wrong_leaf_in_one_lane_writes_in_none(table: Any) -> None:
    with table.writer(lanes=3) as writer:
        writer.append(good(3))
        before = unchanged(table)
        with pytest.raises(di_store.SchemaMismatch):
            writer.append(with_leaf(good(3), "reward", np.zeros(2, np.float32)))
        with pytest.raises(di_store.SchemaMismatch):
            writer.extend(with_leaf(good(3), "reward", np.zeros((4, 3), np.float32)))
        for lane in (3, -4, [0, 7]):
            with pytest.raises((ValueError, IndexError)):
                writer.append(good(), lane=lane)
        assert unchanged(table) == before
        assert writer.append(good(3)).starts.tolist() == [1, 1, 1]


@pytest.mark.parametrize("priority", [float("nan"), float("inf"), -1.0])
def test_priorities_must_be_finite_and_not_negative(table: Any, priority: float) -> None:
    with table.writer() as writer:
        keys = writer.append(good(), priority=2.0).keys
        before = unchanged(table)
        calls: list[Callable[[], Any]] = [
            lambda: writer.append(good(), priority=priority),
            lambda: table.insert(good(), priority=priority),
            lambda: writer.extend(good(2), priority=np.array([1.0, priority])),
            lambda: table.update_priorities(np.append(keys, keys), [5.0, priority]),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="priorit"):
                call()
            assert unchanged(table) == before
    assert table.peek(keys).priorities.tolist() == [2.0]


def test_all_priorities_zero_waits_and_says_so(table: Any) -> None:
    key = table.insert(good(), priority=0.0)
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(1, timeout=0.05)
    assert "priorit" in caught.value.reason
    assert table.update_priorities(key, [1.0]) == 1
    assert len(table.sample(1, timeout=60).keys) == 1


def create(store: Any, **options: Any) -> Any:
    return store.create_table("new", **{"capacity": 10, "schema": {"x": di_store.Spec((), "f4")}, **options})


REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({"limiter": "Queue(5)", "sampler": "Uniform()"}, ValueError, "sampler"),
    ({"limiter": "Queue(5)", "remover": "Lifo()"}, ValueError, "remover"),
    ({"limiter": "Queue(5)", "max_times_sampled": 2}, ValueError, "max_times_sampled"),
    ({"limiter": "Stack(5)", "sampler": "Fifo()"}, ValueError, "sampler"),
    ({"limiter": "Queue(11)"}, ValueError, "capacity"),
    ({"limiter": "MinSize(11)"}, ValueError, "capacity"),
    ({"limiter": "SamplesPerInsert(2.0, 11, 0.1)"}, ValueError, "capacity"),
    ({"capacity": 0}, ValueError, "capacity"),
    ({"capacity": -3}, ValueError, "capacity"),
    ({"capacity": 10**30}, (ValueError, di_store.CapacityError), "capacity"),
    ({"capacity": 2.5}, (TypeError, ValueError), "capacity"),
    ({"capacity": None}, ValueError, "max_bytes"),
    ({"lanes": 0}, ValueError, "lanes"),
    ({"max_times_sampled": -1}, ValueError, "max_times_sampled"),
    ({"sampler": "Prioritized(-1.0)"}, ValueError, "alpha"),
    ({"sampler": "Prioritized(float('nan'))"}, ValueError, "alpha"),
    ({"sampler": "Prioritized(0.6, -0.4)"}, ValueError, "beta"),
    ({"sampler": "Once(0)"}, ValueError, "epochs"),
    ({"sampler": 3}, TypeError, "sampler"),
    ({"remover": "Prioritized(1.0)"}, (TypeError, ValueError), "remover"),
    ({"limiter": "MinSize(0)"}, ValueError, "MinSize"),
    ({"limiter": "SamplesPerInsert(0.0, 1, 0.1)"}, ValueError, "ratio"),
    ({"limiter": "SamplesPerInsert(-1.0, 1, 0.1)"}, ValueError, "ratio"),
    ({"limiter": "SamplesPerInsert(1.0, 1, -0.1)"}, ValueError, "tolerance"),
    ({"limiter": "Queue(0)"}, ValueError, "size"),
    ({"view": "Transition(n_step=0)"}, ValueError, "n_step"),
    ({"view": "Transition(gamma=float('nan'))"}, ValueError, "gamma"),
    ({"view": "Transition(frame_pad='last')"}, ValueError, "frame_pad"),
    ({"view": "Sequence(0)"}, ValueError, "length"),
    ({"view": "Sequence(3, period=0)"}, ValueError, "period"),
    ({"view": "Sequence(3, tail='cut')"}, ValueError, "tail"),
    ({"view": "Sequence(3, first=('nothing',))"}, ValueError, "nothing"),
    ({"view": "Episode(0)"}, ValueError, "max_length"),
    ({"max_staleness": 2}, ValueError, "weights"),
    ({"max_staleness": -1, "weights": "policy"}, ValueError, "max_staleness"),
    ({"initial_priority": float("nan")}, ValueError, "initial_priority"),
    ({"initial_priority": "min"}, ValueError, "initial_priority"),
    ({"columns": ("nothing",)}, ValueError, "nothing"),
    pytest.param({"durability": "disk"}, ValueError, "durability", marks=pytest.mark.memory_only),
    ({"schema": {"x": "text"}}, (ValueError, TypeError), "x"),
    ({"schema": {}}, ValueError, "column"),
    ({"view": "Opaque()"}, ValueError, "schema"),
    ({"view": "Opaque()", "schema": None, "columns": ("x",)}, ValueError, "columns"),
    ({"max_bytes": 10}, di_store.CapacityError, "max_bytes"),
    ({"max_bytes": 10, "capacity": None}, di_store.CapacityError, "max_bytes"),
]


@pytest.mark.parametrize(("options", "error", "word"), REFUSED, ids=lambda each: str(each)[:40])
def test_impossible_settings_are_refused(store: Any, options: dict[str, Any], error: Any, word: str) -> None:
    with pytest.raises(error) as caught:
        create(store, **{name: built(value) for name, value in options.items()})
    assert word in str(caught.value)
    with pytest.raises(di_store.TableNotFound):
        store.table("new")
    assert len(create(store)) == 0, "the name is free and the memory too"


def built(value: Any) -> Any:
    """A setting written as text, evaluated late so that its own refusal counts."""
    if isinstance(value, str) and value.endswith(")"):
        return eval(value, vars(di_store) | {"float": float})  # our own literals
    return value


@pytest.mark.parametrize(
    ("view", "column"),
    [
        ("Transition()", "steps"),
        ("Transition()", "next_obs"),
        ("Sequence(3)", "mask"),
        ("Sequence(3)", "lengths"),
        ("Sequence(3, cross_episodes=True)", "is_first"),
        ("Episode(3)", "mask"),
        ("Episode(3)", "lengths"),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
def test_a_column_named_like_a_view_output_is_refused(store: Any, view: str, column: str, declared: bool) -> None:
    step = {"obs": np.float32(0), "reward": np.float32(0), column: np.float32(0)}
    if declared:
        with pytest.raises(ValueError, match=column):
            create(store, view=built(view), schema=step)
    else:
        table = store.create_table("new", capacity=10, view=built(view))
        with table.writer() as writer, pytest.raises(ValueError, match=column):
            writer.append(step)
        assert len(table) == 0
    store.create_table("plain", capacity=10, schema=step)  # Step() reserves no name


def test_a_repeated_observation_must_equal_the_stored_one(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Transition())
    with table.writer(lanes=2) as writer:
        obs = np.zeros(2, np.float32)
        step = {"obs": obs, "reward": np.zeros(2, np.float32)}
        writer.append(step, next={"obs": obs + 1})
        before = unchanged(table)
        with pytest.raises(ValueError, match="end_episode"):
            writer.append({**step, "obs": np.array([1, 7], np.float32)})
        assert unchanged(table) == before
        writer.end_episode(lane=[1])
        assert writer.append({**step, "obs": np.array([1, 7], np.float32)}, next={"obs": obs}).starts.tolist() == [1, 0]


def test_a_capacity_beyond_memory_is_refused(store: Any) -> None:
    live = store.stats()
    frame = {"frame": di_store.Spec((84, 84), "u1"), "action": di_store.Spec((), "i8")}
    with pytest.raises(di_store.CapacityError) as caught:
        create(store, capacity=10_000_000, schema=frame)
    assert "frame" in str(caught.value), "names the field that dominates"
    assert "memory" in str(caught.value)
    assert store.stats().keys() == live.keys()
    with pytest.raises(di_store.CapacityError, match=r"\d+ MiB for item slots"):
        create(store, capacity=2**21, schema={"x": di_store.Spec((), "u1")})
    table = store.create_table("late", capacity=10_000_000)
    with table.writer() as writer, pytest.raises(di_store.CapacityError):
        writer.append({"frame": np.zeros((84, 84), np.uint8)})
    assert len(table) == 0


def test_a_resize_below_current_use_changes_nothing(store: Any) -> None:
    table = create(store, limiter=di_store.MinSize(5))
    table.extend({"x": np.arange(10, dtype=np.float32)})
    before = unchanged(table)
    for capacity in (0, 4, 10**12):
        with pytest.raises((di_store.CapacityError, ValueError)):
            table.resize(capacity)
        assert unchanged(table) == before
    with pytest.raises(di_store.CapacityError):
        store.resize(memory=4096)


@pytest.mark.parametrize("rows", [11, 100_000])
def test_an_extend_larger_than_the_table_is_refused(store: Any, rows: int) -> None:
    """Refused at once, however far its rows are beyond the table's bytes."""
    table = create(store)
    with pytest.raises(ValueError, match="capacity"):
        table.extend({"x": np.zeros(rows, np.float32)}, timeout=1)
    with table.writer() as writer, pytest.raises(ValueError, match="capacity"):
        writer.extend({"x": np.zeros(rows, np.float32)}, timeout=1)
    assert len(table) == 0


def test_closed_writers_and_finished_tables_refuse_rows(store: Any) -> None:
    table = create(store)
    with table.writer() as writer:
        writer.append({"x": np.float32(0)})
    with pytest.raises(di_store.WriterClosed):
        writer.append({"x": np.float32(0)})
    other = table.writer()
    table.finish()
    with pytest.raises(di_store.EndOfData):
        other.append({"x": np.float32(0)})
    with pytest.raises(di_store.EndOfData):
        table.insert({"x": np.float32(0)})
    assert len(table) == 1


def test_a_writer_belongs_to_one_thread(store: Any) -> None:
    writer = create(store).writer()
    writer.append({"x": np.float32(0)})
    found: list[BaseException] = []

    def use() -> None:
        try:
            writer.append({"x": np.float32(1)})
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60)
    assert [type(error) for error in found] == [di_store.WriterClosed]
    assert "thread" in str(found[0])
    writer.append({"x": np.float32(2)})


def use_after_fork(writer: Any, table: Any, pipe: Any) -> None:
    try:
        writer.append({"x": np.float32(1)})
    except di_store.WriterClosed:
        table.insert({"x": np.float32(2)})
        pipe.send("closed")


def test_a_writer_is_closed_in_a_fork(store: Any) -> None:
    table = create(store)
    writer = table.writer()
    writer.append({"x": np.float32(0)})
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=use_after_fork, args=(writer, table, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == "closed"
    child.join(60)
    writer.append({"x": np.float32(3)})
    assert np.asarray(table.peek(table.keys()).data["x"]).tolist() == [0, 2, 3]


def test_writers_loaders_and_batches_do_not_pickle(store: Any) -> None:
    table = create(store)
    table.insert({"x": np.float32(0)})
    for made in (table.writer(), table.sample(1, timeout=60), table.loader(1)):
        with pytest.raises(TypeError):
            pickle.dumps(made)
        getattr(made, "close", lambda: None)()


@pytest.mark.parametrize("n", [0, -1, 1.5])
def test_absurd_batch_sizes_are_refused(table: Any, n: Any) -> None:
    table.insert(good())
    with pytest.raises((ValueError, TypeError)):
        table.sample(n, timeout=1)
    with pytest.raises((ValueError, TypeError)):
        table.loader(n)
    assert table.stats()["samples"] == 0


def test_unknown_columns_and_bad_reading_options_are_refused(table: Any) -> None:
    key = table.insert(good())
    with pytest.raises(ValueError, match="nothing"):
        table.sample(1, timeout=1, columns=("nothing",))
    with pytest.raises(ValueError, match="nothing"):
        table.peek(key, columns=("nothing",))
    with pytest.raises(ValueError, match="beta"):
        table.sample(1, timeout=1, beta=-1.0)
    with pytest.raises(ValueError, match="min_n"):
        table.sample(2, timeout=1, min_n=3)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        table.sample(1, timeout=-1.0)
    with pytest.raises(ValueError):
        table.update_priorities(np.append(key, key), [1.0])
    assert table.stats()["samples"] == 0


@pytest.mark.parametrize("way", ["append", "next", "final", "end_episode", "extend"])
def test_errors_name_the_whole_path_of_a_wrong_key(table: Any, way: str) -> None:
    """Everywhere a step or an observation is given, the refusal names the whole path and what was expected."""
    leaf = np.ones(1, np.float32) if way == "extend" else np.float32(1)
    wrong: list[tuple[Any, list[str]]] = [
        ({"obs": {"speedy": leaf}}, ["obs/speedy", "obs/speed"]),
        ({"obs": leaf}, ["'obs'", "obs/image"]),
        ({"obs": {"image": {"pixels": leaf}}}, ["obs/image"]),
        (5, ["dict"]),
    ]
    with table.writer() as writer:
        writer.append(good())
        before = unchanged(table)
        calls: dict[str, Callable[[Any], Any]] = {
            "append": writer.append,
            "next": lambda value: writer.append(good(), next=value),
            "final": lambda value: writer.append(good(), final=value),
            "end_episode": writer.end_episode,
            "extend": writer.extend,
        }
        for value, words in wrong:
            with pytest.raises((di_store.SchemaMismatch, TypeError, ValueError)) as caught:
                calls[way](value)
            for word in words:
                assert word in str(caught.value)
            assert unchanged(table) == before
        with pytest.raises(TypeError, match="dict"):
            writer.append(None)
        assert writer.append(good()).starts.tolist() == [1]


@pytest.mark.parametrize("lane", ["0", 0.5, [0.0], True, [[0]], np.ones((1, 2), bool), slice(0, 1), {0}])
def test_lanes_of_the_wrong_type_are_refused(store: Any, lane: Any) -> None:
    with create(store).writer(lanes=2) as writer:
        writer.append({"x": np.zeros(2, np.float32)})
        with pytest.raises((TypeError, ValueError), match="lane="):
            writer.append({"x": np.zeros(1, np.float32)}, lane=lane)
        with pytest.raises((TypeError, ValueError), match="lane="):
            writer.end_episode(lane=lane)
        for nobody in ([], np.zeros(0, np.int64), np.zeros(2, bool)):
            assert len(writer.append({"x": np.zeros(0, np.float32)}, lane=nobody).keys) == 0
        assert writer.append({"x": np.zeros(2, np.float32)}).starts.tolist() == [1, 1]


@pytest.mark.parametrize("priority", [np.ones((3, 2)), np.ones(3), np.ones((2, 2)), 10**400, "high", [1.0, None]])
def test_priorities_of_the_wrong_shape_are_refused(store: Any, priority: Any) -> None:
    """Two steps of three lanes: one, `[T]` or `[T, lanes]`, and nothing that only has as many values."""
    with create(store).writer(lanes=3) as writer:
        with pytest.raises((ValueError, TypeError)):
            writer.extend({"x": np.zeros((2, 3), np.float32)}, priority=priority)
        for right in (1.0, [2.0], np.ones(2), np.ones((2, 1)), np.ones((2, 3))):
            assert len(writer.extend({"x": np.zeros((2, 3), np.float32)}, priority=right).keys) == 6


def test_python_values_need_an_opaque_table(store: Any) -> None:
    table = store.create_table("t", capacity=100, view=di_store.Opaque())
    with table.writer(lanes=2) as writer:
        assert writer.extend([["a", 1], [None, {"b": 2}]], timeout=60).lanes.tolist() == [0, 0, 1, 1]
        writer.append([b"c", (3,)], timeout=60)
        writer.append("one", lane=np.int64(1), timeout=60)
        for options in ({"next": 1}, {"final": 1}):
            with pytest.raises(ValueError, match="Opaque"):
                writer.append([1, 2], **options)
    assert list(table.peek(table.keys()).data) == ["a", 1, None, {"b": 2}, b"c", (3,), "one"]
    with store.create_table("u", capacity=10, view=di_store.Opaque()).writer() as single:
        assert len(single.extend(["a" * 5_000, "b"], timeout=60).keys) == 2


def test_a_row_too_large_for_any_table_is_refused(store: Any) -> None:
    """It is refused at once, and evicts nothing."""
    schema = {"x": di_store.Spec((None,), "u1")}
    table = store.create_table("t", capacity=50, schema=schema, max_bytes="1MiB", lanes=1)
    opaque = store.create_table("o", capacity=50, view=di_store.Opaque())
    opaque.insert("small")
    with table.writer() as writer:
        for _ in range(20):
            writer.append({"x": np.zeros(1_000, np.uint8)}, timeout=60)
        with pytest.raises(di_store.CapacityError, match="max_bytes"):
            writer.append({"x": np.zeros(2 << 20, np.uint8)})
        with pytest.raises(di_store.CapacityError, match="memory"):
            opaque.insert(np.zeros(65 << 20, np.uint8))
        writer.append({"x": np.zeros(1_000, np.uint8)}, timeout=60)
    assert len(table) == 21
    assert len(opaque) == 1


def test_exist_ok_compares_with_the_columns_that_the_first_step_declared(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    fits = {"x": di_store.Spec((2,), "f4")}
    with pytest.raises(di_store.TableExists, match="schema"):
        store.create_table("t", capacity=10, schema=fits, exist_ok=True)
    table.insert({"x": np.zeros(2, np.float32)})
    assert len(store.create_table("t", capacity=10, schema=fits, exist_ok=True)) == 1
    assert len(store.create_table("t", capacity=10, exist_ok=True)) == 1
    with pytest.raises(di_store.TableExists, match="'x'"):
        store.create_table("t", capacity=10, schema={"x": di_store.Spec((3,), "f4")}, exist_ok=True)
    with pytest.raises(TypeError, match="list"):
        store.writer("t")


def test_a_refusal_raises_one_error_without_a_context(store: Any) -> None:
    """The text that names the whole path replaces the core's, and the traceback shows no other."""
    nested: dict[str, Any] = {"obs": {"image": di_store.Spec((2, 2), "u1"), "speed": di_store.Spec((), "f4")}}
    steps = store.create_table("steps", capacity=10, schema=nested)
    rewarded = {**nested, "reward": di_store.Spec((), "f4")}
    pairs = store.create_table("pairs", capacity=10, schema=rewarded, view=di_store.Transition(obs=("obs/speed",)))
    runs = store.create_table("runs", capacity=10, schema=nested, view=di_store.Sequence(4))
    wrong = {"obs": {"image": np.zeros((2, 2), np.uint8), "speed": np.zeros(2, np.float64)}}
    lacking = {"obs": {"image": np.zeros((2, 2), np.uint8)}}
    many = {"obs": {"image": np.zeros((3, 2, 2), np.uint8), "speed": np.zeros(2, np.float32)}}
    with steps.writer() as writer, pairs.writer(lanes=2) as lanes:
        for call in (
            lambda: writer.append(wrong),
            lambda: writer.append(lacking),
            lambda: writer.append({**wrong, "more": 1}),
            lambda: writer.extend(many),
            lambda: lanes.append(wrong),
            lambda: steps.insert(wrong),
            lambda: steps.insert(lacking),
            lambda: steps.extend(many),
            lambda: pairs.insert(lacking),
            lambda: pairs.extend(many),
            lambda: runs.insert(many),
            lambda: store.create_table("steps", capacity=10, schema={"n": di_store.Spec((), "f4")}, exist_ok=True),
        ):
            with pytest.raises((di_store.SchemaMismatch, di_store.TableExists)) as caught:
                call()
            assert caught.value.__cause__ is None
            assert caught.value.__context__ is None or caught.value.__suppress_context__
