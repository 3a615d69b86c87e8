"""The tables of the report, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import groupby

from bench.bottlenecks.board import ACTOR_PARTS, LEARNER_PARTS
from bench.bottlenecks.loads import LOADS
from bench.bottlenecks.planes import SYSTEMS
from bench.bottlenecks.result import Figures, Result

TITLES = {"di-store": "Di-store", "in-process": "in-process + queues", "reverb": "Reverb", "ray": "Ray"}
LEARNER_TITLES = {
    "train": "training step",
    "assemble": "to tensors",
    "sample": "sampling a batch",
    "ingest": "taking in messages",
    "update": "new priorities",
    "publish": "publishing weights",
    "wait": "waiting for data",
}
ACTOR_TITLES = {
    "environment": "environment",
    "inference": "inference",
    "write": "writing steps",
    "wait": "waiting (limiter, full queue, confirmation)",
    "weights": "reading weights",
}
PLANE_PARTS = tuple(part for part in LEARNER_PARTS if part not in ("train", "assemble", "wait"))
MEBIBYTE = 2**20
Cell = Callable[[Figures], str]


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first to the right."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def share(value: float) -> str:
    """A share of wall time."""
    return f"{100 * value:.1f} %" if value >= 5e-4 else "-"


def other(parts: Figures) -> float:
    """The share that no timer has."""
    return max(0.0, 1.0 - float(sum(parts.values())))


def plane_microseconds(run: Figures) -> float:
    """What the plane costs the learner's thread for each update, waiting for data apart."""
    shares = sum(float(run["learner"][part]) for part in PLANE_PARTS)
    return 1e6 * shares / max(float(run["updates_per_second"]), 1e-9)


def percentiles(part: str) -> Cell:
    """p50 / p99 of one pass, µs."""

    def cell(run: Figures) -> str:
        found = run["microseconds"].get(part)
        return f"{found['p50']:,.0f} / {found['p99']:,.0f}" if found else "-"

    return cell


def mebibytes(count: float | None) -> str:
    """Bytes in MiB."""
    return "-" if count is None else f"{count / MEBIBYTE:,.0f}"


def load_rows(prioritized: bool) -> list[tuple[str, Cell]]:
    """Name and cell of every row of a load's table."""

    def part(side: str, name: str) -> Cell:
        return lambda run: share(run[side][name])

    def cores(role: str, threads: str) -> Cell:
        return lambda run: f"{run['cpu'].get(role, {}).get(threads, 0.0):.2f}"

    learner = [name for name in LEARNER_TITLES if prioritized or name != "update"]
    rows: list[tuple[str, Cell]] = [
        ("environment steps/s", lambda run: f"{run['steps_per_second']:,.0f}"),
        ("updates/s", lambda run: f"{run['updates_per_second']:,.1f}"),
        ("samples/s", lambda run: f"{run['samples_per_second']:,.0f}"),
        *((f"learner: {LEARNER_TITLES[name]}", part("learner", name)) for name in learner),
        ("learner: other", lambda run: share(other(run["learner"]))),
        ("**plane, µs of the learner per update**", lambda run: f"**{plane_microseconds(run):,.0f}**"),
        ("sampling, µs, p50 / p99", percentiles("sample")),
        *([("new priorities, µs, p50 / p99", percentiles("update"))] if prioritized else []),
        ("publishing, µs, p50 / p99", percentiles("publish")),
        *((f"actor: {title}", part("actor", name)) for name, title in ACTOR_TITLES.items()),
        ("actor: other", lambda run: share(other({name: run["actor"][name] for name in ACTOR_PARTS}))),
        ("cores used by all", lambda run: f"{run['cores']:.2f}"),
        ("… by the learner's process", cores("learner", "all")),
        ("… of these by its other threads", cores("learner", "other_threads")),
        ("… by the actors", cores("actors", "all")),
        ("… by other processes", cores("others", "all")),
        ("memory of all processes (PSS), MiB", lambda run: mebibytes(run["pss_bytes_all"])),
        ("… of other processes", lambda run: mebibytes(run["pss_bytes"].get("others", 0))),
        ("experience stored, MiB", lambda run: mebibytes(run["store_bytes"])),
    ]
    return rows


def load_table(result: Result, load: str) -> str:
    """A load in all systems."""
    runs = {system: run for system in SYSTEMS if (run := result.of(load, system))}
    rows = [[name, *(cell(run) for run in runs.values())] for name, cell in load_rows(LOADS[load].kind == "replay")]
    return grid(["", *(TITLES[system] for system in runs)], rows)


def name_of(run: Figures) -> str:
    """A size as readers call it."""
    grown = f"{run['grow_from']:,} growing to " if run["grow_from"] else ""
    return f"{grown}{run['capacity']:,}"


def by_size(result: Result) -> list[tuple[str, list[Figures]]]:
    """The CartPole runs of each size, fixed sizes first."""

    def order(run: Figures) -> tuple[bool, int]:
        return run["grow_from"] is not None, run["capacity"]

    return [(name, list(runs)) for name, runs in groupby(sorted(result.sizes, key=order), key=name_of)]


def median(values: Sequence[float | None], form: str) -> str:
    """Median of what is there, with the span; "-" if nothing is."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = format(statistics.median(known), form)
    return middle if len(known) == 1 else f"{middle} ({min(known):{form}}–{max(known):{form}})"


def sizes_table(result: Result) -> str:
    """Learning against the size of the buffer."""
    rows = []
    for name, runs in by_size(result):
        solved = [run for run in runs if run["solved_steps"] is not None]
        resizes = [value for run in runs for value in run["resizes_milliseconds"]]
        rows.append(
            [
                name,
                median([run["items"] for run in runs], ",.0f").partition(" ")[0],
                f"{len(solved)} of {len(runs)}",
                median([run["solved_seconds"] for run in runs], ".1f"),
                median([run["solved_steps"] for run in runs], ",.0f"),
                median([run["best_mean_return"] for run in runs], ".0f"),
                median([run["final_mean_return"] for run in runs], ".0f"),
                median([run["microseconds"]["sample"]["p50"] for run in runs], ".0f"),
                median([run["updates"] / run["seconds"] for run in runs], ",.0f"),
                f"{statistics.median(run['store_bytes'] for run in runs) / MEBIBYTE:.1f}",
                f"{statistics.median(resizes):.2f}, {max(resizes):.2f}" if resizes else "-",
            ]
        )
    return grid(
        [
            "transitions",
            "items at the end",
            "seeds > 195",
            "seconds to it",
            "steps to it",
            "best mean",
            "final mean",
            "sample(64) p50, µs",
            "updates/s",
            "store, MiB",
            "resize, ms (p50, longest)",
        ],
        rows,
    )


def speeds_table(result: Result) -> str:
    """Calls against capacity."""
    calls = list(dict.fromkeys(figure["call"] for figure in result.speeds))
    rows: dict[str, list[str]] = {}
    for figure in result.speeds:
        name = f"{figure['capacity']:,}" + (", grown" if figure["grown"] else "")
        rows.setdefault(name, [name, f"{figure['items']:,}"]).append(f"{figure['p50']:.1f} / {figure['p99']:.1f}")
    return grid(["transitions", "items in it", *(f"{call}, µs, p50 / p99" for call in calls)], list(rows.values()))


def whole(result: Result) -> str:
    """All tables, for the screen."""
    blocks = [f"\n{LOADS[load].title}\n{load_table(result, load)}" for load in LOADS if _ran(result, load)]
    if result.sizes:
        blocks.append("\nsize of the buffer, CartPole\n" + sizes_table(result))
    if result.speeds:
        blocks.append("\ncalls against capacity\n" + speeds_table(result))
    blocks += [f"\nFAILED {name}: {why}" for name, why in result.failed.items()]
    return "\n".join(blocks)


def _ran(result: Result, load: str) -> bool:
    return any(run["load"] == load for run in result.loads)
