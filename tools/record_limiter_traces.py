"""Record which operations the rate limiter of Reverb 0.14 allows, one operation at a time.

Run in the environment of ``bench/peers/reverb.txt``, from the repository root::

    python tools/record_limiter_traces.py

For every configuration, a Reverb server is started in this process, and gets single inserts, samples and deletes in a
seeded random order. Before each operation the server's table is asked whether its rate limiter allows it
(``Table.can_insert(1)``, ``Table.can_sample(1)``). Only an allowed operation is then sent by the client. A blocked one
is never sent, since Reverb cannot withdraw a pending insert. These checks keep the record correct:

* after every operation the table's size and its completed call counts must equal those computed here;
* no call may hang: a watchdog ends the process;
* at the end of each trace, one insert and one sample that are reported as blocked are sent from a thread. They must
  still wait after a grace time, and must return as soon as operations of the other kind allow them. If the setting
  never blocks inserts (MinSize), only a sample is sent, to an empty table.

``bench/README.md`` describes the file. The remover is Fifo, except for Stack, where it is Lifo. A delete removes one
live item. It does not matter which one, since no trace has both deletes and a use limit. Queue and Stack traces have no
deletes, since our rule differs from Reverb's there (an item removed before it was drawn gives its insert back).
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import reverb  # type: ignore[import-not-found,unused-ignore]

TABLE = "t"
OPS_PER_TRACE = 320
CALL_LIMIT_SECONDS = 30.0
GRACE_SECONDS = 0.1


@dataclass(frozen=True)
class Setting:
    """One configuration to record: our limiter's name and numbers, the table's capacity and use limit."""

    kind: str
    numbers: dict[str, float]
    capacity: int
    max_times_sampled: int = 0

    @property
    def sampler(self) -> str:
        return "fifo" if self.kind == "Queue" else "lifo"

    def table(self) -> Any:
        if self.kind == "Queue":
            return reverb.Table.queue(TABLE, max_size=self.capacity)
        if self.kind == "Stack":
            return reverb.Table.stack(TABLE, max_size=self.capacity)
        n = self.numbers
        if self.kind == "MinSize":
            limiter = reverb.rate_limiters.MinSize(int(n["n"]))
        else:
            buffer = max(n["ratio"] * n["min_size"] * n["tolerance"], n["ratio"], 1.0)
            limiter = reverb.rate_limiters.SampleToInsertRatio(n["ratio"], int(n["min_size"]), float(buffer))
        limits = {"max_size": self.capacity, "rate_limiter": limiter, "max_times_sampled": self.max_times_sampled}
        return reverb.Table(TABLE, sampler=reverb.selectors.Lifo(), remover=reverb.selectors.Fifo(), **limits)


@dataclass
class Slot:
    """One live item: its key (None until it was sampled) and how often it was sampled."""

    key: int | None = None
    uses: int = 0


@dataclass
class Recorder:
    """Runs one trace on one server, and checks every operation against its own counts."""

    setting: Setting
    live: list[Slot] = field(default_factory=list)
    inserts: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        self.table = self.setting.table()
        self.server = reverb.Server(tables=[self.table])
        self.client = reverb.Client(f"localhost:{self.server.port}")

    def can(self, op: str) -> bool:
        return bool(self.table.can_insert(1) if op == "insert" else self.table.can_sample(1))

    def insert(self) -> None:
        """Insert one item; a full table removes one."""
        self.client.insert([0], {TABLE: 1.0})
        self.inserts += 1
        if len(self.live) == self.setting.capacity:
            self.live.pop(-1 if self.setting.kind == "Stack" else 0)
        self.live.append(Slot())

    def sample(self) -> None:
        """Draw one item; it is removed after its last allowed use."""
        (episode,) = list(self.client.sample(TABLE, num_samples=1))
        self.samples += 1
        place = 0 if self.setting.sampler == "fifo" else len(self.live) - 1
        slot = self.live[place]
        slot.uses += 1
        info = episode[0].info
        if slot.key not in (None, info.key) or info.times_sampled != slot.uses:
            raise AssertionError(f"Reverb drew {info} instead of {slot}")
        slot.key = int(info.key)
        if slot.uses == (1 if self.setting.kind in ("Queue", "Stack") else self.setting.max_times_sampled):
            del self.live[place]

    def check(self) -> None:
        """Check that the server's size and call counts equal ours: no call is pending, lost or done twice."""
        info = self.table.info
        stats = info.rate_limiter_info
        got = (info.current_size, stats.insert_stats.completed, stats.sample_stats.completed)
        if got != (own := (len(self.live), self.inserts, self.samples)):
            raise AssertionError(f"{self.setting}: Reverb has {got}, computed {own}")

    def record(self, rng: random.Random, count: int) -> list[list[Any]]:
        """``count`` operations in random order. The share of inserts changes, so that both kinds become blocked."""
        ops: list[list[Any]] = []
        insert_share, delete_share = 0.5, 0.0
        while len(ops) < count:
            if rng.random() < 0.05:
                insert_share = rng.choice((0.03, 0.2, 0.5, 0.8, 0.97))
                delete_share = rng.choice((0.0, 0.0, 0.1, 0.5, 0.95)) if not self.setting.max_times_sampled else 0.0
            delete = rng.random() < delete_share
            known = [i for i, slot in enumerate(self.live) if delete and slot.key is not None]
            if known and self.setting.kind not in ("Queue", "Stack"):
                self.client.mutate_priorities(TABLE, deletes=[self.live.pop(rng.choice(known)).key])
                ops.append(["delete", True])
            else:
                op = "insert" if rng.random() < insert_share else "sample"
                ops.append([op, self.can(op)])
                if ops[-1][1]:
                    (self.insert if op == "insert" else self.sample)()
            faulthandler.dump_traceback_later(CALL_LIMIT_SECONDS, exit=True)
            self.check()
        return ops

    def confirm(self, op: str, other: str) -> bool:
        """Send an ``op`` that is reported as blocked; False: this setting never blocks it.

        Call it last: the trace must not be continued afterwards.

        :raises AssertionError: it passed although reported blocked, or stayed blocked after being allowed
        """
        faulthandler.dump_traceback_later(CALL_LIMIT_SECONDS, exit=True)
        for _ in range(self.setting.capacity + 200):
            if not self.can(op):
                break
            send(self.client, op)
        else:
            return False
        thread = threading.Thread(target=send, args=(reverb.Client(f"localhost:{self.server.port}"), op), daemon=True)
        thread.start()
        thread.join(GRACE_SECONDS)
        if not thread.is_alive():
            raise AssertionError(f"{self.setting}: a blocked {op} passed")
        # Only while the op is still blocked: once it is allowed, the waiting thread must complete it by itself.
        while not self.can(op) and thread.is_alive():
            send(self.client, other)
        thread.join(CALL_LIMIT_SECONDS / 2)
        if thread.is_alive():
            raise AssertionError(f"{self.setting}: an allowed {op} stayed blocked")
        return True


def send(client: Any, op: str) -> None:
    """Make one insert or sample through the client; returns when the server has done it."""
    if op == "insert":
        client.insert([0], {TABLE: 1.0})
    else:
        list(client.sample(TABLE, num_samples=1))


def settings() -> Iterator[Setting]:
    for n in (1, 2, 7, 20):
        for capacity in (n, n + 3, 1000):
            yield Setting("MinSize", {"n": n}, capacity)
    yield Setting("MinSize", {"n": 1}, 5, max_times_sampled=1)
    yield Setting("MinSize", {"n": 4}, 8, max_times_sampled=2)
    sizes = itertools.cycle((1, 2, 7, 20))
    tolerances = itertools.cycle((0.0, 0.1, 0.5, 1.0, 2.0))
    rooms = itertools.cycle((0, 1, 5, 1000))
    for ratio in (0.1, 0.25, 1 / 3, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 32.0):
        for i in range(4):
            size = next(sizes)
            room = next(rooms)
            yield Setting(
                "SamplesPerInsert", {"ratio": ratio, "min_size": size, "tolerance": next(tolerances)}, size + room
            )
            if i == 1:
                next(rooms)
        next(sizes)
    for ratio, uses in ((0.5, 1), (1.0, 1), (1.0, 2), (4.0, 3), (8.0, 100)):
        yield Setting("SamplesPerInsert", {"ratio": ratio, "min_size": 5, "tolerance": 0.2}, 30, max_times_sampled=uses)
    for kind in ("Queue", "Stack"):
        for size in (1, 2, 5, 32):
            yield Setting(kind, {"size": size}, size, max_times_sampled=1)


def trace(setting: Setting, seed: int) -> dict[str, Any]:
    faulthandler.dump_traceback_later(CALL_LIMIT_SECONDS, exit=True)
    recorder = Recorder(setting)
    ops = recorder.record(random.Random(seed), OPS_PER_TRACE)
    sent = [op for op, other in (("insert", "sample"), ("sample", "insert")) if recorder.confirm(op, other)]
    recorder.server.stop()
    if "sample" not in sent:
        fresh = Recorder(setting)  # empty, so that any limiter refuses a sample
        sent += ["sample"] if fresh.confirm("sample", "insert") else []
        fresh.server.stop()
    faulthandler.cancel_dump_traceback_later()
    blocked = sum(not allowed for _, allowed in ops)
    deletes = sum(op == "delete" for op, _ in ops)
    print(f"{setting}: {len(ops)} operations, {blocked} blocked, {deletes} deletes; really sent: {sent}", flush=True)
    head = {"capacity": setting.capacity, "sampler": setting.sampler, "max_times_sampled": setting.max_times_sampled}
    return {"limiter": {"kind": setting.kind, **setting.numbers}, **head, "ops": ops}


def main() -> None:
    parser = argparse.ArgumentParser(description="Record rate limiter decisions of the real Reverb.")
    parser.add_argument("--out", type=Path, default=Path("tests/golden/reverb_limiter_traces.json"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    traces = [trace(setting, 1000 * args.seed + i) for i, setting in enumerate(settings())]
    text = ",\n".join(json.dumps(t, separators=(",", ":")) for t in traces)
    args.out.write_text(f"[\n{text}\n]\n")
    print(f"{len(traces)} traces, {sum(len(t['ops']) for t in traces)} operations in {args.out}")


if __name__ == "__main__":
    main()
