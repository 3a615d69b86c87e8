"""Shows a run while it is running: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from di_store.demo.config import DemoConfig
from di_store.demo.fleet import ActorState, Fleet, FleetMember
from di_store.demo.metrics import EPISODES_OF_A_MEAN, Metrics, Point, human_bytes, mean, saved_times

LINE_SECONDS = 5.0
# Actors report four times a second. After so many seconds without a report, the screen says so.
SILENT_SECONDS = 2.0
KEPT_EVENTS = 6
CURVE_WIDTH = 40
BARS = "▁▂▃▄▅▆▇█"
Figure = float | int | str | None


@dataclass(frozen=True)
class Stage:
    """The state of a run, and whether Ctrl-C would end it."""

    name: str
    running: bool = False


STARTING = Stage("starting", running=True)
TRAINING = Stage("training", running=True)
STOPPING = Stage("stopping the actors")
FAILED = Stage("failed")


class Screen:
    """Shows points and events; a context manager. If `stream` is no terminal, prints a line every few seconds."""

    def __init__(self, config: DemoConfig, store_name: str, stream: TextIO) -> None:
        self.config = config
        self.store_name = store_name
        self.stream = stream
        self.stage = STARTING
        self.events: list[str] = []
        self.shown: tuple[Metrics, Fleet] | None = None
        self.line_due = 0.0
        self.live = Live(console=Console(file=stream), auto_refresh=False) if stream.isatty() else None

    def __enter__(self) -> Screen:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            if error and self.shown:
                self.stage = FAILED
                self.live.update(self._render(*self.shown))
            self.live.stop()

    def log(self, text: str) -> None:
        """Print a line. A live screen does nothing, because it shows this in its own place."""
        if not self.live:
            print(text, file=self.stream, flush=True)

    def event(self, text: str, seconds: float) -> None:
        """Show a single event, such as a death, at `seconds` of the run."""
        when = "at the start" if self.stage is STARTING else f"at {seconds:,.0f} s"
        self.events = [*self.events[1 - KEPT_EVENTS :], f"{when}: {text}"]
        self.log(text)

    def show(self, metrics: Metrics, fleet: Fleet) -> None:
        """Show the newest point."""
        self.shown, point = (metrics, fleet), metrics.points[-1]
        if self.live:
            self.live.update(self._render(metrics, fleet), refresh=True)
        elif point.seconds >= self.line_due:
            self.line_due = point.seconds + LINE_SECONDS
            self.log(line(point))

    def _render(self, metrics: Metrics, fleet: Fleet) -> Panel:
        config, point = self.config, metrics.points[-1]
        grid = Table.grid(padding=(0, 2))
        for name, value in [("store", self.store_name), *figures(point, metrics)]:
            grid.add_row(Text(name, style="cyan"), value)
        actors, now = Table.grid(padding=(0, 2)), time.monotonic()
        for member in fleet.members:
            actors.add_row(*actor_cells(member, now))
        parts: list[Table | Text] = [grid, Text(), actors]
        if self.events:
            parts += [Text(), Text("\n".join(self.events), style="yellow")]
        title = f"di-store demo: {config.env}, {config.actors} actors x {config.envs_per_actor} environments"
        clock = f"{point.seconds:,.0f} of {config.seconds:,.0f} s, {self.stage.name}"
        subtitle = f"{clock}; Ctrl-C ends it" if self.stage.running else clock
        return Panel(Group(*parts), title=title, subtitle=subtitle, expand=False)


def figures(point: Point, metrics: Metrics) -> list[tuple[str, str]]:
    """Names and values of the figures of one point, in reading order."""
    stored, logical = human_bytes(point.stored_bytes), human_bytes(point.logical_bytes)
    first = number(metrics.first_mean_return, 1)
    return [
        ("steps", f"{point.steps_per_second:,.0f}/s   {point.steps:,}"),
        ("samples", f"{point.samples_per_second:,.0f}/s   {point.samples:,}"),
        ("updates", f"{point.updates:,}"),
        ("items", f"{point.items:,}"),
        ("stored", f"{stored}   without sharing {logical}, {saved_times(point):,.1f} times as much"),
        *([("limiter", point.limiter)] if point.limiter else []),
        ("loss", number(point.loss, 4)),
        ("episodes", f"{point.episodes:,}"),
        ("mean return", f"{number(point.mean_return, 1)}   last {EPISODES_OF_A_MEAN} episodes; the first: {first}"),
        ("return by steps", curve(metrics)),
    ]


def curve(metrics: Metrics) -> str:
    """Return against steps as a row of bars. Each bar is for the same number of steps; its height: their mean return.

    A bar without an ended episode is as high as the bar before it.
    """
    episodes = metrics.episodes
    if not episodes:
        return "-"
    width = episodes[-1].steps / CURVE_WIDTH
    columns: list[list[float]] = [[] for _ in range(CURVE_WIDTH)]
    for episode in episodes:
        columns[min(CURVE_WIDTH - 1, int(episode.steps / max(width, 1e-9)))].append(episode.value)
    means: list[float] = []
    for column in columns:
        means.append(mean(column) if column else means[-1] if means else episodes[0].value)
    low, high = min(0.0, *means), max(0.0, *means)
    step = max(high - low, 1e-9) / (len(BARS) - 1)
    return "".join(BARS[round((value - low) / step)] for value in means)


def line(point: Point) -> str:
    """One point as one line of a log."""
    return (
        f"{point.seconds:6.1f} s  steps {point.steps_per_second:,.0f}/s  samples {point.samples_per_second:,.0f}/s  "
        f"items {point.items:,}  stored {human_bytes(point.stored_bytes)}  "
        f"without sharing {human_bytes(point.logical_bytes)} ({saved_times(point):,.1f}x)  limiter {point.limiter}  "
        f"loss {number(point.loss, 4)}  mean return {number(point.mean_return, 1)}  episodes {point.episodes:,}"
    )


def actor_cells(member: FleetMember, now: float) -> tuple[str, ...]:
    """One actor's row on the screen at `now` (`time.monotonic()`); without its rates if it has ended."""
    name, report = f"actor {member.index}", member.report
    state = {
        ActorState.STARTING: f"pid {member.process.pid}  starting",
        ActorState.RUNNING: f"pid {member.process.pid}",
        ActorState.ENDED: "ended",
        ActorState.DEAD: f"died: {member.cause}",
    }[member.state]
    if report is None:
        return (name, state)
    cells = (name, state, f"{report.steps:,} steps")
    if member.state is not ActorState.RUNNING:
        return cells
    silent = now - member.reported
    if silent > SILENT_SECONDS:
        return (*cells, f"no report for {silent:,.0f} s")
    return (*cells, f"epsilon {report.epsilon:.2f}", f"policy {report.version}", f"waits {report.waiting:4.0%}")


def number(value: float, digits: int) -> str:
    """A number as text; a dash for NaN, which means that the number is not known yet."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def summary(config: DemoConfig, metrics: Metrics, fleet: Fleet) -> dict[str, Figure]:
    """Figures of the whole run by name, from its last point."""
    last = metrics.points[-1]
    return {
        "env": config.env,
        "autoreset": config.autoreset,
        "seconds": round(last.seconds, 2),
        "actors": config.actors,
        "actors_alive": len(fleet.alive),
        "environments": config.actors * config.envs_per_actor,
        "steps": last.steps,
        "steps_per_second": round(last.steps_per_second, 1),
        "samples": last.samples,
        "samples_per_second": round(last.samples_per_second, 1),
        "updates": last.updates,
        "items": last.items,
        "stored_bytes": last.stored_bytes,
        "logical_bytes": last.logical_bytes,
        "saved_times": round(saved_times(last), 2),
        "loss": rounded(last.loss, 6),
        "episodes": last.episodes,
        "mean_return": rounded(last.mean_return, 2),
        "first_mean_return": rounded(metrics.first_mean_return, 2),
    }


def rounded(value: float, digits: int) -> float | None:
    """A rounded number for JSON; NaN, which JSON lacks, becomes None."""
    return None if math.isnan(value) else round(value, digits)


def print_summary(stream: TextIO, figures_by_name: dict[str, Figure]) -> None:
    """Print the summary as aligned lines."""
    table = Table(title="di-store demo: summary", show_header=False)
    for name, value in figures_by_name.items():
        shown = value if isinstance(value, str) else "-" if value is None else f"{value:,}"
        if name.endswith("_bytes") and isinstance(value, int):
            shown = human_bytes(value)
        table.add_row(name.replace("_", " "), shown)
    Console(file=stream).print(table)


def output_stream(config: DemoConfig) -> TextIO:
    """The stream of the screen: stdout, or stderr with `--json`, which needs stdout for the summary."""
    return sys.stderr if config.json else sys.stdout
