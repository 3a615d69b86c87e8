"""Published weights: versions, waiting, what stays readable."""

from __future__ import annotations

import gc
import multiprocessing as mp
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import session


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def test_versions_rise_from_one(store: Any) -> None:
    assert store.latest("policy") is None
    assert store.publish("policy", {"w": np.arange(3)}) == 1
    assert store.publish("policy", {"w": np.arange(3) + 1}) == 2
    assert store.publish("other", 5) == 1
    found = store.latest("policy")
    assert (found.version, found.value["w"].tolist()) == (2, [1, 2, 3])
    assert store.latest("policy", newer_than=2) is None
    assert store.latest("policy", newer_than=1).version == 2


def test_the_newest_stay_readable(store: Any) -> None:
    for version in range(1, 6):
        store.publish("policy", version, keep=2)
    assert [getattr(store.latest("policy", version=v), "value", None) for v in range(1, 7)] == [None] * 3 + [4, 5, None]


def test_an_old_version_lives_as_long_as_it_is_read(store: Any) -> None:
    store.publish("policy", np.full(100_000, 1))
    old = store.latest("policy").value
    for version in range(2, 12):
        store.publish("policy", np.full(100_000, version))
    assert (old == 1).all()
    assert store.latest("policy").version == 11


def test_a_version_number_without_local_weights_can_be_used(store: Any) -> None:
    assert store.publish("policy", None) == 1
    found = store.latest("policy")
    assert (found.version, found.value) == (1, None)


def test_latest_waits_for_a_version(store: Any) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(store.latest("policy", newer_than=1, timeout=60)))
    thread.start()
    store.publish("policy", "one")
    store.publish("policy", "two")
    thread.join(60)
    assert (found[0].version, found[0].value) == (2, "two")
    assert store.latest("policy", newer_than=2, timeout=0.02) is None


def test_bad_arguments_are_refused(store: Any) -> None:
    for name in ("", "x" * 200, 5, None):
        with pytest.raises((ValueError, TypeError)):
            store.publish(name, 1)
    with pytest.raises(ValueError, match="keep"):
        store.publish("policy", 1, keep=0)
    with pytest.raises(ValueError, match="not both"):
        store.latest("policy", newer_than=1, version=2)


def read(name: str, versions: int, pipe: Any) -> None:
    with di_store.attach(name) as store:
        seen, version = 0, 0
        while version < versions:
            new = store.latest("policy", newer_than=version, timeout=60)
            layers = list(new.value.values())
            assert all((layer == new.version).all() for layer in layers), "torn"
            seen, version = seen + 1, new.version
        pipe.send(seen)


def test_readers_never_see_torn_weights(store: Any, count: Any) -> None:
    versions = count(200, 5000)
    pipes = []
    for _ in range(2):
        ours, theirs = mp.Pipe()
        mp.Process(target=read, args=(store.name, versions, theirs), daemon=True).start()
        pipes.append(ours)
    for version in range(1, versions + 1):
        store.publish("policy", {f"layer {i}": np.full(5_000, version) for i in range(4)})
    for pipe in pipes:
        assert pipe.poll(120)
        assert pipe.recv() >= 1


def test_items_carry_the_version_their_writer_got(store: Any) -> None:
    table = store.create_table("t", capacity=100, weights="policy")
    with table.writer() as writer:
        writer.append({"x": 0.0})
        store.publish("policy", 1)
        writer.append({"x": 1.0})
        store.latest("policy")
        writer.append({"x": 2.0})
        store.publish("policy", 2)
        writer.append({"x": 3.0})
        store.latest("policy")
        writer.append({"x": 4.0})
    table.insert({"x": 5.0})
    assert table.peek(table.keys()).versions.tolist() == [-1, -1, 1, 1, 2, 2]


def test_versions_of_stores_that_were_closed_take_no_memory() -> None:
    """Of the last ones they are kept: who attaches again goes on with the version that it had."""
    with di_store.open(memory="64MiB") as kept:
        kept.publish("w", 1)
        assert kept.latest("w") is not None
        for _ in range(100):
            with di_store.open(memory="64MiB") as store:
                store.publish("w", 1)
                assert store.latest("w") is not None
        gc.collect()
        assert len(session._versions) <= 70
        with di_store.attach(kept.name) as again:
            assert again._backend.session.versions is kept._backend.session.versions
            assert again._backend.session.uuid == kept._backend.session.uuid == kept.stats()["uuid"]
