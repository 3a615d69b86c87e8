"""Reverb's writers, items and processes: what its documentation promises, on tables in shared memory."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cluster.nodes import node
from foreign_values import Bomb
from reverb_serving import MEMORY, Serve, drawn, serve, table

import di_store
from di_store.adapters import reverb

__all__ = ["serve"]  # a fixture


def read_one(client: reverb.Client) -> None:
    next(client.sample("t", emit_timesteps=False))


def read_a_batch(client: reverb.Client) -> None:
    dataset = reverb.TrajectoryDataset(client.server_address, "t", np.int64, (1, 3), 1)
    next(iter(dataset.batch(1)))


READS = [read_one, read_a_batch]


@pytest.mark.parametrize("read", READS)
def test_a_client_with_the_token_cannot_run_code_in_readers(serve: Serve, tmp_path: Path, read: Any) -> None:
    """Another machine may write what it likes into a served store, as an item or its form: nobody who reads runs it."""
    client = serve(reverb.Table.queue("t", 10))
    client.insert(np.arange(3), {"t": 1.0})
    read(client)
    name = f"reverb-{client.server_address.rpartition(':')[2]}"
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    with node(name) as served, served.connect() as far:
        for form, item in ((0, np.frombuffer(bomb, np.uint8)), (77, np.zeros(8, np.uint8))):
            far.put(bomb, id=f"{form:040x}")
            far.table("t").insert({"form": np.uint64(form), "item": item})
            with pytest.raises(di_store.CorruptData):
                read(client)
    assert not (tmp_path / "ran").exists()


def test_text_comes_back_and_other_objects_are_refused(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 10))
    client.insert([np.array(["a", b"\xff"], object), np.float32(2), np.array("ü")], {"t": 1.0})
    found = drawn(client)[0]
    assert [found[0].tolist(), found[1].tolist(), found[2].tolist()] == [[["a", b"\xff"]], [2.0], ["ü"]]
    assert found[1].dtype == np.float32
    with pytest.raises(TypeError, match="holds a dict"):
        client.insert([np.array({}, object)], {"t": 1.0})


def test_text_of_any_steps_comes_back_as_objects(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 10))
    with client.trajectory_writer(num_keep_alive_refs=5) as writer:
        for text in ("a", "bc", "def"):
            writer.append({"x": text})
        column = writer.history["x"]
        writer.create_item("t", 1.0, [column[[-1, -3]], column[:][1:], column[::2], column[:], column[-1]])
    (found,) = drawn(client)
    assert [each.dtype for each in found] == [np.dtype(object)] * 5
    assert [each.tolist() for each in found] == [["def", "a"], ["bc", "def"], ["a", "def"], ["a", "bc", "def"], "def"]


# --- items -----------------------------------------------------------------------------------------------------------


def test_an_item_may_hold_any_window_of_each_column(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 10))
    with client.trajectory_writer(num_keep_alive_refs=5) as writer:
        for number in range(12):
            writer.append({"a": number, "b": np.full((2, 3), number, np.float32)})
        history = writer.history
        writer.create_item("t", 1.0, {"one": history["a"][-1], "two": history["b"][-3:], "z": history["a"][[-1, -5]]})
        writer.create_item("t", 1.0, [history["a"][-5:-2], history["a"][-4:12:2], history["b"][9]])
    first, second = drawn(client, count=2)
    assert first[0].shape == ()
    assert first[0] == 11
    assert first[1].dtype == np.float32
    assert first[1].tolist() == [[[n] * 3] * 2 for n in (9, 10, 11)]
    assert first[2].tolist() == [11, 7]
    assert [second[0].tolist(), second[1].tolist()] == [[7, 8, 9], [8, 10]]
    assert second[2].shape == (2, 3)
    assert (second[2] == 9).all()


def test_items_of_different_shapes_share_a_table(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 20))
    given = [np.ones([], np.int64), np.ones([2, 2], np.float32), np.zeros((0, 3)), np.array(["text", "längerer"])]
    for value in given:
        client.insert([value], {"t": 1.0})
    with client.trajectory_writer(20) as writer:
        for number in range(8):
            writer.append([number])
            writer.create_item("t", 1.0, writer.history[0][:])
    found = drawn(client, count=12)
    for value, data in zip(given, found, strict=False):
        assert data[0].shape == (1, *value.shape)
        assert data[0][0].tolist() == value.tolist()
        assert data[0].dtype == (object if value.dtype.kind == "U" else value.dtype)
    assert [data[0].tolist() for data in found[4:]] == [list(range(n + 1)) for n in range(8)]


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_every_type_comes_back(serve: Serve, dtype: str) -> None:
    client = serve(table())
    value = np.arange(3).astype(dtype)
    client.insert({"pad": np.uint8(1), "x": value}, {"t": 1.0})
    pad, found = drawn(client)[0]
    assert pad.tolist() == [1]
    assert found.dtype == value.dtype
    assert found.tolist() == [value.tolist()]


def test_an_item_keeps_its_values_when_the_program_reuses_its_arrays(serve: Serve) -> None:
    client = serve(reverb.Table.queue("t", 10))
    buffer = np.zeros(4)
    writer = client.trajectory_writer(2)
    for number in range(4):
        buffer[:] = number
        writer.append({"x": buffer})
        writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
    assert [data[0][0, 0] for data in drawn(client, count=4)] == [0, 1, 2, 3]


def test_an_insert_goes_into_several_tables(serve: Serve) -> None:
    client = serve(table("a"), table("b"))
    client.insert({"x": 1, "nested": (2.0, [3])}, {"a": 1.0, "b": 7.0})
    (steps,) = client.sample("b")
    assert [leaf.tolist() for leaf in steps[0].data] == [2.0, 3, 1]  # leaves by the order of keys
    assert steps[0].info.priority == 7.0
    with pytest.raises(ValueError, match="at least one item"):
        client.insert([1], {})
    with pytest.raises(ValueError, match="Could not find table"):
        client.insert([1], {"c": 1.0})


def test_infos_and_timesteps_come_back(serve: Serve) -> None:
    client = serve(table(max_times_sampled=3))
    with client.writer(4) as writer:
        for number in range(4):
            writer.append([number, np.ones(2)])
        writer.create_item("t", 3, 0.5)
    for times in (1, 2):
        (steps,) = client.sample("t")
        assert [step.data[0] for step in steps] == [1, 2, 3]
        info = steps[0].info
        assert info == (info.key, 1.0, 1, 0.5, times)
        assert [type(value) for value in info] == [int, float, int, float, int]
    with client.trajectory_writer(2) as uneven:
        uneven.append([1, 2])
        uneven.create_item("t", 1e9, [uneven.history[0][:], uneven.history[1][0]])
    with pytest.raises(ValueError, match="Can't split"):
        next(client.sample("t"))


class Pair(NamedTuple):
    """A nested step."""

    left: Any
    right: Any


def test_data_have_the_structure_of_the_signature(serve: Serve) -> None:
    signature = {"b": [reverb.TensorSpec((None, 2), np.dtype("f4"))], "a": Pair(reverb.TensorSpec((), np.int64), None)}
    signature["a"] = signature["a"]._replace(right=reverb.TensorSpec((), np.int64))
    client = serve(table(signature=signature))
    with client.trajectory_writer(3) as writer:
        writer.append({"x": np.ones(2, np.float32), "n": 1})
        item = {"b": [writer.history["x"][:]], "a": Pair(writer.history["n"][-1], writer.history["n"][0])}
        writer.create_item("t", 1.0, item)
        with pytest.raises(ValueError, match="signature"):
            writer.create_item("t", 1.0, {**item, "b": [writer.history["n"][:]]})
        with pytest.raises(ValueError, match="signature"):
            writer.create_item("t", 1.0, item["b"])
    (sample,) = client.sample("t", emit_timesteps=False, unpack_as_table_signature=True)
    assert sample.data["b"][0].tolist() == [[1, 1]]
    assert sample.data["a"].right == 1
    assert client.server_info()["t"].signature == signature


# --- the writer ------------------------------------------------------------------------------------------------------


def test_history_is_kept_by_column(serve: Serve) -> None:
    writer = serve(table()).trajectory_writer(4)
    with pytest.raises(RuntimeError, match="append"):
        _ = writer.history
    writer.append({"first": 1})
    for number in range(2, 7):
        writer.append({"x": number, "y": {"z": [float(number), None]}})
    history = writer.history
    assert len(history["x"]) == len(history["first"]) == 6
    assert history["x"][-3:].numpy().tolist() == [4, 5, 6]
    assert history["x"][2:5].numpy().tolist() == [3, 4, 5]
    assert history["y"]["z"][0][5].numpy() == 6.0
    assert history["x"][-1].shape == ()
    assert history["x"][-2:].shape == (2,)
    assert history["x"][-4:][1:3].numpy().tolist() == [4, 5]
    assert [None if cell is None else int(cell.numpy()) for cell in history["x"]] == [None, None, 3, 4, 5, 6]
    for column, places in (("x", slice(0, 2)), ("x", slice(-7, None)), ("first", slice(-2, None)), ("x", 0)):
        with pytest.raises(ValueError, match="cannot contain any None"):
            history[column][places]
    with pytest.raises(ValueError, match="cannot contain any None"):
        history["y"]["z"][1][-1]
    with pytest.raises(IndexError):
        history["x"][6]


def test_a_window_that_left_the_history_is_refused(serve: Serve) -> None:
    writer = serve(table()).trajectory_writer(2)
    writer.append([1])
    window = writer.history[0][:]
    for number in range(200):
        writer.append([number])
    with pytest.raises(ValueError, match="no longer holds"):
        writer.create_item("t", 1.0, [window])
    with pytest.raises(RuntimeError, match="expired"):
        window.numpy()
    with pytest.raises(TypeError, match="TrajectoryColumn"):
        writer.create_item("t", 1.0, [1])
    with pytest.raises(ValueError, match="Could not find table"):
        writer.create_item("other", 1.0, [writer.history[0][-1:]])


def test_a_step_may_be_appended_in_parts(serve: Serve) -> None:
    client = serve(table())
    writer = client.trajectory_writer(3)
    for number in range(3):
        writer.append({"obs": number}, partial_step=True)
        assert writer.episode_steps == number
        if number:
            with pytest.raises(ValueError, match="already been set"):
                writer.append({"obs": 1})
        writer.append({"action": number * 10})
        assert writer.episode_steps == number + 1
    writer.create_item("t", 1.0, {"o": writer.history["obs"][:], "a": writer.history["action"][1:]})
    assert [data.tolist() for data in drawn(client)[0]] == [[10, 20], [0, 1, 2]]


def test_an_end_of_episode_clears_the_history(serve: Serve) -> None:
    writer = serve(table()).trajectory_writer(3)
    for clear in (True, False):
        writer.append([1])
        writer.append([2])
        assert writer.episode_steps == 2
        writer.end_episode(clear_buffers=clear)
        assert writer.episode_steps == 0
        assert len(writer.history[0]) == (0 if clear else 2)
    writer.append([3])
    assert writer.history[0][-3:].numpy().tolist() == [1, 2, 3]


def test_a_wrong_step_adds_nothing(serve: Serve) -> None:
    writer = serve(table()).trajectory_writer(3)
    writer.append({"n": 1, "x": {"y": np.zeros(3)}})
    with pytest.raises(ValueError, match=r"dtype provided for column \('n',\)\. Got double but expected int64"):
        writer.append({"n": 1.0, "x": {"y": np.zeros(3)}})
    with pytest.raises(ValueError, match=r"shape provided for column \('x', 'y'\)\. Got \[1,3\] .* \[3\]"):
        writer.append({"n": 1, "x": {"y": np.zeros((1, 3))}})
    assert len(writer.history["n"]) == 1


def test_columns_keep_as_many_steps_as_configured(serve: Serve) -> None:
    writer = serve(table()).trajectory_writer(2)
    writer.configure(("late",), num_keep_alive_refs=6, max_chunk_length=None)
    for number in range(4):
        writer.append({"a": number})
    writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=2)
    for number in range(4, 10):
        writer.append({"a": number, "late": number})
    assert writer.history["a"][-4:].numpy().tolist() == [6, 7, 8, 9]
    assert writer.history["late"][-6:].numpy().tolist() == [4, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="max_chunk_length"):
        writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=5)


def test_windows_of_a_long_stream_equal_those_of_a_list(serve: Serve) -> None:
    """Random windows of a stream whose rows move to the front again and again."""
    client = serve(reverb.Table.queue("t", 2_000))
    rng = np.random.default_rng(0)
    writer, seen, wanted = client.trajectory_writer(7), [], []
    for number in range(1_000):
        seen.append(number)
        writer.append({"x": number, "y": np.full(5, number % 256, np.uint8)})
        if number > 10:
            begin, end = sorted(rng.integers(-7, 0, 2).tolist())
            window = slice(begin, end + 1 or None)
            wanted.append(seen[window])
            writer.create_item("t", 1.0, [writer.history["x"][window], writer.history["y"][window]])
    for (x, y), numbers in zip(drawn(client, count=len(wanted)), wanted, strict=True):
        assert x.tolist() == numbers
        assert y[:, 4].tolist() == [number % 256 for number in numbers]


# --- processes -------------------------------------------------------------------------------------------------------


def write_in_child(client: reverb.Client, count: int) -> None:
    with client.trajectory_writer(2) as writer:
        for number in range(count):
            writer.append({"x": np.full(3, number)})
            writer.create_item("t", 1.0, writer.history["x"][-1:])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_the_tables(serve: Serve, method: str) -> None:
    client = serve(reverb.Table.queue("t", 5))
    context = multiprocessing.get_context(method)
    children = [context.Process(target=write_in_child, args=(client, 40)) for _ in range(2)]
    for child in children:
        child.start()
    counts = Counter(int(data[0][0, 0]) for data in drawn(client, count=80))
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert counts == dict.fromkeys(range(40), 2)


def test_a_client_finds_a_server_by_address_and_notices_its_stop() -> None:
    server = reverb.Server([table()], memory=MEMORY)
    client = pickle.loads(pickle.dumps(server.localhost_client()))
    client.insert([np.arange(3)], {"t": 1.0})
    program = (
        "import sys\n"
        "from di_store.adapters import reverb\n"
        f"client = reverb.Client('127.0.0.1:{server.port}')\n"
        "print(next(client.sample('t'))[0].data[0].tolist(), flush=True)\n"
        "input()\n"
        "for call in (lambda: next(client.sample('t')), lambda: client.insert([1], {'t': 1.0})):\n"
        "    try:\n"
        "        call()\n"
        "    except reverb.ReverbError as error:\n"
        "        print(error)\n"
        "    client = reverb.Client(client.server_address)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "[0, 1, 2]"
    with pytest.raises(reverb.ReverbError, match="is taken"):
        reverb.Server([table()], port=server.port)
    server.stop()
    assert child.communicate("\n", timeout=60)[0].split("\n")[:2] == ["the server was stopped"] * 2
    with pytest.raises(reverb.ReverbError, match="stopped"):
        client.insert([1], {"t": 1.0})
    again = reverb.Server([table()], port=server.port, memory=MEMORY)
    client.insert([1], {"t": 1.0})  # a client finds the next server of the same address
    assert client.server_info()["t"].current_size == 1
    again.stop()


def test_threads_share_a_client(serve: Serve) -> None:
    client = serve(table(max_size=10_000))

    def write(first: int) -> None:
        for number in range(first, first + 50):
            with client.writer(1) as writer:
                writer.append([number])
                writer.create_item("t", 1, 1.0)

    threads = [threading.Thread(target=write, args=(50 * place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert client.server_info()["t"].current_size == 400
    found = {int(data[0][0]) for data in drawn(client, count=8_000)}
    assert found == set(range(400))
