"""`CapacityError` names what is short, and one figure that is enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import di_store
from di_store import CapacityError, Sequence, Spec, Step
from di_store.base.sizes import parse_size

MIB = 1 << 20
IMAGE = Spec((84, 84), "u1")
SCHEMAS: dict[str, dict[str, Any]] = {
    "wide": {"image": IMAGE, "action": Spec((), "i8")},
    "late": {"image": IMAGE, "latent": Spec((256,), "f4", late=True)},
    "small": {"x": Spec((4,), "f4")},
    "ragged": {"tokens": Spec((None,), "i4", max=4096), "x": Spec((8,), "f4")},
}


def refused(folder: Path, memory: int, disk: int, **options: Any) -> str | None:
    """The error of a table in a store of such limits; None: it was made."""
    tier = {"disk": folder, "disk_capacity": disk} if disk else {}
    with di_store.open(memory=memory, **tier) as store:
        try:
            store.create_table("t", **options)
        except CapacityError as error:
            return str(error)
    return None


def figure(option: str, told: str) -> int:
    """By how many bytes the error says to raise a limit; 0: it does not name it."""
    found = re.search(rf"{option}= by ([\d.]+ \w+)", told)
    return parse_size(found[1].replace(" ", ""), option=option) if found else 0


@pytest.mark.memory_only
@pytest.mark.parametrize(
    ("columns", "view"),
    [(columns, Step()) for columns in SCHEMAS] + [(name, Sequence(20, period=10)) for name in ("wide", "ragged")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize(("lanes", "disk"), [(1, 0), (64, 0), (1, 256 * MIB), (64, 256 * MIB), (64, 2048 * MIB)])
def test_a_capacity_error_gives_one_figure_when_both_are_equal(
    columns: str, view: Any, lanes: int, disk: int, tmp_path: Path
) -> None:
    options = {"capacity": 100_000, "lanes": lanes, "view": view, "schema": SCHEMAS[columns]}
    memory = 32 * MIB
    told = refused(tmp_path, memory, disk, **options)
    if told is None:
        return
    more = figure("memory", told)
    assert more > 0, told
    assert refused(tmp_path, memory + more, disk, **options) is None
    if more_disk := figure("disk_capacity", told):
        assert refused(tmp_path, memory, disk + more_disk, **options) is None


@pytest.mark.memory_only
def test_the_parts_in_a_capacity_error_do_not_exceed_the_total(tmp_path: Path) -> None:
    """Of a table with `max_bytes` lanes cannot have more open than that."""
    schema = {"image": Spec((84, 84, 4), "u1"), "latent": Spec((50,), "f4", late=True)}
    told = refused(tmp_path, 16 * MIB, 256 * MIB, capacity=100, lanes=3_000, max_bytes="50MiB", schema=schema)
    assert told is not None
    assert "50.0 MiB for open chunks of lanes=3000" in told
    assert "heads of chunks" not in told


@pytest.mark.memory_only
def test_a_disk_tier_names_the_column_that_stays_in_memory(tmp_path: Path) -> None:
    told = refused(tmp_path, 64 * MIB, 4096 * MIB, capacity=300_000, lanes=1, schema=SCHEMAS["late"])
    assert told is not None
    assert "late column 'latent'" in told
    assert "image" not in told
