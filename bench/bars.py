"""The bars: the least ratio of each of our figures to a peer's best figure, or to this machine's memcpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.measure import OBJECT_BYTES

Key = tuple[str, str, str]
"""System, workload, metric."""

MACHINE = "limits"
COPY = (MACHINE, "memory", "copy, 1 thread")
COPY_GIGABYTES = 14.0
"""GB/s of a 256 MiB memcpy on the machine where the absolute bars were set; they are scaled by this run's memcpy."""


@dataclass(frozen=True)
class Bar:
    """One line of the table.

    Attributes:
        workload, metric: of our figure.
        system: the peer, or ``limits`` for this machine's memory.
        metrics: of the peer; the best of those measured is used.
        least: least ratio of our figure to the peer's; None: shown only, without a bar.
        absolute: a figure per second on the machine of COPY_GIGABYTES; the ratio is then to this figure, scaled by
            this run's memcpy.
        most: if True, ``least`` is the largest ratio allowed instead.
    """

    workload: str
    metric: str
    system: str
    metrics: tuple[str, ...]
    least: float | None
    absolute: float | None = None
    most: bool = False


@dataclass(frozen=True)
class Line:
    """A bar with its figures; ``None``: not measured."""

    workload: str
    metric: str
    ours: float | None
    system: str
    theirs: float | None
    by: str
    ratio: float | None
    bar: float | None
    most: bool

    @property
    def verdict(self) -> str:
        """The word for the table: "ok" or "MISSED"; "" without a bar or a ratio."""
        if self.bar is None or self.ratio is None:
            return ""
        met = self.ratio <= self.bar if self.most else self.ratio >= self.bar
        return "ok" if met else "MISSED"


def bars() -> list[Bar]:
    """All bars, in the order of the table."""
    return [*ray_bars(), *reverb_bars(), *machine_bars(), *inprocess_bars()]


def ray_bars() -> Iterable[Bar]:
    puts = {"1KB": 300.0, "110KB": 90.0}
    for size in OBJECT_BYTES:
        yield Bar(size, "put", "ray", ("put",), puts.get(size))
        yield Bar(size, "get", "ray", ("get",), None)
        yield Bar(size, "get, other process", "ray", ("get, other process",), 100.0)


def reverb_bars() -> Iterable[Bar]:
    """Tables. A bar compares with Reverb's samplers outside the server's process, as ours is; its best is shown too."""
    outside = tuple(f"sample{way}, other process" for way in ("", ", client"))
    samples = {"56KB": 4.0, "2KB": 25.0, "2.8MB": 2.0}
    for name in samples:
        for metric in ("append", "insert"):
            yield Bar(name, metric, "reverb", ("append", "insert"), 5.0 if name == "2.8MB" else 15.0)
        yield Bar(name, "sample", "reverb", outside, samples[name])
        yield Bar(name, "sample", "reverb", ("sample", "sample, client", *outside), None)
        yield Bar(name, "loader", "reverb", outside, None)
        yield Bar(name, "update", "reverb", ("update", "update, other process"), None)


def machine_bars() -> Iterable[Bar]:
    """Shares of this run's memcpy, and absolute figures scaled by it."""
    shares = {"56KB": 0.9, "28KB": 0.9, "2.8MB": 0.9, "2KB": 0.4}
    for name, least in shares.items():
        yield Bar(name, "sample, bytes", MACHINE, (COPY[2],), least)
    yield Bar("10MB", "put, cold, bytes", MACHINE, (COPY[2],), 0.9)
    yield Bar("1GiB", "put and gets, memory", MACHINE, (), 1.1, absolute=1.0, most=True)
    for metric, figure in (("append", 250_000), ("append, 16 lanes", 400_000), ("sample, uniform", 4_400_000)):
        yield Bar("105B", metric, MACHINE, (), 1.0, absolute=figure)


def inprocess_bars() -> Iterable[Bar]:
    """Buffers of one process. Ours are measured across processes, except "loop": one process on both sides."""
    one_by_one = ("cpprb append", "cpprb uniform append", "sb3 append", "tianshou append")
    uniform = ("cpprb uniform sample", "sb3 sample", "torchrl LazyTensorStorage sample", "tianshou uniform sample")
    uniform = (*uniform, "torchrl LazyMemmapStorage sample")
    many = ("torchrl LazyTensorStorage extend", "torchrl LazyMemmapStorage extend")
    for name in ("56KB", "2KB", "105B"):
        yield Bar(name, "append", "inprocess", one_by_one, 1.0)
        yield Bar(name, "extend", "inprocess", many, 1.0)
        yield Bar(name, "sample, uniform", "inprocess", uniform, 1.0)
        yield Bar(name, "sample", "inprocess", ("cpprb sample", "tianshou sample"), 1.0)
        yield Bar(name, "update", "inprocess", ("cpprb update", "tianshou update"), 1.0)
        if name != "56KB":  # whose batches are 32 already
            yield Bar(name, "update of 32", "inprocess", ("cpprb update of 32",), 1.0)
        yield Bar(name, "loop", "inprocess", ("sb3 loop",), 1.0)


def compare(figures: Mapping[Key, float]) -> list[Line]:
    """The lines of the table, from the median figures."""
    lines = []
    copy = figures.get(COPY)
    for bar in bars():
        ours, theirs, by = figures.get(("di-store", bar.workload, bar.metric)), None, ""
        if bar.absolute is not None:
            theirs = bar.absolute if bar.most or copy is None else bar.absolute * copy / COPY_GIGABYTES
            by = "" if bar.most else f"{bar.absolute:,.0f} at {COPY_GIGABYTES:g} GB/s"
        elif bar.system == MACHINE:
            theirs, by = copy, "memcpy"
        else:
            known = {m: figures[key] for m in bar.metrics if (key := (bar.system, bar.workload, m)) in figures}
            by = max(known, key=lambda metric: known[metric], default="")
            theirs = known.get(by)
        ratio = ours / theirs if ours is not None and theirs else None
        lines.append(Line(bar.workload, bar.metric, ours, bar.system, theirs, by, ratio, bar.least, bar.most))
    return lines
