"""Draws of chosen items: `sample(keys=, probabilities=)`."""

from __future__ import annotations

import multiprocessing as mp
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leasing import LONG, leased, take
from pains import is_stopped, until

import di_store
from di_store import Fifo, Group, Once, Opaque, Prioritized, SamplesPerInsert, Spec, Step, Uniform, _core
from di_store.replay.sampling import Terms
from replay.test_lease_rules import each_sampler, filled, shown

RAGGED = {"n": Spec((), "i8"), "tokens": Spec((None,), "i4", max=64)}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def row(view: Any, numbers: Any) -> Any:
    """Rows of these numbers for `test_chosen_items_come_in_the_order_of_their_keys`."""
    numbers = np.asarray(numbers)
    if isinstance(view, Opaque):
        return [{"n": int(n)} for n in numbers]
    return {"n": numbers, "tokens": [np.full(n % 5, n, np.int32) for n in numbers]}


@pytest.mark.parametrize("uses", [0, 3])
@pytest.mark.parametrize(
    ("view", "columns"),
    [(Step(), None), (Step(), "n"), (Opaque(), None), (Group(2, by="n"), None), (Group(2, by="n"), "n")],
    ids=repr,
)
@pytest.mark.parametrize("n", [1, 40, 700])
def test_chosen_items_come_in_the_order_of_their_keys(
    store: di_store.Store, n: int, view: Any, columns: str | None, uses: int
) -> None:
    """Alone and by the thousand, of every view, each time as often as its key is given."""
    answers = 2 if isinstance(view, Group) else 1
    options = {} if isinstance(view, Opaque) else {"schema": RAGGED}
    table = store.create_table("t", capacity=800, view=view, max_times_sampled=uses, lanes=1, **options)
    made = table.extend(row(view, np.arange(800).repeat(answers)))[::answers]
    places = np.random.default_rng(n).permutation(800)[:n]
    batch = table.sample(keys=made[places], columns=columns)
    assert batch.keys.tolist() == made[places].tolist()
    numbers = [value["n"] for value in batch.data] if isinstance(view, Opaque) else batch.data["n"].reshape(n, -1)[:, 0]
    assert list(numbers) == places.tolist()
    if not isinstance(view, Opaque) and columns is None:
        assert [each.tolist() for each in batch.data["tokens"]] == [
            [place] * (place % 5) for place in places.repeat(answers)
        ]
    assert batch.times_sampled.tolist() == [1] * n
    assert table.stats()["samples"] == n
    assert table.peek(made).times_sampled.sum() == n


@each_sampler
def test_a_chosen_draw_counts_as_one_by_the_sampler(store: di_store.Store, sampler: Any) -> None:
    """Whatever the sampler would have picked; a key that is repeated counts again, except with epochs and leases."""
    table = filled(store, sampler=sampler)
    keys = table.keys()
    epochs = isinstance(sampler, Once)
    batch = table.sample(keys=keys[[3, 1]] if epochs else keys[[3, 1, 3]])
    assert batch.times_sampled.tolist() == ([1, 1] if epochs else [1, 1, 2])
    assert table.stats()["samples"] == len(batch)
    if epochs:
        assert {*table.sample(4).keys} == {*keys} - {*batch.keys}  # the epoch misses what was not drawn
    if isinstance(sampler, Prioritized):
        table.update_priorities(keys, np.zeros(len(keys)))
        assert table.sample(keys=keys[:2]).keys.tolist() == keys[:2].tolist()  # the law is the caller's


@pytest.mark.parametrize(
    "sampler", [Uniform(), Prioritized(0.6, 0.4), Prioritized(0.6, 0.4, normalize="table")], ids=repr
)
@pytest.mark.parametrize("beta", [None, 1.0])
def test_weights_follow_from_the_given_probabilities(store: di_store.Store, sampler: Any, beta: float | None) -> None:
    table = filled(store, sampler=sampler)
    keys, law = table.keys(), np.array([0.1, 0.2, 0.05, 0.3, 0.15, 0.2])
    for columns in (None, "n"):  # in one step, and in several
        batch = table.sample(keys=keys, probabilities=law, beta=beta, columns=columns)
        assert (batch.probabilities == law).all()
        used = beta if beta is not None else getattr(sampler, "beta", None)
        expected = (law.min() / law) ** used if used is not None else np.ones(6)
        assert np.allclose(batch.weights, expected, rtol=1e-6)
        batch = table.sample(keys=keys, beta=beta, columns=columns)
        assert (batch.weights == 1).all()
        assert (batch.probabilities == 1).all()


BUSY, GONE = "1 is leased, used up by .*", "1 is no longer in the table, or stale"


def _leased(table: di_store.Table) -> Any:
    return take(table, 1).keys


def _deleted(table: di_store.Table) -> Any:
    keys = table.keys()[2:3]
    table.delete(keys)
    return keys


def _drawn(table: di_store.Table) -> Any:
    return table.sample(1).keys


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (_leased, {}, BUSY),
        (_deleted, {}, GONE),
        (_drawn, {"max_times_sampled": 1}, GONE),
        (_drawn, {"sampler": Once(2)}, BUSY),
        (lambda table: np.array([2**64 - 1], np.uint64), {}, GONE),
    ],
    ids=["leased", "deleted", "used up", "drawn in this epoch", "of no item"],
)
@pytest.mark.parametrize("lease", [None, LONG])
def test_items_that_cannot_be_drawn_are_named_and_nothing_is_drawn(
    store: di_store.Store, make: Any, options: Any, why: str, lease: float | None
) -> None:
    table = filled(store, **options)
    bad = make(table)
    good = np.setdiff1d(table.keys(), bad)[:3]
    before, keys = shown(table), np.concatenate([good[:1], bad, good[1:]])
    with pytest.raises(
        di_store.ObjectNotFound, match=rf"1 of the 4 items .* table 't': {why}; nothing was drawn \(choose again"
    ) as caught:
        table.sample(keys=keys, lease=lease, timeout=60)
    assert caught.value.keys.tolist() == bad.tolist()
    assert list(caught.value.places) == [1]
    assert shown(table) == before
    batch = table.sample(keys=keys, probabilities=[0.1, 0.2, 0.3, 0.4], min_n=3, beta=1.0, lease=lease)
    assert batch.keys.tolist() == good.tolist()
    assert batch.probabilities.tolist() == [0.1, 0.3, 0.4]
    assert leased(table) == (3 if lease else 0) + (make is _leased)


def test_a_chosen_item_that_is_stale_is_dropped_as_if_a_draw_had_found_it(store: di_store.Store) -> None:
    store.publish("w", np.zeros(1))
    table = store.create_table("t", capacity=9, weights="w", max_staleness=0)
    old = table.insert({"n": 0, "version": 1})
    store.publish("w", np.zeros(1))
    new = table.insert({"n": 1, "version": 2})
    assert table.sample(keys=[*old, *new], min_n=1).keys.tolist() == new.tolist()
    assert table.stats()["stale_dropped"] == 1
    assert table.keys().tolist() == new.tolist()


def test_many_keys_of_no_items_are_found_in_several_holds(store: di_store.Store) -> None:
    table = filled(store)
    keys = np.concatenate([np.arange(1_000, dtype=np.uint64) + (1 << 40), table.keys()])
    assert table.sample(keys=keys, min_n=6).keys.tolist() == table.keys().tolist()
    with pytest.raises(
        di_store.ObjectNotFound, match=r"1000 of the 1006 .*: 1000 are no longer in the table, or stale;"
    ):
        table.sample(keys=keys)


def test_a_used_up_item_is_drawn_by_its_key_as_often_as_the_limit_allows(store: di_store.Store) -> None:
    table = filled(store, max_times_sampled=3)
    key = table.keys()[0]
    with pytest.raises(di_store.ObjectNotFound):
        table.sample(keys=[key] * 4)
    assert table.sample(keys=[key] * 3).times_sampled.tolist() == [1, 2, 3]
    assert int(key) not in table.keys().tolist()


def test_a_chosen_draw_waits_for_the_limiter(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store, limiter=SamplesPerInsert(0.5, 1, 1))
    before, keys = shown(table), table.keys()
    with pytest.raises(di_store.Timeout, match="samples_per_insert"):
        table.sample(keys=keys, timeout=0.05)
    assert shown(table) == before
    with pytest.raises(di_store.ObjectNotFound, match="1 of the 7"):  # what is gone never comes
        table.sample(keys=np.append(keys, np.uint64(77 << 40)), timeout=60)
    assert shown(table) == before
    allowed = len(table.sample(keys=keys, min_n=2, timeout=0))
    assert allowed in (3, 4)
    table.configure(limiter=SamplesPerInsert(0.5, 1, 1))  # counts anew
    table.sample(keys=keys, min_n=1, timeout=0)
    table.extend({"n": np.arange(2)})  # one more draw
    with monkeypatch.context() as patch:
        patch.setattr(Terms, "pausing", None)  # nobody waits for what is gone
        gone = np.arange(5, dtype=np.uint64) + (1 << 40)
        assert len(table.sample(keys=np.append(keys[:1], gone), min_n=1, timeout=60)) == 1
    table.finish()
    with pytest.raises(di_store.EndOfData):
        table.sample(keys=keys)


def _stop_in_a_draw(table: di_store.Table) -> None:
    _core.arm_fault("table.draw_item:1:stop")
    table.sample(1)
    os._exit(0)


@pytest.mark.parametrize("options", [{}, {"lease": LONG}, {"columns": "n", "min_n": 1}], ids=str)
def test_a_chosen_draw_waits_for_the_lock_of_a_stopped_process(store: di_store.Store, options: Any) -> None:
    table = filled(store, max_times_sampled=9)
    keys = table.keys()
    process: Any = mp.get_context("fork").Process(target=_stop_in_a_draw, args=(table,))
    process.start()
    try:
        until(lambda: is_stopped(process.pid), "the process to stop")
        for timeout in (0, 0.5):
            with pytest.raises(
                di_store.Timeout, match=f"^sample of 2 from .* after {timeout} s: .* held by .*, stopped"
            ):
                table.sample(keys=keys[:2], timeout=timeout, **options)
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.join()
    assert table.sample(keys=keys[:2], timeout=60, **options).keys.tolist() == keys[:2].tolist()
    assert table.stats()["samples"] == 3


def test_keys_of_one_group_name_one_item(store: di_store.Store) -> None:
    """Without replacement, too: two of its answers would give the group twice."""
    table = store.create_table("t", capacity=9, view=Group(2, by="n"), schema=RAGGED, lanes=1)
    keys = table.extend(row(Group(2, by="n"), np.arange(3).repeat(2)))
    for options in ({}, {"columns": "n"}, {"lease": LONG}):
        with pytest.raises(ValueError, match="replace=False: keys= holds keys of several answers of a group"):
            table.sample(keys=keys[[0, 2, 3]], replace=False, timeout=0, **options)
    assert table.stats()["samples"] == 0
    assert table.sample(keys=keys[[3, 0]], replace=False).keys.tolist() == keys[[2, 0]].tolist()
    assert table.sample(keys=keys[[3, 2]]).times_sampled.tolist() == [2, 3]
    with pytest.raises(di_store.ObjectNotFound, match=f"1 of the 2 items .*: {BUSY}"):
        table.sample(keys=keys[[3, 2]], lease=LONG)  # leased by the first of them
    with pytest.raises(di_store.ObjectNotFound, match=r"1 is no longer .*, or of groups that lack answers;"):
        table.sample(keys=table.extend(row(Group(2, by="n"), [7])))


@pytest.mark.parametrize(("schema", "items"), [(RAGGED, 30), (None, 1_500)], ids=["ragged", "many"])
def test_a_chosen_draw_from_a_finished_table_ends(store: di_store.Store, schema: Any, items: int) -> None:
    """Looking for the items that the limiter holds back is no change that a learner waits for."""
    table = store.create_table("t", capacity=2_000, schema=schema, limiter=SamplesPerInsert(0.5, 1, 1))
    keys = table.extend(row(Step(), np.arange(items)) if schema else {"n": np.arange(items)})
    table.finish()
    seen = table._backend.handle.native.items_seq()  # type: ignore[union-attr]
    table.peek(keys)
    assert table._backend.handle.native.items_seq() == seen  # type: ignore[union-attr]
    with pytest.raises(di_store.EndOfData, match="samples_per_insert"):
        table.sample(keys=keys, timeout=60)
    assert table.stats()["samples"] == 0


def test_items_that_were_given_back_still_come_before_others(store: di_store.Store) -> None:
    """Unless they were drawn by their keys."""
    table = filled(store, sampler=Fifo())
    batch = table.sample(keys=table.keys()[[3, 4, 5]], lease=LONG)
    assert table.give_back(batch) == 3
    assert table.sample(keys=batch.keys[:1]).keys.tolist() == batch.keys[:1].tolist()
    assert table.sample(2).keys.tolist() == batch.keys[1:].tolist()
    assert table.give_back(table.sample(keys=batch.keys, lease=LONG)) == 3
    with pytest.raises(di_store.ObjectNotFound):
        table.sample(keys=np.append(batch.keys, np.uint64(77)))  # the marks come back too
    assert table.sample(3).keys.tolist() == batch.keys.tolist()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"n": 2, "keys": [1]}, ValueError, "keys= says which items to draw: leave n out"),
        ({"keys": [1], "budget": ("tokens", 9)}, ValueError, "leave budget= out"),
        ({"n": 2, "probabilities": [0.5, 0.5]}, ValueError, "give keys= too"),
        ({"keys": []}, ValueError, "keys= is empty"),
        ({"keys": [1.5]}, TypeError, "keys are float64"),
        ({"keys": [1, 2], "probabilities": [1]}, ValueError, "1 probabilities= for 2 keys="),
        ({"keys": [1], "probabilities": [0]}, ValueError, "above 0 and finite"),
        ({"keys": [1], "probabilities": [np.nan]}, ValueError, "above 0 and finite"),
        ({"keys": [1], "probabilities": ["a"]}, TypeError, "probabilities="),
        ({"keys": [1, 1], "replace": False}, ValueError, "holds a key more than once"),
        ({"keys": [1], "min_n": 2}, ValueError, "min_n=2 is above n=1"),
        ({}, TypeError, "needs n, the number of examples, or keys="),
        ({"replace": 1, "keys": [1]}, TypeError, "replace=1"),
        ({"n": 1, "key": [1]}, TypeError, "unexpected keyword argument 'key'"),
        ({"n": 1, "budget": 9}, TypeError, "budget=9: give a column and a number"),
        ({"n": 1, "budget": ("tokens", 0)}, ValueError, "budget=0 is below 1"),
        ({"n": 1, "budget": ("tokens", 1.5)}, TypeError, "budget=1.5"),
        ({"n": 1, "budget": (("n", "tokens"), 1)}, ValueError, "name one column"),
        ({"n": 1, "budget": ("colour", 9)}, ValueError, "colour"),
        ({"n": 1, "budget": (7, 9)}, TypeError, "budget=7"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(store: di_store.Store, options: Any, error: type[Exception], said: str) -> None:
    table = store.create_table("t", capacity=9, schema=RAGGED)
    table.extend(row(Step(), [1, 2]))
    with pytest.raises(error, match=said):
        table.sample(**options)
    assert table.stats()["samples"] == 0


# --- laws of the documentation ----------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "table_rules.md"
ITEMS, EACH = 40, 10
"""In the table of these laws, and in each of its episodes."""


def law_by_age(table: di_store.Table) -> Any:
    return 0.5 ** ((ITEMS - 1 - np.arange(ITEMS)) / 8)


def law_by_td_error(table: di_store.Table) -> Any:
    buckets = np.floor(np.log2(table.peek(table.keys()).priorities)).tolist()
    return np.array([1 / buckets.count(each) for each in buckets])


def law_by_return(table: di_store.Table) -> Any:
    rewards = table.peek(table.keys()).data["reward"].reshape(-1, EACH)
    return np.exp(rewards.sum(1)).repeat(EACH)


@pytest.mark.parametrize(
    ("name", "options", "law"),
    [("by_age", {"half_life": 8}, law_by_age), ("by_td_error", {}, law_by_td_error), ("by_return", {}, law_by_return)],
)
def test_the_laws_of_the_documentation_draw_as_they_say(
    store: di_store.Store, name: str, options: Any, law: Any
) -> None:
    """Chi-squared against the exact probabilities, and the weights that follow from these."""
    program: dict[str, Any] = {"np": np}
    [block] = re.findall(rf"^def {name}\(.*?(?=^\S)", PAGE.read_text(), re.M | re.S)
    exec(block, program)
    table = store.create_table("t", capacity=100, sampler=Prioritized(0.6))
    with table.writer() as writer:
        for step in range(ITEMS):
            row = {"reward": step % 3 / 10 + step // EACH / 20, "terminated": step % EACH == EACH - 1}
            writer.append(row, priority=1.5 ** (step % 9))
    exact = law(table) / law(table).sum()
    rng, keys, counts = np.random.default_rng(1), table.keys(), np.zeros(ITEMS)
    for _ in range(50):
        batch = program[name](table, 400, rng, **options)
        places = np.searchsorted(keys, batch.keys)
        counts += np.bincount(places, minlength=ITEMS)
        assert np.allclose(batch.probabilities, exact[places], rtol=1e-5)
    assert np.allclose(table.sample(keys=keys, probabilities=exact, beta=1).weights, exact.min() / exact, rtol=1e-5)
    expected = counts.sum() * exact
    assert counts.sum() == 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 72.1  # the 0.1 % point of chi-squared with 39 degrees
