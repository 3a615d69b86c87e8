"""Helpers of all benchmarks: timing calls, starting processes, taking turns, result files, blocks of pages, charts.

Uses only the standard library and numpy, and does not import the package: it runs in environments of peers, which have
no `di_store`, and with older builds of it.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

LEAST_CALLS = 20
BURST_SECONDS = 0.001
END_SECONDS = 60.0
T = TypeVar("T")
Nanoseconds = npt.NDArray[np.int64]

# --- time -------------------------------------------------------------------------------------------------------------


def time_calls(call: Callable[[Any], object], feed: Iterable[Any], seconds: float = math.inf) -> Nanoseconds:
    """Nanoseconds of each `call(value)`, until the feed ends, or `seconds` are over and there are `LEAST_CALLS`.

    The time to take a value from the feed is not included; the time to read the clock is (0.1 µs).
    """
    clock = time.perf_counter_ns
    end, taken = clock() + seconds * 1e9, list[int]()
    for value in feed:
        begin = clock()
        call(value)
        now = clock()
        taken.append(now - begin)
        if now > end and len(taken) >= LEAST_CALLS:
            break
    return np.array(taken, np.int64)


def time_alone(call: Callable[[], object], seconds: float) -> Nanoseconds:
    """Nanoseconds of each `call()`."""
    return time_calls(lambda _: call(), repeat(None), seconds)


def burst_of(call: Callable[[], object], seconds: float) -> int:
    """How many calls take about a millisecond; makes calls for `seconds`, which also warms up."""
    burst, begin = 1, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        start = time.perf_counter()
        for _ in range(burst):
            call()
        if time.perf_counter() - start < BURST_SECONDS / 2 and elapsed < seconds / 2:
            burst *= 2
    return burst


def calls_per_second(call: Callable[[], object], seconds: float, burst: int) -> float:
    """Rate over at least `seconds`. The clock is read once per burst, so that this adds little to a fast call."""
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        for _ in range(burst):
            call()
        count += burst
    return count / elapsed


def turns(cases: Sequence[T], rounds: int) -> Iterator[T]:
    """Every case once per round, in a rotating order, so that slow phases of the machine affect all cases alike."""
    for turn in range(rounds):
        for place in range(len(cases)):
            yield cases[(turn + place) % len(cases)]


# --- processes --------------------------------------------------------------------------------------------------------


class Worker:
    """A fresh process that runs `target(pipe, *arguments)`; the attribute `pipe` is the other end of that pipe.

    Args:
        method: "spawn", or "forkserver", which starts many processes faster.
        daemon: whether it ends with this process; a daemon cannot start processes.
    """

    def __init__(
        self, target: Callable[..., None], *arguments: Any, method: str = "spawn", daemon: bool = True
    ) -> None:
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([target.__module__])
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=target, args=(there, *arguments), daemon=daemon)
        self.process.start()
        there.close()

    def end(self, seconds: float = END_SECONDS) -> None:
        """Close the pipe and wait for the process; kill it if that takes too long."""
        self.pipe.close()
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function(*arguments)` in a fresh process: returns or raises what it does; `EOFError` if it dies."""
    worker = Worker(_answer, function, arguments, daemon=False)
    try:
        error, value = worker.pipe.recv()
    finally:
        worker.end()
    if error is not None:
        raise error
    found: T = value
    return found


def _answer(pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((None, function(*arguments)))
    except Exception as error:
        pipe.send((error, None))


def start_module(python: str, module: str, options: Sequence[str], path: Sequence[Path], **more: Any) -> Any:
    """Start `python -m module …` in a new session, importing from `path`; stdout and stderr are pipes of text.

    `env`: variables added to those of this process; other keywords go to `subprocess.Popen`.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **more.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **more}
    return subprocess.Popen([python, "-m", module, *options], env=variables, **pipes)


def output_of(process: Any, seconds: float | None = None) -> str:
    """Wait for a started module and return its stdout. Processes that it leaves are killed.

    Raises:
        RuntimeError: it failed (the message has the end of its stderr), or took longer than `seconds`.
    """
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{process.args[2]}: not done after {seconds:g} s") from None
    finally:
        kill_all(process)
    if process.returncode:
        raise RuntimeError(f"{process.args[2]} ended with {process.returncode}:\n{(err or '')[-3000:]}")
    return str(out)


def kill_all(process: Any) -> None:
    """Kill a started module and all processes that it has started."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass  # all have ended


def records_of(process: Any, seconds: float | None = None) -> list[dict[str, Any]]:
    """The JSON objects among the lines of `output_of`."""
    return [json.loads(line) for line in output_of(process, seconds).splitlines() if line.startswith('{"')]


# --- results ----------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The properties of this machine that figures depend on most."""
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }


@dataclass
class Result:
    """The figures of a command, as far as its page shows them.

    Attributes:
        command: measures them again.
        machine: where they were measured.
        load_average: over one minute, before and after.
        parts: lists of records (plain data), by name.
    """

    command: str
    machine: dict[str, Any] = field(default_factory=machine)
    load_average: list[float] = field(default_factory=lambda: [os.getloadavg()[0]])
    parts: dict[str, list[Any]] = field(default_factory=dict)

    def save(self, folder: Path, name: str) -> Path:
        """Write `name-<UTC time>.json`, one record per line, floats with five digits; returns its path."""
        self.load_average = [*self.load_average[:1], os.getloadavg()[0]]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
        path.write_text(self.text())
        return path

    def text(self) -> str:
        """The content of the file."""
        head = {"command": self.command, "machine": self.machine, "load_average": self.load_average}
        lines = [f"{json.dumps(key)}: {_plain(value)}" for key, value in head.items()]
        for name, records in self.parts.items():
            lines.append(f"{json.dumps(name)}: [\n" + ",\n".join(map(_plain, records)) + "\n]")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read a result that `save` wrote."""
        found = json.loads(path.read_text())
        return cls(found.pop("command"), found.pop("machine"), found.pop("load_average"), found)

    def source(self, path: Path) -> str:
        """Markdown that says where the figures are from."""
        here = self.machine
        before, after = self.load_average
        return (
            f"`{self.command}`\non {here['cpus']} shared x86 cores, {here['memory_gib']} GiB, Linux {here['kernel']}, "
            f"Python {here['python']} (load average {before:.1f} before, {after:.1f} after): "
            f"`bench/results/{path.name}`."
        )


def _plain(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value


# --- pages ------------------------------------------------------------------------------------------------------------


class Page:
    """A Markdown page whose blocks between `<!-- name: what -->` and `<!-- /name -->` are written from results."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._mark = re.compile(rf"(<!-- {name}: (?P<what>[\w-]+) -->\n).*?(\n<!-- /{name} -->)", re.S)

    def blocks(self) -> list[str]:
        """Names of the blocks, in order."""
        return [found["what"] for found in self._mark.finditer(self.path.read_text())]

    def results(self) -> list[Path]:
        """The result files that the blocks name, each once, as paths relative to the repository's root."""
        blocks = "".join(found[0] for found in self._mark.finditer(self.path.read_text()))
        return [Path(name) for name in dict.fromkeys(re.findall(r"`(bench/results/[\w.-]+)`", blocks))]

    def filled(self, block: Callable[[str], str]) -> str:
        """The page's text with every block replaced by `block(what)`."""
        return self._mark.sub(lambda found: found[1] + block(found["what"]) + found[3], self.path.read_text())

    def write(self, block: Callable[[str], str]) -> None:
        """Replace every block in the file."""
        self.path.write_text(self.filled(block))

    def holds(self, block: Callable[[str], str]) -> bool:
        """Whether `write` would change nothing."""
        return self.filled(block) == self.path.read_text()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---") -> str:
    """A Markdown table; `align`: of all columns but the first."""

    def line(cells: Sequence[str]) -> str:
        return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"

    return "\n".join([line(heads), "|---|" + f"{align}|" * (len(heads) - 1), *map(line, rows)])


def number(value: float | None) -> str:
    """A figure with about three digits; from a million on as "1.23 M"; – for None."""
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


@contextmanager
def chart(path: Path, width: float, height: float) -> Iterator[Any]:
    """An empty matplotlib figure, `width` x `height` inches, which is written as PNG after the block."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), layout="constrained")  # this interface needs no display
    FigureCanvasAgg(canvas)
    yield canvas
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=80, format="png", metadata={"Software": None})
