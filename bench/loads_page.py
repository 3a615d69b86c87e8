"""Tables of ``docs/loads.md``: written between its marks from what ``di-store bench … --save`` saved, never by hand.

``python -m bench.loads_page bench/results/rows-….json bench/results/papers-….json``
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from di_store.workloads.catalogue import GROUPS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "loads.md"
MARK = re.compile(r"(<!-- loads: (?P<group>\w+) -->\n).*?(<!-- /loads -->)", re.S)
SOURCE = re.compile(r"`(bench/results/[\w-]+\.json)`")
HEADS = (
    *("load", "what it is", "inserts/s", "samples/s", "MB/s sampled", "batch p50, ms", "p99"),
    *("cores in the store", "stored", "in all", "headroom", ""),
)
CALL_HEADS = ("load", "call", "calls/s", "MB/s", "p50, ms", "p99")

Loaded = dict[str, Any]


def number(value: float | None, form: str = ",.3g") -> str:
    """A figure as the page shows it; – where there is none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else format(value, form)


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ("---",) * len(heads), *rows))


def paced(result: Loaded) -> tuple[str, ...]:
    """One load that has rates."""
    figures, rates = result["figures"], result["rates"]

    def rate(kind: str) -> float | None:
        found = [each["asked"] for call, each in rates.items() if call.split(" ")[0] in kinds[kind]]
        return sum(found) or None

    kinds = {"in": ("insert", "append", "put"), "out": ("sample", "get")}
    out = next((call for call in rates if call.split(" ")[0] in kinds["out"]), "")
    spent = result["milliseconds"].get(out, {})
    moved = rates.get(out, {}).get("bytes_per_second")
    return (
        *(result["load"], result["title"]),
        *(number(rate("in")), number(rate("out")), number(moved and moved / 1e6)),
        *(number(spent.get("p50")), number(spent.get("p99")), number(figures.get("store_cores"), ".3f")),
        *(number(figures.get("stored_share"), ".3f"), number(figures.get("in_all_share"), ".3f")),
        *(number(figures.get("headroom")), "passed" if result["ok"] else "FAILED"),
    )


def calls(result: Loaded) -> Iterator[tuple[str, ...]]:
    """What a load without rates reaches, call by call."""
    for call, rate in result["rates"].items():
        spent, moved = result["milliseconds"].get(call, {}), rate.get("bytes_per_second")
        yield (
            *(result["load"], call, number(rate["reached"]), number(moved and moved / 1e6)),
            *(number(spent.get("p50")), number(spent.get("p99"))),
        )


def section(group: str, saved: dict[str, Loaded]) -> str | None:
    """A group's table, with the command and the file that it is from; None where no file has all of the group."""
    for name, content in saved.items():
        found = {result["load"]: result for result in content["results"]}
        if not all(load.name in found for load in GROUPS[group]):
            continue
        results = [found[load.name] for load in GROUPS[group]]
        with_rates = [result for result in results if result["lines"]]
        without = [result for result in results if not result["lines"]]
        machine = content["machine"]
        parts = [
            f"`{content['command']}` on {machine['cpus']} shared x86 cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
            f"Linux {machine['kernel']}; all it saved: `{name}`."
        ]
        if with_rates:
            parts.append(table(HEADS, [paced(result) for result in with_rates]))
        if without:
            parts.append(table(CALL_HEADS, [row for result in without for row in calls(result)]))
        return "\n\n".join(parts)
    return None


def written(text: str, saved: dict[str, Loaded]) -> str:
    """The page with the tables of the groups that were saved."""

    def fill(mark: re.Match[str]) -> str:
        fresh = section(mark["group"], saved)
        return mark[0] if fresh is None else f"{mark[1]}{fresh}\n{mark[3]}"

    return MARK.sub(fill, text)


def load(names: list[str]) -> dict[str, Loaded]:
    """Saved files by their path below the root."""
    paths = [(ROOT / name).resolve() for name in names]
    return {str(path.relative_to(ROOT)): json.loads(path.read_text()) for path in paths}


def main() -> None:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    PAGE.write_text(written(PAGE.read_text(), load(parser.parse_args().results)))


if __name__ == "__main__":
    main()
