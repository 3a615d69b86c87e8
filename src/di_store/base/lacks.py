"""Calls and options that a kind of handle does not have: each kind declares them, and the error is made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from di_store.base.errors import StoreError, shown


class Lack(NamedTuple):
    """Why a call or an option is missing.

    Attributes:
        why: goes on from the name of the call or option.
        remedy: what to do instead.
    """

    why: str
    remedy: str


Lacks: TypeAlias = "Mapping[str, Lack]"
"""The missing calls and options, by name."""


class Declares(Protocol):
    """What declares the calls and options that it does not have."""

    @property
    def kind(self) -> str:
        """What it is, for people."""

    @property
    def lacks(self) -> Lacks:
        """The missing calls and options."""

    @property
    def name(self) -> str:
        """Its name."""

    def where(self) -> str:
        """Where it is, for people: goes on from its name."""


def lacking(there: Declares, call: str) -> StoreError:
    """The error of a call that is missing."""
    lack = there.lacks[call]
    return StoreError(f"{there.kind} {there.name!r} {there.where()}: {call}() {lack.why}", remedy=lack.remedy)


def check_option(there: Declares, option: str, value: Any) -> None:
    """Refuse an option that is missing.

    Raises:
        ValueError: it is.
    """
    if (lack := there.lacks.get(option)) is not None:
        raise ValueError(f"{option}={shown(value)} {lack.why}; {lack.remedy}")
