"""The PNG chart of a finished run."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from di_store.demo.config import DemoConfig
from di_store.demo.metrics import EPISODES_OF_A_MEAN, Metrics

MEBIBYTE = 2**20


def check_path(path: Path) -> None:
    """Before the run: make the folder of the chart, and check that the file can be written.

    Raises:
        ValueError: the file cannot be written; the message names --out.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not path.exists()
        path.open("ab").close()
        if fresh:
            path.unlink()
    except OSError as error:
        raise ValueError(f"--out {path}: no chart can be written there: {error.strerror}") from error


def write_chart(path: Path, config: DemoConfig, metrics: Metrics) -> None:
    """Write a PNG with four charts: return against steps; speed, memory and loss against time.

    Raises:
        OSError: the file cannot be written.
    """
    # The object interface needs no display and does not change pyplot's global state.
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"di-store demo: {config.env}, {config.actors} actors x {config.envs_per_actor} environments")
    axes = figure.subplots(2, 2)
    _returns(axes[0, 0], metrics)
    points = metrics.points[:-1]  # the rates of the last point are those of the whole run
    seconds = [point.seconds for point in points]
    speed = axes[0, 1]
    speed.plot(seconds, [point.steps_per_second for point in points], label="steps/s")
    speed.plot(seconds, [point.samples_per_second for point in points], label="samples/s")
    speed.set_title("speed")
    memory = axes[1, 0]
    memory.plot(seconds, [point.stored_bytes / MEBIBYTE for point in points], label="stored")
    memory.plot(seconds, [point.logical_bytes / MEBIBYTE for point in points], label="without sharing")
    memory.set_title("replay memory, MiB")
    loss = axes[1, 1]
    loss.plot(seconds, [point.loss for point in points], label="loss")
    loss.set_title("loss")
    for axis in (speed, memory, loss):
        axis.set_ylim(bottom=0)
        axis.legend(loc="best")
        axis.set_xlabel("seconds")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110, format="png")


def _returns(axis: Axes, metrics: Metrics) -> None:
    steps = [episode.steps for episode in metrics.episodes]
    axis.plot(steps, [episode.value for episode in metrics.episodes], ".", markersize=3, alpha=0.4, label="episode")
    axis.plot(steps, metrics.running_means(), label=f"mean of {EPISODES_OF_A_MEAN} episodes")
    axis.set_title("return")
    axis.set_xlabel("steps of all actors")
    axis.legend(loc="best")
