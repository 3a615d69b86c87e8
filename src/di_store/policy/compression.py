"""Compression of a table's rows on disk."""

from __future__ import annotations

from typing import Any, TypeAlias

from di_store.base import config
from di_store.base.errors import CorruptData, shown
from di_store.base.frozen import dataclass


@dataclass(frozen=True)
class Compress:
    """Compress rows on disk, and expect them to shrink.

    The table's reserve of memory and disk together is the rows' bytes ÷ `expect`. If the rows shrink less, the disk is
    full earlier, and items are evicted. Measured ratios: docs/packing.md.

    Attributes:
        expect: how many times smaller rows are on disk than in memory, at least 1.
    """

    expect: float = 1.0

    def __post_init__(self) -> None:
        expect = config.real("expect", self.expect, minimum=1.0, maximum=1e6, why="it is how many times smaller")
        object.__setattr__(self, "expect", expect)


Compression: TypeAlias = Compress | str | None


def check_compress(value: Any) -> Compression:
    """`value` if it can be given as ``compress=``.

    Raises: TypeError, ValueError: the value is none of these.
    """
    if value is None:
        return value
    if isinstance(value, Compress):
        return config.instance("compress", value, (Compress,))
    if isinstance(value, str):
        if value == "auto":
            return value
        raise ValueError(f'compress={shown(value)}: give "auto", None or Compress(expect=)')
    raise TypeError(f'compress={shown(value)} is a {type(value).__name__}: give "auto", None or Compress(expect=)')


def compress_to_plain(value: Compression) -> Any:
    """The option in its JSON form."""
    return {"expect": value.expect} if isinstance(value, Compress) else value


def compress_from_plain(plain: Any) -> Compression:
    """The option that `compress_to_plain` described; `CorruptData` if the data describe none."""
    try:
        return Compress(**plain) if isinstance(plain, dict) else check_compress(plain)
    except (TypeError, ValueError) as error:
        raise CorruptData(f"the stored settings of a table cannot be read: {error}") from None
