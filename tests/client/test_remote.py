"""A store through its agent, in another process: what differs from one on this machine, and what must not."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node
from cluster.served import noted_calls
from pains import until

import di_store
from di_store.client.writer import RemoteWriter
from di_store.client.writer_calls import Sent
from di_store.protocol.rows import Record

Names = Callable[[], str]


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"t-{os.getpid()}-served") as made:
        yield made


@pytest.mark.parametrize("size", [0, 1, 1_000, (1 << 18) - 1, 1 << 18, (1 << 20) + 1, 35_000_001])
def test_objects_of_any_size_come_back(far: di_store.Store, near: di_store.Store, size: int) -> None:
    """Bytes come as they were put, in both directions, also in pieces."""
    value = {"a": np.random.default_rng(size).integers(0, 256, size, np.uint8), "b": [1, "x", None, 2.5]}
    for put, got in ((far, near), (near, far), (far, far)):
        ref = put.put(value)
        found = got.get(ref)
        assert (found["a"] == value["a"]).all()
        assert found["b"] == value["b"]
        assert put.delete(ref) == 1
        assert not got.contains(ref)


def test_remote_objects_are_read_only_local_copies(far: di_store.Store) -> None:
    ref = far.put(np.arange(1_000))
    found = far.get(ref)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    far.delete(ref)
    assert (found == np.arange(1_000)).all()
    ref = far.put(np.arange(10))
    mine = far.get(ref, copy=True)
    mine[:] = 0
    assert (far.get(ref) == np.arange(10)).all()


def test_put_many_is_all_or_nothing(far: di_store.Store, near: di_store.Store) -> None:
    """All or none, in order; a name that is taken says so."""
    ids = [f"{number:040x}" for number in range(1, 4)]
    refs = far.put_many([np.zeros(300_000), 1, "x"], ids=ids)
    assert [ref.id for ref in refs] == ids
    assert near.get(refs[2]) == "x"
    with pytest.raises(di_store.ObjectExists):
        far.put_many([0, 0], ids=["f" * 40, ids[0]])
    assert not near.contains("f" * 40)
    with pytest.raises(di_store.ObjectExists):
        far.put(1, id=ids[0])
    assert far.get_many(refs[1:]) == [1, "x"]
    done, pending = far.wait([*refs, di_store.Ref.parse("e" * 40)], num_returns=4, timeout=0.1)
    assert (done, [ref.id for ref in pending]) == (refs, ["e" * 40])
    assert set(refs) <= set(far.keys(n=10_000))
    assert far.delete(refs) == 3


def test_many_objects_are_read_with_few_calls(
    far: di_store.Store, near: di_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for as many as fit one answer; those that are not there are waited for as ever."""
    calls = noted_calls(monkeypatch)
    values = [*(np.arange(n) for n in range(300)), "text", {"a": np.ones(3)}, None, b"x" * 300_000]
    refs = near.put_many(values)
    found = far.get_many(refs)
    assert calls == ["get_many"]
    assert all(map(np.array_equal, found[:300], values))
    assert (found[300], found[301]["a"].tolist(), found[302], found[303]) == ("text", [1] * 3, None, b"x" * 300_000)
    with pytest.raises(ValueError, match="WRITEABLE"):
        found[5].flags.writeable = True
    mine = far.get_many(refs[5:7], copy=True)
    mine[0][:] = 0
    assert far.get_many(refs[5:7])[0].tolist() == [0, 1, 2, 3, 4]
    large = near.put_many([np.full(30_000_000, n, np.uint8) for n in range(5)])
    calls.clear()
    assert [each[-1] for each in far.get_many(large)] == [0, 1, 2, 3, 4]
    assert calls == ["get_many", "get_many"]
    threading.Timer(0.3, lambda: near.put("late", id="ab" * 20)).start()
    assert far.get_many([refs[300], "ab" * 20], timeout=60) == ["text", "late"]
    near.delete([*refs, *large, "ab" * 20])
    with pytest.raises(di_store.ObjectNotFound):
        far.get_many(refs, timeout=0.1)


def test_a_wait_ends_when_the_object_is_put(far: di_store.Store, near: di_store.Store) -> None:
    name = "ab" * 20
    threading.Timer(0.3, lambda: near.put("late", id=name)).start()
    assert far.get(name, timeout=60) == "late"
    with pytest.raises(di_store.ObjectNotFound, match=r"\[node 127\.0\.0\.1"):
        far.get("cd" * 20, timeout=0.1)
    near.delete(name)


def test_rows_carry_the_version_their_process_fetched(far: di_store.Store, near: di_store.Store) -> None:
    """Rows carry the version that their own process had last fetched, whoever else fetches a newer one."""
    assert far.publish("w", {"layer": np.ones(100_000)}) == 1
    table = far.create_table("versions", capacity=100, weights="w", schema={"n": di_store.Spec((), "i8")})
    got = far.latest("w")
    assert got is not None
    assert got.version == 1
    assert got.value["layer"].sum() == 100_000
    with table.writer() as writer:
        writer.append({"n": 0})
        near.publish("w", None)
        assert near.latest("w", newer_than=1) is not None
        writer.append({"n": 1})
        again = far.latest("w", newer_than=1, timeout=60)
        assert again is not None
        writer.append({"n": 2})
        table.insert({"n": 3})
        writer.flush()
    batch = table.peek(table.keys())
    versions = dict(zip(batch.data["n"].tolist(), batch.versions.tolist(), strict=True))
    assert versions == {0: 1, 1: 1, 2: 2, 3: 2}
    assert far.latest("w", newer_than=2) is None
    far.drop_table("versions")


def test_a_recreated_table_is_found_by_name(far: di_store.Store, near: di_store.Store) -> None:
    """Another process has dropped it and made another one of that name: `table` finds that."""
    far.create_table("anew", capacity=10, schema={"n": di_store.Spec((), "i8")}).insert({"n": 1})
    near.drop_table("anew")
    near.create_table("anew", capacity=10, schema={"n": di_store.Spec((), "i8")})
    assert len(far.table("anew", timeout=2)) == 0
    far.drop_table("anew")


def test_items_are_lazy_and_flush_waits(far: di_store.Store, near: di_store.Store) -> None:
    table = far.create_table("lazy", capacity=1_000, view=di_store.Transition(), schema=_steps())
    with table.writer(lanes=3) as writer:
        made = [writer.append(_step(n, 3), next={"obs": np.full(3, n + 1)}) for n in range(50)]
        writer.flush()
        assert len(near.table("lazy")) == 150
        keys = np.concatenate([items.keys for items in made])
    assert sorted(keys.tolist()) == sorted(table.keys().tolist())
    assert (made[7].lanes == [0, 1, 2]).all()
    assert (made[7].starts == 7).all()
    assert len(set(made[7].episodes.tolist())) == 3
    assert (pickle.loads(pickle.dumps(made[7])).keys == made[7].keys).all()
    far.drop_table("lazy")


def test_calls_after_a_failed_one_are_not_made(far: di_store.Store, near: di_store.Store) -> None:
    """The next call raises what failed; what was sent behind it is not there, what comes later is."""
    table = far.create_table("failing", capacity=1_000, view=di_store.Transition(), schema=_steps())
    with table.writer() as writer:
        writer.append(_step(0), next={"obs": 1})
        writer.flush()
        near.table("failing").finish()
        lost = writer.append(_step(1), next={"obs": 2})
        with pytest.raises(di_store.EndOfData):
            lost.keys  # noqa: B018
        with pytest.raises(di_store.EndOfData):
            writer.flush()
        near.table("failing").reset()
        writer.append(_step(1), next={"obs": 2})
        writer.flush()
    assert table.peek(table.keys()).data["obs"].tolist() == [1]
    far.drop_table("failing")


@pytest.mark.parametrize("where", ["near", "far"])
def test_close_raises_the_error_of_unacknowledged_rows(near: di_store.Store, far: di_store.Store, where: str) -> None:
    """Rows that a finished table has refused are not there: nobody may take them for written."""
    near.create_table("refused", capacity=1_000, schema=_steps())
    writer = (near if where == "near" else far).table("refused").writer()
    with pytest.raises(di_store.EndOfData), writer:
        writer.append(_step(0))
        writer.flush()
        near.table("refused").finish()
        writer.append(_step(1))
    writer.close()
    assert near.stats()["tables"]["refused"]["writers"] == 0
    near.drop_table("refused")


def test_leaving_a_writer_keeps_the_error_of_the_program(near: di_store.Store, far: di_store.Store) -> None:
    """Though rows that were sent ahead have raised another one, which is no StoreError."""
    near.create_table("small", capacity=3, schema=_steps())
    table = far.table("small")
    eight = {name: np.full(8, value) for name, value in _step(1).items()}
    for error in (di_store.EndOfData("of the program"), None):
        with pytest.raises(ValueError if error is None else di_store.EndOfData), table.writer() as writer:
            writer.append(_step(0))
            writer.flush()
            writer.extend(eight)
            if error is not None:
                raise error
        assert near.stats()["tables"]["small"]["writers"] == 0
    near.drop_table("small")


def test_a_call_that_always_breaks_the_connection_ends_the_writer(far: di_store.Store) -> None:
    """It closes the connection, whoever sends it: after some attempts the writer says so."""
    table = far.create_table("odd", capacity=100, schema=_steps())
    writer = table.writer()
    assert isinstance(writer._backend, RemoteWriter)
    none = np.zeros((1, 1), np.bool_)
    writer._backend._pipe.push(Sent(Record(0, "no such call", [], {"step": []}), [], np.zeros(1, np.int64), none))
    with pytest.raises(di_store.NodeUnavailable, match="closes the connection whenever it gets call 1"):
        writer.flush(timeout=60)
    far.drop_table("odd")


def test_invalid_rows_are_refused_at_the_call(far: di_store.Store) -> None:
    table = far.create_table("refusing", capacity=100, schema=_steps())
    with table.writer() as writer:
        with pytest.raises(di_store.SchemaMismatch, match="expected int64"):
            writer.append({**_step(0), "obs": np.zeros(3)})
        with pytest.raises(di_store.SchemaMismatch, match="extra"):
            writer.append({**_step(0), "extra": 1})
        with pytest.raises(ValueError, match="priorit"):
            writer.append(_step(0), priority=-1.0)
        writer.append(_step(0))
        writer.flush()
    assert len(table) == 1
    far.drop_table("refusing")


def test_an_interrupted_sample_gives_its_draws_back(far: di_store.Store, near: di_store.Store) -> None:
    """Ctrl-C in a sample that waits: the two that it had drawn are there again."""
    table = far.create_table("queue", capacity=10, limiter=di_store.Queue(5), schema={"n": di_store.Spec((), "i8")})
    table.extend({"n": np.arange(2)})

    def interrupt() -> None:
        until(lambda: not len(near.table("queue")), "the draws")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        table.sample(3)
    until(lambda: len(table) == 2, "the draws to come back")
    with pytest.raises(di_store.Timeout) as told:
        table.sample(3, timeout=0.2)
    assert "2 of 3 drawn" in told.value.reason
    assert table.sample(2).data["n"].tolist() == [0, 1]
    far.drop_table("queue")


def test_python_values_travel_and_pickles_are_refused(served: Node, far: di_store.Store, near: di_store.Store) -> None:
    """Plain values pass; pickles are refused on both sides, and run nothing, unless the reader trusts them."""
    table = far.create_table("opaque", capacity=10, view=di_store.Opaque())
    table.insert({"a": [1, np.arange(3)]})
    with table.writer(lanes=2) as writer:
        writer.append(["x", ("y", None)])
        writer.flush()
    assert near.table("opaque").peek(table.keys()).data[1:] == ["x", ("y", None)]
    near.table("opaque").insert({1, 2})
    with pytest.raises(di_store.AccessDenied, match="allow_pickle"):
        table.peek(table.keys())
    with served.connect(allow_pickle=True) as trusting:
        assert trusting.table("opaque").peek(table.keys()).data[-1] == {1, 2}
    ref = far.put({1, 2})
    for reader in (near, far):
        with pytest.raises(di_store.AccessDenied, match="allow-pickle"):
            reader.get(ref)
    far.drop_table("opaque")


def test_loaders_and_mixtures_work_remotely(far: di_store.Store) -> None:
    for name in ("one", "two"):
        far.create_table(name, capacity=100, schema={"n": di_store.Spec((), "i8")}).extend({"n": np.arange(50)})
    mixed = far.mix({"one": 3, "two": 1}, seed=1)
    batch = mixed.sample(400)
    assert 230 < int((np.asarray(batch.source) == 0).sum()) < 370
    assert mixed.update_priorities(batch.keys, np.ones(400)) == 400
    with far.table("one").loader(8, prefetch=3) as loader:
        for _, batch in zip(range(20), loader, strict=False):
            assert batch.data["n"].shape == (8,)
    with mixed.loader(8, device="cpu") as loader:
        assert next(loader).data["n"].sum() >= 0
    keys = far.table("one").evicted()
    far.table("one").delete(far.table("one").keys(n=2))
    assert len(list(keys)) == 2
    for name in ("one", "two"):
        far.drop_table(name)


def test_an_older_agent_gives_keys_without_reasons(far: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = far.create_table("gone", capacity=2, schema={"n": di_store.Spec((), "i8")})
    gone = table.evicted()
    keys = table.extend({"n": np.arange(2)}).tolist() + table.insert({"n": 2}).tolist()
    assert [(key, key.reason) for key in gone] == [(keys[0], "evicted")]
    monkeypatch.setattr(table._backend.session.channel.client, "protocol", 3)  # type: ignore[attr-defined]
    table.delete(keys[1:])
    assert [(key, key.reason) for key in gone] == [(keys[1], ""), (keys[2], "")]
    far.drop_table("gone")


def test_a_mixture_of_other_columns_is_refused_when_it_is_made(far: di_store.Store) -> None:
    far.create_table("one", capacity=10).insert({"n": 1, "own": 2.0})
    far.create_table("two", capacity=10).insert({"n": 1})
    with pytest.raises(ValueError, match="'one' and 'two' give different columns: own"):
        far.mix({"one": 1, "two": 1})
    mixed = pickle.loads(pickle.dumps(far.mix({"one": 1, "two": 1}, columns="n")))
    assert list(mixed.sample(20).data) == ["n"]
    with mixed.loader(20) as loader:
        assert list(next(loader).data) == ["n"]
    for name in ("one", "two"):
        far.drop_table(name)


def test_out_and_columns_work_remotely(far: di_store.Store) -> None:
    table = far.create_table("out", capacity=100, schema=_steps())
    table.extend(_step(0, 8))
    first = table.sample(4, columns="obs")
    assert list(first.data) == ["obs"]
    kept = first.data["obs"]
    assert table.sample(4, out=first, columns="obs") is first
    assert first.data["obs"] is kept
    far.drop_table("out")


def _in_child(table: di_store.Table, pipe: Any) -> None:
    table.insert({"n": 7})
    pipe.send(table.peek(table.keys()).data["n"].tolist())


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_handles_can_be_passed_to_other_processes(far: di_store.Store, start: str) -> None:
    table = far.create_table("shared", capacity=10, schema={"n": di_store.Spec((), "i8")})
    context = mp.get_context(start)
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(table, theirs))  # type: ignore[attr-defined]
    child.start()
    assert ours.poll(60)
    assert ours.recv() == [7]
    child.join(60)
    assert len(table) == 1, "this process goes on with its own connections"
    far.drop_table("shared")


def test_threads_share_a_handle(far: di_store.Store) -> None:
    refs = [far.put(np.full(10, number)) for number in range(8)]
    wrong: list[int] = []

    def read(number: int) -> None:
        for _ in range(50):
            if far.get(refs[number])[0] != number:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_calls_of_closed_handles_raise(served: Node) -> None:
    store = served.connect()
    table = store.create_table("closing", capacity=10, schema={"n": di_store.Spec((), "i8")}, exist_ok=True)
    writer, loader = table.writer(), table.loader(2)
    store.close()
    for call in (lambda: store.put(1), lambda: len(table), lambda: writer.append({"n": 1}), lambda: next(loader)):
        with pytest.raises(di_store.StoreClosed):
            call()
    store.close()


def test_groups_are_for_stores_of_a_cluster(far: di_store.Store) -> None:
    for call in (lambda: far.publish("w", 1, group="g"), lambda: far.latest("w", group="g")):
        with pytest.raises(ValueError, match="group='g' is for a store of a cluster"):
            call()


def test_calls_that_need_the_stores_machine_are_refused(far: di_store.Store, tmp_path: Any) -> None:
    table = far.create_table("local", capacity=10)
    for call in (
        lambda: far.checkpoint(tmp_path),
        lambda: far.import_table(tmp_path / "x"),
        lambda: far.reserve(np.zeros(3)),
        lambda: table.export(tmp_path / "x"),
    ):
        with pytest.raises(di_store.StoreError, match=r"is on node 127\.0\.0\.1:.*attach"):
            call()
    for refused in (lambda: table.sample(keys=[1]), lambda: table.sample(1, budget=("x", 9))):
        with pytest.raises(ValueError, match=r"=.* is for tables in this process's memory"):
            refused()
    far.drop_table("local")


def test_warnings_are_shown_at_the_client(far: di_store.Store) -> None:
    schema = {name: di_store.Spec((), "f4") for name in ("obs", "reward")}
    table = far.create_table("warning", capacity=10, view=di_store.Transition(), schema=schema)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with table.writer() as writer:
            writer.append({"obs": 1.0, "reward": 0.0})
    assert any("end no episode" in str(each.message) for each in told)
    far.drop_table("warning")


@pytest.mark.parametrize(
    "address", ["", "x", "http://a:1/b", "di-store://", "di-store://a:x/b", "di-store://u@h:1/n", 3]
)
def test_wrong_addresses_are_refused(address: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="di-store://HOST:PORT/NAME"):
        di_store.connect(address)


def test_an_address_without_an_agent_raises_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(di_store.NodeUnavailable, match="di-store serve"):
        di_store.connect("di-store://127.0.0.1:1/x", token="t", timeout=0.3)
    assert time.monotonic() - began < 13


def _steps() -> dict[str, di_store.Spec]:
    types = {"obs": "i8", "reward": "f4", "terminated": "?", "truncated": "?"}
    return {name: di_store.Spec((), dtype) for name, dtype in types.items()}


def _step(n: int, lanes: int | None = None) -> dict[str, Any]:
    row = {"obs": n, "reward": 0.0, "terminated": False, "truncated": False}
    return row if lanes is None else {name: np.full(lanes, value) for name, value in row.items()}


def test_importing_di_store_imports_no_network_code() -> None:
    """`import di_store` brings neither TLS nor what talks to other machines."""
    look = (
        "import di_store, sys; print([m for m in sys.modules if m.split('.')[0] == 'ssl' or 'di_store.protocol' in m])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
