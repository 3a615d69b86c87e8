"""Calls from asyncio that end early, by cancelling, kills and closing: no item is taken for nothing, no row is lost."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as mp
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_tasks import QUEUE, SCHEMA, SHORT, asleep, numbers, rows, run, wake_by_changes_alone
from leasing import Holder, leased
from pains import until

import di_store
from di_store.runtime import waiter


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as made:
        yield made


# -- cancelling -----------------------------------------------------------------------------------------------------


def test_a_cancelled_sample_takes_no_item(store: Any) -> None:
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 3))

    async def main() -> None:
        task = await asleep(queue.aio.sample(5))
        assert queue.stats()["samples"] == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.stats()["samples"] == 0
        other = await asleep(queue.aio.sample(4))
        queue.insert({"x": 3})
        other.cancel()  # woken or not: it has not looked yet
        with pytest.raises(asyncio.CancelledError):
            await other

    run(main())
    assert numbers(queue.sample(4)) == [0, 1, 2, 3]
    assert store.check() == []


def test_a_cancelled_task_passes_its_wake_up_on(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were woken for an item are cancelled before they look: another task gets it."""
    wake_by_changes_alone(monkeypatch)
    queue = store.create_table("q", **QUEUE)

    async def main() -> None:
        tasks = [await asleep(queue.aio.sample(1)) for _ in range(100)]
        until(lambda: sum(len(each.tickets) for each in waiter._waiter._queues.values()) == 100, "all to be noted")
        queue.insert({"x": 1})
        until(lambda: sum(len(each.tickets) for each in waiter._waiter._queues.values()) < 100, "some to be woken")
        for task in tasks[:90]:
            task.cancel()
        done, rest = await asyncio.wait(tasks[90:], return_when=asyncio.FIRST_COMPLETED)
        assert [numbers(each.result()) for each in done] == [[1]]
        queue.extend(rows(2, 9))
        await asyncio.gather(*rest)

    run(main())


def test_a_cancelled_leased_sample_leases_nothing(store: Any) -> None:
    table = store.create_table("t", **QUEUE)
    table.extend(rows(0, 3))

    async def main() -> di_store.Batch:
        task = await asleep(table.aio.sample(5, lease=600))
        assert leased(table) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert leased(table) == 0
        return await table.aio.sample(3, lease=600)

    batch = run(main())
    assert leased(table) == 3
    assert table.ack(batch) == 3


@pytest.mark.parametrize("call", ["append", "extend", "insert", "extend items"])
def test_a_cancelled_write_has_written_nothing(store: Any, call: str) -> None:
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 100))
    writer = queue.writer()
    make: Callable[[], Awaitable[Any]] = {
        "append": lambda: writer.aio.append({"x": 100}),
        "extend": lambda: writer.aio.extend(rows(100, 2)),
        "insert": lambda: queue.aio.insert({"x": 100}),
        "extend items": lambda: queue.aio.extend(rows(100, 2)),
    }[call]

    async def main() -> None:
        for _ in range(3):
            task = await asleep(make())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(queue) == 100
        task = await asleep(make())
        assert numbers(queue.sample(1)) == [0]
        await task

    run(main())
    assert numbers(queue.sample(100)) == list(range(1, 101))


def test_a_writer_makes_one_call_at_a_time(store: Any) -> None:
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 100))
    writer = queue.writer().aio

    async def main() -> None:
        task = await asleep(writer.append({"x": 100}))
        for call in (writer.append({"x": 101}), writer.extend(rows(101)), writer.close(timeout=0)):
            with pytest.raises(di_store.StoreError, match="middle of another call"):
                await call
        queue.sample(1)
        await task

    run(main())
    assert numbers(queue.sample(100)) == list(range(1, 101))


@given(
    st.lists(
        st.tuples(st.sampled_from(["draw", "cancel", "insert", "insert later", "run", "drain"]), st.integers(0, 7))
    )
)
def test_every_item_is_drawn_once_whatever_is_cancelled(steps: list[tuple[str, int]]) -> None:
    """Tasks that draw and insert begin, run and are cancelled in any order: no item is lost, none comes twice."""
    with di_store.open(memory="64MiB") as store:
        queue = store.create_table("q", capacity=64, schema=SCHEMA, limiter=di_store.Queue(6))

        async def main() -> None:
            draws: list[asyncio.Task[di_store.Batch]] = []
            inserts: dict[int, asyncio.Task[Any]] = {}
            count = 0
            for step, at in steps:
                if step == "draw":
                    draws.append(asyncio.ensure_future(queue.aio.sample(at % 4 + 1)))
                elif step == "cancel":
                    (draws + list(inserts.values()))[at:][:1] and (draws + list(inserts.values()))[at].cancel()
                elif step.startswith("insert"):
                    inserts[count] = asyncio.ensure_future(queue.aio.insert({"x": count}))
                    count += 1
                    if step == "insert":
                        await asyncio.sleep(0)
                elif step == "run":
                    await asyncio.sleep(0.001 * (at % 2))
                elif len(queue):
                    draws.append(asyncio.ensure_future(queue.aio.sample(1)))
                    await asyncio.sleep(0)
            for draw in draws:
                draw.cancel()
            done = await asyncio.gather(*draws, return_exceptions=True)
            got = [number for each in done if isinstance(each, di_store.Batch) for number in numbers(each)]
            while len(queue) or any(not each.done() for each in inserts.values()):
                got += numbers(await queue.aio.sample(1))
            made = await asyncio.gather(*inserts.values(), return_exceptions=True)
            assert sorted(got) == [
                at for at, each in zip(inserts, made, strict=True) if not isinstance(each, BaseException)
            ]

        run(main())
        assert store.check() == []


# -- ends -----------------------------------------------------------------------------------------------------------


def test_a_killed_consumer_gives_its_items_to_waiting_tasks(store: Any) -> None:
    table = store.create_table("t", **QUEUE)
    table.extend(rows(0, 5))
    holder = Holder(table, 5)

    async def main() -> list[int]:
        task = await asleep(table.aio.sample(5))
        holder.kill()
        return numbers(await task)

    assert run(main()) == list(range(5))


def _produce(name: str) -> None:
    with di_store.attach(name).table("t").writer() as writer:
        for at in range(1_000_000):
            writer.append({"x": at})


def test_a_killed_producer_leaves_whole_items(store: Any) -> None:
    table = store.create_table("t", **QUEUE)
    producer = mp.get_context("spawn").Process(target=_produce, args=(store.name,), daemon=True)

    async def main() -> list[int]:
        first = await asleep(table.aio.sample(200))
        producer.start()
        got = numbers(await first)
        producer.kill()
        producer.join()
        with pytest.raises(di_store.Timeout, match="empty"):
            while True:
                got += numbers(await table.aio.sample(1, timeout=0.2))
        return got

    got = run(main())
    assert got == list(range(len(got)))
    assert store.check() == []


def test_closing_the_store_ends_all_waits(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    queue, writer = store.create_table("q", **QUEUE), store.create_table("full", **QUEUE).writer()
    store.table("full").extend(rows(0, 100))

    async def main() -> None:
        tasks = [await asleep(queue.aio.sample(1)) for _ in range(500)]
        tasks += [await asleep(writer.aio.append({"x": 1})), await asleep(store.table("full").aio.insert({"x": 1}))]
        tasks += [await asleep(store.aio.get("22" * 20, timeout=None))]
        store.close()
        for task in tasks:
            with pytest.raises((di_store.StoreClosed, di_store.WriterClosed)):
                await task
        with pytest.raises(di_store.StoreClosed):
            await queue.aio.sample(1)

    run(main())


def test_a_closed_loop_gives_draws_back(store: Any) -> None:
    """Also where nobody has cancelled its tasks."""
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 3))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a task was destroyed while it waited
    task = loop.create_task(queue.aio.sample(5))
    loop.run_until_complete(asyncio.sleep(0))
    assert queue.stats()["samples"] == 3
    loop.close()
    del loop, task
    until(lambda: (gc.collect(), queue.stats()["samples"])[1] == 0, "the draws to be given back")
    assert numbers(queue.sample(3)) == [0, 1, 2]


def test_a_call_needs_a_loop(store: Any) -> None:
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 3))
    with pytest.raises(RuntimeError, match="loop"):
        queue.aio.sample(5).send(None)
    assert queue.stats()["samples"] == 0


def test_a_forked_child_has_its_own_waiter(store: Any) -> None:
    queue = store.create_table("q", **QUEUE)
    queue.extend(rows(0, 3))

    def child() -> None:
        gc.collect()
        assert numbers(run(queue.aio.sample(1))) == [3]
        with pytest.raises(di_store.Timeout):
            run(queue.aio.sample(1, timeout=SHORT))

    async def main() -> None:
        task = await asleep(queue.aio.sample(5))
        queue.insert({"x": 3})  # nobody reads it meanwhile: this loop does not run
        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        queue.extend(rows(4, 2))
        assert numbers(await task) == [0, 1, 2, 4, 5]

    run(main())


def test_the_longest_wait_is_shown_and_logged(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = store.create_table("q", **QUEUE)
    monkeypatch.setattr("di_store.runtime.waits.LOG_SECONDS", 0.05)

    async def main() -> None:
        tasks = [await asleep(queue.aio.sample(1)) for _ in range(3)]
        while not (waiters := store.stats()["waiters"]) or not caplog.records:
            await asyncio.sleep(0.01)
        assert [each["kind"] for each in waiters] == ["items"]
        assert waiters[0]["table"] == "q"
        queue.extend(rows(0, 3))
        await asyncio.gather(*tasks)
        while store.stats()["waiters"]:
            await asyncio.sleep(0.01)

    run(main())
    assert "sample of 1 from table 'q' has waited" in caplog.text
    assert waiter._waiter._thread.lives()
