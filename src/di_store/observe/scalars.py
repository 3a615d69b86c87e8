"""Writes the figures of a store beside the loss: to TensorBoard, to Weights & Biases, or to a function."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from di_store.base import config
from di_store.base.errors import StoreClosed, shown
from di_store.observe.rates import Rates
from di_store.observe.report import HasStats, StoreReport, TableReport, report
from di_store.runtime.forks import in_child

PREFIX = "di_store/"
END_SECONDS = 5.0
"""How long `close` waits for a writer that hangs."""

log = logging.getLogger("di_store")


def log_to(writer: Any, store: HasStats, *, every: float = 10.0, step: Callable[[], int] | None = None) -> ScalarLog:
    """Write the figures of a store to a writer of scalars every few seconds, from a thread of its own.

    A writer that raises does not disturb the program, nor end the log: its first error is logged as a warning.

    Args:
        writer: a ``SummaryWriter`` of TensorBoard; a run of Weights & Biases; or a function of name, value and step.
        store: the store; the calling process is included in its figures.
        every: seconds between two looks.
        step: gives the step of the values, such as the number of updates so far. None: a table's number of inserts, and
            for Weights & Biases the step that the run is at.

    Returns:
        The log. Its `close` writes once more and ends it; so does leaving a ``with`` block.
    """
    every = config.real("every", every, minimum=0.01, why="each look takes a moment of the job")
    return ScalarLog(_sink(writer), store, every, config.function("step", step))


Sink = Callable[["dict[str, tuple[float, int]]", "int | None"], None]
"""Takes values by name, each with the inserts so far, and the step that the user gave."""


def _sink(writer: Any) -> Sink:
    if callable(add := getattr(writer, "add_scalar", None)):
        return _each_to(add)
    if callable(run_log := getattr(writer, "log", None)):
        return lambda values, step: _to_run(run_log, values, step)
    if callable(writer):
        return _each_to(writer)
    raise TypeError(
        f"writer={shown(writer)}: give a SummaryWriter, a run of Weights & Biases, or a function of name, value, step"
    )


def _each_to(add: Callable[[str, float, int], object]) -> Sink:
    def write(values: dict[str, tuple[float, int]], step: int | None) -> None:
        for name, (value, inserts) in values.items():
            add(name, value, inserts if step is None else step)

    return write


def _to_run(run_log: Callable[..., object], values: dict[str, tuple[float, int]], step: int | None) -> None:
    """Without a step, the values join the run's next `log`: they must not count as a step of their own."""
    plain = {name: value for name, (value, _) in values.items()}
    if step is None:
        run_log(plain, commit=False)
    else:
        run_log(plain, step=step)


class ScalarLog:
    """Writes figures until `close`."""

    def __init__(self, sink: Sink, store: HasStats, every: float, step: Callable[[], int] | None) -> None:
        self._sink, self._store, self._every, self._step = sink, store, every, step
        self._rates, self._failed, self._ended = Rates(), False, threading.Event()
        self._rates.add([report(store.stats(), own=True)])
        self._thread = threading.Thread(target=self._run, name="di-store scalars", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # no thread may be inside the core when the interpreter ends
        in_child(self, ScalarLog._forget)

    def close(self) -> None:
        """Write once more, and end. Waits at most `END_SECONDS` for a writer that hangs."""
        atexit.unregister(self.close)
        self._ended.set()
        self._thread.join(END_SECONDS)

    def _forget(self) -> None:
        """In a forked child, which has no thread."""
        atexit.unregister(self.close)
        self._ended = threading.Event()

    def __enter__(self) -> ScalarLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(self._every)
            try:
                self._write()
            except StoreClosed:
                return
            except BaseException as error:  # whatever the writer raises, `SystemExit` too, the job goes on
                if not self._failed:
                    log.warning(
                        "figures of store %r cannot be written: %s: %s", self._store.name, type(error).__name__, error
                    )
                self._failed = True

    def _write(self) -> None:
        found = report(self._store.stats(), own=True)
        self._rates.add([found])
        inserts = sum(table["inserts"] for table in found["tables"])
        values = {PREFIX + name: (value, inserts) for name, value in _of_store(found)}
        for table in found["tables"]:
            waits = [each["kind"] for each in found["waiters"] if each["table"] == table["name"]]
            for name, value in _of_table(table, waits):
                values[f"{PREFIX}{table['name']}/{name}"] = value, table["inserts"]
        self._sink(values, None if self._step is None else self._step())


def _of_store(found: StoreReport) -> Iterator[tuple[str, float]]:
    yield "memory_share", 1 - found["memory"]["free"] / found["budget"]
    yield "clients", len(found["clients"])
    yield "waiters", len(found["waiters"])
    if (disk := found["disk"]) is not None:
        yield "disk_bytes", disk["files"]
        yield "disk_stalled_seconds", disk["stalled_seconds"]
        if disk["hit_rate"] is not None:
            yield "disk_hit_rate", disk["hit_rate"]


def _of_table(table: TableReport, waits: list[str]) -> Iterator[tuple[str, float]]:
    figures: Mapping[str, Any] = table
    for name in _COUNTS:
        if (value := figures[name]) is not None:
            yield name, value
    if table["inserts"]:
        yield "samples_per_insert", table["samples"] / table["inserts"]
    limiter = table["limiter"]
    yield "limiter_difference", limiter["inserts"] * limiter["ratio"] - limiter["samples"]
    yield "waiting_to_insert", waits.count("limiter") + waits.count("room")
    yield "waiting_to_sample", waits.count("items")


_COUNTS = (
    "size",
    "inserts",
    "samples",
    "inserts_per_second",
    "samples_per_second",
    "sample_age",
    "stale_dropped",
    "evicted_for_room",
)
