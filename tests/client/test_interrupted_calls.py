"""Calls that are interrupted, or whose answer is lost, between an agent and its client: nothing is lost with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.far import near_of, open_far
from leasing import LONG, leased, take
from pains import until

import di_store
from di_store.client.channel import Channel
from di_store.protocol.connection import Disconnected

Cut = Callable[[str, BaseException], list[str]]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[di_store.Store]:
    monkeypatch.setenv("DI_STORE_TOKEN", "a token of the tests")
    with open_far(memory="64MiB") as opened:
        yield opened


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """`cut(method, error)`: the next call of this method is made, and `error` is raised in place of its answer."""
    ask, answer, now, due = Channel.ask, Channel._answer, threading.local(), {}

    def asks(self: Channel, method: str, *rest: Any, **options: Any) -> Any:
        now.method = method
        return ask(self, method, *rest, **options)

    def answers(self: Channel, *rest: Any) -> Any:
        method = now.method
        found = answer(self, *rest)
        if (error := due.pop(method, None)) is not None:
            done.append(method)
            raise error
        return found

    done: list[str] = []
    monkeypatch.setattr(Channel, "ask", asks)
    monkeypatch.setattr(Channel, "_answer", answers)

    def arm(method: str, error: BaseException) -> list[str]:
        due[method] = error
        return done

    return arm


def queue(store: di_store.Store, items: int) -> di_store.Table:
    """A queue with the numbers from 0."""
    table = store.create_table("t", capacity=100, limiter=di_store.Queue(50), schema={"n": di_store.Spec((), "i8")})
    table.extend({"n": np.arange(items)})
    return table


def test_keys_are_sent_again_if_the_answer_was_lost(store: di_store.Store, cut: Cut) -> None:
    table = store.create_table("t", capacity=10, schema={"n": di_store.Spec((), "i8")})
    keys = table.extend({"n": np.arange(6)})
    gone = table.evicted()
    for error in (Disconnected("cut"), KeyboardInterrupt()):
        leave, keys = keys[:2].tolist(), keys[2:]
        table.delete(leave)
        done = cut("gone_with_reasons", error)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                list(gone)
        assert list(gone) == leave
        assert list(gone) == []
    assert len(done) == 2


def test_draws_of_an_interrupted_call_are_given_to_the_next(store: di_store.Store, cut: Cut) -> None:
    """The agent has made the draws, and the loader never heard of them."""
    table = queue(store, 3)
    near = di_store.attach(store.name).table("t")
    with table.loader(3, prefetch=0, timeout=30) as loader:
        cut("draw", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert next(loader).data["n"].tolist() == [0, 1, 2]
        table.extend({"n": np.arange(3)})
        cut("draw", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(loader)
    assert len(near) == 3, "the end of the loader gives them back"


@pytest.mark.parametrize("reads", ["sample", "loader", "loader ahead"])
def test_an_interrupted_batch_is_given_to_the_next_call(store: di_store.Store, cut: Cut, reads: str) -> None:
    """It was delivered, and the program has not got it."""
    table = queue(store, 6)
    loader = table.loader(3, prefetch=2 if reads == "loader ahead" else 0, timeout=30)
    read: Callable[[], di_store.Batch] = (lambda: table.sample(3, timeout=30)) if reads == "sample" else loader.__next__
    cut("deliver", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        read()
    assert read().data["n"].tolist() == [0, 1, 2]
    assert read().data["n"].tolist() == [3, 4, 5]
    loader.close()


@pytest.mark.parametrize("reads", ["sample", "loader"])
@pytest.mark.parametrize("seconds", [LONG, 0])
def test_an_interrupted_batch_with_a_lease_is_given_to_the_next_call(
    store: di_store.Store, cut: Cut, seconds: float, reads: str
) -> None:
    """Unless its lease is over by then: its items are drawn again."""
    table = queue(store, 6)
    loader = table.loader(3, prefetch=0, timeout=30, lease=seconds)
    read: Callable[[], di_store.Batch] = loader.__next__ if reads == "loader" else lambda: take(table, 3, seconds)
    cut("deliver", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        read()
    batch = read()
    assert batch.data["n"].tolist() == [0, 1, 2]
    assert table.ack(batch) == (3 if seconds else 0)
    assert leased(table) == 0
    assert read().data["n"].tolist() == ([3, 4, 5] if seconds else [0, 1, 2])
    loader.close()


def test_the_end_of_a_loader_gives_back_the_batch_of_an_interrupted_next(store: di_store.Store, cut: Cut) -> None:
    table = queue(store, 6)
    with table.loader(3, prefetch=1, timeout=30, lease=LONG) as loader:
        cut("deliver", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert leased(table) == 6
    assert leased(table) == 0
    assert take(table, 6).data["n"].tolist() == list(range(6))


@pytest.mark.parametrize("call", ["ack", "give_back", "update"])
def test_a_call_on_a_lease_whose_answer_was_lost_counts_once(store: di_store.Store, cut: Cut, call: str) -> None:
    schema = {"n": di_store.Spec((), "i8"), "late": di_store.Spec((), "f4", late=True)}
    source = store.create_table("t", capacity=9, schema=schema, columns=["n"], max_times_sampled=1)
    with source.writer() as writer:
        for n in range(5):
            writer.append({"n": n})
    batch = take(source, 3)
    done = cut(call, Disconnected("cut"))
    ends = {
        "ack": lambda: source.ack(batch),
        "give_back": lambda: source.give_back(batch),
        "update": lambda: source.update(batch, {"late": np.ones(3, "f4")}, ack=True),
    }
    assert ends[call]() == 3
    assert done == [call]
    assert source.ack(batch) == leased(source) == 0
    assert source.stats()["samples"] == (0 if call == "give_back" else 3)


def test_a_leased_batch_whose_answer_was_lost_is_drawn_again(store: di_store.Store, cut: Cut) -> None:
    table = queue(store, 6)
    cut("sample", Disconnected("cut"))
    batch = take(table, 3)
    until(lambda: leased(table) == 3, "the draws of the lost answer to come back")
    assert table.ack(batch) == 3


def test_draws_of_an_interrupted_call_are_given_back(store: di_store.Store, cut: Cut) -> None:
    """An interrupted call, and no later one."""
    table = queue(store, 3)
    near = di_store.attach(store.name).table("t")
    with table.loader(3, prefetch=0) as loader:
        cut("gather", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        until(lambda: len(near) == 3, "the draws to come back")


def test_later_answers_are_forgotten_after_an_interrupted_delivery(store: di_store.Store, cut: Cut) -> None:
    """Nobody asks for that batch again: what later calls are answered is forgotten all the same."""
    table = queue(store, 3)
    cut("deliver", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        table.sample(3, timeout=30)
    for n in range(40):
        table.insert({"n": n})
    (peer,) = near_of(store).agent._peers.values()
    assert len(peer.answers) <= 3
