"""The table of figures in README.md and README.zh-CN.md, written from a result of ``python -m bench``.

``python -m bench.page bench/results/bench-….json`` puts it between the marks; ``--check`` compares instead. No figure
is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
NAMES = {"ray": "Ray", "reverb": "Reverb", "sb3": "SB3", "cpprb": "cpprb", "tianshou": "Tianshou", "torchrl": "TorchRL"}


@dataclass(frozen=True)
class Row:
    """One row: which line of the result, and its label in English and Chinese."""

    workload: str
    metric: str
    system: str
    english: str
    chinese: str


ROWS = (
    Row("1KB", "put", "ray", "put and delete, 1 KB", "put 加 delete，1 KB"),
    Row("110KB", "put", "ray", "put and delete, 110 KB", "put 加 delete，110 KB"),
    Row("110KB", "get, other process", "ray", "get, 110 KB, in another process", "在另一进程中 get，110 KB"),
    Row("56KB", "append", "reverb", "append, 56 KB steps", "append，每步 56 KB"),
    Row("2KB", "append", "reverb", "append, 2 KB steps", "append，每步 2 KB"),
    Row("2.8MB", "append", "reverb", "append, 2.8 MB unrolls", "append，每段 2.8 MB"),
    Row("56KB", "sample", "reverb", "sample, batches of 32 × 56 KB", "sample，每批 32 × 56 KB"),
    Row("2KB", "sample", "reverb", "sample, batches of 256 × 2 KB", "sample，每批 256 × 2 KB"),
    Row("2.8MB", "sample", "reverb", "sample, batches of 16 × 2.8 MB", "sample，每批 16 × 2.8 MB"),
    Row("2KB", "update", "reverb", "update priorities, batches of 256", "更新优先级，每批 256"),
    Row("105B", "append", "inprocess", "append, 105 B steps one by one", "append，逐步 105 B"),
    Row("105B", "sample, uniform", "inprocess", "sample, 256 × 105 B, uniform", "sample，256 × 105 B，均匀"),
    Row("105B", "sample", "inprocess", "sample, 256 × 105 B, prioritized", "sample，256 × 105 B，按优先级"),
    Row("105B", "update of 32", "inprocess", "update priorities, batches of 32", "更新优先级，每批 32"),
    Row("105B", "loop", "inprocess", "append one, sample 256, in one process", "单进程：append 一步并 sample 256"),
)


def significant(value: float) -> str:
    """Three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def rows(result: dict[str, Any], chinese: bool) -> list[str]:
    """The rows of the table that were measured."""
    found = []
    for row in ROWS:
        own = (row.workload, row.metric, row.system)
        lines = [line for line in result["lines"] if (line["workload"], line["metric"], line["system"]) == own]
        line = min((line for line in lines if line["ratio"] is not None), key=lambda line: line["ratio"], default=None)
        if line is not None:  # of several the one with the peer's best figure
            peer = NAMES.get(line["by"].split()[0], NAMES.get(row.system, row.system))
            label = row.chinese if chinese else row.english
            figures = f"{significant(line['ours'])} | {peer} {significant(line['theirs'])} | {times(line['ratio'])}"
            found.append(f"| {label} | {figures} |")
    return found


def section(result: dict[str, Any], name: str, chinese: bool) -> str:
    """All that stands between the marks: the table and where it comes from."""
    head = "| | Di-store | 对方 | 倍数 |" if chinese else "| | Di-store | peer | ratio |"
    source = f"`{result['command']}`"
    raw = f"`bench/results/{name}`"
    said = f"命令：{source}；原始数据：{raw}。" if chinese else f"{source}; raw figures: {raw}."
    return "\n".join([head, "|---|---|---|---|", *rows(result, chinese), "", said])


def written(text: str, result: dict[str, Any], name: str, chinese: bool) -> str:
    """A page with its section renewed."""
    made = f"{BEGIN}\n{section(result, name, chinese)}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: made, text, count=1, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="figures of the READMEs from a result")
    parser.add_argument("result", type=Path)
    parser.add_argument("--check", action="store_true", help="compare, write nothing; exit 1 when they differ")
    args = parser.parse_args()
    result = json.loads(args.result.read_text())
    different = 0
    for page, chinese in ((ROOT / "README.md", False), (ROOT / "README.zh-CN.md", True)):
        text = page.read_text()
        made = written(text, result, args.result.name, chinese)
        different += made != text
        if not args.check:
            page.write_text(made)
    return 1 if args.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
