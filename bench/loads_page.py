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
    *("load", "what it is", "written/s", "read/s", "MB/s read", "batch p50, ms", "p99"),
    *("cores in the store", "stored", "in all", "headroom", ""),
)
WRITES, READS = ("insert", "ask", "fragment"), ("sample", "predict", "train")
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
    figures = result["figures"]
    into, out = ({call: rate for call, rate in result["rates"].items() if call in names} for names in (WRITES, READS))

    def elements(rates: Loaded) -> float:
        return sum(rate["asked"] or rate["reached"] for rate in rates.values())

    spent = result["milliseconds"][next(iter(out))]
    return (
        *(result["load"], result["title"], number(elements(into)), number(elements(out))),
        number(sum(rate["bytes_per_second"] for rate in out.values()) / 1e6),
        *(number(spent["p50"]), number(spent["p99"]), number(figures.get("store_cores"), ".3f")),
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
    """A group's table, with commands and files that it is from; None where no file has one of the group's loads.

    Of a load that several files have, the last one's figures count.
    """
    found = {result["load"]: (name, result) for name, content in saved.items() for result in content["results"]}
    if not all(load.name in found for load in GROUPS[group]):
        return None
    chosen = [found[load.name] for load in GROUPS[group]]
    results = [result for _, result in chosen]
    names = {name for name, _ in chosen}
    parts = [source(name, content) for name, content in saved.items() if name in names]
    with_rates = [result for result in results if result["lines"]]
    without = [result for result in results if not result["lines"]]
    if with_rates:
        parts.append(table(HEADS, [paced(result) for result in with_rates]))
    if without:
        parts.append(table(CALL_HEADS, [row for result in without for row in calls(result)]))
    return "\n\n".join(parts)


def source(name: str, content: Loaded) -> str:
    """Where figures are from."""
    machine = content["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    return (
        f"`{content['command']}` on {machine['cpus']} shared x86 cores, {memory}, Linux {machine['kernel']}; "
        f"all it saved: `{name}`."
    )


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
