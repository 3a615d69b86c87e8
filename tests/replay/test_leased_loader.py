"""Loaders with leases: what is drawn ahead, what the consumer has, and where it goes in the end."""

from __future__ import annotations

import gc
import multiprocessing as mp
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE, keys_of, leased
from pains import Program, until
from warm import WARM

import di_store
from di_store import Fifo, Group, Lifo, MinHeap, Once, Prioritized, Queue, Uniform

SAMPLERS = {
    "uniform": Uniform(),
    "fifo": Fifo(),
    "lifo": Lifo(),
    "heap": MinHeap(),
    "prioritized": Prioritized(0.6, 0.4),
    "once": Once(),
}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def numbers(store: Any, n: int = 40, **options: Any) -> Any:
    """A table of n numbered items."""
    table = store.create_table("t", **{"capacity": 100, **options})
    table.extend({"n": np.arange(n)})
    return table


def drawn(batch: Any) -> list[int]:
    return [int(n) for n in batch.data["n"]]


@pytest.mark.parametrize("prefetch", [0, 1, 8])
@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_batch_has_its_lease_and_close_ends_those_ahead(
    store: Any, sampler: str, limit: int, prefetch: int
) -> None:
    """As if the batches that were not handed out had never been drawn."""
    table = numbers(store, sampler=SAMPLERS[sampler], max_times_sampled=limit)
    loader = table.loader(4, prefetch=prefetch, lease=LONG)
    batches = [next(loader), next(loader)]
    held = 4 * min(2 + prefetch, 10)
    assert (leased(table), len(table)) == (held, 40 - held)
    loader.close()
    assert (leased(table), len(table), table.stats()["samples"]) == (8, 32, 8)
    assert len({batch.lease.number for batch in batches}) == 2
    assert len({key for batch in batches for key in keys_of(batch)}) == 8, "nobody else draws a leased item"
    rest = table.sample(32, lease=LONG, timeout=PATIENCE)
    assert rest.times_sampled.tolist() == [1] * 32
    assert set(rest.keys).isdisjoint(key for batch in batches for key in batch.keys)
    if sampler in ("fifo", "lifo"):
        found = [n for batch in [*batches, rest] for n in drawn(batch)]
        assert found == sorted(found, reverse=sampler == "lifo"), "what came back waits for its turn"
    assert (table.ack(batches[0]), table.give_back(batches[1]), table.ack(batches[0])) == (4, 4, 0)
    assert (leased(table), table.stats()["samples"]) == (32, 36)
    assert keys_of(table.sample(4, lease=LONG)) == keys_of(batches[1])


def test_the_seconds_begin_with_next(store: Any) -> None:
    """What is drawn ahead stays leased however long it waits."""
    table = numbers(store)
    with table.loader(4, prefetch=2, lease=0) as loader:
        first = next(loader)
        assert table.ack(first) == 0, "over at once"
        assert store.check() == []  # ends what is over
        assert leased(table) == 8
        second = next(loader)
        assert not set(second.keys) & set(first.keys)
        assert second.lease.extend(LONG) == 0
        assert leased(table) == 8, "one more is drawn ahead"
    assert (leased(table), len(table), table.stats()["samples"]) == (0, 40, 0)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_no_item_is_in_two_batches(store: Any, sampler: str, replace: bool) -> None:
    table = numbers(store, sampler=SAMPLERS[sampler])
    with table.loader(10, prefetch=8, replace=replace, lease=LONG, timeout=PATIENCE) as loader:
        batches = [next(loader) for _ in range(4)]
        assert sorted(n for batch in batches for n in drawn(batch)) == list(range(40))
        assert table.ack(batches[2]) == 10
        assert keys_of(next(loader)) == keys_of(batches[2]), "only these are left to draw"


@pytest.mark.parametrize("prefetch", [0, 1, 8])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_finished_table_gives_each_item_until_it_is_acknowledged(store: Any, limit: int, prefetch: int) -> None:
    """Also those that were given back while the last batches were ahead; the loader ends once nothing is leased."""
    table = numbers(store, 42, sampler=Fifo(), max_times_sampled=limit)
    table.finish()
    counts: Counter[int] = Counter()
    returned = 0
    with table.loader(4, prefetch=prefetch, lease=LONG, timeout=PATIENCE) as loader:
        for number, batch in enumerate(loader):
            if number % 3 == 0 and number < 30:
                returned += table.give_back(batch)
                continue
            counts.update(drawn(batch))
            assert table.ack(batch) == len(batch)
        assert list(loader) == []
    assert returned > 0
    assert counts == dict.fromkeys(range(42), limit)
    assert len(table) == 0


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_end_of_data_waits_for_what_is_leased(store: Any, prefetch: int) -> None:
    table = numbers(store, 8, limiter=Queue(10))
    table.finish()
    with table.loader(8, prefetch=prefetch, lease=LONG, timeout=PATIENCE) as loader:
        first = next(loader)

        def give_back() -> None:
            until(lambda: store.stats()["waiters"], "next() to wait")
            table.give_back(first)

        thread = threading.Thread(target=give_back)
        thread.start()
        again = next(loader)
        thread.join(PATIENCE)
        assert drawn(again) == drawn(first)
        assert table.ack(again) == 8
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_rest_that_is_dropped_stays_in_the_table(store: Any, prefetch: int) -> None:
    """Though a whole batch comes back meanwhile."""
    table = numbers(store, 14, limiter=Queue(20))
    table.finish()
    with table.loader(4, prefetch=prefetch, drop_last=True, lease=LONG, timeout=PATIENCE) as loader:
        first, second = next(loader), next(loader)
        assert (table.give_back(first), table.ack(second)) == (4, 4)
        found = []
        for batch in loader:
            found += drawn(batch)
            assert table.ack(batch) == 4
    assert len(found) == 8
    assert set(found).isdisjoint(drawn(second))
    assert (len(table), leased(table)) == (2, 0)


def test_groups_come_whole(store: Any) -> None:
    schema = {"n": di_store.Spec((), "i8"), "group": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=8, view=Group(3), schema=schema, limiter=Queue(8))
    table.extend({"n": np.arange(18), "group": np.arange(18) // 3})
    with table.loader(2, prefetch=1, lease=LONG, timeout=PATIENCE) as loader:
        batch = next(loader)
        assert batch.data["group"].tolist() == [[0] * 3, [1] * 3]
        assert leased(table) == 4
    assert table.give_back(batch) == 2
    assert table.sample(6).data["group"][:, 0].tolist() == list(range(6))


@pytest.mark.parametrize("call", ["delete", "reset", "resize", "configure", "drop_table"])
def test_changes_of_the_table_beside_batches_ahead(store: Any, call: str) -> None:
    """The batches ahead come all the same; `ack` counts the items that are still leased."""
    table = numbers(store)
    with table.loader(4, prefetch=2, lease=LONG, timeout=PATIENCE) as loader:
        first = next(loader)
        while not all(ready.done for ready in tuple(loader._prefetch._queue)):
            pass  # a copy that is under way would fail
        if call == "delete":
            assert table.delete(table.peek(np.arange(0)).keys) == 0
            assert table.delete(first.keys) == 4
        elif call == "drop_table":
            store.drop_table("t")
        else:
            {"reset": table.reset, "resize": lambda: table.resize(30), "configure": lambda: table.configure(
                limiter=di_store.MinSize(2))}[call]()  # fmt: skip
        ended = {"delete": 0, "reset": 0, "drop_table": None}.get(call, 4)
        if ended is None:
            with pytest.raises(di_store.TableNotFound):
                table.ack(first)
            return
        second = next(loader) if call != "reset" else None
        assert table.ack(first) == ended
        if second is not None:
            assert table.ack(second) == 4
    assert leased(table) == 0
    assert table.stats()["samples"] == {"reset": 0}.get(call, 8)


def test_values_that_cannot_be_loaded_are_acknowledged(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Opaque(), limiter=Queue(10))
    table.extend(["a", Broken(), "b", "c"])
    with table.loader(2, prefetch=1, lease=LONG, timeout=PATIENCE) as loader:
        with pytest.raises(di_store.StoreError, match="cannot be loaded"):
            next(loader)
        found: list[str] = []
        table.finish()
        for batch in loader:
            found += batch.data
            assert table.ack(batch) == len(batch)
    assert sorted(found) == ["a", "b", "c"]


class Broken:
    def __reduce__(self) -> Any:
        return float, ("no number",)


def test_threads_share_a_loader(store: Any) -> None:
    table = numbers(store, 100, limiter=Queue(100))
    table.finish()
    seen: list[int] = []
    with table.loader(4, prefetch=3, lease=LONG, timeout=PATIENCE) as loader:

        def work(number: int) -> None:
            for count, batch in enumerate(loader):
                if (count + number) % 4 == 0 and count < 8:
                    assert table.give_back(batch) == len(batch)
                    continue
                seen.extend(drawn(batch))
                assert table.ack(batch) == len(batch)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert sorted(seen) == list(range(100))


def test_a_dropped_loader_gives_back_what_it_held(store: Any) -> None:
    table = numbers(store)
    loader = table.loader(4, lease=LONG)
    batch = next(loader)
    del loader
    gc.collect()
    until(lambda: leased(table) == 4, "its thread to give back the batches ahead")
    assert table.ack(batch) == 4


def _hold(table: Any, pipe: Any) -> None:
    loader = table.loader(4, prefetch=2, lease=LONG)
    pipe.send(drawn(next(loader)))
    pipe.recv()


def test_all_batches_of_a_killed_process_come_back(store: Any) -> None:
    table = numbers(store, sampler=Fifo())
    ours, theirs = WARM.Pipe()
    holder: Any = WARM.Process(target=_hold, args=(table, theirs), daemon=True)
    holder.start()
    theirs.close()
    assert ours.recv() == [0, 1, 2, 3]
    assert leased(table) == 12
    holder.kill()
    holder.join()
    assert store.check() == []  # notices that a process has gone
    assert (leased(table), table.stats()["samples"]) == (0, 0)
    assert drawn(table.sample(40, replace=False)) == list(range(40))


def _use_in_child(loader: Any, table: Any, batch: Any) -> None:
    with pytest.raises(di_store.StoreClosed, match="fork"):
        next(loader)
    loader.close()
    assert table.ack(batch) == 4


def test_a_forked_child_leaves_the_batches_ahead_alone(store: Any) -> None:
    """It may acknowledge what the parent has handed it."""
    table = numbers(store)
    with table.loader(4, prefetch=2, lease=LONG) as loader:
        child = mp.get_context("fork").Process(target=_use_in_child, args=(loader, table, next(loader)))
        child.start()
        child.join(120)
        assert child.exitcode == 0
        assert store.check() == []
        assert leased(table) == 8
        assert table.ack(next(loader)) == 4


ENDS = """
import sys, di_store
table = di_store.attach(sys.argv[1]).table("t")
loader = table.loader(4, prefetch=2, lease=600)
kept = next(loader)
print(table.stats()["leased"]["items"], flush=True)
"""


def test_the_end_of_the_interpreter_ends_all_leases(store: Any) -> None:
    table = numbers(store)
    with Program(ENDS, store.name) as program:
        assert program.line() == "12"
        assert program.process.wait(120) == 0
    assert store.check() == []
    assert (leased(table), table.stats()["samples"]) == (0, 0)


@pytest.mark.parametrize("wrong", [{"lease": -1}, {"lease": "1"}, {"lease": float("nan")}, {"leas": 1}])
def test_wrong_options_are_refused(store: Any, wrong: dict[str, Any]) -> None:
    table = numbers(store)
    with pytest.raises((ValueError, TypeError), match="leas"):
        table.loader(4, **wrong)
    assert leased(table) == 0
