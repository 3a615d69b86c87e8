"""The verdict on two builds."""

from __future__ import annotations

import pytest

from bench.pairs import RATE_BAR, TAIL_BAR, compare

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


def test_a_loss_within_the_noise_is_not() -> None:
    noisy = [value * factor for value, factor in zip(SEVEN, [0.8, 1.2, 0.9, 1.05, 0.85, 1.1, 0.9], strict=True)]
    assert not compare("2KB, sample", SEVEN, noisy).worse


def test_tails_may_lose_more() -> None:
    slower = [value * factor for value, factor in zip(SEVEN, [0.94, 0.95, 0.96, 0.95, 0.94, 0.95, 0.96], strict=True)]
    ratio = compare("insert beside 1, insert p99", SEVEN, slower)
    assert ratio.bar == TAIL_BAR
    assert not ratio.worse
