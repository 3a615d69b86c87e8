"""Made-up jobs, each slow for a cause of its own, of real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cli_run import command, process
from pains import Program, until

import di_store

HEAD = """
import os, sys, threading
import numpy as np
import di_store
store = di_store.attach(sys.argv[1], timeout=60)
say = lambda: print("ready", flush=True)
wait = threading.Event().wait
"""
ACTOR = """
table, pause = store.table("t", timeout=60), float(sys.argv[2])
with table.writer() as writer:
    say()
    while True:
        writer.append({"x": np.ones(10, "f4")})
        wait(pause)
"""
LEARNER = """
table, n, pause = store.table("t", timeout=60), int(sys.argv[2]), float(sys.argv[3])
say()
while True:
    table.sample(n)
    wait(pause)
"""
LEARNER_STOPPED_WITH_LOCK = """
from di_store import _core
table = store.table("t", timeout=60)
table.sample(1)
say()
sys.stdin.readline()
_core.arm_fault("table.draw_item:1:stop")
table.sample(1)
"""
PUTTER = """
say()
kept = []
while True:
    kept.append(store.put(np.ones(1 << 18, "f4"), timeout=600))
"""
KEEPER = """
say()
kept, seen = [], set()
while True:
    for ref in store.keys():
        if ref.raw not in seen:
            seen.add(ref.raw)
            kept.append(store.get(ref))
            store.delete([ref])
    wait(0.01)
"""
JUDGE = """
table, todo = store.table("t", timeout=60), os.open(sys.argv[2], os.O_RDWR)
say()
while True:
    keys = np.frombuffer(os.read(todo, 128), "u8")
    table.update(keys, {"reward": np.ones(len(keys), "f4")})
"""
JUDGED_ACTOR = """
table, todo, pause = store.table("t", timeout=60), os.open(sys.argv[2], os.O_RDWR), float(sys.argv[3])
say()
while True:
    os.write(todo, table.insert({"x": np.ones(10, "f4")}).tobytes())
    wait(pause)
"""
ROLLOUT_WORKER = """
table, pause, prompt = store.table("t", timeout=60), float(sys.argv[2]), 0
with table.writer() as writer:
    say()
    while True:
        for _ in range(2):
            writer.append({"prompt": prompt, "x": np.ones(10, "f4")})
        prompt += 1
        wait(pause)
"""
STALE_ACTOR = """
table = store.table("t", timeout=60)
store.latest("policy", timeout=60)
with table.writer() as writer:
    say()
    while True:
        writer.append({"x": np.ones(10, "f4")})
        wait(0.002)
"""
PUBLISHER = """
store.publish("policy", np.ones(10))
say()
while True:
    store.publish("policy", np.ones(10))
    wait(0.05)
"""
GIL = """
table = store.table("t", timeout=60)
def work():
    while True:
        sum(range(10_000_000))
threading.Thread(target=work, daemon=True).start()
say()
while True:
    table.sample(16)
"""
ASKS_EACH_STEP = """
table = store.table("t", timeout=60)
with table.writer() as writer:
    say()
    while True:
        writer.append({"x": np.ones(10, "f4")})
        for _ in range(4):
            len(table)
"""
LOADING_LEARNER = """
table = store.table("t", timeout=60)
say()
for batch in table.loader(64, prefetch=4):
    sum(range(20_000))
"""
LEARNER_IN_A_THREAD = """
table = store.table("t", timeout=60)
def learn():
    ones = np.ones((400, 400))
    while True:
        table.sample(16)
        ones @ ones
threading.Thread(target=learn, daemon=True).start()
say()
while True:
    wait(0.1)
"""
X = {"x": di_store.Spec((10,), "f4")}


class Job:
    """A store and its programs."""

    def __init__(self, name: str, folder: Path, ends: ExitStack) -> None:
        self.name = name
        self.folder = folder
        self.ends = ends
        self.pids: dict[str, int] = {}
        self.guilty: set[int] = set()
        """The processes that a finding must name; empty: any."""

    def open(self, **options: Any) -> di_store.Store:
        """The store."""
        return self.ends.enter_context(di_store.open(self.name, **{"memory": "64MiB", **options}))

    def start(self, text: str, *arguments: object) -> Program:
        """Start a program, and wait until it is at work."""
        program = self.ends.enter_context(Program(HEAD + text, self.name, *arguments))
        assert program.line() == "ready"
        return program


def _slow_learner(job: Job) -> di_store.Store:
    store = job.open()
    store.create_table("t", capacity=1000, schema=X, limiter=di_store.SamplesPerInsert(4, 100, 2))
    job.start(ACTOR, 0)
    job.guilty = {job.start(LEARNER, 64, 0.3).pid}
    until(lambda: any(each["kind"] == "limiter" for each in store.stats()["waiters"]), "the actor to wait")
    return store


def _slow_actor(job: Job) -> di_store.Store:
    store = job.open()
    store.create_table("t", capacity=1000, schema=X, limiter=di_store.SamplesPerInsert(4, 10, 20))
    job.guilty = {job.start(ACTOR, 0.1).pid}
    job.start(LEARNER, 16, 0)
    _until_learner_waits(store)
    return store


def _tight_limiter(job: Job) -> di_store.Store:
    store = job.open()
    table = store.create_table("t", capacity=1000, schema=X, limiter=di_store.SamplesPerInsert(1, 100, 0.01))
    table.extend({"x": np.ones((100, 10), "f4")})
    job.guilty = {job.start(ACTOR, 0.002).pid, job.start(LEARNER, 64, 0.2).pid}
    until(lambda: table.stats()["samples"] > 200, "some batches")
    return store


def _short_memory(job: Job) -> di_store.Store:
    store = job.open()
    job.guilty = {job.start(PUTTER).pid}
    _until_room(store)
    return store


def _slow_disk(job: Job) -> di_store.Store:
    store = job.open(memory="16MiB", disk=job.folder / "disk", disk_capacity="256MiB")
    schema = {"x": di_store.Spec((1024,), "u1")}
    table = store.create_table("t", capacity=30_000, schema=schema, compress=None)
    rows = np.random.default_rng(1).integers(0, 255, (1000, 1024), "u1")
    for _ in range(30):
        table.extend({"x": rows}, timeout=120)
    job.guilty = {job.start(LEARNER, 64, 0).pid}
    return store


def _stopped_learner(job: Job) -> di_store.Store:
    store = job.open()
    store.create_table("t", capacity=1000, schema=X, limiter=di_store.SamplesPerInsert(4, 100, 2))
    job.start(ACTOR, 0)
    learner = job.start(LEARNER, 64, 0)
    until(lambda: store.stats()["tables"]["t"]["samples"] > 200, "some batches")
    learner.signal(signal.SIGSTOP)
    job.guilty = {learner.pid}
    return store


def _stopped_with_lock(job: Job) -> di_store.Store:
    store = job.open()
    table = store.create_table("t", capacity=1000, schema=X)
    table.extend({"x": np.ones((10, 10), "f4")})
    learner = job.start(LEARNER_STOPPED_WITH_LOCK)
    job.start(ACTOR, 0.002)
    learner.say()
    until(lambda: any(each["culprit"] == learner.pid for each in store.stats()["waiters"]), "the actor to wait")
    job.guilty = {learner.pid}
    return store


def _dead_judge(job: Job) -> di_store.Store:
    store, judge = _judged(job)
    judge.process.kill()
    judge.process.wait()
    _until_rewards_lack(store)
    return store


def _stopped_judge(job: Job) -> di_store.Store:
    store, judge = _judged(job)
    judge.signal(signal.SIGSTOP)
    job.guilty = {judge.pid}
    _until_rewards_lack(store)
    return store


def _live_judge(job: Job) -> di_store.Store:
    return _judged(job)[0]


def _judged(job: Job) -> tuple[di_store.Store, Program]:
    """A slow actor whose items a judge completes. It gets their keys by a pipe: `update` is all that it calls."""
    store = job.open()
    schema = {**X, "reward": di_store.Spec((), "f4", late=True)}
    table = store.create_table("t", capacity=1000, schema=schema, limiter=di_store.Queue(200))
    todo = job.folder / "todo"
    os.mkfifo(todo)
    job.start(JUDGED_ACTOR, todo, 0.01)
    judge = job.start(JUDGE, todo)
    job.guilty = {job.start(LEARNER, 4, 0).pid}
    until(lambda: table.stats()["samples"] > 20, "some batches")
    return store, judge


def _short_groups(job: Job) -> di_store.Store:
    store, worker = _grouped(job)
    job.guilty = set()
    worker.process.kill()
    worker.process.wait()
    waiting = {0: 0}  # groups, when the last one became complete

    def none_becomes_complete() -> bool:
        found = store.stats()["tables"]["t"]
        return found["waiting"] > waiting.setdefault(found["inserts"], found["waiting"]) + 10

    until(none_becomes_complete, "groups that lack answers")
    return store


def _whole_groups(job: Job) -> di_store.Store:
    return _grouped(job)[0]


def _grouped(job: Job) -> tuple[di_store.Store, Program]:
    """Two slow workers, each of which gives half of the answers."""
    store = job.open()
    schema = {**X, "prompt": di_store.Spec((), "i8")}
    view = di_store.Group(4, by="prompt")
    table = store.create_table("t", capacity=1000, schema=schema, view=view, limiter=di_store.Queue(64))
    workers = [job.start(ROLLOUT_WORKER, 0.05) for _ in range(2)]
    job.guilty = {each.pid for each in workers}
    job.start(LEARNER, 2, 0)
    until(lambda: table.stats()["samples"] > 10, "some groups")
    return store, workers[0]


def _stale_items(job: Job) -> di_store.Store:
    store = job.open()
    table = store.create_table(
        "t", capacity=1000, schema=X, weights="policy", max_staleness=1, limiter=di_store.MinSize(10)
    )
    job.start(PUBLISHER)
    job.start(STALE_ACTOR)
    job.start(LEARNER, 16, 0)
    until(lambda: table.stats()["stale_dropped"] > 10, "items to be dropped")
    return store


def _remote_polling(job: Job) -> di_store.Store:
    store, agent = _remote(job, ASKS_EACH_STEP, di_store.SamplesPerInsert(4, 10, 20))
    job.guilty = {agent}
    return store


def _remote_rows(job: Job) -> di_store.Store:
    return _remote(job, ACTOR, di_store.MinSize(10))[0]


def _remote(job: Job, actor: str, limiter: di_store.MinSize | di_store.SamplesPerInsert) -> tuple[di_store.Store, int]:
    """A remote actor and a learner of this machine; also the agent's pid."""
    serve = command("serve", job.name, "--memory", "64MiB", "--listen", "127.0.0.1:0", "--json")
    served = job.ends.enter_context(process(*serve))
    assert served.stdout is not None
    found = json.loads(served.stdout.readline())
    store = job.ends.enter_context(di_store.attach(job.name, timeout=60))
    table = store.create_table("t", capacity=1000, schema=X, limiter=limiter)
    text = f"import di_store; di_store.attach = lambda *_, **__: di_store.connect({found['address']!r})\n"
    remote = job.ends.enter_context(Program(text + HEAD + actor, job.name, 0.001))
    assert remote.line() == "ready"
    until(lambda: len(table) >= 10, "items")
    job.start(LEARNER, 16, 0)
    return store, found["agent"]


def _kept_batches(job: Job) -> di_store.Store:
    store = job.open()
    job.start(PUTTER)
    job.guilty = {job.start(KEEPER).pid}
    _until_room(store)
    return store


def _held_gil(job: Job) -> di_store.Store:
    store = _filled(job)
    job.guilty = {job.start(GIL).pid}
    return store


def _healthy(job: Job) -> di_store.Store:
    store = _filled(job)
    job.start(ACTOR, 0)
    job.start(LEARNER, 64, 0)
    return store


def _healthy_loader(job: Job) -> di_store.Store:
    store = _filled(job)
    job.start(ACTOR, 0.001)
    job.start(LOADING_LEARNER)
    return store


def _healthy_thread(job: Job) -> di_store.Store:
    store = _filled(job)
    job.start(LEARNER_IN_A_THREAD)
    return store


def _filled(job: Job) -> di_store.Store:
    """A table at which nobody waits."""
    store = job.open()
    table = store.create_table("t", capacity=1000, schema=X)
    table.extend({"x": np.ones((100, 10), "f4")})
    return store


def _until_room(store: di_store.Store) -> None:
    until(lambda: any(each["kind"] == "room" for each in store.stats()["waiters"]), "a wait for room")


def _until_rewards_lack(store: di_store.Store) -> None:
    until(lambda: store.stats()["tables"]["t"]["waiting"] > 10, "items without rewards")
    _until_learner_waits(store)


def _until_learner_waits(store: di_store.Store) -> None:
    until(lambda: any(each["kind"] == "items" for each in store.stats()["waiters"]), "the learner to wait")


JOBS: dict[str, tuple[str, Callable[[Job], di_store.Store]]] = {
    "slow learner": ("learner", _slow_learner),
    "slow actor": ("actor", _slow_actor),
    "tight limiter": ("limiter", _tight_limiter),
    "short memory": ("memory", _short_memory),
    "slow disk": ("disk", _slow_disk),
    "stopped process": ("stopped", _stopped_learner),
    "stopped with a lock": ("stopped", _stopped_with_lock),
    "dead judge": ("judge", _dead_judge),
    "stopped judge": ("stopped", _stopped_judge),
    "short groups": ("group", _short_groups),
    "stale items": ("stale", _stale_items),
    "remote polling": ("remote", _remote_polling),
    "kept batches": ("held", _kept_batches),
    "held GIL": ("gil", _held_gil),
    "healthy": ("nothing", _healthy),
    "healthy with a loader": ("nothing", _healthy_loader),
    "healthy with a learner's thread": ("nothing", _healthy_thread),
    "healthy remote rows": ("nothing", _remote_rows),
    "slow actor with a judge": ("actor", _live_judge),
    "slow rollout workers": ("actor", _whole_groups),
}
"""Each job, with the cause of its slowness."""


@contextmanager
def running(which: str, name: str, folder: Path) -> Iterator[tuple[Job, di_store.Store]]:
    """The job while it is slow; its programs end with the block."""
    with ExitStack() as ends:
        job = Job(name, folder, ends)
        yield job, JOBS[which][1](job)
