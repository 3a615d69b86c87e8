"""Which outcomes of a call are right: success, or an error of the closed set whose text is one for people."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import di_store
from soak.fuzz.odd import OddError


class Interrupted(BaseException):
    """What a signal handler raises; it comes through, as Ctrl-C does."""


ALLOWED = (di_store.StoreError, ValueError, TypeError, MemoryError, KeyboardInterrupt, Interrupted, OddError)
"""Timeout is a StoreError. UnicodeError is a ValueError."""
RAW = re.compile(
    r"incompatible function arguments|std::|vector::|bad_cast|bad_alloc|bad_variant|basic_string|Unable to cast|_M_\w"
    r"|nanobind|<unknown>|_core\.|unordered_map|Assertion|NoneType\b.* object|object has no attribute|unpack"
)
"""Texts of bindings, of C++ and of Python's inside."""


@dataclass(frozen=True)
class Finding:
    """One outcome that is not right.

    Attributes:
        kind: "error without a name", "raw text", "empty text", "crash", "hang", "damage", "not replayed".
        call: text of the plan.
        error: class of the exception, or "".
        text: what it says.
        trace: where it came from.
    """

    kind: str
    call: str
    error: str
    text: str
    trace: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


FILES = ("Table.export", "Store.import_table", "Store.checkpoint", '"restore"', '"save"', '"load"')
"""Calls that pass on what the file system says."""


def judge(call: str, error: BaseException) -> Finding | None:
    """What is wrong with an exception; None if it is one that the contract names, with a text for people."""
    protocol = (("Loader.__next__", StopIteration), ("__getitem__", IndexError))
    if any(name in call and isinstance(error, kind) for name, kind in protocol):
        return None  # as Python's own iterators and sequences
    files = any(name in call for name in FILES)
    if isinstance(error, OSError) and files and error.errno:
        return None  # the file system's own words about a path
    text = _text(error)
    if isinstance(error, RuntimeError) and text == "can't allocate lock":
        return None  # Python's own word for too little memory
    if not isinstance(error, ALLOWED):
        return _finding("error without a name", call, error, text)
    if isinstance(error, (KeyboardInterrupt, Interrupted, OddError, MemoryError)):
        return None
    if not text.strip():
        return _finding("empty text", call, error, text)
    return _finding("raw text", call, error, text) if RAW.search(text) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except OddError:
        return "(its text cannot be made)"


def _finding(kind: str, call: str, error: BaseException, text: str) -> Finding:
    trace = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)[-4:]))
    return Finding(kind, call, type(error).__name__, text[:400], trace)
