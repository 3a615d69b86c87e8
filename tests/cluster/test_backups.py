"""Durable tables of nodes whose machines are lost with all that was on them: what was synced comes back."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import Program, until

import di_store
from cluster.nodes import Node, free_ports, node, stopped
from di_store import cluster
from di_store.base.errors import CapacityError, NodeUnavailable, StoreError, TableNotFound, Timeout
from di_store.client.session import RemoteSession
from di_store.cluster.rejoining import fetch
from di_store.cluster.static import StaticDirectory
from di_store.cluster.store import ClusterStore
from di_store.server.supervisor import Serving

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
KILLS = 30 if FULL else 2
EPISODE = 5
SCHEMA = {"n": di_store.Spec((), "i8"), "x": di_store.Spec((200,), "i8"), "terminated": di_store.Spec((), "?")}
TABLE: dict[str, Any] = {"capacity": 20_000, "schema": SCHEMA, "lanes": 4, "durability": "disk"}
PRIORITIZED = di_store.Prioritized(alpha=1.0)

WRITER = """
import sys
import numpy as np
import di_store
from di_store import cluster

store, base = cluster.attach(sys.argv[1]), int(sys.argv[2])
table = store.table("replay", timeout=60)
with table.writer() as writer:
    for n in range(base, base + 10_000):
        row = {"n": n, "x": np.full(200, 3 * n), "terminated": (n - base) % 5 == 4}
        writer.append(row, priority=1.0 + n % 7)
        if (n - base) % 20 == 19:
            store.sync(timeout=60)
            print(n + 1, flush=True)
"""

LEARNER = """
import sys
import numpy as np
import di_store
from di_store import cluster

store = cluster.attach(sys.argv[1])
table, found = store.table("learned", timeout=60), store.latest("policy", group="actors")
state = found.value if found is not None else {"step": 0}
print("begins", state["step"], flush=True)
for step in range(int(state["step"]) + 1, 10_000):
    batch = table.sample(16, timeout=60)
    table.update_priorities(batch.keys, np.full(16, 1.0 + step))
    store.publish("policy", {"step": step}, group="actors")
    print(step, len(table), flush=True)
"""


@dataclass
class Pair:
    """Two nodes with a disk each; the directory's entries lie with the first."""

    nodes: list[Node]
    folders: list[Path]
    places: list[str]

    def lose(self, at: int) -> None:
        """All processes of a node, its memory and its disk."""
        self.nodes[at].lose()
        shutil.rmtree(self.folders[at])

    def serving(self, at: int) -> Serving:
        """How it is served."""
        return Serving(self.places[at], peers=tuple(self.places))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    places, folder = sorted(f"127.0.0.1:{port}" for port in free_ports(2)), tmp_path_factory.mktemp("disks")
    name, folders = f"b-{uuid.uuid4().hex[:12]}", [folder / str(at) for at in range(2)]
    with ExitStack() as running:
        nodes = [
            running.enter_context(
                node(
                    f"{name}-{at}",
                    *("--memory", "64MiB", "--disk", str(folders[at]), "--disk-capacity", "256MiB"),
                    *("--listen", place, "--peers", ",".join(places)),
                )
            )
            for at, place in enumerate(places)
        ]
        yield Pair(nodes, folders, places)


def attached(pair: Pair, at: int) -> ClusterStore:
    return cluster.attach(pair.nodes[at].name, timeout=60)


def found(store: ClusterStore, name: str) -> bool:
    """Whether the table is there."""
    try:
        store.table(name, timeout=5)
    except StoreError:
        return False
    return True


def rows_of(table: di_store.Table) -> dict[str, np.ndarray]:
    """All items in the order in which they came; each is whole."""
    batch = table.peek(table.keys())
    assert batch.live.all()
    order = np.argsort(batch.data["n"], kind="stable")
    assert (batch.data["x"] == 3 * batch.data["n"][:, None]).all()
    return {"n": batch.data["n"][order], "starts": batch.starts[order], "p": batch.priorities[order]}


def check(table: di_store.Table, runs: list[tuple[int, int]]) -> int:
    """Of each run of the writer a first part is there, at least what was synced, nothing twice. What comes next."""
    rows = rows_of(table)
    after = 0
    for at, (base, synced) in enumerate(runs):
        end = runs[at + 1][0] if at + 1 < len(runs) else 1 << 60
        mine = (rows["n"] >= base) & (rows["n"] < end)
        numbers = rows["n"][mine]
        assert numbers.tolist() == list(range(base, base + len(numbers)))
        after = base + len(numbers)
        assert after >= synced
        assert (rows["starts"][mine] == (numbers - base) % EPISODE).all()
        assert (rows["p"][mine] == 1.0 + numbers % 7).all()
    return after


def test_synced_rows_survive_their_nodes(pair: Pair) -> None:
    """The node that writes is killed at any moment, also while it syncs, and loses its disk, over and over."""
    with attached(pair, 0) as store:
        store.create_table("replay", sampler=PRIORITIZED, **TABLE)
        store.sync()
    chance, runs, base = random.Random(7), list[tuple[int, int]](), 0
    for _ in range(KILLS):
        with Program(WRITER, pair.nodes[0].name, base) as writer:
            synced = int(writer.line())
            for _ in range(chance.randrange(4)):
                synced = int(writer.line())
            with suppress(subprocess.TimeoutExpired):  # somewhere in the next rows, or their sync
                writer.process.wait(chance.random() * 0.05)
            writer.process.kill()
            pair.lose(0)
        runs.append((base, synced))
        pair.nodes[0].restart("--rejoin", pair.nodes[0].name)
        with attached(pair, 1) as other:
            base = check(other.table("replay"), runs)  # at once: the node says that it is served when it has the table
    with attached(pair, 0) as store:
        assert check(store.table("replay"), runs) == base
        assert store.check() == []
        store.sync()
        kept = os.listdir(pair.folders[1] / "backups")
        assert len(kept) == 1  # none of the nodes that were lost
        store.drop_table("replay")


def test_a_learner_continues_on_another_node(pair: Pair) -> None:
    """Its node is lost; the table's node has the rows, and as member of the group the weights."""
    with attached(pair, 0) as store:
        store.create_table("learned", sampler=PRIORITIZED, **TABLE | {"durability": "memory"})
        numbers = np.arange(100)
        rows = {"n": numbers, "x": np.repeat(3 * numbers, 200).reshape(100, 200), "terminated": numbers < 0}
        store.table("learned").extend(rows)
        assert store.latest("policy", group="actors") is None
        with Program(LEARNER, pair.nodes[1].name) as learner:
            assert learner.line() == "begins 0"
            for _ in range(20):
                step = int(learner.line().split()[0])
            until(lambda: (seen := store.latest("policy", group="actors")) and seen.version >= step, "the weights")
            learner.process.kill()
            pair.lose(1)
        with Program(LEARNER, pair.nodes[0].name) as learner:
            begins = int(learner.line().split()[1])
            assert begins >= step
            assert learner.line().split() == [str(begins + 1), "100"]
        rows = rows_of(store.table("learned"))
        assert rows["n"].tolist() == numbers.tolist()
        assert rows["p"].max() > 2.0  # what the first one has learned
        pair.nodes[1].restart()
        store.drop_table("learned", timeout=60)


def test_a_node_that_returns_with_its_disk_rejoins(pair: Pair) -> None:
    """Its tables are the cluster's again by themselves, but for one that was dropped and made elsewhere meanwhile."""
    with attached(pair, 1) as store:
        for name in ("mine", "other"):
            table = store.create_table(name, **TABLE)
            table.insert({"n": 1, "x": np.full(200, 3), "terminated": False})
        store.sync(copies=1)
    pair.nodes[1].lose()
    with attached(pair, 0) as near:
        near.drop_table("other", timeout=1)
        near.create_table("other", timeout=60, **TABLE | {"durability": "memory"})
        pair.nodes[1].restart()
        until(lambda: found(near, "mine"), "the table to be the cluster's again")
        assert rows_of(near.table("mine"))["n"].tolist() == [1]
        assert len(near.table("other")) == 0
        near.drop_table("mine", timeout=60)
        near.drop_table("other", timeout=60)


def test_a_backup_can_be_restored_by_hand(pair: Pair, tmp_path: Path) -> None:
    """As docs/backups.md says for Ray, on the node that has it: no node takes the lost one's place."""
    with attached(pair, 1) as store:
        table = store.create_table("saved", sampler=PRIORITIZED, **TABLE)
        rows = {"n": np.arange(10), "x": np.repeat(3 * np.arange(10), 200).reshape(10, 200), "terminated": [False] * 10}
        table.extend(rows)
        table.update_priorities(table.keys(), np.arange(1.0, 11.0))
        store.sync()
        lost = next(each.uuid for each in store.nodes() if each.address == pair.nodes[1].address)
    pair.lose(1)
    (backup,) = (pair.folders[0] / "backups").glob(f"{lost}.*")
    with di_store.restore(backup, f"saved-{uuid.uuid4().hex[:12]}", memory="256MiB") as saved:
        saved.table("saved").export(tmp_path / "saved.zip")
    with attached(pair, 0) as store:
        store.drop_table("saved", timeout=1)
        store.import_table(tmp_path / "saved.zip", "saved")
        again = store.create_table("saved", sampler=PRIORITIZED, exist_ok=True, **TABLE)
        assert rows_of(again)["p"].tolist() == np.arange(1.0, 11.0).tolist()
        pair.nodes[1].restart()
        with attached(pair, 1) as other:
            assert len(other.table("saved", timeout=60)) == 10
        store.drop_table("saved")


def test_a_checkpoint_is_made_while_another_is_sent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the background thread of any process of the node makes one: the backup is that of one time."""
    original: Callable[..., Any] = RemoteSession.call
    with attached(pair, 1) as store:
        store.create_table("sent", **TABLE).insert({"n": 1, "x": np.full(200, 3), "terminated": False})

        def call(session: RemoteSession, name: str, *arguments: Any, **options: Any) -> Any:
            result = original(session, name, *arguments, **options)
            if name == "backup_begin":
                with di_store.attach(pair.nodes[1].name) as near:
                    near.create_table("meanwhile", **TABLE)
                    near.sync(timeout=60)
                    near.drop_table("meanwhile")
            return result

        monkeypatch.setattr(RemoteSession, "call", call)
        store.sync(timeout=60)
        monkeypatch.undo()
        sender = next(each.uuid for each in store.nodes() if each.address == pair.nodes[1].address)
        (backup,) = (pair.folders[0] / "backups").glob(f"{sender}.*")
        with di_store.restore(backup, f"sent-{uuid.uuid4().hex[:12]}", memory="256MiB") as saved:
            assert len(saved.table("sent")) == 1
            with pytest.raises(TableNotFound):
                saved.table("meanwhile")
        store.drop_table("sent")


def test_a_sync_that_cannot_work_ends_in_time(pair: Pair) -> None:
    """Each call ends in time, and says what helps."""
    with attached(pair, 0) as store:
        store.create_table("t", **TABLE)
        with pytest.raises(CapacityError, match="1 nodes that answer have a disk") as error:
            store.sync(copies=3, timeout=10)
        assert "copies=1" in str(error.value)
        with pytest.raises(ValueError, match="copies"):
            store.sync(copies=0)
        store.sync(timeout=60)
        with stopped(*pair.nodes[1].pids):
            began = time.monotonic()
            with pytest.raises((CapacityError, NodeUnavailable, Timeout)):
                store.sync(timeout=1)
            assert time.monotonic() - began < 20  # ten times the bound
        store.sync(timeout=60)
        store.drop_table("t")


def test_only_lost_nodes_can_be_taken_over(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(pair, 0) as store:
        store.create_table("t", **TABLE)
        store.sync(timeout=60)
        with pytest.raises(StoreError, match="it is not lost"):
            fetch(str(tmp_path / "a"), pair.nodes[0].name, pair.serving(0), 10)
        with monkeypatch.context() as unlisted:  # as etcd lists no node whose holder is stopped
            others, own = StaticDirectory.nodes, pair.nodes[0].address
            unlisted.setattr(
                StaticDirectory, "nodes", lambda *given: [each for each in others(*given) if each.address != own]
            )
            with pytest.raises(StoreError, match="it is not lost"):
                fetch(str(tmp_path / "a"), pair.nodes[0].name, pair.serving(0), 10)
        with pytest.raises(NodeUnavailable, match="has a backup of node 'nobody'"):
            fetch(str(tmp_path / "a"), "nobody", pair.serving(0), 0)
        with pytest.raises(ValueError, match="--peers"):
            fetch(str(tmp_path / "a"), "nobody", Serving("127.0.0.1:0"), 0)
        # What lies on its own disk is the newest.
        assert not fetch(str(pair.folders[0]), "nobody", pair.serving(0), 0)
        store.drop_table("t")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_for_a_backup_ends_at_a_signal(tmp_path: Path, number: int) -> None:
    """Nobody answers: it would go on for a minute."""
    options = ("--peers", "127.0.0.1:1,127.0.0.1:2", "--disk", str(tmp_path), "--rejoin", "127.0.0.1:1")
    command = [sys.executable, "-m", "di_store", "serve", f"b-{uuid.uuid4().hex[:12]}", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "looking for a backup of node '127.0.0.1:1'" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(20) != 0


def test_invalid_backup_calls_are_refused(pair: Pair) -> None:
    """A backup has files of checkpoints alone, in its own folder."""
    session = RemoteSession.connect(pair.nodes[1].address, None, None, False, 60)
    empty = '{"uuids":["%s"],"machine":"m","address":"a","number":1,"made":0,"files":%s}'
    uuid_ = "0" * 32
    begun = session.call("backup_begin", {"backup": (empty % (uuid_, "{}")).encode()}, what="test")
    part = {"uuid": uuid_, "token": begun["token"], "at": 0, "data": np.zeros(8, np.uint8)}
    for name in ("../x", "x", "segment-00000001/../../x", "/x", 1):
        with pytest.raises(TypeError):
            session.call("backup_part", {**part, "name": name}, what="test")
    for wrong in (empty % ("../" + "0" * 29, "{}"), empty % (uuid_, '{"../x":{"bytes":1,"version":""}}'), "{", ""):
        with pytest.raises(di_store.CorruptData):
            session.call("backup_begin", {"backup": wrong.encode()}, what="test")
    with pytest.raises(TypeError):
        session.call("backup_part", {**part, "uuid": "..", "name": "manifest.json"}, what="test")
    session.call("backup_drop", {"uuids": [uuid_]}, what="test")
    with pytest.raises(StoreError, match="restarted this backup"):
        session.call("backup_part", {**part, "name": "manifest.json"}, what="test")
    session.close()


def test_only_changed_files_are_sent_again(pair: Pair) -> None:
    """Those that have another version, or none; others are taken over from the backup before, as they are."""
    session = RemoteSession.connect(pair.nodes[1].address, None, None, False, 60)
    uuid_, name = "1" * 32, "disk-00010001-1"

    def begun(number: int, version: str) -> tuple[bytes, Any]:
        file = {"bytes": 8, "version": version}
        backup = {
            "uuids": [uuid_],
            "machine": "m",
            "address": "a",
            "number": number,
            "made": 0.0,
            "files": {name: file},
        }
        text = json.dumps(backup).encode()
        return text, session.call("backup_begin", {"backup": text}, what="test")

    for number, (version, missing) in enumerate(
        [("one", [name]), ("one", []), ("two", [name]), ("", [name]), ("", [name])]
    ):
        text, answer = begun(number, version)
        assert answer["missing"] == missing
        if missing:
            part = {"uuid": uuid_, "token": answer["token"], "name": name, "at": 0}
            session.call("backup_part", {**part, "data": np.full(8, number, np.uint8)}, what="test")
        session.call("backup_commit", {"backup": text, "token": answer["token"]}, what="test")
        asked = {"uuid": uuid_, "number": number, "name": name, "at": 0}
        assert session.call("backup_read", asked, what="test").tolist() == [number if missing else number - 1] * 8
    session.call("backup_drop", {"uuids": [uuid_]}, what="test")
    assert not any(uuid_ in each for each in os.listdir(pair.folders[1] / "backups"))
    session.close()


def test_a_durable_table_made_by_a_client_is_backed_up(pair: Pair, tmp_path: Path) -> None:
    """One that is made through an agent is written as any other."""
    with pair.nodes[1].connect() as far:
        table = far.create_table("far", **TABLE)
        table.insert({"n": 1, "x": np.full(200, 3), "terminated": False})
        far.sync()
        with stopped(*pair.nodes[1].pids):  # else files may go while they are copied
            shutil.copytree(pair.folders[1] / "durable", tmp_path / "copy")
        far.drop_table("far")
    with di_store.restore(tmp_path / "copy", memory="256MiB") as restored:
        assert rows_of(restored.table("far"))["n"].tolist() == [1]
        with pytest.raises(TableNotFound):
            restored.table("near")
