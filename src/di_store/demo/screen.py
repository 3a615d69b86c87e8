"""What the user sees while the run goes on: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from di_store.demo.config import DemoConfig
from di_store.demo.fleet import Fleet, Member
from di_store.demo.metrics import Metrics, Point, human_bytes, saved_times

LINE_SECONDS = 5.0
Figure = float | int | str | None
KEPT_EVENTS = 6


class Screen:
    """Shows points and events; a context manager. On a pipe it prints a line every few seconds instead."""

    def __init__(self, config: DemoConfig, stream: TextIO) -> None:
        self.config = config
        self.stream = stream
        self.events: list[str] = []
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
            self.live.stop()

    def event(self, text: str) -> None:
        """Something that happened once: a death, the start."""
        self.events = [*self.events[1 - KEPT_EVENTS :], text]
        if not self.live:
            self._print(text)

    def show(self, point: Point, fleet: Fleet) -> None:
        """Show the newest point."""
        if self.live:
            self.live.update(self._render(point, fleet), refresh=True)
        elif point.seconds >= self.line_due:
            self.line_due = point.seconds + LINE_SECONDS
            self._print(line(point))

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def _render(self, point: Point, fleet: Fleet) -> Panel:
        config = self.config
        grid = Table.grid(padding=(0, 2))
        for name, value in figures(point):
            grid.add_row(Text(name, style="cyan"), value)
        actors = Table.grid(padding=(0, 2))
        for member in fleet.members:
            actors.add_row(*actor_cells(member))
        events = Text("\n".join(self.events), style="yellow")
        clock = f"{point.seconds:,.0f} of {config.seconds:,.0f} s" if fleet.ready else "starting"
        title = f"di-store demo  {config.env}  {config.actors} x {config.envs_per_actor} environments  {clock}"
        return Panel(Group(grid, Text(), actors, Text(), events), title=title, subtitle="Ctrl-C ends it", expand=False)


def figures(point: Point) -> list[tuple[str, str]]:
    """Names and values of the figures of one point, in reading order."""
    stored, logical = human_bytes(point.stored_bytes), human_bytes(point.logical_bytes)
    return [
        ("steps", f"{point.steps_per_second:,.0f}/s   {point.steps:,}"),
        ("samples", f"{point.samples_per_second:,.0f}/s   {point.samples:,}"),
        ("updates", f"{point.updates:,}"),
        ("items", f"{point.items:,}"),
        ("stored", stored),
        ("without sharing", f"{logical}   {saved_times(point):,.1f} times as much"),
        ("limiter", point.limiter),
        ("loss", number(point.loss, 4)),
        ("mean return", f"{number(point.mean_return, 1)}   {point.episodes:,} episodes"),
    ]


def line(point: Point) -> str:
    """One point as one line of a log."""
    return (
        f"{point.seconds:6.1f} s  steps {point.steps_per_second:,.0f}/s  samples {point.samples_per_second:,.0f}/s  "
        f"items {point.items:,}  stored {human_bytes(point.stored_bytes)}  "
        f"without sharing {human_bytes(point.logical_bytes)} ({saved_times(point):,.1f}x)  limiter {point.limiter}  "
        f"loss {number(point.loss, 4)}  mean return {number(point.mean_return, 1)}  episodes {point.episodes:,}"
    )


def actor_cells(member: Member) -> tuple[str, ...]:
    """One actor's row on the screen."""
    name = f"actor {member.index}"
    if member.gone:
        return (name, "gone")
    if member.report is None:
        return (name, f"pid {member.process.pid}", "starting")
    report = member.report
    return (
        name,
        f"pid {member.process.pid}",
        f"{report.steps:,} steps",
        f"epsilon {report.epsilon:.2f}",
        f"policy {report.version}",
        f"waits {report.waiting:4.0%}",
    )


def number(value: float, digits: int) -> str:
    """A number for people; NaN, not known yet, is a dash."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def summary(config: DemoConfig, metrics: Metrics, fleet: Fleet) -> dict[str, Figure]:
    """Figures of the whole run, by name."""
    last = metrics.points[-1]
    seconds = max(last.seconds, 1e-3)
    return {
        "env": config.env,
        "autoreset": config.autoreset,
        "seconds": round(seconds, 2),
        "actors": config.actors,
        "actors_alive": len(fleet.alive),
        "environments": config.actors * config.envs_per_actor,
        "steps": last.steps,
        "steps_per_second": round(last.steps / seconds, 1),
        "samples": last.samples,
        "samples_per_second": round(last.samples / seconds, 1),
        "updates": last.updates,
        "items": last.items,
        "stored_bytes": last.stored_bytes,
        "logical_bytes": last.logical_bytes,
        "saved_times": round(saved_times(last), 2),
        "loss": rounded(last.loss, 6),
        "episodes": last.episodes,
        "mean_return": rounded(last.mean_return, 2),
        "first_mean_return": rounded(first_mean_return(metrics), 2),
    }


def rounded(value: float, digits: int) -> float | None:
    """A number as JSON can hold it: NaN, not known yet, is `None`."""
    return None if math.isnan(value) else round(value, digits)


def first_mean_return(metrics: Metrics) -> float:
    """Mean return of the first 20 episodes: where the run started from."""
    first = [value for _, value in metrics.returns[:20]]
    return sum(first) / len(first) if first else float("nan")


def print_summary(stream: TextIO, figures_by_name: dict[str, Figure]) -> None:
    """The summary as aligned lines."""
    table = Table(title="di-store demo: summary", show_header=False)
    for name, value in figures_by_name.items():
        shown = value if isinstance(value, str) else "-" if value is None else f"{value:,}"
        if name.endswith("_bytes") and isinstance(value, int):
            shown = human_bytes(value)
        table.add_row(name.replace("_", " "), shown)
    Console(file=stream).print(table)


def output_stream(config: DemoConfig) -> TextIO:
    """Where the screen goes: stdout is kept clean for `--json`."""
    return sys.stderr if config.json else sys.stdout
