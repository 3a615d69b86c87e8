"""Leases of batches from several tables: each table holds its part, and one call ends all of them."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE, keys_of, leased
from warm import WARM

import di_store
from di_store import Fifo, Lifo, Once, Prioritized, Queue, Uniform
from di_store.replay.mixture import backend_of

SAMPLERS = {
    "uniform": Uniform(),
    "fifo": Fifo(),
    "lifo": Lifo(),
    "prioritized": Prioritized(0.6, 0.4),
    "once": Once(),
}
NAMES = ("a", "b", "c")


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def mixed(store: Any, n: int = 40, **options: Any) -> tuple[Any, list[Any]]:
    """A mixture of three tables of n rows, which say their table, and the tables; nothing is drawn from the last."""
    tables = []
    for number, name in enumerate(NAMES):
        table = store.create_table(name, **{"capacity": 100, **options})
        table.extend({"from": np.full(n, number), "n": np.arange(n)})
        tables.append(table)
    return store.mix({"a": 1, "b": 2, "c": 0}, seed=0), tables


def held(tables: list[Any]) -> list[int]:
    return [leased(table) for table in tables]


def parts(batch: Any) -> list[int]:
    """How many examples are of each table."""
    return [int((batch.source == place).sum()) for place in range(len(NAMES))]


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_table_holds_its_part(store: Any, sampler: str, limit: int) -> None:
    mixture, tables = mixed(store, sampler=SAMPLERS[sampler], max_times_sampled=limit)
    first, second = mixture.sample(12, lease=LONG), mixture.sample(12, lease=LONG)
    assert min(parts(first)[:2]) > 0
    assert held(tables) == [one + two for one, two in zip(parts(first), parts(second), strict=True)]
    assert len(set(keys_of(first)) | set(keys_of(second))) == 24, "nobody else draws a leased item"
    assert [number == 0 for number in first.lease.number] == [False, False, True]
    assert first.lease.extend(LONG) == 12
    assert mixture.ack(first) == 12
    assert held(tables) == parts(second)
    assert [len(table) for table in tables] == [
        40 - two - (one if limit == 1 else 0) for one, two in zip(parts(first), parts(second), strict=True)
    ]
    assert mixture.give_back(second.lease) == 12
    assert held(tables) == [0, 0, 0]
    assert [table.stats()["samples"] for table in tables] == parts(first)
    for place, table in enumerate(tables[:2]):
        mine = second.keys[second.source == place] & np.uint64(2**56 - 1)
        assert keys_of(table.sample(len(mine), lease=LONG)) == sorted(mine.tolist()), "drawn next"
    assert (mixture.ack(first), mixture.give_back(second), second.lease.extend(1)) == (0, 0, 0), "fenced"
    assert held(tables) == parts(second)


def test_batches_of_all_kinds_have_their_lease(store: Any) -> None:
    mixture, tables = mixed(store)
    out = mixture.sample(6, lease=LONG)
    earlier = out.lease
    assert mixture.sample(6, lease=LONG, out=out) is out
    narrow = mixture.sample(6, lease=LONG, columns="n", min_n=2, linger=0)
    assert [mixture.ack(each) for each in (earlier, out, narrow.to("cpu"))] == [6, 6, 6]
    assert mixture.sample(3).lease is None
    whole = mixture.sample(8, lease=LONG)
    halves = whole.split(2, by="n")
    assert [mixture.ack(half) for half in halves] == [4, 4]
    assert mixture.ack(whole) == 0
    assert mixture.ack(mixture.sample(5, lease=LONG).keys) == 5, "keys say their table"
    over = mixture.sample(5, lease=0)
    assert mixture.give_back(over) == 0
    assert held(tables) == [0, 0, 0]


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("replace", [True, False])
def test_a_loader_leases_each_batch_when_it_is_handed_out(store: Any, replace: bool, prefetch: int) -> None:
    mixture, tables = mixed(store)
    with mixture.loader(4, prefetch=prefetch, replace=replace, lease=0, timeout=PATIENCE) as loader:
        batch = next(loader)
        assert mixture.ack(batch) == 0, "over at once"
        assert store.check() == []  # ends what is over
        assert sum(held(tables)) == 4 * prefetch, "what is ahead is not over"
    assert held(tables) == [0, 0, 0]
    with mixture.loader(4, prefetch=prefetch, replace=replace, lease=LONG, timeout=PATIENCE) as loader:
        batches = [next(loader), next(loader)]
        assert sum(held(tables)) == 4 * (2 + prefetch)
    assert held(tables) == [sum(each) for each in zip(*map(parts, batches), strict=True)]
    assert sum(table.stats()["samples"] for table in tables) == 8
    assert [mixture.ack(batches[0]), mixture.give_back(batches[1])] == [4, 4]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_every_item_is_acknowledged_once(store: Any, prefetch: int) -> None:
    """Every third batch of the loader is given back; it ends when one table has too few items left."""
    mixture, tables = mixed(store, limiter=Queue(100))
    for table in tables:
        table.finish()
    seen: Counter[tuple[int, int]] = Counter()
    with mixture.loader(4, prefetch=prefetch, lease=LONG, timeout=PATIENCE) as loader:
        for number, batch in enumerate(loader):
            if number % 3 == 0:
                assert mixture.give_back(batch) == 4
                continue
            seen.update(zip(batch.data["from"].tolist(), batch.data["n"].tolist(), strict=True))
            assert mixture.ack(batch) == 4
    assert len(seen) > 40
    assert held(tables) == [0, 0, 0]
    for number, table in enumerate(tables):
        if len(table):
            seen.update((number, n) for n in table.sample(len(table)).data["n"].tolist())
    assert seen == dict.fromkeys(((number, n) for number in range(3) for n in range(40)), 1)


def test_a_draw_that_fails_leaves_no_lease(store: Any) -> None:
    mixture, tables = mixed(store)
    tables[1].reset()
    with pytest.raises(di_store.Timeout):
        mixture.sample(12, lease=LONG, timeout=0.02)
    assert held(tables) == [0, 0, 0]
    assert [table.stats()["samples"] for table in tables] == [0, 0, 0]


def test_a_dropped_table_does_not_keep_the_others(store: Any) -> None:
    mixture, tables = mixed(store)
    batches = [mixture.sample(12, lease=LONG) for _ in range(3)]
    store.drop_table("a")
    wanted = [parts(batch)[1] for batch in batches]
    assert min(wanted) > 0
    assert batches[0].lease.extend(LONG) == wanted[0]
    assert mixture.ack(batches[0]) == wanted[0]
    assert mixture.give_back(batches[1]) == wanted[1]
    assert mixture.ack(batches[2].keys) == wanted[2]
    assert leased(tables[1]) == 0


def test_a_table_that_cannot_be_reached_does_not_keep_the_others(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raises after the others' leases are ended; when it is repeated it ends the rest."""
    mixture, tables = mixed(store)
    batch = mixture.sample(12, lease=LONG)

    def locked(*_: Any) -> int:
        raise di_store.Timeout("the lock of table 'a'", "held by a stopped process")

    with monkeypatch.context() as patch:
        patch.setattr(backend_of(mixture).tables[0], "end_leases", locked)  # type: ignore[attr-defined]
        with pytest.raises(di_store.Timeout, match="stopped"):
            mixture.ack(batch)
    assert held(tables) == [parts(batch)[0], 0, 0]
    assert mixture.ack(batch) == parts(batch)[0]


def _acknowledge(mixture: Any, lease: Any, pipe: Any) -> None:
    pipe.send((lease.extend(LONG), mixture.ack(lease)))


def _hold(mixture: Any, pipe: Any) -> None:
    with mixture.loader(4, prefetch=2, lease=LONG) as loader:
        pipe.send(len(next(loader)))
        pipe.recv()


def in_another(work: Any, *arguments: Any) -> tuple[Any, Any]:
    """A process, and what it sends. The pipe is open as long as the process is referenced here."""
    ours, theirs = WARM.Pipe()
    process: Any = WARM.Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    process.ours = ours
    theirs.close()
    return process, ours.recv()


def test_another_process_may_acknowledge(store: Any) -> None:
    mixture, tables = mixed(store)
    batch = mixture.sample(12, lease=LONG)
    process, found = in_another(_acknowledge, mixture, batch.lease)
    process.join()
    assert found == (12, 12)
    assert held(tables) == [0, 0, 0]
    assert pickle.loads(pickle.dumps(batch.lease)).number == batch.lease.number
    assert mixture.ack(batch) == 0


def test_all_leases_of_a_killed_process_come_back(store: Any) -> None:
    mixture, tables = mixed(store)
    process, found = in_another(_hold, mixture)
    assert (found, sum(held(tables))) == (4, 12)
    process.kill()
    process.join()
    assert store.check() == []  # notices that a process has gone
    assert held(tables) == [0, 0, 0]
    assert sum(table.stats()["samples"] for table in tables) == 0


def test_a_lease_belongs_to_who_drew_it(store: Any) -> None:
    """A table's number says nothing in a mixture, and the reverse."""
    mixture, tables = mixed(store)
    batch, own = mixture.sample(4, lease=LONG), tables[0].sample(4, lease=LONG)
    for call in (tables[0].ack, tables[0].give_back):
        with pytest.raises(ValueError, match="a mixture has drawn"):
            call(batch)
    for call in (mixture.ack, mixture.give_back):
        with pytest.raises(ValueError, match="a table has drawn"):
            call(own.lease)
        with pytest.raises(ValueError, match="drawn without lease="):
            call(mixture.sample(1))
    for others in ("ba", "ca", "c"):
        assert store.mix(dict.fromkeys(others, 1)).ack(batch) == 0
    assert (mixture.ack(batch), tables[0].ack(own)) == (4, 4)
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises((ValueError, TypeError), match="lease="):
            mixture.sample(1, lease=wrong)
