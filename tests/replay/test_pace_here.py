"""`Pace` in a store of this machine: killed publishers, files, tasks, wrong values."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE
from pacing import PROMPTS, SCHEMA, drawn_later, prompts, publish, room

import di_store
from di_store import Pace, Queue, _core
from di_store.replay.serving import handle_of
from di_store.runtime import waits


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def test_publish_wakes_no_draws_for_other_weights(store: di_store.Store) -> None:
    table = prompts(store)
    other = store.create_table("other", capacity=9, limiter=Pace("another", 1), schema=SCHEMA)
    before = [handle_of(each).native.items_seq() for each in (table, other)]
    publish(store)
    after = [handle_of(each).native.items_seq() for each in (table, other)]
    assert after == [before[0] + 1, before[1]]


def _publish_and_die(store: di_store.Store, point: str) -> None:
    _core.arm_fault(point)
    publish(store)
    os._exit(0)


@pytest.mark.parametrize(("point", "there"), [("heap.publish_sealed", False), ("heap.published", True),
                                              ("weights.announced", True)])  # fmt: skip
def test_a_killed_publisher_holds_nobody_up(store: di_store.Store, point: str, there: bool) -> None:
    """A version that is there counts, whether or not anybody was woken; another one is published in its place."""
    publish(store)
    table = prompts(store, ahead=0)
    table.sample(4)
    waiter, found = drawn_later(table, 8)
    process = mp.get_context("fork").Process(target=_publish_and_die, args=(store, f"{point}:1"))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    if not there:
        publish(store)
    waiter.join(PATIENCE)
    assert found == [4, 5, 6, 7]
    assert room(table) == 0


def test_who_waits_for_a_version_is_not_abandoned(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step may take longer than the minute without writers after which other draws give up."""
    monkeypatch.setattr(waits, "ABANDONED_SECONDS", 0.001)
    table = prompts(store, ahead=0)
    looks: list[bool] = []
    attended = waits.SampleWait.check_attended

    def noted(self: Any, *rest: Any) -> None:
        attended(self, *rest)
        looks.append(True)
        if len(looks) == 3:
            publish(store)

    monkeypatch.setattr(waits.SampleWait, "check_attended", noted)
    table.sample(4)
    assert len(table.sample(2)) == 2
    table.delete(table.keys())
    with pytest.raises(di_store.Timeout, match="would wait forever"):
        table.sample(1)


def test_a_checkpoint_goes_on_where_it_was(store: di_store.Store, tmp_path: Path) -> None:
    """Leased items are not drawn in it; the acknowledged ones count, and those that are trained."""
    publish(store, 2)
    table = prompts(store)
    table.sample(3)
    publish(store)
    table.sample(4, lease=LONG)
    store.checkpoint(tmp_path / "saved")
    assert room(table) == 5
    for changed, expected in (({}, 9), ({"limiter": Pace("policy", 4, 0)}, 5), ({"limiter": Pace("other", 7)}, 14)):
        with di_store.restore(tmp_path / "saved", memory="64MiB", tables={"t": changed} if changed else {}) as other:
            again = other.table("t")
            assert room(again) == expected
            publish(other)
            assert room(again) == expected + 4 * (not changed or changed["limiter"].weights == "policy")
            assert again.stats()["limiter"]["kind"] == "Pace"
    with di_store.restore(tmp_path / "saved", memory="64MiB", tables={"t": {"limiter": di_store.MinSize(1)}}) as other:
        assert room(other.table("t"), PROMPTS - 3) == PROMPTS - 3
    table.configure(limiter=Pace("policy", 5, 0))
    store.checkpoint(tmp_path / "again")
    with di_store.restore(tmp_path / "again", memory="64MiB") as other:
        assert room(other.table("t")) == 6
        assert handle_of(other.table("t")).settings.limiter == Pace("policy", 5, 0)


def test_an_imported_table_counts_from_the_newest_version(store: di_store.Store, tmp_path: Path) -> None:
    publish(store, 2)
    table = prompts(store, max_times_sampled=3)
    table.sample(5)
    table.export(tmp_path / "table")
    publish(store, 3)
    assert room(store.import_table(tmp_path / "table", "copy")) == 8
    plain = store.import_table(tmp_path / "table", "plain", limiter=di_store.MinSize(1))
    assert room(plain, PROMPTS - 1) == PROMPTS - 1, "one is used up"
    with di_store.open(memory="64MiB") as other:
        again = other.import_table(tmp_path / "table")
        assert room(again) == 8
        publish(other)
        assert room(again) == 12


def test_tasks_wait_for_versions(store: di_store.Store) -> None:
    publish(store)
    table = prompts(store, ahead=0)

    async def work() -> list[int]:
        await table.aio.sample(4)
        task = asyncio.create_task(table.aio.sample(4))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        await store.aio.publish("policy", {"w": np.zeros(1)})
        return list((await asyncio.wait_for(task, PATIENCE)).data["n"])

    assert asyncio.run(work()) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("made", "error", "named"),
    [
        (lambda: Pace("policy", 0), ValueError, r"Pace\(batch=\)=0 is below 1"),
        (lambda: Pace("policy", -3), ValueError, r"Pace\(batch=\)=-3"),
        (lambda: Pace("policy", 2**31), ValueError, "above"),
        (lambda: Pace("policy", 4, -1), ValueError, r"Pace\(ahead=\)=-1 is below 0"),
        (lambda: Pace("policy", 4, 2**20 + 1), ValueError, "above"),
        (lambda: Pace("policy", 4.5), TypeError, "whole number"),  # type: ignore[arg-type]
        (lambda: Pace("policy", True), TypeError, "whole number"),
        (lambda: Pace("policy", 4, None), TypeError, "whole number"),  # type: ignore[arg-type]
        (lambda: Pace("", 4), ValueError, r"Pace\(weights=''\): give the name that store.publish"),
        (lambda: Pace(7, 4), ValueError, r"Pace\(weights=7\)"),  # type: ignore[arg-type]
        (lambda: Pace("x" * 101, 4), ValueError, "100 bytes"),
    ],
)
def test_wrong_values_are_named(made: Callable[[], Pace], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        made()


def test_chosen_items_are_drawn_whole(store: di_store.Store) -> None:
    table = prompts(store, batch=2, ahead=0)
    keys = table.keys(n=3)
    with pytest.raises(di_store.Timeout, match="pace"):
        table.sample(keys=keys, timeout=0)
    assert table.sample(keys=keys[1:], timeout=0).data["n"].tolist() == [1, 2]


def test_leased_loaders_keep_the_pace(store: di_store.Store) -> None:
    table = prompts(store, batch=3, ahead=0)
    with table.loader(3, lease=LONG, timeout=0) as loader:
        batch = next(loader)
        with pytest.raises(di_store.Timeout, match="pace"):
            next(loader)
        table.ack(batch, counts=False)
        assert next(loader).data["n"].tolist() == [3, 4, 5]


def test_a_table_has_one_limiter(store: di_store.Store) -> None:
    both: Any = (Pace("policy", 4), Queue(4))
    with pytest.raises(TypeError, match=r"give one of MinSize, .*, Pace"):
        store.create_table("t", capacity=9, limiter=both)


def test_names_are_the_limit_of_a_store(store: di_store.Store) -> None:
    """A store has 256 names of weights; one more is refused, and no table is made."""
    for number in range(256):
        store.publish(str(number), 0)
    with pytest.raises(di_store.CapacityError, match="256 names of weights"):
        prompts(store)
    with pytest.raises(di_store.TableNotFound):
        store.table("t", timeout=0)


def test_mixtures_give_room_back(store: di_store.Store) -> None:
    table = prompts(store, batch=3, ahead=0)
    mixture = store.mix({"t": 1.0})
    batch = mixture.sample(3, lease=LONG)
    assert (room(table), mixture.ack(batch, counts=False), room(table)) == (0, 3, 3)
