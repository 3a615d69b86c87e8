"""Values of items as people read them: short text, images, and curves over time."""

from __future__ import annotations

import codecs
import reprlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from di_store.base.dtypes import Array
from di_store.dashboard.decoders import Decode
from di_store.dashboard.images import Picture, picture
from di_store.observe import shape_text

MOST_CURVES = 8
"""Curves of one column: a column of vectors has one for each of the first components."""

_FEW = 16  # elements that are shown one by one
_ROWS = 8  # rows of varying length that are shown one by one
_utf8 = codecs.getincrementaldecoder("utf-8")


class Scale(NamedTuple):
    """How much of an item is read and shown."""

    column_bytes: int  # larger columns are not read
    characters: int
    side: int  # pixels of a frame's longer side
    frames: int


BRIEF = Scale(column_bytes=1 << 20, characters=80, side=64, frames=4)
WHOLE = Scale(column_bytes=64 << 20, characters=20_000, side=336, frames=16)


class Curve(NamedTuple):
    """Numbers over the steps of an episode."""

    name: str
    steps: list[int]
    values: list[float]  # NaN where there is no number


class ShownValue(NamedTuple):
    """One column of one item."""

    name: str
    text: str
    pictures: list[Picture]
    decoded: bool  # the text is what the user's decoder has made


def shown_value(name: str, value: Any, scale: Scale, decode: Decode | None = None) -> ShownValue:
    """One column of one item as text and images.

    Args:
        name: of the column.
        value: an array, a list of rows of varying length, or any value of an `Opaque` table.
        scale: how much of it is shown.
        decode: makes text of the value, or of each of the rows.
    """
    rows = value if isinstance(value, list) else [value]
    if decode is not None:
        return ShownValue(name, _decoded(rows, decode, scale.characters), [], decoded=True)
    found = (picture(row, scale.side, scale.frames) for row in rows[:_ROWS] if isinstance(row, np.ndarray))
    pictures = [each for each in found if each is not None]
    text = "" if pictures else value_text(value, scale.characters)
    return ShownValue(name, text, pictures, decoded=False)


def value_text(value: Any, most: int) -> str:
    """A value as text of about `most` characters; control characters are written as escapes."""
    if isinstance(value, (str, bytes)):
        return text_of(value, most)
    if isinstance(value, (np.ndarray, np.generic)):
        return array_text(np.asarray(value), most)
    if isinstance(value, list) and value and all(isinstance(row, (np.ndarray, bytes)) for row in value):
        return _rows_text((value_text(row, most) for row in value[:_ROWS]), len(value))
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = most
    brief.maxlong = brief.maxlist = brief.maxtuple = brief.maxdict = brief.maxset = brief.maxarray = _FEW
    try:
        with np.printoptions(threshold=_FEW):
            return text_of(brief.repr(value), most)
    except Exception as error:  # the class is the user's
        return f"a {type(value).__name__} that cannot be shown: {text_of(str(error), most)}"


def text_of(value: str | bytes, most: int) -> str:
    """The first `most` characters, with control characters, and those that no font shows, written as escapes."""
    start = value[:most]
    text = start if isinstance(start, str) else _utf8("backslashreplace").decode(start, final=len(value) <= most)
    kept = "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)
    if len(value) <= most:
        return kept
    return f"{kept}… ({len(value):,} {'bytes' if isinstance(value, bytes) else 'characters'})"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def array_text(array: Array, most: int) -> str:
    """Up to `_FEW` elements one by one; of larger arrays the type, shape, range, and how many are no numbers."""
    if array.dtype.kind in "SU" and array.size:
        texts = [text_of(each, most) for each in array.reshape(-1)[:_FEW].tolist()]
        return texts[0] if array.ndim == 0 else _rows_text(texts, array.size)
    if array.size <= _FEW and array.ndim <= 1 + bool(array.size):
        return _numbers(array)
    text = f"{array.dtype} {shape_text(array.shape)}"
    numbers = as_numbers(array)
    if numbers is None:
        return text
    real = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
    if odd := numbers.size - real.size:
        text += f", {odd:,} of {numbers.size:,} NaN or infinite"
    return f"{text}, {_number(real.min())} to {_number(real.max())}, mean {_number(real.mean())}" if real.size else text


def as_numbers(array: Array) -> Array | None:
    """Real numbers, of extension types as float32; None: it holds others."""
    if array.dtype.kind in "biuf":
        return array
    try:
        return array.astype(np.float32) if array.dtype.kind == "V" else None
    except (TypeError, ValueError):  # raw bytes
        return None


def curves_of(name: str, steps: Array, values: Array) -> list[Curve]:
    """Curves of a column, ``[steps, …]``: of numbers, or of the first components of short vectors; else none."""
    numbers = as_numbers(values)
    width = int(np.prod(values.shape[1:]))
    if numbers is None or not 1 <= width <= _FEW or not len(values):
        return []
    table = numbers.reshape(len(values), width).astype(np.float64)
    return [
        Curve(name if width == 1 else f"{name}[{at}]", steps.tolist(), table[:, at].tolist())
        for at in range(min(width, MOST_CURVES))
    ]


def _decoded(rows: list[Any], decode: Decode, most: int) -> str:
    found = []
    for row in rows[:_ROWS]:
        try:
            made = decode(row)
            found.append(text_of(made if isinstance(made, bytes) else str(made), most))
        except Exception as error:  # the function is the user's
            found.append(f"the decoder failed: {type(error).__name__}: {text_of(str(error), most)}")
    return found[0] if len(rows) == 1 else _rows_text(found, len(rows))


def _rows_text(texts: Iterable[str], count: int) -> str:
    shown = list(texts)
    return "\n".join(shown) + (f"\n… {count - len(shown):,} more" if len(shown) < count else "")


def _numbers(array: Array) -> str:
    if array.ndim == 0:
        return _number(array[()])
    return f"[{', '.join(_numbers(each) for each in array)}]"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
