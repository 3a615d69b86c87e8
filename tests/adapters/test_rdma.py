"""Mooncake's transfer engine, over TCP, between real nodes: values, kills, stops, wrong bytes, nodes without it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, free_ports, node, stop
from cluster.served import agent_here
from cluster.test_cluster import local, same
from pains import until

import di_store
from di_store import cluster
from di_store.base.errors import NodeUnavailable, Timeout
from di_store.client.address import own_token
from di_store.cluster.store import ClusterStore
from di_store.protocol.frame import Kind
from di_store.protocol.values import answer_of
from di_store.server.engine import Engine, EngineOffer
from di_store.server.streams import STREAM_CALLS

pytest.importorskip("mooncake.engine", reason="runs with make adapters ADAPTER=rdma")

ENGINE = ("--bulk", "mooncake-tcp", "--plaintext")
RNG = np.random.default_rng(7)
LONG = RNG.integers(0, 255, 200_000_000, dtype=np.uint8)
"""Its transfer takes long enough to be met in the middle."""


class Pair:
    """Two nodes of one cluster. `one` and `two` are handles of their stores; `log`: what the second one says."""

    def __init__(self, running: list[Node], log: Path) -> None:
        self.nodes = running
        self.one, self.two = (cluster.attach(each.name) for each in running)
        self._log = log
        self._first = di_store.attach(running[0].name)

    @property
    def said(self) -> list[str]:
        """Lines of the second node's log on payloads that came over our own TCP."""
        return [each for each in self._log.read_text().splitlines() if "over TCP" in each]

    def is_lent(self) -> bool:
        """Whether a large block of the first node is pinned: its transfer has begun."""
        return any(each["pinned"] >= LONG.nbytes for each in self._first.stats()["clients"])

    def close(self) -> None:
        """The handles."""
        for each in (self.one, self.two, self._first):
            each.close()


@pytest.fixture
def places() -> list[str]:
    return sorted(f"127.0.0.1:{port}" for port in free_ports(2))


@pytest.fixture
def pair(store_name: Callable[[], str], tmp_path: Path, places: list[str]) -> Iterator[Pair]:
    name, options = store_name(), (*ENGINE, "--memory", "1GiB", "--peers", ",".join(places))
    with (
        node(f"{name}-0", *options, "--listen", places[0]) as first,
        node(f"{name}-1", *options, "--listen", places[1], log=tmp_path / "log") as second,
    ):
        made = Pair([first, second], tmp_path / "log")
        yield made
        made.close()


def getting(store: ClusterStore, ref: di_store.Ref, timeout: float) -> tuple[threading.Thread, list[Any]]:
    """A `get` in a thread; what it gives or raises, and the seconds that it took."""
    found: list[Any] = []

    def run() -> None:
        began = time.monotonic()
        try:
            found.append(store.get(ref, timeout=timeout))
        except di_store.StoreError as error:
            found.append(error)
        found.append(time.monotonic() - began)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.mark.parametrize("bytes_", [1_200_000, 3_000_001, 20_000_000])
def test_transferred_values_are_unchanged(pair: Pair, bytes_: int) -> None:
    array = RNG.integers(0, 255, bytes_, dtype=np.uint8)
    for value in (array, {"a": array, "b": [array[:1000].astype(np.float64), "text"]}):
        ref = pair.one.put(value)
        got = pair.two.get(ref)
        if isinstance(value, dict):
            assert same(got["a"], array)
            assert same(got["b"][0], value["b"][0])
        else:
            assert same(got, array)
        assert local(pair.two, ref)
    assert not pair.said


def test_two_readers_of_one_block_are_counted(pair: Pair) -> None:
    """Of several processes' objects and one object at once: each registration is counted."""
    refs = [pair.one.put(LONG[at : at + 30_000_000]) for at in range(3)]
    running = [getting(pair.two, ref, 60) for ref in [*refs, *refs]]
    for number, (thread, found) in enumerate(running):
        thread.join()
        assert same(found[0], LONG[number % 3 : number % 3 + 30_000_000])
    assert not pair.said


def test_an_object_sent_ahead_arrives_by_the_engine(pair: Pair) -> None:
    ref = pair.one.put(LONG)
    pair.one.send_ahead(ref, node=pair.nodes[1].address.split("//")[1].split("/")[0])
    until(lambda: local(pair.two, ref), "the copy")
    assert same(pair.two.get(ref), LONG)
    assert not pair.said


@pytest.mark.parametrize("node", [0, 1], ids=["lender", "reader"])
def test_a_transfer_survives_a_killed_agent(pair: Pair, node: int) -> None:
    """In the middle of a transfer. The next one lends, or the process copies itself; drafts and loans end."""
    ref = pair.one.put(LONG)
    thread, found = getting(pair.two, ref, 60)
    until(pair.is_lent, "the transfer")
    pair.nodes[node].kill_agent()
    thread.join()
    assert same(found[0], LONG)
    found.clear()
    until(lambda: not pair.is_lent(), "the block to be let go")


def test_a_call_to_a_stopped_lending_agent_ends_in_time(pair: Pair) -> None:
    """The call ends by its deadline and a second, beside the half that other nodes have to say whether they have it.

    The draft is kept while the engine may write into it.
    """
    ref = pair.one.put(LONG)
    thread, found = getting(pair.two, ref, 1)
    until(pair.is_lent, "the transfer")
    agent = pair.nodes[0].agent
    try:
        stop(agent)
        thread.join()
    finally:
        os.kill(agent, signal.SIGCONT)
    if isinstance(found[0], np.ndarray):
        assert same(found[0], LONG)  # the transfer was over before the agent was stopped
    else:
        assert isinstance(found[0], (Timeout, NodeUnavailable))
        assert found[1] < 5
    until(lambda: not pair.is_lent(), "the block to be let go")
    assert same(pair.two.get(ref, timeout=60), LONG)


class Altered:
    """A node whose agent runs in this process, so that a test may change its calls, and one that reads from it."""

    def __init__(self, store: di_store.Store, reader: Node, log: Path) -> None:
        self.store = store
        self.log = log
        self.two = cluster.attach(reader.name)

    def check(self, text: str) -> None:
        """Two values come. The log says once why not by the engine."""
        for value in (LONG[:5_000_000], LONG[7:6_000_000]):
            assert same(self.two.get(self.store.put(value), timeout=30), value)
        [line] = [each for each in self.log.read_text().splitlines() if "over TCP" in each]
        assert text in line


@contextmanager
def altered(name: str, folder: Path, places: list[str], kind: str) -> Iterator[Altered]:
    """`kind`: of the engine of the node in this process."""
    token = own_token(make=True)
    assert token is not None
    peers = ("--peers", ",".join(places))
    with (
        di_store.open(f"{name}-0", memory="256MiB") as store,
        agent_here(store, port=int(places[0].split(":")[1]), token=token, bulk=kind),
        node(f"{name}-1", *ENGINE, *peers, "--listen", places[1], log=folder / "log") as reader,
    ):
        made = Altered(store, reader, folder / "log")
        yield made
        made.two.close()


def test_a_wrong_checksum_is_read_again_over_tcp(
    store_name: Callable[[], str], tmp_path: Path, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes come again, over our own TCP."""
    lend = STREAM_CALLS["lend_payload"]

    def wrong(talk: Any, arguments: Any) -> Any:
        lend(talk, arguments)
        return (Kind.ANSWER, *answer_of(1, []))

    monkeypatch.setitem(STREAM_CALLS, "lend_payload", wrong)
    with altered(store_name(), tmp_path, places, "mooncake-tcp") as nodes:
        nodes.check("arrived with a wrong checksum")


def test_memory_that_was_not_lent_cannot_be_read(
    store_name: Callable[[], str], tmp_path: Path, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine gives away nothing that is not lent at the time."""
    lend = Engine.registered

    @contextmanager
    def elsewhere(engine: Engine, payload: Any) -> Iterator[EngineOffer]:
        with lend(engine, payload) as offer:
            yield EngineOffer(offer.engine, offer.at + 64)

    monkeypatch.setattr(Engine, "registered", elsewhere)
    with altered(store_name(), tmp_path, places, "mooncake-tcp") as nodes:
        nodes.check("a transfer from the engine at 127.0.0.1:")


def test_values_arrive_by_the_engine_alone(
    store_name: Callable[[], str], tmp_path: Path, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both have one: without any other way the values come."""
    monkeypatch.delitem(STREAM_CALLS, "copy_payload")
    with altered(store_name(), tmp_path, places, "mooncake-tcp") as nodes:
        ref = nodes.store.put(LONG[:9_000_000])
        assert same(nodes.two.get(ref, timeout=30), LONG[:9_000_000])


@pytest.mark.parametrize(("kind", "why"), [("tcp", "started without --bulk"), ("rdma", "started with --bulk rdma")])
def test_engines_of_different_kinds_fall_back_to_tcp(
    store_name: Callable[[], str], tmp_path: Path, places: list[str], kind: str, why: str
) -> None:
    with altered(store_name(), tmp_path, places, kind) as nodes:
        nodes.check(why)


def test_an_older_agent_is_read_over_tcp(
    store_name: Callable[[], str], tmp_path: Path, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no such call."""
    monkeypatch.delitem(STREAM_CALLS, "lend_payload")
    with altered(store_name(), tmp_path, places, "tcp") as nodes:
        nodes.check("its agent is of an older version")
