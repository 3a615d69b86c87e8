"""All eight rows of the target table at once: P17 at its size on this machine, and with every element there is.

Each row has a process that writes and one that learns, at the rates of the table, by a fixed schedule; learners look at
every byte of every batch. Byte counts are of steps as they are stored, each once (bench/tier/targets.py).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker
from bench.tier.disk import device_bytes
from bench.tier.frames import load, qbert
from bench.tier.lines import Line, Options, alone
from bench.tier.stores import disk_stats, opened
from bench.tier.targets import GB, MB, TARGETS, Content, Target, blocks

BLOCK = 16 * MB
"""Bytes of steps that are written at once to fill a table."""
CAPACITY, HOT = 16 * GB, 4 * GB
ONE_CAPACITY, ONE_HOT = 12 * GB, 3 * GB
"""Of P17, S3 and S4 (`box_tier`): bytes of steps in all, and those of them that memory holds."""
LEFT, HEADROOM, MEMORY = 10 * GB, 1 * GB, 12 * GB
"""Of the drive that the whole table leaves free; memory beside bodies; memory for the whole table."""
WARM, SECONDS = 15.0, 60.0
RATE_BAR, JAIN_BAR, READ_BAR = 0.99, 0.95, 0.7
FILL_SECONDS = 3_000.0


@dataclass
class Tally:
    """What one process of a row did while it was measured.

    Attributes:
        due, done: elements; bytes: of them.
        waited, longest: seconds in calls of the store, of a step; cpu: of the processor.
        wrong: items that were not what was written.
        stopped: the error that ended it.
    """

    due: float = 0.0
    done: float = 0.0
    bytes: float = 0.0
    waited: float = 0.0
    cpu: float = 0.0
    wrong: int = 0
    stopped: str = ""
    longest: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One row at one size."""

    target: Target
    elements: int
    frame: str
    shown: Path | None
    staging: int
    """Bytes that its learner may hold ahead."""

    def content(self) -> Content:
        shown = None if self.shown is None or not self.target.frames else load(self.shown)
        return Content(self.target, self.frame, shown)


def paced(pipe: Any, rate: float, of_step: float, step: Callable[[Tally], None]) -> None:
    """Waits for (start, end) on the pipe; until then, once started, one step after the other as they are due; answers.

    The processor time is that of the whole process, between start and end.
    """
    start, end = pipe.recv()
    tally, period, due = Tally(), of_step / rate, start
    time.sleep(max(0.0, start - time.monotonic()))
    cpu = time.process_time()
    while due < end and not tally.stopped:
        time.sleep(max(0.0, due - time.monotonic()))
        if time.monotonic() >= end:
            break
        begin = time.monotonic()
        try:
            step(tally)
            tally.done += of_step
            tally.due += of_step
        except di_store.StoreError as error:
            tally.stopped = f"{type(error).__name__}: {error}"
        tally.longest = max(tally.longest, time.monotonic() - begin)
        due += period
    tally.due += max(0.0, (end - due) // period * of_step)  # that have not begun
    tally.cpu = time.process_time() - cpu
    pipe.send(tally)


def write(pipe: Any, table: di_store.Table, plan: Plan) -> None:
    """Fills the table, tells how long that took, then inserts at the row's rate, ten times a second."""
    target, content = plan.target, plan.content()
    step_bytes = target.element_bytes(plan.frame) // target.steps
    steps, stopped = plan.elements * target.steps + target.steps + 8, ""
    begin = time.monotonic()
    with table.writer() as writer:
        try:
            for rows in blocks(content, steps, max(1, min(BLOCK // step_bytes, steps // 4))):
                writer.extend(rows, timeout=FILL_SECONDS)
        except di_store.StoreError as error:
            stopped = f"{type(error).__name__}: {error}"
        pipe.send((time.monotonic() - begin, stopped))
        each = max(1, round(target.inserts / 10)) * target.steps

        def step(tally: Tally) -> None:
            rows = content.rows(each)
            begin = time.monotonic()
            writer.extend(rows, timeout=60)
            tally.waited += time.monotonic() - begin
            tally.bytes += each * step_bytes

        for _ in range(2):
            paced(pipe, target.inserts, each / target.steps, step)
        pipe.recv()


def learn(pipe: Any, name: str, table_name: str, plan: Plan) -> None:
    """Draws batches at the row's rate through a loader, looks at them, gives new priorities."""
    target, content = plan.target, plan.content()
    rng = np.random.default_rng(0)
    with di_store.attach(name, staging=plan.staging) as store:
        table = store.table(table_name)
        with table.loader(target.batch, prefetch=target.ahead) as loader:

            def step(tally: Tally) -> None:
                begin = time.monotonic()
                batch = next(loader)
                tally.waited += time.monotonic() - begin
                if isinstance(target.sampler, di_store.Prioritized):
                    table.update_priorities(batch.keys, rng.random(len(batch)) + 0.01)
                tally.bytes += sum(leaf.nbytes for leaf in batch.data.values())
                tally.wrong += content.wrong(batch)

            for _ in range(2):
                paced(pipe, target.samples, target.batch, step)
            pipe.recv()


@dataclass
class Run:
    """What all rows did together."""

    plans: list[Plan]
    writers: list[Tally] = field(default_factory=list)
    learners: list[Tally] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Of each row: items, bytes in the store's count, bytes that its elements would be by the table."""


def run(plans: list[Plan], memory: int, capacity: int, folder: Path, seconds: float) -> Run:
    """Fill all tables at once, warm up, measure."""
    found = Run(plans)
    with opened(folder, memory, capacity) as store:
        tables = [plan.target.create(store, plan.elements, plan.frame) for plan in plans]
        writers = [Worker(write, table, plan) for table, plan in zip(tables, plans, strict=True)]
        for worker, plan in zip(writers, plans, strict=True):
            taken, stopped = worker.pipe.recv()
            print(f"{plan.target.name}: filled in {taken:.0f} s {stopped}", file=sys.stderr, flush=True)
            if stopped:
                found.stopped[plan.target.name] = stopped
        learners = [Worker(learn, store.name, plan.target.name, plan) for plan in plans]
        for length in (WARM, seconds):
            read, written = device_bytes(folder)
            disk, start = disk_stats(store), time.monotonic() + 3
            for worker in writers + learners:
                worker.pipe.send((start, start + length))
            found.writers = [worker.pipe.recv() for worker in writers]
            found.learners = [worker.pipe.recv() for worker in learners]
            after, now = device_bytes(folder), disk_stats(store)
        found.figures = {
            "device read": (after[0] - read) / seconds,
            "device written": (after[1] - written) / seconds,
            "wanted": (now["read"] - disk["read"]) / seconds,
            "cores": sum(tally.cpu for tally in found.writers + found.learners) / seconds,
        }
        stats, disk = store.stats(), disk_stats(store)
        found.figures |= {name: float(disk[name]) for name in ("live", "raw", "files")} | {"memory": stats["live"]}
        for plan in plans:
            table = stats["tables"][plan.target.name]
            found.sizes[plan.target.name] = (table["size"], table["bytes_stored"], table["size"] * plan.target.size)
        for worker in writers + learners:
            worker.pipe.send(None)
        for worker in learners + writers:
            worker.end()
    return found


def report(found: Run, case: str) -> list[Line]:
    """Rates of every row beside those of the table, how fair that is, bytes, processors."""
    reached, lines = [], []
    for plan, writer, learner in zip(found.plans, found.writers, found.learners, strict=True):
        target, (size, stored, logical) = plan.target, found.sizes[plan.target.name]
        row = f"{case}, {target.name}"
        shares = [min(1.0, tally.done / max(tally.due, 1)) for tally in (writer, learner)]
        reached += shares
        print(
            f"{target.name}: {size:,} items, stored {stored / GB:.2f} GB of {logical / GB:.1f} GB "
            f"({stored / max(logical, 1):.4f}), inserts {shares[0]:.3f}, samples {shares[1]:.3f}, "
            f"waited {writer.waited:.1f} and {learner.waited:.1f} s, longest {writer.longest:.2f} and "
            f"{learner.longest:.2f} s, {learner.bytes / MB:.0f} MB drawn, "
            f"cpu {writer.cpu:.1f} and {learner.cpu:.1f} s, "
            f"{learner.wrong} wrong {writer.stopped} {learner.stopped} {found.stopped.get(target.name, '')}",
            file=sys.stderr,
            flush=True,
        )
        lines.append(alone(f"{row}: stored by logical bytes", "share", [stored / max(logical, 1)], None))
        lines.append(alone(f"{row}: inserts or samples by those due, the fewer", "share", [min(shares)], RATE_BAR))
    print(found.figures, file=sys.stderr, flush=True)
    jain = sum(reached) ** 2 / (len(reached) * sum(share * share for share in reached))
    wrong = sum(tally.wrong for tally in found.learners)
    figures = found.figures
    return [
        *lines,
        alone(f"{case}: Jain fairness of these", "", [jain], JAIN_BAR),
        alone(f"{case}: items that were wrong", "", [float(wrong)], 0.0, True),
        alone(f"{case}: read by the device", "GB/s", [figures["device read"] / GB], READ_BAR, True),
        alone(f"{case}: written by the device", "GB/day", [figures["device written"] * 86_400 / GB], None),
        alone(f"{case}: processors, with looking at every byte", "cores", [figures["cores"]], None),
        alone(f"{case}: files", "GB", [figures["files"] / GB], None),
    ]


def staged(target: Target, elements: int, frame: str, shown: Path | None) -> Plan:
    """A row whose learner may hold all its batches ahead: a batch shows each step twice at most, as now and as next."""
    item = 2 * target.element_bytes(frame) // target.steps * target.view.rows_spanned
    return Plan(target, elements, frame, shown, (target.ahead + 1) * target.batch * item)


def sized(case: str, targets: Sequence[Target], capacity: float, hot: float, options: Options) -> list[Line]:
    """Frames as float32; each row has a share of the bytes in proportion to its own."""
    total, plans = sum(target.elements * target.size for target in targets), list[Plan]()
    for target in targets:
        quota = capacity * options.scale * target.elements * target.size / total
        elements = min(target.elements, max(4 * target.batch, round(quota / target.element_bytes("f4"))))
        plans.append(staged(target, elements, "f4", None))
    stored = sum(plan.elements * plan.target.element_bytes("f4") for plan in plans)
    memory = round(hot * options.scale) + HEADROOM
    return report(run(plans, memory, round(stored * 1.4), options.folder, SECONDS), case)


def together(options: Options) -> list[Line]:
    """P17; then R2D2 and IMPALA by themselves."""
    one = (ONE_CAPACITY, ONE_HOT, options)
    lines = sized("P17", TARGETS, CAPACITY, HOT, options)
    return lines + sized("S3", TARGETS[2:3], *one) + sized("S4", TARGETS[3:4], *one)


def everything(options: Options) -> list[Line]:
    """The whole table, 542 GB by its own count: frames of Qbert, then random bytes."""
    lines, recorded = [], options.frames or options.folder / "qbert.u8"
    if options.frames is None:
        options.folder.mkdir(parents=True, exist_ok=True)
        qbert().tofile(recorded)
    for case, shown in (("Qbert", recorded), ("incompressible", None)):
        plans = [staged(target, round(target.elements * options.scale), "u1", shown) for target in TARGETS]
        capacity = shutil.disk_usage(options.folder).free - LEFT
        lines += report(run(plans, MEMORY, capacity, options.folder, SECONDS), f"542 GB, {case}")
    return lines
