"""The verdict on two builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure import TURNS
from bench.pairs import RATE_BAR, ROOT, TAIL_BAR, Turns, compare, take_turns

pytestmark = pytest.mark.extended

SEVEN = [100.0, 104.0, 96.0, 101.0, 99.0, 103.0, 98.0]


def test_equal_builds_are_not_worse() -> None:
    ratio = compare("2KB, sample", SEVEN, SEVEN)
    assert ratio.ratio == pytest.approx(1)
    assert ratio.low == pytest.approx(1)
    assert not ratio.worse


def test_a_certain_loss_is_worse() -> None:
    ratio = compare(
        "2KB, sample", SEVEN, [value * loss for value, loss in zip(SEVEN, [0.94, 0.95, 0.96] * 3, strict=False)]
    )
    assert ratio.worse
    assert ratio.low < ratio.ratio < ratio.high < RATE_BAR


def test_a_loss_within_the_noise_is_not_worse() -> None:
    noisy = [value * factor for value, factor in zip(SEVEN, [0.8, 1.2, 0.9, 1.05, 0.85, 1.1, 0.9], strict=True)]
    assert not compare("2KB, sample", SEVEN, noisy).worse


def test_tail_latencies_have_a_wider_tolerance() -> None:
    slower = [value * factor for value, factor in zip(SEVEN, [0.94, 0.95, 0.96, 0.95, 0.94, 0.95, 0.96], strict=True)]
    ratio = compare("insert beside 1, insert p99", SEVEN, slower)
    assert ratio.bar == TAIL_BAR
    assert not ratio.worse


SIX_TURNS = """
import sys
from bench.measure import my_turn

for _ in range(6):
    with my_turn(), open(sys.argv[1], "a") as log:
        log.write(sys.argv[2])
        log.flush()
        log.write(sys.argv[2])
"""


def test_processes_measure_one_at_a_time_and_begin_in_turn(tmp_path: Path) -> None:
    turns = [Turns(tmp_path / name) for name in "ab"]
    log = tmp_path / "log"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SIX_TURNS, str(log), name],
            env={**os.environ, "PYTHONPATH": str(ROOT), TURNS: each.path},
            text=True,
        )
        for name, each in zip("ab", turns, strict=True)
    ]
    take_turns(turns, processes)
    assert [process.wait() for process in processes] == [0, 0]
    assert log.read_text() == 3 * "aabbbbaa"
