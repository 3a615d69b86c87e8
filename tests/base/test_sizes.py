"""Memory sizes as people write them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_store.base import disk
from di_store.base.sizes import MAX_BYTES, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("1_000", 1000),
        ("12 B", 12),
        ("1kB", 1000),
        ("1KB", 1000),
        ("500MB", 500_000_000),
        ("4GiB", 4 * 2**30),
        ("4gib", 4 * 2**30),
        ("4Gi", 4 * 2**30),
        (" 1.5 GiB ", 3 * 2**29),
        (".5KiB", 512),
        ("1TB", 10**12),
        ("25%", 250),
        ("100 %", 1000),
        ("0.5%", 5),
    ],
)
def test_sizes_are_parsed_from_text(text: str, size: int) -> None:
    assert parse_size(text, total=1000) == size


@pytest.mark.parametrize("value", [7, np.int64(7), 7.0, np.uint8(7)])
def test_sizes_are_accepted_as_numbers(value: int) -> None:
    found = parse_size(value)
    assert found == 7
    assert type(found) is int


BAD = ["", "GiB", "4 apples", "-1", "-4GiB", "4GiB extra", "1e9", "nan", "0x10", "٤GiB", "4,5GiB", "101%", "%"]


@pytest.mark.parametrize("value", [*BAD, 0, -1, "0", "0%", "0.0001%", 1.5, float("nan"), float("inf"), MAX_BYTES + 1])
def test_invalid_sizes_are_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"max_bytes={value!r}")):
        parse_size(value, total=1000, option="max_bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, True, b"4GiB", [4], object()])
def test_other_types_are_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="memory"):
        parse_size(value)  # type: ignore[arg-type]


def test_ambiguities_are_explained() -> None:
    with pytest.raises(ValueError, match=r"write 4GiB \(powers of 1024\) or 4GB"):
        parse_size("4G")
    with pytest.raises(ValueError, match='memory="25%"'):
        parse_size(0.25)
    with pytest.raises(ValueError, match="a percentage is not allowed here"):
        parse_size("25%")


@given(st.integers(1, MAX_BYTES), st.sampled_from(["B", "kB", "KiB", "MB", "MiB", "GB", "GiB"]))
def test_units_multiply(number: int, unit: str) -> None:
    power = {"B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}[unit]
    if number * power <= MAX_BYTES:
        assert parse_size(f"{number}{unit}") == number * power
    else:
        with pytest.raises(ValueError, match="can be mapped"):
            parse_size(f"{number}{unit}")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10_240, "10.0 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (2**20 - 1, "1.00 MiB"),
        (100 * 2**20, "100 MiB"),
        (3 * 2**29, "1.50 GiB"),
        (-2048, "-2.00 KiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_sizes_are_formatted(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(1, MAX_BYTES))
def test_a_formatted_size_parses_back_to_three_digits(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= 0.006 * size


def test_a_full_filesystem_is_named_without_a_capacity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "_core", SimpleNamespace(disk_room=lambda folder: 100_000))
    with pytest.raises(ValueError, match=r"the filesystem of .* free: .*give disk= a folder on another") as told:
        disk.disk_folder(tmp_path / "d", None)
    assert "50%" not in str(told.value)
    with pytest.raises(ValueError, match="disk_capacity='50%' is"):
        disk.disk_folder(tmp_path / "d", "50%")
