"""Calls from asyncio: results and errors of the plain calls, and who is woken."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_tasks import BOUND_SECONDS, QUEUE, SCHEMA, SHORT, asleep, numbers, rows, run, wake_by_changes_alone
from pains import until

import di_store


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as made:
        yield made


# -- results and errors ---------------------------------------------------------------------------------------------


def test_calls_that_need_not_wait_give_what_the_plain_calls_give(store: Any) -> None:
    table = store.create_table("t", capacity=100, schema={**SCHEMA, "y": di_store.Spec((), "f4", late=True)})

    async def main() -> None:
        keys = await table.aio.insert({"x": 0})
        keys = np.append(keys, await table.aio.extend(rows(1, 3), priority=2.0))
        async with table.writer().aio as writer:
            items = await writer.append({"x": 4})
            more = await writer.extend(rows(5, 2))
            assert len(items.keys) == 1
            assert len(more.keys) == 2
            await writer.end_episode()
        with pytest.raises(di_store.WriterClosed):
            await writer.append({"x": 7})
        keys = np.concatenate([keys, items.keys, more.keys])
        assert await table.aio.update(keys, {"y": np.arange(7, dtype="f4")}) == 7
        batch = await table.aio.sample(32)
        assert set(numbers(batch)) <= set(range(7))
        assert (batch.data["y"] == batch.data["x"]).all()
        assert numbers(await table.aio.sample(3, columns="x", out=table.sample(3, columns="x"))) is not None
        ref = await store.aio.put(np.arange(3))
        assert (await store.aio.get(ref)).tolist() == [0, 1, 2]
        assert await store.aio.wait([ref]) == ([ref], [])
        assert await store.aio.publish("w", {"a": 1}) == 1
        found = await store.aio.latest("w")
        assert found == store.latest("w")

    run(main())


def outcome(call: Callable[[], Any]) -> tuple[str, ...]:
    """The error of a plain call."""
    with pytest.raises(Exception) as caught:
        call()
    return of_error(caught.value)


def of_error(error: BaseException) -> tuple[str, ...]:
    return type(error).__name__, str(error), str(getattr(error, "reason", "")), str(getattr(error, "culprit", ""))


def test_errors_are_those_of_the_plain_calls(store: Any) -> None:
    queue, empty = store.create_table("q", **QUEUE), store.create_table("e", capacity=9)
    queue.extend(rows(0, 100))
    full = store.create_table("full", capacity=10, schema=SCHEMA)
    writer, undelivered = queue.writer(), full.writer()
    absent = "00" * 20
    calls: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
        (queue.insert, queue.aio.insert, ({"x": 1},)),
        (queue.extend, queue.aio.extend, (rows(1, 2),)),
        (queue.sample, queue.aio.sample, (101,)),
        (empty.sample, empty.aio.sample, (1,)),
        (full.sample, full.aio.sample, (1,)),
        (writer.append, writer.aio.append, ({"x": 1},)),
        (writer.extend, writer.aio.extend, (rows(1, 2),)),
        (store.get, store.aio.get, (absent,)),
        (queue.sample, queue.aio.sample, (0,)),
        (queue.insert, queue.aio.insert, ({"z": 1},)),
        (undelivered.append, undelivered.aio.append, ({"z": 1},)),
    ]
    for plain, in_aio, arguments in calls:
        expected = outcome(lambda: plain(*arguments, timeout=SHORT))  # noqa: B023 - called at once

        async def main(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, ...]:
            try:
                await call(*arguments, timeout=SHORT)
            except Exception as error:
                return of_error(error)
            raise AssertionError(f"{call} has not failed")

        assert run(main(in_aio, arguments)) == expected
    assert run(store.aio.latest("none", timeout=SHORT)) is None
    assert run(store.aio.wait([absent], timeout=SHORT)) == ([], [di_store.Ref.parse(absent)])
    assert queue.stats()["samples"] == 0


def test_a_full_store_is_named(store: Any) -> None:
    store.put(np.zeros(30 << 20, np.uint8))
    value = np.zeros(40 << 20, np.uint8)
    expected = outcome(lambda: store.put(value, timeout=SHORT))
    with pytest.raises(di_store.StoreFull) as caught:
        run(store.aio.put(value, timeout=SHORT))
    assert of_error(caught.value) == expected


def test_stores_elsewhere_refuse_in_words(store: Any) -> None:
    class Elsewhere:
        in_memory = False
        in_steps = None

        def shown(self) -> str:
            return "'t' at b:1"

    for handle in (di_store.Table(Elsewhere()), di_store.Store.__new__(di_store.Store)):  # type: ignore[arg-type]
        handle._backend = Elsewhere()  # type: ignore[assignment]
        with pytest.raises(di_store.StoreError, match=r"'t' at b:1.*memory.*to_thread"):
            _ = handle.aio


# -- waking ---------------------------------------------------------------------------------------------------------


def test_each_kind_of_wait_is_woken(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", **QUEUE)

    async def main() -> None:
        got = await asleep(queue.aio.sample(1))
        queue.insert({"x": 1})
        assert numbers(await got) == [1]
        queue.extend(rows(0, 100))
        inserted = await asleep(queue.aio.insert({"x": 100}))
        assert numbers(queue.sample(1)) == [0]
        assert len(await inserted) == 1
        writer = queue.writer().aio
        appended = await asleep(writer.append({"x": 101}))
        assert numbers(queue.sample(1)) == [1]
        assert len((await appended).keys) == 1
        ref = di_store.Ref.parse("11" * 20)
        got_object, waited = await asleep(store.aio.get(ref, timeout=None)), await asleep(store.aio.wait([ref]))
        store.put(5, id=ref.id)
        assert await got_object == 5
        assert await waited == ([ref], [])
        newest = await asleep(store.aio.latest("w", newer_than=0, timeout=None))
        store.publish("w", [1])
        assert (await newest).version == 1  # type: ignore[union-attr]

    run(main())


def test_tasks_get_items_in_the_order_in_which_they_came(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", **QUEUE)

    async def main() -> list[int]:
        tasks = [await asleep(queue.aio.sample(1)) for _ in range(40)]
        for at in range(40):
            queue.insert({"x": at})
            assert numbers(await tasks[at]) == [at]
            assert not any(task.done() for task in tasks[at + 1 :])
        return [len(tasks)]

    assert run(main()) == [40]


def test_inserts_of_many_tasks_are_all_made(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", **QUEUE)

    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.aio.insert({"x": at})) for at in range(300)]
        got: list[int] = []
        while len(got) < 300:
            got += numbers(await queue.aio.sample(1))
        await asyncio.gather(*tasks)
        assert sorted(got) == list(range(300))

    run(main())


def test_a_draw_may_exceed_the_queue(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task holds its draws while it waits, as a plain call does."""
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", capacity=10, schema=SCHEMA, limiter=di_store.Queue(4))

    async def main() -> None:
        got = await asleep(queue.aio.sample(12))
        for at in range(12):
            await queue.aio.insert({"x": at})
        assert numbers(await got) == list(range(12))

    run(main())


def test_linger_ends_a_wait(store: Any) -> None:
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 3))
    assert numbers(run(queue.aio.sample(5, min_n=2, linger=0.01))) == [0, 1, 2]


def test_ten_thousand_tasks_wait_in_one_thread(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", capacity=20_000, schema=SCHEMA, limiter=di_store.Queue(20_000))
    many = 10_000

    async def main() -> None:
        with pytest.raises(di_store.Timeout):
            await queue.aio.sample(1, timeout=0.01)  # now the thread is there
        threads, before = len(os.listdir("/proc/self/task")), resident()
        tasks = [asyncio.ensure_future(queue.aio.sample(1)) for _ in range(many)]
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/task")) == threads
        assert resident() - before < 64 << 20
        queue.extend(rows(0, many))
        batches = await asyncio.gather(*tasks)
        assert sorted(number for batch in batches for number in numbers(batch)) == list(range(many))

    run(main())


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_two_loops_in_two_threads_share_the_waiter(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", **QUEUE)
    got: list[list[int]] = [[], []]

    def consume(into: list[int]) -> None:
        async def main() -> None:
            for batch in await asyncio.gather(*(queue.aio.sample(1) for _ in range(50))):
                into.extend(numbers(batch))

        run(main())

    loops = [threading.Thread(target=consume, args=(each,)) for each in got]
    for each in loops:
        each.start()
    run(queue.aio.extend(rows(0, 100)))
    for each in loops:
        each.join(BOUND_SECONDS)
    assert sorted(got[0] + got[1]) == list(range(100))


def test_more_numbers_than_one_call_of_the_kernel_takes(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    tables = [store.create_table(f"t{at}", capacity=4, schema=SCHEMA) for at in range(140)]

    async def main() -> None:
        tasks = [await asleep(table.aio.sample(1)) for table in tables]
        for at in reversed(range(140)):
            tables[at].insert({"x": at})
            assert numbers(await tasks[at]) == [at]

    run(main())


def _poll(name: str, pipe: Any) -> None:
    table = di_store.attach(name).table("t")
    pipe.send("begun")
    batch = asyncio.run(table.aio.sample(1, timeout=BOUND_SECONDS))
    pipe.send(numbers(batch))


def test_kernels_without_the_call_are_polled(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", capacity=4, schema=SCHEMA)
    monkeypatch.setenv("DI_STORE_FAULT", "futex_waitv:1:EINVAL+")
    ours, theirs = mp.Pipe()
    child = mp.get_context("spawn").Process(target=_poll, args=(store.name, theirs))
    child.start()
    assert ours.recv() == "begun"
    until(lambda: bool(store.stats()["waiters"]), "the task to wait")
    table.insert({"x": 3})
    assert ours.recv() == [3]
    child.join(BOUND_SECONDS)
