"""Reverb's limiters, tables and datasets: what its documentation promises, on tables in shared memory."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reverb_serving import Serve, drawn, serve, table

from di_store.adapters import reverb

__all__ = ["serve"]  # a fixture

TRACES = Path(__file__).parent.parent / "golden" / "reverb_limiter_traces.json"


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_items_wait_for_the_limiter_in_order(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 2))
    writer = client.trajectory_writer(1)
    for number in range(6):
        writer.append([number])
        writer.create_item("t", 1.0, writer.history[0][-1:])
    assert client.server_info()["t"].current_size == 2
    with pytest.raises(reverb.DeadlineExceededError):
        writer.flush(timeout_ms=1)
    with pytest.raises(reverb.DeadlineExceededError):
        writer.end_episode(timeout_ms=1)
    writer.flush(block_until_num_items=4)
    assert [int(data[0][0]) for data in drawn(client, count=6)] == list(range(6))
    writer.flush(timeout_ms=5_000)
    with pytest.raises(ValueError, match="block_until_num_items"):
        writer.flush(-1)


def test_a_writer_that_leaves_waits_for_its_items(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 1))
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(drawn(client, count=3)))
    reader.start()
    with client.trajectory_writer(1) as writer:
        for number in range(3):
            writer.append([number])
            writer.create_item("t", 1.0, writer.history[0][-1:])
    reader.join(30)
    assert len(found) == 3


def test_a_closed_writer_drops_waiting_items(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 1))
    writer = client.trajectory_writer(1)
    writer.append([1])
    for _ in range(3):
        writer.create_item("t", 1.0, writer.history[0][:])
    writer.close()
    assert len(drawn(client)) == 1
    with pytest.raises(reverb.DeadlineExceededError):
        client._connect().table("t").draw(2, 0.3)  # at most one was on its way


def test_the_first_writer_waits_with_many_items_in_flight(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 1))
    writer = client.writer(1, max_in_flight_items=2)
    done = threading.Event()

    def write() -> None:
        for number in range(5):
            writer.append([number])
            writer.create_item("t", 1, 1.0)
        writer.close()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.2)
    assert [int(data[0][0]) for data in drawn(client, count=5)] == list(range(5))
    assert done.wait(30)
    with pytest.raises(ValueError, match="already been called"):
        writer.close()


def trace_settings(trace: dict[str, Any]) -> tuple[dict[str, Any], reverb.rate_limiters.RateLimiter]:
    """The table of a recorded trace."""
    numbers = trace["limiter"]
    ratio, least = numbers.get("ratio", 1.0), numbers.get("min_size", numbers.get("n"))
    if numbers["kind"] == "MinSize":
        limiter: Any = reverb.rate_limiters.MinSize(least)
    else:
        width = max(ratio * least * numbers["tolerance"], ratio, 1.0)
        limiter = reverb.rate_limiters.SampleToInsertRatio(ratio, least, float(width))
    selector = {"fifo": reverb.selectors.Fifo, "lifo": reverb.selectors.Lifo}[trace["sampler"]]()
    changes = {"sampler": selector, "max_size": trace["capacity"], "max_times_sampled": trace["max_times_sampled"]}
    return changes, limiter


def test_limiters_decide_as_in_reverb(serve: Serve) -> None:
    """Single inserts and draws: what passes at once is what Reverb let pass."""
    traces = json.loads(TRACES.read_text())
    assert len(traces) > 60
    for trace in traces[::4]:
        if trace["limiter"]["kind"] in ("Queue", "Stack"):
            make = reverb.Table.queue if trace["limiter"]["kind"] == "Queue" else reverb.Table.stack
            made = make("t", trace["capacity"])
        else:
            changes, limiter = trace_settings(trace)
            made = table(rate_limiter=limiter, **changes)
        client = serve(made)
        service = client._connect().table("t")
        form = service.declare([])
        row = {"form": form.key, "item": form.pack([])}
        for operation, allowed in trace["ops"][:60]:
            if operation == "delete":
                break
            can = made.can_insert(1) if operation == "insert" else made.can_sample(1)
            assert can == allowed, (trace["limiter"], operation)
            if operation == "insert":
                assert service.insert(row, 1.0, 0.0) == allowed, trace["limiter"]
                continue
            try:
                passed = len(service.draw(1, 0.0)) == 1
            except reverb.DeadlineExceededError:
                passed = False
            assert passed == allowed, trace["limiter"]


@pytest.mark.parametrize(
    ("ratio", "least", "buffer", "fine"),
    [(5, 10, 4, False), (0.5, 10, 0.9, False), (0.5, 10, 1.1, True), (1, 10, (5, 9), True), (1, 10, (11, 15), False)]
    + [(1, 0, (-100, 100), False), (1, 10, (7, 12), True), (0, 10, 100, False), (-1, 10, 100, False)],
)
def test_bands_that_cannot_work_are_refused(ratio: float, least: int, buffer: Any, fine: bool) -> None:
    if fine:
        reverb.rate_limiters.SampleToInsertRatio(ratio, least, buffer)
    else:
        with pytest.raises(ValueError):
            reverb.rate_limiters.SampleToInsertRatio(ratio, least, buffer)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_priorities_lead_the_draws_and_can_be_changed(serve: Serve) -> None:
    client = serve(table())
    for number, priority in enumerate([1.0, 0.1, 0.0]):
        client.insert([number], {"t": priority})
    counts = Counter(int(data[0][0]) for data in drawn(client, count=4_000))
    assert counts[2] == 0
    assert 0.86 < counts[0] / 4_000 < 0.95
    keys = {int(step[0].data[0]): step[0].info.key for step in client.sample("t", 200)}
    client.mutate_priorities("t", updates={keys[0]: 0.0, 12345: 1.0}, deletes=[keys[1], 99])
    client.insert([7], {"t": 1.0})
    assert {int(data[0][0]) for data in drawn(client, count=50)} == {7}
    assert client.server_info()["t"].current_size == 3


@pytest.mark.parametrize(
    ("sampler", "wanted"),
    [("Fifo", 0), ("Lifo", 4), ("MinHeap", 3), ("MaxHeap", 1)],
)
def test_selectors_choose_the_documented_items(serve: Serve, sampler: str, wanted: int) -> None:
    client = serve(table(sampler=getattr(reverb.selectors, sampler)()))
    for number, priority in enumerate([3.0, 9.0, 4.0, 1.0, 5.0]):
        client.insert([number], {"t": priority})
    assert {int(data[0][0]) for data in drawn(client, count=5)} == {wanted}


@pytest.mark.parametrize(("remover", "left"), [("Fifo", {2, 3}), ("MinHeap", {0, 3}), ("MaxHeap", {1, 3})])
def test_removers_choose_the_documented_items(serve: Serve, remover: str, left: set[int]) -> None:
    kinds = {"sampler": reverb.selectors.Uniform(), "remover": getattr(reverb.selectors, remover)(), "max_size": 2}
    client = serve(table(**kinds))
    for number, priority in enumerate([3.0, 1.0, 2.0, 2.5]):
        client.insert([number], {"t": priority})
    found = {int(data[0][0]) for data in drawn(client, count=60)}
    assert len(found) == 2
    assert 3 in found
    if remover == "Fifo":
        assert found == left


def test_a_reset_table_is_empty_and_counts_anew(serve: Serve) -> None:
    client = serve(table(rate_limiter=reverb.rate_limiters.MinSize(2)))
    client.reset("t")
    for number in range(3):
        client.insert([number], {"t": 1.0})
    before = {step[0].info.key for step in client.sample("t", 50)}
    client.reset("t")
    assert client.server_info()["t"].current_size == 0
    client.insert([1], {"t": 1.0})
    with pytest.raises(reverb.DeadlineExceededError):
        client._connect().table("t").draw(1, 0.01)
    client.insert([1], {"t": 1.0})
    assert before.isdisjoint({step[0].info.key for step in client.sample("t", 50)})


def test_table_infos_are_complete(serve: Serve) -> None:
    made = table(max_size=50, signature=reverb.TensorSpec((1,), np.int64))
    assert made.info.current_size == 0
    assert made.info.sampler_options.prioritized.priority_exponent == 1.0
    client = serve(made, reverb.Table.stack("s", 3))
    for number in range(4):
        client.insert([number], {"t": float(number == 2)})
    next(client.sample("t"))
    info = client.server_info()["t"]
    assert (info.current_size, info.max_size, info.num_unique_samples) == (4, 50, 1)
    limits = info.rate_limiter_info
    assert (limits.insert_stats.completed, limits.sample_stats.completed, limits.min_size_to_sample) == (4, 1, 1)
    stack = client.server_info()["s"]
    assert stack.sampler_options.HasField("lifo")
    assert not stack.sampler_options.HasField("uniform")
    assert stack.max_times_sampled == 1
    assert made.can_sample(100)
    assert made.can_insert(1)
    assert made.replace(name="u", max_size=7).info.max_size == 7
    assert made.replace().info.current_size == 0


def test_impossible_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="At least one table"):
        reverb.Server([])
    with pytest.raises(ValueError, match="same name: t"):
        reverb.Server([table(), table()])
    with pytest.raises(ValueError, match="Prioritized is not supported"):
        reverb.Server([table(remover=reverb.selectors.Prioritized(1.0))])
    with pytest.raises(ValueError, match="nonempty"):
        table("")
    with pytest.raises(ValueError, match="max_size"):
        table(max_size=0)
    with pytest.raises(ValueError, match="signature"):
        table(signature={"a": 1})
    with pytest.raises(ValueError, match="server's machine"):
        reverb.Client("10.1.2.3:8000")
    client = reverb.Client("localhost:1")
    for call in (lambda: client.trajectory_writer(0), lambda: client.writer(0), lambda: client.writer(2, False, 3)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(reverb.DeadlineExceededError):
        client.server_info(timeout=0)


def insert_many(writer: reverb.Writer, count: int) -> None:
    """Insert items of 256 KiB."""
    for number in range(count):
        writer.append([np.full(1 << 18, number % 256, np.uint8)])
        writer.create_item("t", 1, 1.0)


def test_a_table_larger_than_memory_holds_as_much_as_fits() -> None:
    server = reverb.Server([table(max_size=10**12)], memory="64MiB")
    client = server.localhost_client()
    with client.writer(1) as writer, pytest.warns(RuntimeWarning, match="evicted before capacity"):
        insert_many(writer, 300)
    size = client.server_info()["t"].current_size
    assert 20 < size < 256
    server.stop()


# --- datasets --------------------------------------------------------------------------------------------------------


def filled(serve: Serve, count: int = 10, **changes: Any) -> reverb.Client:
    client = serve(table(**changes))
    with client.trajectory_writer(3) as writer:
        for number in range(count + 2):
            writer.append({"x": np.full((2, 2), number, np.float32), "n": number})
            if number > 1:
                writer.create_item("t", 1.0 + number, {"x": writer.history["x"][-3:], "n": writer.history["n"][-1]})
    return client


SHAPES = {"x": (3, 2, 2), "n": ()}
DTYPES = {"x": np.float32, "n": np.int64}


def test_a_dataset_gives_items(serve: Serve) -> None:
    client = filled(serve)
    dataset = reverb.TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, 4, max_samples=50)
    found = list(dataset)
    assert len(found) == 50
    for sample in found:
        assert sample.data["x"][:, 0, 0].tolist() == [sample.data["n"] - 2, sample.data["n"] - 1, sample.data["n"]]
        assert sample.info.priority == 1.0 + sample.data["n"]
        assert sample.info.table_size == 10
        assert type(sample.info.key) is np.uint64
        assert type(sample.info.times_sampled) is np.int32
    assert client.server_info()["t"].rate_limiter_info.sample_stats.completed == 50


def test_a_dataset_of_batches_ends_after_max_samples(serve: Serve) -> None:
    client = filled(serve)
    options = {"max_samples": 10, "rate_limiter_timeout_ms": 1_000}
    dataset = reverb.TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, 4, **options)
    assert [len(batch.data["n"]) for batch in dataset.batch(4)] == [4, 4, 2]
    assert client.server_info()["t"].rate_limiter_info.sample_stats.completed == 10


def test_a_dataset_gives_batches(serve: Serve) -> None:
    client = filled(serve)
    dataset = reverb.TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, 4)
    iterator = dataset.batch(8, drop_remainder=True).prefetch(2).as_numpy_iterator()
    for _ in range(5):
        batch = next(iterator)
        assert batch.data["x"].shape == (8, 3, 2, 2)
        assert batch.data["x"].dtype == np.float32
        assert (batch.data["x"][:, 2, 1, 1] == batch.data["n"]).all()
        assert (batch.info.priority == 1.0 + batch.data["n"]).all()
        assert batch.info.table_size.tolist() == [10] * 8
        assert np.allclose(batch.info.probability, batch.info.priority / sum(range(3, 13)))
    doubled = dataset.take(6).map(lambda info, data: data["n"] * 2).batch(4)
    assert [len(each) for each in doubled] == [4, 2]


def test_a_dataset_ends_when_no_item_arrives(serve: Serve) -> None:
    client = filled(serve, sampler=reverb.selectors.Fifo(), max_times_sampled=1)
    options = {"max_in_flight_samples_per_worker": 3, "rate_limiter_timeout_ms": 20}
    dataset = reverb.TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, **options)
    assert [sample.data["n"] for sample in dataset] == list(range(2, 12))
    client = filled(serve, sampler=reverb.selectors.Fifo(), max_times_sampled=1)
    dataset = reverb.TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, **options)
    assert [len(batch.data["n"]) for batch in dataset.batch(4)] == [4, 4, 2]


def test_a_dataset_gives_items_of_different_lengths(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 10))
    with client.trajectory_writer(10) as writer:
        for number in range(10):
            writer.append([np.full(2, number)])
            writer.create_item("t", 1.0, {"all": writer.history[0][:], "last": writer.history[0][-1]})
    dtypes, shapes = {"all": np.int64, "last": np.int64}, {"all": (None, 2), "last": (2,)}
    dataset = reverb.TrajectoryDataset(client.server_address, "t", dtypes, shapes, 4, max_samples=10)
    assert [len(sample.data["all"]) for sample in dataset] == list(range(1, 11))


def test_a_dataset_follows_the_signature(serve: Serve) -> None:
    signature = {"x": reverb.TensorSpec((None, 2, 2), np.float32), "n": reverb.TensorSpec((), np.int64)}
    client = filled(serve, signature=signature)
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "t", 4)
    assert next(iter(dataset)).data["x"].shape == (3, 2, 2)
    assert dataset.element_spec.data == signature
    with pytest.raises(ValueError, match=r"does not contain any table named u\. Found: t"):
        reverb.TrajectoryDataset.from_table_signature(client.server_address, "u", 4)
    with pytest.raises(ValueError, match="does not have a signature"):
        reverb.TrajectoryDataset.from_table_signature(filled(serve).server_address, "t", 4)


def test_a_dataset_that_does_not_match_the_table_is_refused(serve: Serve) -> None:
    client = filled(serve)
    wrong = reverb.TrajectoryDataset(client.server_address, "t", DTYPES, {**SHAPES, "x": (4, 2, 2)}, 4)
    with pytest.raises(ValueError, match="where dtypes= and shapes= have"):
        next(iter(wrong))
    with pytest.raises(ValueError, match="columns, not 1"):
        next(iter(reverb.TrajectoryDataset(client.server_address, "t", np.float32, (3, 2, 2), 4)))
    with pytest.raises(ValueError, match="different structures"):
        reverb.TrajectoryDataset(client.server_address, "t", DTYPES, {"x": (3, 2, 2)}, 4)
    for name in ("max_in_flight_samples_per_worker", "num_workers_per_iterator", "max_samples", "batch"):
        with pytest.raises(ValueError, match="positive integer"):
            options = {"max_in_flight_samples_per_worker": 1} | ({name: 0} if name != "batch" else {})
            reverb.TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, **options).batch(0)
