"""Writes the tables of ``docs/loads.md`` from files of ``di-store bench … --save``.

``python -m bench.loads_page bench/results/rows-….json bench/results/papers-….json`` reduces each file to what the page
shows, and writes the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.kit import Page, Result, table
from di_store.workloads.catalogue import GROUPS

PAGE = Page(ROOT / "docs" / "loads.md", "loads")
HEADS = (
    *("load", "what it is", "written/s", "read/s", "MB/s read", "batch p50, ms", "p99"),
    *("cores in the store", "stored", "in all", "headroom", ""),
)
CALL_HEADS = ("load", "call", "calls/s", "MB/s", "p50, ms", "p99")
WRITES, READS = ("insert", "ask", "fragment"), ("sample", "predict", "train")
FIGURES = ("store_cores", "stored_share", "in_all_share", "headroom")
Loaded = dict[str, Any]


def number(value: float | None, form: str = ",.3g") -> str:
    """A figure as the page shows it; – for None."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else format(value, form)


def paced(result: Loaded) -> Sequence[str]:
    figures = result["figures"]
    into, out = ({call: rate for call, rate in result["rates"].items() if call in names} for names in (WRITES, READS))
    spent = result["milliseconds"][next(iter(out))]
    return (
        *(result["load"], result["title"]),
        *(number(sum(rate["asked"] or rate["reached"] for rate in rates.values())) for rates in (into, out)),
        number(sum(rate["bytes_per_second"] for rate in out.values()) / 1e6),
        *(number(spent["p50"]), number(spent["p99"]), number(figures.get("store_cores"), ".3f")),
        *(number(figures.get("stored_share"), ".3f"), number(figures.get("in_all_share"), ".3f")),
        *(number(figures.get("headroom")), "passed" if result["ok"] else "FAILED"),
    )


def calls(result: Loaded) -> Iterator[Sequence[str]]:
    """The rows of a load without target rates: one for each of its calls."""
    for call, rate in result["rates"].items():
        spent, moved = result["milliseconds"].get(call, {}), rate.get("bytes_per_second")
        moved_text = number(moved and moved / 1e6)
        yield (result["load"], call, number(rate["reached"]), moved_text, *map(number, map(spent.get, ("p50", "p99"))))


def reduce(path: Path) -> None:
    """Remove from a result file what the page does not show."""
    saved = Result.load(path)
    if any("lines" not in each for each in saved.parts["loads"]):
        return  # already reduced
    saved.parts["loads"] = [shown(each) for each in saved.parts["loads"]]
    path.write_text(saved.text())


def shown(each: Loaded) -> Loaded:
    """What the page shows of one load; if it is paced: only the rates of writers and readers, and times of reads."""
    rates, times, paced = each["rates"], each["milliseconds"], bool(each["lines"])
    found: Loaded = {"load": each["load"], "paced": paced}
    if paced:
        rates = {call: rate for call, rate in rates.items() if call in (*WRITES, *READS)}
        times = {call: times[call] for call in READS if call in rates and call in times}
        figures = {name: each["figures"][name] for name in FIGURES if name in each["figures"]}
        found |= {"title": each["title"], "ok": each["ok"], "figures": figures}
    milliseconds = {call: {q: spent[q] for q in ("p50", "p99")} for call, spent in times.items()}
    return {**found, "rates": rates, "milliseconds": milliseconds}


def blocks(saved: dict[Path, Result]) -> Callable[[str], str]:
    """A group's tables, with their commands and files. If several files have a load, the last file is used."""
    found = {result["load"]: (name, result) for name, saved_one in saved.items() for result in saved_one.parts["loads"]}

    def block(group: str) -> str:
        chosen = [found[load.name] for load in GROUPS[group]]
        names = {name for name, _ in chosen}
        parts = [saved_one.source(name) for name, saved_one in saved.items() if name in names]
        with_rates = [paced(result) for _, result in chosen if result["paced"]]
        without = [row for _, result in chosen if not result["paced"] for row in calls(result)]
        tables = [table(heads, rows) for heads, rows in ((HEADS, with_rates), (CALL_HEADS, without)) if rows]
        return "\n\n".join(parts + tables)

    return block


def load(paths: Sequence[Path]) -> dict[Path, Result]:
    return {path: Result.load(ROOT / path) for path in paths}


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    for path in given:
        reduce(path)
    PAGE.write(blocks(load(given)))
