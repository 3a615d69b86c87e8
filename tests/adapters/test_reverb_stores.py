"""A Reverb server in a store that is given: beyond memory, and on a store that was restored."""

from __future__ import annotations

import gc
import multiprocessing as mp
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.nodes import cluster_nodes
from cluster.served import TOKEN, agent_here
from given_stores import KINDS, killed_after_a_checkpoint, opened
from pains import until
from reverb_serving import act, drawn, table

import di_store
from di_store import cluster
from di_store.adapters import reverb


def queue(size: int = 100) -> reverb.Table:
    return reverb.Table.queue("t", size)


def test_tables_are_made_in_the_given_store() -> None:
    with di_store.open(memory="256MiB") as store:
        server = reverb.Server([ours := table()], store=store)
        assert ours.table is None
        client = server.in_process_client
        client.insert([np.arange(3)], {"t": 1.0})
        assert server.store is store
        assert server.port is None
        assert ours.table is not None
        assert len(ours.table) == 1
        assert drawn(reverb.Client(store.name))[0][0].tolist() == [[0, 1, 2]]
        server.stop()
        with pytest.raises(reverb.ReverbError, match="stopped"):
            client.insert([np.arange(3)], {"t": 1.0})
        again = reverb.Server([table()], store=store)
        assert again.localhost_client().server_info()["t"].current_size == 1
        again.stop()
        with pytest.raises(ValueError, match="store's name"):
            reverb.Server([table()], port=8_000, store=store)
        store.create_table("other", capacity=4)
        with pytest.raises(ValueError, match="another name"):
            reverb.Server([table("other")], store=store)


def test_an_earlier_server_does_not_stop_a_later_one() -> None:
    with di_store.open(memory="256MiB") as store:
        server = reverb.Server([table()], store=store)
        server.localhost_client().insert([np.arange(3)], {"t": 1.0})
        server = reverb.Server([table()], store=store)  # the first one is garbage now
        gc.collect()
        assert drawn(reverb.Client(store.name))[0][0].tolist() == [[0, 1, 2]]
        learner = mp.get_context("spawn").Process(target=drawn, args=(reverb.Client(store.name),))
        learner.start()
        learner.join(60)
        assert learner.exitcode == 0
        server.stop()


def _draw_until_stopped(client: reverb.Client, drew: Any) -> None:
    with pytest.raises(reverb.ReverbError, match="stopped"):
        while drawn(client):
            drew.set()


def _insert_until_stopped(client: reverb.Client, drew: Any) -> None:
    with pytest.raises(reverb.ReverbError, match="stopped"), client.trajectory_writer(1) as writer:
        while True:
            writer.append({"n": np.arange(3)})
            writer.create_item("t", 1.0, {"n": writer.history["n"][-1:]})
            drew.set()


@pytest.mark.parametrize("act_until_stopped", [_draw_until_stopped, _insert_until_stopped])
def test_stop_ends_the_calls_of_other_processes_and_leaves_the_store(act_until_stopped: Any) -> None:
    spawn = mp.get_context("spawn")
    with di_store.open(memory="256MiB") as store:
        server = reverb.Server([table()], store=store)
        client = server.localhost_client()
        client.insert([np.arange(3)], {"t": 1.0})
        acted = spawn.Event()
        other = spawn.Process(target=act_until_stopped, args=(client, acted), daemon=True)
        other.start()
        assert acted.wait(60)
        server.stop()
        other.join(60)
        assert other.exitcode == 0
        assert len(store.table("t").sample(1)) == 1
        ref = store.put(1)
        assert store.get(ref) == 1
        again = reverb.Server([table()], store=store)
        assert len(drawn(again.localhost_client(), count=4)) == 4
        again.stop()


def _waits(client: reverb.Client) -> None:
    """A learner that waits for more items than there are."""
    with pytest.raises(reverb.ReverbError, match="stopped"):
        drawn(client, "q", 2)


def test_a_waiting_client_ends_when_its_table_is_dropped() -> None:
    """`stop` leaves the table of a store that is given, so who waits for its items goes on: another server may come."""
    with di_store.open(memory="256MiB") as store:
        server = reverb.Server([reverb.Table.queue("q", 8)], store=store)
        client = server.localhost_client()
        client.insert([np.arange(3)], {"q": 1.0})
        learner = mp.get_context("spawn").Process(target=_waits, args=(client,), daemon=True)
        learner.start()
        until(lambda: bool(store.stats()["waiters"]), "the learner to wait for a second item")
        assert client.server_info()["q"].current_size == 0
        server.stop()
        until(lambda: bool(store.stats()["waiters"]), "the learner to wait on")
        assert learner.is_alive()
        store.drop_table("q")
        learner.join(60)
        assert learner.exitcode == 0


def test_a_server_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    items, memory = count(2_000, 12_000), count(64, 256) << 20
    signature = {"x": reverb.TensorSpec((1, 84, 84, 10), np.uint8)}
    server = reverb.Server(
        [table(max_size=items, signature=signature, sampler=reverb.selectors.Fifo())],
        store={"memory": memory, "disk": tmp_path / "tier"},
    )
    client = server.localhost_client()
    for number in range(items):
        client.insert({"x": np.full((84, 84, 10), number % 251, np.uint8)}, {"t": 1.0})
    assert items * 84 * 84 * 10 > 2 * memory
    assert client.server_info()["t"].current_size == items
    found = drawn(client, count=3)
    assert [data[0].reshape(-1)[[0, -1]].tolist() for data in found] == [[0, 0]] * 3  # the oldest, from the disk
    assert server.store.stats()["committed"] <= memory
    server.stop()
    server.store.close()


def test_a_killed_server_can_be_resumed(tmp_path: Path) -> None:
    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        server = reverb.Server([table(max_size=500), reverb.Table.queue("q", 50)], store=store)
        client = server.localhost_client()
        with client.trajectory_writer(3) as writer:
            for number in range(10**9):
                if number == 30:
                    checkpoint()
                writer.append({"n": np.int64(number), "text": f"step {number}"})
                writer.create_item("t", 1.0 + number, {"n": writer.history["n"][-1:], "s": writer.history["text"][-1:]})
                if number < 30:
                    writer.create_item("q", 1.0, {"n": writer.history["n"][-1:]})

    path = killed_after_a_checkpoint(fill, tmp_path)
    with di_store.restore(path, memory="256MiB") as store:
        server = reverb.Server([table(max_size=500), reverb.Table.queue("q", 50)], store=store)
        client = server.localhost_client()
        info = client.server_info()
        assert [info[name].current_size for name in ("t", "q")] == [30, 30]
        assert info["q"].rate_limiter_info.insert_stats.completed == 30
        assert [data[0].tolist() for data in drawn(client, "q", 30)] == [[number] for number in range(30)]
        for sample in client.sample("t", 20, emit_timesteps=False):
            number, text = sample.data
            assert text.tolist() == [f"step {number[0]}"]
            assert sample.info.priority == 1.0 + number[0]
        client.insert([np.int64(99)], {"q": 1.0})
        assert drawn(client, "q")[0][0].tolist() == [99]


SIGNATURE = {"goal": reverb.TensorSpec((None, 2, 0), np.float64), "walker/pos": reverb.TensorSpec((None, 2), np.int64)}


def serve_tables(store: Any) -> reverb.Server:
    return reverb.Server([table(), reverb.Table.queue("q", 8, signature=SIGNATURE)], store=store)


def run_actor(client: reverb.Client, begin: int, end: int) -> mp.process.BaseProcess:
    """A process that has nothing of this one but the client, as on another machine."""
    actor = mp.get_context("spawn").Process(target=act, args=(client, begin, end), daemon=True)
    actor.start()
    return actor


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        server = serve_tables(store)
        client = server.localhost_client()
        actor = run_actor(client, 0, 30)  # more than the queue holds: it waits for the draws
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "q", 4)
        found = [sample.data for sample in dataset.take(30)]
        actor.join(60)
        assert actor.exitcode == 0
        assert [data["walker/pos"].tolist() for data in found] == [[[number] * 2] for number in range(30)]
        assert found[0]["goal"].shape == (1, 2, 0)
        for sample in client.sample("t", 20, emit_timesteps=False):
            number = sample.data[2][0, 0]
            assert sample.data[1].tolist() == [f"step {number}"]
            assert sample.info.priority == 1.0 + number
        client.mutate_priorities("t", {sample.info.key: 7.0}, [])
        assert client.server_info()["t"].current_size == 30
        server.stop()
        with pytest.raises(reverb.ReverbError, match="stopped"):
            act(client, 30, 31)
        again = serve_tables(store)
        assert again.localhost_client().server_info()["t"].current_size == 30
        again.stop()


def test_a_client_on_another_machine_works() -> None:
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        server = serve_tables(store)
        with di_store.connect(f"di-store://{agent.address}/{store.name}", token=TOKEN) as connected:
            client = reverb.Client(connected)
            act(client, 0, 8)
            assert client.server_info()["q"].signature == SIGNATURE
            assert len(drawn(server.localhost_client(), "q", 8)) == 8
        store.publish("reverb", {"t": {"sampler": ["open", "/etc/passwd"]}})
        with (
            di_store.connect(f"di-store://{agent.address}/{store.name}", token=TOKEN) as connected,
            pytest.raises(di_store.CorruptData, match="description of the server's tables"),
        ):
            drawn(reverb.Client(connected))
        server.stop()


def test_an_actor_on_another_cluster_node_works(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with (
        cluster_nodes(name, 2, "--memory", "64MiB") as nodes,
        cluster.attach(nodes[0].name) as here,
        cluster.attach(nodes[1].name) as there,
    ):
        server = serve_tables(here)
        monkeypatch.setenv("DI_STORE_NODE", there.name)  # of the actor: both nodes are on this machine
        actor = run_actor(reverb.Client(there), 0, 8)
        actor.join(60)
        assert actor.exitcode == 0
        found = drawn(server.localhost_client(), "q", 8)
        assert [data[1].tolist() for data in found] == [[[number] * 2] for number in range(8)]
        server.stop()


def test_datasets_repeat_and_shuffle() -> None:
    server = reverb.Server([queue()], memory="256MiB")
    client = server.localhost_client()
    for number in range(12):
        client.insert(np.int64(number), {"t": 1.0})

    def dataset(most: int) -> Any:
        return reverb.TrajectoryDataset(client.server_address, "t", np.int64, (1,), 1, max_samples=most)

    assert [int(each.data[0]) for each in dataset(3).repeat(2)] == [0, 1, 2, 3, 4, 5]
    assert [int(each.data[0]) for each in dataset(2).repeat().take(3)] == [6, 7, 8]
    assert sorted(int(each.data[0]) for each in dataset(3).shuffle(2, seed=1)) == [9, 10, 11]
    numbers = reverb.trajectory_dataset.Dataset(lambda: iter(range(100)))
    shuffled = numbers.shuffle(10, seed=3)
    first, second = list(shuffled), list(shuffled)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != list(range(100))
    assert first != second
    same = numbers.shuffle(10, seed=3, reshuffle_each_iteration=False)
    assert list(same) == list(same)
    assert max(place - number for place, number in enumerate(first)) > 0 > min(-number for number in first)
    server.stop()
