"""Priorities of any size: draws and weights equal an exact model, or the call is refused with the range there is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import di_store

LEAST, MOST = -640.0, 320.0
"""log2 of what priority^alpha may be, as the errors say."""
DENORMAL = 5e-324
ALPHAS = (0.0, 1e-3, 0.3, 0.5, 0.6, 1.0, 2.0, 7.5, 1e3, 1e300)
BETAS = (0.0, 0.4, 1.0)


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def exact_log2(value: float) -> float:
    """log2 to the last bits, also of numbers next to 1 and below the normal ones."""
    mantissa, exponent = math.frexp(value)
    if 0.5 < value < 2:
        return math.log1p(float(Fraction(value) - 1)) / math.log(2)
    return exponent + math.log2(mantissa)


def log_mass(priority: float, alpha: float) -> float:
    """log2 of priority^alpha; -inf for 0."""
    if priority == 0:
        return -math.inf
    return 0.0 if alpha == 0 else alpha * exact_log2(priority)


def taken(priority: float, alpha: float) -> bool | None:
    """Whether a table takes it; None: so near to the border that rounding decides."""
    if not math.isfinite(priority) or priority < 0:
        return False
    if priority == 0 or alpha == 0:
        return True
    size = log_mass(priority, alpha)
    if min(abs(size - LEAST), abs(size - MOST)) < 1e-9 * abs(size):
        return None
    return LEAST <= size <= MOST


def model(priorities: list[float], alpha: float) -> list[Fraction]:
    """P of each item, from exact sums of p^alpha."""
    logs = [log_mass(priority, alpha) for priority in priorities]
    masses = []
    for size in logs:
        if size == -math.inf:
            masses.append(Fraction(0))
            continue
        whole = math.floor(size)
        masses.append(Fraction(2.0 ** (size - whole)) * Fraction(2) ** whole)
    total = sum(masses)
    return [mass / total for mass in masses]


def near(found: float, wanted: Fraction, relative: float) -> bool:
    """Whether two probabilities are the same to `relative`."""
    return abs(Fraction(found) - wanted) <= Fraction(relative) * wanted


def filled(store: Any, sampler: Any, priorities: list[float], name: str = "t") -> Any:
    table = store.create_table(name, capacity=len(priorities) + 4, sampler=sampler, schema={"n": np.int64(0)})
    table.extend({"n": np.arange(len(priorities))}, priority=np.array(priorities))
    return table


def some_priorities(rng: random.Random, alpha: float, count: int) -> list[float]:
    """As many as asked for that are taken, at least one of them not 0, over all that floats reach."""
    found: list[float] = []
    while len(found) < count or not any(found):
        kind = rng.randrange(6)
        value = 0.0 if kind == 0 else 2.0 ** rng.uniform(-1074, 1023) if kind < 4 else rng.uniform(0.9, 1.1)
        if kind == 5:
            value = rng.choice([1e-300, DENORMAL, 3 * DENORMAL, 2.2e-308, 1e-100, 1.0, 1e96, 1e300])
        if taken(value, alpha):
            found.append(value)
    return found[-count:] if any(found[-count:]) else found


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("normalize", ["batch", "table"])
def test_probabilities_and_weights_equal_an_exact_model(
    store: Any, alpha: float, normalize: Any, count: Callable[[int, int], int]
) -> None:
    rng = random.Random(f"{alpha} {normalize}")
    for turn in range(count(8, 400)):
        priorities = some_priorities(rng, alpha, 20)
        sampler = di_store.Prioritized(alpha, normalize=normalize)
        table = filled(store, sampler, priorities, f"t{turn}")
        wanted = model(priorities, alpha)
        for beta in BETAS:
            batch = table.sample(64, beta=beta, timeout=60)
            drawn = batch.data["n"]
            least = min(wanted[i] for i in (drawn if normalize == "batch" else range(len(wanted))) if wanted[i] > 0)
            for place, item in enumerate(drawn):
                assert priorities[item] > 0
                assert near(batch.probabilities[place], wanted[item], 1e-11)
                ratio = least / wanted[item]
                size = math.log2(ratio.numerator) - math.log2(ratio.denominator)
                weight = 2.0 ** max(beta * size, -1070)
                assert math.isclose(batch.weights[place], weight, rel_tol=1e-6, abs_tol=1e-44)
        assert store.check() == []
        store.drop_table(f"t{turn}")


@pytest.mark.parametrize("scale", [-1060, -600, -300, 0, 300])
@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
def test_draws_follow_the_law_at_every_magnitude(store: Any, scale: int, alpha: float) -> None:
    """The same draws as of the same priorities near 1: only their ratios matter."""
    if taken(2.0**scale, alpha) is False or taken(2.0 ** (scale + 3), alpha) is False:
        with pytest.raises(ValueError, match=r"2\^-640"):
            filled(store, di_store.Prioritized(alpha), [2.0**scale, 2.0 ** (scale + 3)])
        return
    powers = np.arange(16) // 4
    tables = [
        filled(store, di_store.Prioritized(alpha), [2.0 ** (base + int(each)) for each in powers], name)
        for base, name in ((scale, "far"), (0, "near"))
    ]
    counts = []
    for table in tables:
        drawn = np.concatenate([table.sample(512, timeout=60).data["n"] for _ in range(20)])
        counts.append(np.bincount(drawn, minlength=16))
    wanted = np.array([float(each) for each in model([2.0 ** int(each) for each in powers], alpha)])
    for found in counts:
        total = found.sum()
        chi2 = float(((found - total * wanted) ** 2 / (total * wanted)).sum())
        assert chi2 < 15 + 6 * math.sqrt(30)


OUTSIDE = [
    (1.0, 1e-300),
    (1.0, 1e300),
    (1.0, DENORMAL),
    (2.0, 1e-100),
    (2.0, 1e50),
    (0.5, 1e300),
    (1e3, 2.0),
    (7.5, 0.0),
]


@pytest.mark.parametrize(("alpha", "priority"), OUTSIDE)
def test_every_call_refuses_priorities_that_cannot_be_drawn_right(store: Any, alpha: float, priority: float) -> None:
    if priority == 0:
        priority = math.nextafter(2.0 ** (MOST / alpha), math.inf) * 1.01
    assert taken(priority, alpha) is False
    table = filled(store, di_store.Prioritized(alpha), [1.0, 1.0])
    other = store.create_table("other", capacity=4, schema={"n": np.int64(0)})
    keys = table.keys()
    refused = {"match": r"priority=.*alpha=.*must be 0 or from 2\^-640 to 2\^320, here priorities from .* to "}
    row = {"n": np.int64(5)}
    with pytest.raises(ValueError, **refused):
        table.insert(row, priority=priority)
    with pytest.raises(ValueError, **refused):
        table.extend({"n": np.arange(2)}, priority=np.array([1.0, priority]))
    with store.writer([table, other]) as writer:
        for given in (priority, {"t": priority}):
            with pytest.raises(ValueError, **refused):
                writer.append(row, priority=given)
        with pytest.raises(ValueError, **refused):
            writer.extend({"n": np.arange(2)}, priority=np.array([1.0, priority]))
        writer.append(row, priority={"other": priority})
    with pytest.raises(ValueError, **refused):
        table.update_priorities(keys, np.array([0.5, priority]))
    with pytest.raises(ValueError, **refused):
        store.create_table("u", capacity=4, sampler=di_store.Prioritized(alpha), initial_priority=priority)
    mixture = store.mix({"other": 1, "t": 1})
    batch = mixture.sample(16, timeout=60)
    with pytest.raises(ValueError, **refused):
        mixture.update_priorities(batch.keys, np.where(batch.source == 1, priority, 0.25))
    assert table.peek(keys).priorities.tolist() == [1.0, 1.0]
    assert 0.25 not in other.peek(other.keys()).priorities
    assert store.check() == []


def test_alpha_changes_only_where_all_priorities_can_follow(store: Any) -> None:
    table = filled(store, di_store.Prioritized(0.5), [1e-200, 1.0, 1e-300])
    keys = table.keys()
    with pytest.raises(ValueError, match=r"priority=1e-200 with alpha=2: .*alpha was not changed"):
        table.configure(alpha=2.0, beta=0.7)
    assert table.stats()["alpha"] == 0.5
    assert table.stats()["beta"] is None
    table.update_priorities(keys[2:], np.array([0.0]))
    table.configure(alpha=0.9)
    wanted = model([1e-200, 1.0, 0.0], 0.9)
    found = table.peek(keys).probabilities
    assert all(near(found[i], wanted[i], 1e-11) for i in range(3))
    table.update_priorities(keys[:1], np.array([1e80]))
    table.delete(keys[:1])
    with pytest.raises(ValueError, match=r"priority=1e\+80 with alpha=2.*priority of new items"):
        table.configure(alpha=2.0)
    assert table.sample(4, timeout=60).data["n"].tolist() == [1] * 4


def test_tables_that_only_compare_take_every_priority(store: Any) -> None:
    sizes = [DENORMAL, 1e-300, 0.0, 1e300, 1.7e308, 1.0]
    for number, sampler in enumerate((di_store.MaxHeap(), di_store.MinHeap(), di_store.Prioritized(0.0))):
        table = filled(store, sampler, sizes, f"t{number}")
        table.update_priorities(table.keys(), np.array(sizes))
        assert table.peek(table.keys()).priorities.tolist() == sizes
