"""What a far store does as a near one does, where the tests of the public interface do not look at the transport."""

from __future__ import annotations

import gc
import multiprocessing as mp
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.far import attach_far, open_far
from cluster.served import TOKEN, agent_here

import di_store
from di_store.client.arguments import lane_of, numbers, travelling
from di_store.client.channel import Channel
from di_store.protocol.connection import Disconnected


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[di_store.Store]:
    monkeypatch.setenv("DI_STORE_TOKEN", "a token of the tests")
    with open_far(memory="64MiB") as opened:
        yield opened


def spec(kind: str = "i8") -> di_store.Spec:
    return di_store.Spec((), kind)


def test_an_error_keeps_the_connection_and_its_draws(store: di_store.Store) -> None:
    """The only connection of a client, which holds the draws of a loader."""
    table = store.create_table("t", capacity=20, sampler=di_store.Once(1))
    table.extend({"n": np.arange(20)})
    table.finish()
    with table.loader(4, prefetch=8, timeout=1) as loader:
        found = next(loader).data["n"].tolist()
        with pytest.raises(di_store.Timeout, match="16 draws"):
            table.sample(1, timeout=0)
        found += [n for batch in loader for n in batch.data["n"].tolist()]
    assert sorted(found) == list(range(20))


def test_a_mixture_works_in_a_forked_child(store: di_store.Store) -> None:
    store.create_table("t", capacity=4).extend({"n": np.arange(4)})
    mixture = store.mix({"t": 1}, seed=1)
    mixture.sample(1)
    ours, theirs = mp.get_context("fork").Pipe()
    child = mp.get_context("fork").Process(target=lambda: theirs.send(len(mixture.sample(3))))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == 3
    child.join(60)
    assert len(mixture.sample(2)) == 2


def test_rows_of_a_dropped_writer_still_arrive(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=1_000, schema={"n": spec()})
    writer = table.writer()
    made = [writer.append({"n": n}) for n in range(50)]
    del writer
    gc.collect()
    assert len(np.concatenate([each.keys for each in made])) == 50
    assert table.peek(table.keys()).data["n"].tolist() == list(range(50))


def test_rows_of_a_writer_dropped_with_its_store_still_arrive(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=1_000, schema={"n": spec()})
    with attach_far(store.name) as other:
        writer = other.table("t").writer()
        for n in range(50):
            writer.append({"n": n})
        del writer
        gc.collect()
    assert table.peek(table.keys()).data["n"].tolist() == list(range(50))


def test_a_failure_is_raised_once(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_STORE_WINDOW", "1")
    table = store.create_table("t", capacity=4, schema={"n": spec()})
    with table.writer(lanes=8) as writer:
        with pytest.raises(ValueError, match="capacity=4"):
            writer.append({"n": np.arange(8)})
        writer.append({"n": np.arange(2)}, lane=[0, 1])
    assert len(table) == 2


def test_a_warning_points_at_the_users_line(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Transition())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with table.writer() as writer:
            writer.append({"obs": 0.0, "reward": 0.0}, next={"obs": 1.0})
    assert [(each.filename, "end no episode" in str(each.message)) for each in caught] == [(__file__, True)]


@pytest.mark.parametrize("priority", [np.ones(3), np.ones((3, 2)), [1.0, None], "high", object()])
def test_a_priority_of_the_wrong_form_is_refused_at_the_call(store: di_store.Store, priority: Any) -> None:
    table = store.create_table("t", capacity=100, schema={"n": spec()})
    with table.writer(lanes=2) as writer:
        writer.append({"n": np.arange(2)})
        with pytest.raises((ValueError, TypeError), match="priorit"):
            writer.append({"n": np.arange(2)}, priority=priority)
        assert writer.append({"n": np.arange(2)}, priority=np.ones(2)).starts.tolist() == [1, 1]


class Odd:
    """Something that would have to be pickled."""


def test_values_that_would_be_pickled_are_refused_by_the_client(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=10, schema={"n": spec(), "text": di_store.Spec((None,), "u1", max=9)})
    good = {"n": 1, "text": b"abc"}
    with table.writer() as writer:
        writer.append(good)
        for call in (table.insert, writer.append, lambda row: writer.append(good, next=row)):
            with pytest.raises(di_store.SchemaMismatch, match=r"'n'.*Odd"):
                call({**good, "n": Odd()})
        with pytest.raises(TypeError, match="key 7"):
            table.insert({**good, 7: 1})
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(di_store.SchemaMismatch):
            table.insert({**good, "n": endless})
        with pytest.raises(TypeError, match="memory="):
            store.resize(Odd())  # type: ignore[arg-type]
        assert writer.append(good).starts.tolist() == [1]


def test_a_call_that_is_too_large_is_refused_before_it_is_sent(store: di_store.Store) -> None:
    large = np.broadcast_to(np.uint8(0), (2**30 + 1,))
    table = store.create_table("t", capacity=10, max_bytes="8MiB", schema={"x": di_store.Spec((None,), "u1")})
    with pytest.raises(di_store.CapacityError, match=r"'x'.*1 GiB"):
        table.insert({"x": large})
    assert table.insert({"x": large[:3]}).size == 1


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ((1, [2.0, "x", None]), (1, [2.0, "x", None])),
        (np.array([None, {"a": 1}], object), [None, {"a": 1}]),
        (bytearray(b"ab"), [97, 98]),
        (memoryview(b"ab"), [97, 98]),
    ],
    ids=["lists", "objects", "bytes", "view"],
)
def test_values_are_sent_as_plain_values(value: Any, made: Any) -> None:
    found = travelling(value)
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == made


def test_lanes_and_priorities_are_sent_as_numbers() -> None:
    assert lane_of(np.int32(3)) == 3
    assert lane_of([]) == lane_of(np.zeros(0, np.int64)) == []
    assert lane_of([1, 0]).tolist() == [1, 0]
    assert numbers({"t": np.float32([1, 2])}) == {"t": [1.0, 2.0]}
    with pytest.raises(TypeError, match="lane="):
        lane_of(Odd())
    with pytest.raises(TypeError, match="priority="):
        numbers({"t": Odd()})


def test_calls_that_need_the_stores_machine_are_refused(tmp_path: Path) -> None:
    """These calls, and the pages of ideas name them."""
    pages = [path.read_text() for path in (Path(__file__).resolve().parents[2] / "docs").glob("ideas*.md")]
    with (
        di_store.open(memory="64MiB") as near,
        agent_here(near) as agent,
        di_store.connect(f"di-store://{agent.address}", token=TOKEN) as store,
    ):
        table = store.create_table("t", capacity=10, schema={"n": spec()})
        calls: list[tuple[Callable[..., Any], Any]] = [
            (store.checkpoint, tmp_path),
            (table.export, tmp_path / "t"),
            (store.import_table, tmp_path / "t"),
            (store.reserve, np.zeros(3)),
        ]
        for call, value in calls:
            with pytest.raises(di_store.StoreError, match=r"on node .* \(run it there, with di_store\.attach"):
                call(value)
            assert all(f"`{call.__name__}`" in page for page in pages), call.__name__


def test_an_insert_with_a_lost_answer_is_made_once(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only connection of the client breaks: it comes back, and hears what was answered before."""
    table = store.create_table("t", capacity=10, schema={"n": spec()})
    near = di_store.attach(store.name).table("t")
    answer, cut = Channel._answer, []

    def lost(self: Channel, connection: Any, *rest: Any) -> Any:
        if cut:
            return answer(self, connection, *rest)
        while not len(near):
            pass
        cut.append(connection)
        connection.close()
        raise Disconnected("cut")

    monkeypatch.setattr(Channel, "_answer", lost)
    key = table.insert({"n": 7})
    assert cut
    assert near.keys().tolist() == key.tolist()
