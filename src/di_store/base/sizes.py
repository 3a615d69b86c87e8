"""Memory sizes as people write and read them (``4096``, ``"500MB"``, ``"4GiB"``, ``"25%"``), and durations."""

from __future__ import annotations

import functools
import math
import operator
import os
import re

from di_store import _core
from di_store.base.errors import CapacityError, shown

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}i": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*|%)\s*", re.ASCII)
_EXAMPLE = 'bytes as a number, "500MB", "4GiB" or "25%"'

MAX_BYTES = 2**47
"""The user half of a 48-bit address space: nothing larger can be mapped."""


def parse_size(value: int | float | str, *, total: int | None = None, option: str = "memory") -> int:
    """Bytes meant by `value`, rounded down.

    Args:
        value: bytes as a whole number, or text: a number with a unit (kB, MB, … are powers of 1000; KiB, MiB, … of
            1024; any case), or a share of `total` with ``%``.
        total: bytes that 100 % stands for; None: shares are refused.
        option: the argument's name, for the error text.

    Raises:
        ValueError: not a size, not above zero, above `MAX_BYTES`, a bare "4G" (1000 or 1024?), a share above 100 %
            or without a total.
        TypeError: neither a number nor text.
    """
    size = _share_or_bytes(value, total, option) if isinstance(value, str) else _whole(value, option)
    if size < 1:
        raise ValueError(f"{option}={shown(value)} is {size} bytes: give at least one byte, as {_EXAMPLE}")
    if size > MAX_BYTES:
        raise ValueError(f"{option}={shown(value)} is more than the {format_size(MAX_BYTES)} that can be mapped")
    return size


def budget_bytes(memory: int | float | str) -> int:
    """The memory limit in bytes that `memory` stands for, for a store on this machine.

    Raises:
        ValueError, TypeError: as in `parse_size`. CapacityError: more than the machine has.
    """
    size = parse_size(memory, total=_core.memory_total())
    if size > machine_bytes():
        raise CapacityError(
            f"memory={shown(memory)} is {format_size(size)}, and this machine has {format_size(machine_bytes())}",
            remedy='lower memory=; a share such as "25%" fits every machine',
        )
    return size


@functools.cache
def machine_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _whole(value: object, option: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{option}={shown(value)}: give {_EXAMPLE}")
    if isinstance(value, float):
        if math.isfinite(value) and 0 < value <= 1:
            raise ValueError(
                f'{option}={shown(value)} is not a whole number of bytes; for a share write {option}="{value:.0%}"'
            )
        if not math.isfinite(value) or not value.is_integer():
            raise ValueError(f"{option}={shown(value)} is not a whole number of bytes: give {_EXAMPLE}")
        return int(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # torch raises the others for values that it cannot convert
        raise TypeError(f"{option} is a {type(value).__name__}: give {_EXAMPLE}") from None


def _share_or_bytes(text: str, total: int | None, option: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{option}={shown(text)} is not a size: give {_EXAMPLE}")
    number, unit = match.group(1).replace("_", ""), match.group(2).lower()
    if unit == "%":
        if total is None:
            raise ValueError(f'{option}={shown(text)}: a percentage is not allowed here, give bytes such as "4GiB"')
        if float(number) > 100:
            raise ValueError(f"{option}={shown(text)} is above 100%: give at most 100%")
        return int(total * float(number) / 100)
    if unit in ("k", "m", "g", "t", "p"):
        raise ValueError(
            f"{option}={shown(text)} is ambiguous: write {number}{unit.upper()}iB (powers of 1024) "
            f"or {number}{unit.upper()}B (powers of 1000)"
        )
    if unit not in _UNITS:
        raise ValueError(f"{option}={shown(text)} has no known unit: give {_EXAMPLE}")
    return int(number) * _UNITS[unit] if number.isdigit() else int(float(number) * _UNITS[unit])


def format_size(size_bytes: int) -> str:
    """`size_bytes` for people: whole bytes below 1 KiB, else three significant digits in KiB … PiB."""
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < 1024:
        return f"{sign}{size} B"
    scaled = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        scaled /= 1024
        if scaled < 999.5 or unit == "PiB":
            break
    digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{sign}{scaled:.{digits}f} {unit}"


def seconds_text(seconds: float) -> str:
    """A duration for people: ``0.3 s``, ``12 s``, ``5 min 3 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
