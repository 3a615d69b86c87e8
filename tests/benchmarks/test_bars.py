"""A ratio below its bar is a miss, whatever it is a ratio to."""

from __future__ import annotations

import pytest

from bench.bars import COPY, COPY_GIGABYTES, Bar, Key, bars, compare

pytestmark = pytest.mark.extended

HELD = [bar for bar in bars() if bar.least is not None]


def figures(bar: Bar, ratio: float, copy: float = 20.0) -> dict[Key, float]:
    """A run in which one line has that ratio."""
    found = {COPY: copy}
    if bar.absolute is not None:
        theirs = bar.absolute if bar.most else bar.absolute * copy / COPY_GIGABYTES
    elif bar.metrics == (COPY[2],):
        theirs = copy
    else:
        theirs = 100.0
        found |= {(bar.system, bar.workload, metric): theirs / (1 + at) for at, metric in enumerate(bar.metrics)}
    return {**found, ("di-store", bar.workload, bar.metric): ratio * theirs}


@pytest.mark.parametrize("bar", HELD, ids=lambda bar: f"{bar.system} {bar.workload} {bar.metric}")
def test_a_figure_below_its_bar_fails(bar: Bar) -> None:
    assert bar.least is not None
    for factor in (0.99, 1.01):
        lines = compare(figures(bar, bar.least * factor))
        own = [
            line
            for line in lines
            if (line.workload, line.metric, line.system, line.bar) == (bar.workload, bar.metric, bar.system, bar.least)
        ]
        assert [line.verdict for line in own] == ["ok" if (factor > 1) != bar.most else "MISSED"]


def test_unmeasured_figures_have_no_verdict() -> None:
    assert {line.verdict for line in compare({COPY: 10.0})} == {""}
