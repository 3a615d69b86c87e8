"""Every public call with odd arguments, under signals, threads, failing allocations, exhausted limits and forks.

Each round is a process of its own that makes call after call (`soak.fuzz.player`) in a store with guarded rows and
objects. Whatever is called, with whatever arguments: it succeeds, or it raises an error of the closed set with a text
for people; no process crashes, no call outlives ten times its deadline, and afterwards the store is whole: `check`
finds nothing, what is guarded is as it was, counts agree, nothing is left of the process.

A failure prints the call as JSON: `PYTHONPATH=tests .venv/bin/python -m soak.fuzz 'JSON'` makes it alone. It also
prints hazard and seed of the round: `… -m soak.fuzz --round HAZARD SEED` plays it again. `DI_STORE_SOAK_SECONDS` sets
another length, `DI_STORE_SOAK_SEED` another chance.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.zygote import Crew

from soak.fuzz.field import Field, Report
from soak.fuzz.hazards import HAZARDS
from soak.fuzz.plan import CALLS, Plan
from soak.fuzz.plants import PLANTS
from soak.fuzz.player import Round
from soak.fuzz.surface import MADE_IN_A_WORLD, constructed, known

BOUND_SECONDS = 120.0
ROUND_SECONDS = 3.0


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """A zygote for all tests here: its imports take seconds."""
    made = Crew(["numpy", "torch", "di_store", "soak.fuzz.player"])
    yield made
    made.close()


@pytest.mark.extended
@pytest.mark.timeout(4_000)
def test_every_call_succeeds_or_raises_an_error_with_a_name(
    crew: Crew, count: Callable[[int, int], int], tmp_path: Path, store_name: Callable[[], str]
) -> None:
    seconds = float(os.environ.get("DI_STORE_SOAK_SECONDS", count(4, 1_800)))
    first = int(os.environ.get("DI_STORE_SOAK_SEED", "1"))
    each = min(ROUND_SECONDS, seconds / len(HAZARDS))
    field, report = Field(crew, BOUND_SECONDS), Report()
    end, tell_at = time.monotonic() + seconds, 60.0
    for seed in itertools.count(first):
        for hazard in HAZARDS:
            game = Round(store_name(), str(tmp_path), seed, hazard, 100_000, each)
            report.add(game, field.play(game))
        if (now := time.monotonic()) >= end:
            break
        if now - (end - seconds) >= tell_at:
            print(f"{tell_at / 60:3.0f}:00  {field.calls:,} odd calls, seed {seed}: {report.summary()}", flush=True)
            tell_at += 60.0
    assert field.calls > 20 * len(HAZARDS), "hardly a call was made"
    assert not report.kinds, report.text(field, store_name)


@pytest.mark.parametrize("owner", sorted({call.owner for call in CALLS.values()} - {"", *MADE_IN_A_WORLD}))
def test_the_fuzzer_has_an_object_of_each_class(owner: str) -> None:
    """A class that nobody made an object of is found here, and not when chance first calls its method."""
    assert type(constructed(owner)).__name__ == owner


@pytest.mark.extended
@pytest.mark.parametrize("plant", PLANTS)
def test_the_fuzzer_finds_each_planted_fault(
    crew: Crew, tmp_path: Path, store_name: Callable[[], str], plant: str
) -> None:
    """Each check finds the fault it is there for."""
    call = Plan("Store.contains", "store", 1, ()).text()
    game = Round(store_name(), str(tmp_path), 1, "odd", 1, 60.0, (call,), plant, usual=0.2)
    found = Field(crew, bound=1.0).play(game)
    assert found, "nothing was noticed"
    assert PLANTS[plant] in f"{found[0].kind} {found[0].text}"
    if found[0].kind != "damage":
        assert found[0].call == call


def test_plans_convert_to_text_and_back() -> None:
    plan = Plan("Table.insert", "steps", 7, (("value", "leaf:obs:odd:nan"), ("timeout", "odd:none")))
    assert Plan.parse(plan.text()) == plan
    assert plan.endless


def test_valid_arguments_of_every_public_call_are_known() -> None:
    missing = [f"{call.name}({each})" for call in CALLS.values() for each in call.parameters if not known(call, each)]
    assert missing == [], "add them to VALUES in tests/soak/fuzz/surface.py"
    for name in ("open", "attach", "Store.put", "Table.sample", "Writer.append", "Loader.__next__", "Mixture.sample"):
        assert name in CALLS
