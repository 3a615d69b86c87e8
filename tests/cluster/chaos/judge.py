"""What the processes noted, compared with what lies in the stores."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import di_store
from cluster.chaos.job import QUEUE, Administrator
from cluster.chaos.ledger import Board
from cluster.chaos.stamps import broken, torn, whole
from cluster.chaos.world import World
from di_store.base.errors import StoreError

BLOCK = 2_000
SHARD_BITS = 56
TAKEN_AT_ONCE = 8


@dataclass
class Report:
    """Of a run. `late` are seconds beyond a call's deadline; `net`: without those its process got no processor."""

    acknowledged: int = 0
    lost: list[Any] = field(default_factory=list)
    gone_with_nodes: int = 0
    twice: list[Any] = field(default_factory=list)
    torn: int = 0
    back: int = 0
    evicted: int = 0
    sampled: int = 0
    versions: int = 0
    objects: int = 0
    taken: int = 0
    not_taken: int = 0
    faults: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    late: list[tuple[float, float, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in asdict(self).items())

    @property
    def latest(self) -> float:
        """The largest net lateness."""
        return max((net for net, _, _ in self.late), default=0.0)


@dataclass
class Noted:
    """By table: rows, and keys of windows, that were acknowledged; and ids of objects."""

    rows: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    keys: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    objects: list[str] = field(default_factory=list)
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)


def judge(world: World, board: Board, administrator: Administrator) -> Report:
    """Read all notes, and all stores."""
    report, noted = Report(), Noted()
    report.faults += administrator.faults
    calls, failed = Counter[str](), Counter[str]()
    for line in board.lines():
        _read(line, report, noted, calls, failed)
    report.calls, report.failed = dict(sorted(calls.items())), dict(failed.most_common(30))
    report.late.sort(reverse=True)
    for place, node in administrator.at.items():
        with di_store.attach(world.name(place)) as store:
            report.damage += [str(each) for each in store.check()]
            for name, made in administrator.made.items():
                if node.uuid in made.uuids and made.kind != QUEUE:
                    _judge_table(store, name, made.uuids.index(node.uuid), made.kind, report, noted)
            _judge_objects(store, node.home.hex(), report, noted)
    there = {node.uuid for node in administrator.at.values()}
    for name, made in administrator.made.items():
        if made.kind == "rows" and not set(made.uuids) & there:
            report.gone_with_nodes += len(noted.rows[name])
    _judge_queue(report, noted)
    return report


def _read(line: dict[str, Any], report: Report, noted: Noted, calls: Counter[str], failed: Counter[str]) -> None:
    if "acknowledged" in line:
        noted.rows[line["table"]].update((line["w"], n) for n in line["acknowledged"])
    if "keys" in line:
        noted.keys[line["table"]].update(line["keys"])
    if "put" in line:
        noted.objects.append(line["put"])
    for w, n in line.get("taken", ()):
        noted.taken[w, n] += 1
    if "fault" in line:
        report.faults.append(f"{line['who']}: {line['fault']}")
    if "late" in line:
        net = line["late"] - line["excuse"]
        report.late.append((round(net, 2), round(line["late"], 2), f"{line['who']}: {line['call']} {line['outcome']}"))
    calls.update(line.get("calls", {}))
    failed.update(each[:110] for name in ("failed", "refused") for each in [line.get(name)] if each)
    report.torn += line.get("torn", 0)
    report.back += line.get("back", 0)
    report.sampled += line.get("sampled", 0)
    report.versions += "published" in line


def _judge_table(store: di_store.Store, name: str, shard: int, kind: str, report: Report, noted: Noted) -> None:
    """One table, or one part of it, of a node that was not lost since."""
    table = store.table(name)
    stats = table.stats()
    report.evicted += stats["removed"]
    keys = np.asarray(table.keys())
    found: Counter[tuple[int, int]] = Counter()
    for begin in range(0, len(keys), BLOCK):
        data = table.peek(keys[begin : begin + BLOCK]).data
        report.torn += broken(data) if kind == "parts" else torn(data)
        found.update(zip(np.asarray(data["w"]).tolist(), np.asarray(data["n"]).tolist(), strict=True))
    report.twice += [(name, each) for each, times in found.items() if times > 1]
    if kind == "parts":
        own = {key & ((1 << SHARD_BITS) - 1) for key in noted.keys[name] if key >> SHARD_BITS == shard}
        report.acknowledged += len(own)
        report.lost += [(name, shard, key) for key in own - set(keys.tolist())]
    else:
        report.acknowledged += len(noted.rows[name])
        report.lost += [(name, each) for each in noted.rows[name] - found.keys()]


def _judge_objects(store: di_store.Store, home: str, report: Report, noted: Noted) -> None:
    for ref in noted.objects:
        if ref.startswith(home):
            report.objects += 1
            try:
                report.torn += not whole(store.get(ref))
            except StoreError as error:
                report.lost.append((ref, str(error)))


def _judge_queue(report: Report, noted: Noted) -> None:
    """A batch that was on its way to the consumer elsewhere when the agent was killed may be lost."""
    report.taken = noted.taken.total()
    report.twice += [(QUEUE, each) for each, times in noted.taken.items() if times > 1]
    report.not_taken = len(noted.rows[QUEUE] - noted.taken.keys())
