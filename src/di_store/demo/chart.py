"""The PNG chart of a finished run."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from di_store.demo.config import DemoConfig
from di_store.demo.metrics import Metrics

MEAN_EPISODES = 20
MEBIBYTE = 2**20


def check_path(path: Path) -> None:
    """Make the folder of the chart and try whether the file can be written, before a run that would end in vain.

    Raises `ValueError` naming the option.
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
    """Write four small charts over time: return, speed, memory, loss. `OSError` if the file cannot be written."""
    # The object interface needs no display and leaves the process's global pyplot state alone.
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"di-store demo: {config.env}, {config.actors} actors x {config.envs_per_actor} environments")
    axes = figure.subplots(2, 2)
    _returns(axes[0, 0], metrics)
    seconds = [point.seconds for point in metrics.points]
    speed = axes[0, 1]
    speed.plot(seconds, [point.steps_per_second for point in metrics.points], label="steps/s")
    speed.plot(seconds, [point.samples_per_second for point in metrics.points], label="samples/s")
    speed.set_title("speed")
    memory = axes[1, 0]
    memory.plot(seconds, [point.stored_bytes / MEBIBYTE for point in metrics.points], label="stored")
    memory.plot(seconds, [point.logical_bytes / MEBIBYTE for point in metrics.points], label="without sharing")
    memory.set_title("replay memory, MiB")
    loss = axes[1, 1]
    loss.plot(seconds, [point.loss for point in metrics.points], label="loss")
    loss.set_title("loss")
    for axis in (speed, memory, loss):
        axis.set_ylim(bottom=0)
        axis.legend(loc="best")
    for axis in axes.flat:
        axis.set_xlabel("seconds")
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110, format="png")


def _returns(axis: Axes, metrics: Metrics) -> None:
    times = [time for time, _ in metrics.returns]
    values = [value for _, value in metrics.returns]
    axis.plot(times, values, ".", markersize=3, alpha=0.4, label="episode")
    means = [
        sum(values[max(0, end - MEAN_EPISODES) : end]) / min(MEAN_EPISODES, end) for end in range(1, len(values) + 1)
    ]
    axis.plot(times, means, label=f"mean of {MEAN_EPISODES}")
    axis.set_title("return")
    axis.legend(loc="best")
