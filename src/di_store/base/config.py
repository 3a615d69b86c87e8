"""The common code of views, samplers and limiters: argument checks, and a plain form for storage and comparison."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

import numpy as np

from di_store.base.errors import CorruptData, shown

T = TypeVar("T")

ADDED = {"added": True}
"""Metadata of an option that files of the first version of the format lack. A file leaves it out if it has its
default."""
MAX_COUNT = 2**31 - 1
"""The largest row count that an option accepts."""


def count(option: str, value: object, *, minimum: int, maximum: int = MAX_COUNT, why: str = "") -> int:
    """`value` as an int within bounds.

    Raises:
        TypeError: not a whole number; bool is refused too.
        ValueError: out of bounds; `why` is the reason for the lower bound.
    """
    if isinstance(value, bool):
        raise TypeError(f"{option}={shown(value)}: give a whole number")
    if isinstance(value, (int, np.integer)):
        number = int(value)  # outside the try: an exception of a signal handler must not become a TypeError
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except Exception:  # `__index__` of a foreign type may raise anything
            raise TypeError(f"{option}={shown(value)} is a {type(value).__name__}: give a whole number") from None
    if number < minimum:
        raise ValueError(f"{option}={shown(number)} is below {minimum}" + (f": {why}" if why else ""))
    if number > maximum:
        raise ValueError(f"{option}={shown(number)} is above {maximum}, the largest allowed value")
    return number


def as_float(option: str, value: object, wanted: str) -> float:
    """`value` as a float. NaN and infinities are kept; a number too large for a float becomes infinite.

    Raises:
        TypeError: not a number; bool and text are refused too. `wanted` says what to give.
    """
    if type(value) is float:
        return value
    if type(value) is int or isinstance(value, (np.floating, np.integer)):
        try:
            return float(value)
        except OverflowError:  # nothing else: an exception of a signal handler must not become a TypeError
            return math.inf if value > 0 else -math.inf
    refused = isinstance(value, (bool, str, bytes)) or type(value).__name__ in ("bool_", "bool")
    if not refused and hasattr(value, "__float__"):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]
        except Exception:  # `__float__` of a foreign type may raise anything
            pass
    raise TypeError(f"{option}={shown(value)} is a {type(value).__name__}: give {wanted}")


def real(option: str, value: object, *, minimum: float = 0.0, maximum: float = math.inf, why: str = "") -> float:
    """`value` as a finite float within bounds, both included.

    Raises:
        TypeError: not a number.
        ValueError: NaN, infinite, or out of bounds; `why` is the reason for the bounds.
    """
    number = as_float(option, value, "a number")
    if not math.isfinite(number) or not minimum <= number <= maximum:
        bounds = f"at least {minimum:g}" if maximum == math.inf else f"between {minimum:g} and {maximum:g}"
        raise ValueError(f"{option}={number}: give a finite number {bounds}" + (f": {why}" if why else ""))
    return number


def flag(option: str, value: object) -> bool:
    """`value` as a bool; TypeError for anything else, so that a misplaced argument is not taken for True."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError(f"{option}={shown(value)} is a {type(value).__name__}: give True or False")


def function(option: str, value: Any) -> Any:
    """`value` if it can be called, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{option}={shown(value)}: give a function, or None")
    return value


def choice(option: str, value: object, choices: Iterable[str]) -> str:
    """`value` if it is one of `choices`; ValueError with all of them otherwise."""
    known = tuple(choices)
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{option}={shown(value)}: give one of {', '.join(map(repr, known))}")


def is_name(value: object, most: int) -> TypeGuard[str]:
    """Whether `value` is text of 1 to `most` bytes in UTF-8, without NUL."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return 1 <= len(value.encode()) <= most
    except UnicodeEncodeError:  # lone surrogates
        return False


def listed(option: str, value: object, wanted: str) -> list[Any]:
    """An iterable as a list. Text, and anything not iterable, raises a TypeError with `wanted`."""
    if type(value) in (list, tuple):
        return list(value)  # type: ignore[call-overload, no-any-return]  # outside the try, as in `count`
    if not isinstance(value, (str, bytes)):
        try:
            return list(value)  # type: ignore[call-overload, no-any-return]
        except Exception:  # `__iter__` of a foreign type may raise anything
            pass
    raise TypeError(f"{option}={shown(value)} is a {type(value).__name__}: give {wanted}")


def names(option: str, value: object) -> tuple[str, ...]:
    """Column names as a tuple; a single name may be given as text.

    Raises:
        TypeError: neither text nor an iterable of texts.
        ValueError: an empty name, or a name given twice.
    """
    found = [value] if isinstance(value, str) else listed(option, value, "a tuple of column names")
    for each in found:
        if not isinstance(each, str):
            raise TypeError(
                f"{option}={shown(value)}: {shown(each)} is a {type(each).__name__}; column names must be text"
            )
        if not each:
            raise ValueError(f"{option}={shown(value)} holds an empty name")
        if not is_name(each, MAX_COUNT):
            raise ValueError(f"{option}={shown(value)}: a column's name must be valid UTF-8 without NUL")
    if len(set(found)) != len(found):
        raise ValueError(f"{option}={shown(value)} names a column twice")
    return tuple(map(str, found))


def texts(option: str, value: object) -> list[str]:
    """One text or several, as a list; None gives an empty list.

    Raises:
        TypeError: anything else.
    """
    found = [] if value is None else [value] if isinstance(value, str) else value
    every = listed(option, found, "a name or a list of names")
    if not all(isinstance(each, str) for each in every):
        raise TypeError(f"{option}={shown(value)}: give a name or a list of names")
    return every


def to_plain(config: Any) -> dict[str, Any]:
    """A view, sampler or limiter as a dict of plain values: its fields, and its class under "kind"."""
    plain: dict[str, Any] = {"kind": type(config).__name__}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.compare and not ("added" in field.metadata and value == field.default):
            plain[field.name] = list(value) if isinstance(value, tuple) else value
    return plain


def from_plain(plain: Any, classes: Iterable[type[T]], what: str) -> T:
    """The object that `to_plain` described, one of `classes`. Its constructor checks the values as usual.

    Raises:
        CorruptData: unknown kind or field, or values that its constructor refuses.
    """
    by_name = {cls.__name__: cls for cls in classes}
    try:
        fields = dict(plain)
        cls = by_name[fields.pop("kind")]
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptData(f"the stored {what} {shown(plain)} cannot be read: {error}") from None


def instance(option: str, value: object, classes: tuple[type[T], ...]) -> T:
    """`value` if it is an instance of one of `classes`, and of no subclass: only these can be stored and read back.

    Raises:
        TypeError: it is not; the message differs if the class itself or a subclass was given.
    """
    if type(value) in classes:
        return value  # type: ignore[return-value]
    for cls in classes:
        if isinstance(value, cls):
            raise TypeError(
                f"{option}={shown(value)} is of {type(value).__name__}, a subclass of {cls.__name__}: the store keeps "
                f"only the fields of {cls.__name__}, so give an instance of that class itself"
            )
    known = ", ".join(cls.__name__ for cls in classes)
    if isinstance(value, type) and issubclass(value, classes):
        raise TypeError(f"{option}={value.__name__} is the class: write {option}={value.__name__}(…)")
    raise TypeError(f"{option}={shown(value)} is a {type(value).__name__}: give one of {known}")
