"""The figures of docs/figures.md, and five of them in the READMEs, from a result of ``python -m bench``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import ROOT
from bench.doc import Doc
from bench.kit import Page, Result, table

NAMES = {"ray": "Ray", "reverb": "Reverb", "sb3": "SB3", "cpprb": "cpprb", "tianshou": "Tianshou", "torchrl": "TorchRL"}
# Workload, metric and system of a line of the result; its label in English and in Chinese.
ROWS = (
    ("1KB", "put", "ray", "put and delete, 1 KB", "put 加 delete，1 KB"),
    ("110KB", "put", "ray", "put and delete, 110 KB", "put 加 delete，110 KB"),
    ("110KB", "get, other process", "ray", "get, 110 KB, in another process", "在另一进程中 get，110 KB"),
    ("56KB", "append", "reverb", "append, 56 KB steps", "append，每步 56 KB"),
    ("2KB", "append", "reverb", "append, 2 KB steps", "append，每步 2 KB"),
    ("2.8MB", "append", "reverb", "append, 2.8 MB unrolls", "append，每段 2.8 MB"),
    ("56KB", "sample", "reverb", "sample, batches of 32 × 56 KB", "sample，每批 32 × 56 KB"),
    ("2KB", "sample", "reverb", "sample, batches of 256 × 2 KB", "sample，每批 256 × 2 KB"),
    ("2.8MB", "sample", "reverb", "sample, batches of 16 × 2.8 MB", "sample，每批 16 × 2.8 MB"),
    ("2KB", "update", "reverb", "update priorities, batches of 256", "更新优先级，每批 256"),
    ("105B", "append", "inprocess", "append, 105 B steps one by one", "append，逐步 105 B"),
    ("105B", "sample, uniform", "inprocess", "sample, 256 × 105 B, uniform", "sample，256 × 105 B，均匀"),
    ("105B", "sample", "inprocess", "sample, 256 × 105 B, prioritized", "sample，256 × 105 B，按优先级"),
    ("105B", "update of 32", "inprocess", "update priorities, batches of 32", "更新优先级，每批 32"),
    ("105B", "loop", "inprocess", "append one, sample 256, in one process", "单进程：append 一步并 sample 256"),
)
FIVE = [ROWS[at] for at in (0, 4, 7, 9, 12)]  # of the READMEs


def significant(value: float) -> str:
    """A number rounded to three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def rows(result: Result, chinese: bool, five: bool) -> list[tuple[str, ...]]:
    """The rows of the table that were measured."""
    found = []
    for *own, in_english, in_chinese in FIVE if five else ROWS:
        lines = [line for line in result.parts["lines"] if [line["workload"], line["metric"], line["system"]] == own]
        line = min((line for line in lines if line["ratio"] is not None), key=lambda line: line["ratio"], default=None)
        if line is not None:  # if there were several: the one with the peer's best figure
            peer = NAMES.get(line["by"].split()[0], NAMES.get(line["system"], line["system"]))
            ratio = f"{line['ratio']:.0f}" if line["ratio"] >= 10 else f"{line['ratio']:.1f}"
            label = in_chinese if chinese else in_english
            found.append((label, significant(line["ours"]), f"{peer} {significant(line['theirs'])}", ratio))
    return found


def blocks(result: Result, path: Path) -> Callable[[str], str]:
    """The table and its source, by block: "english" and "chinese" have five rows, "all" has all of them."""

    def block(name: str) -> str:
        chinese = name == "chinese"
        heads = ("", "Di-store", "其他系统", "倍数") if chinese else ("", "Di-store", "peer", "ratio")
        source, file = f"`{result.command}`", f"`bench/results/{path.name}`"
        said = f"命令：{source}；全部数据：{file}。" if chinese else f"{source}; all figures: {file}."
        shown = table(heads, rows(result, chinese, five=name != "all"))
        return f"{shown}\n\n{said}"

    return block


DOC = Doc([Page(ROOT / name, "figures") for name in ("README.md", "README.zh-CN.md", "docs/figures.md")], blocks)
