"""Calls and options that a kind of handle lacks: each kind declares them, and this module makes the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from di_store.base.errors import StoreError, shown


class Lack(NamedTuple):
    """Why a call or an option is missing.

    Attributes:
        why: continues the sentence after the name of the call or option.
        remedy: what to do instead.
    """

    why: str
    remedy: str


Lacks: TypeAlias = "Mapping[str, Lack]"
"""The missing calls and options, by name."""


class Declares(Protocol):
    """A kind of handle that declares the calls and options it lacks."""

    @property
    def kind(self) -> str:
        """The kind of handle, in words for an error."""

    @property
    def lacks(self) -> Lacks:
        """The missing calls and options."""

    @property
    def name(self) -> str:
        """Its name."""

    def where(self) -> str:
        """The handle's place, in words for an error: continues the sentence after its name."""


def lacking(there: Declares, call: str) -> StoreError:
    """The error of a call that is missing."""
    lack = there.lacks[call]
    return StoreError(f"{there.kind} {there.name!r} {there.where()}: {call}() {lack.why}", remedy=lack.remedy)


def no_aio(shown: str) -> StoreError:
    """The error of ``.aio`` of a handle whose data are not in this process's memory alone.

    `shown`: the handle, for people.
    """
    return StoreError(
        f"{shown}: aio is for tables and stores in this process's memory",
        remedy="asyncio.to_thread makes the plain call in a thread; give it timeout=",
    )


def check_option(there: Declares, option: str, value: Any) -> None:
    """Refuse an option that is missing.

    Raises:
        ValueError: it is.
    """
    if (lack := there.lacks.get(option)) is not None:
        raise ValueError(f"{option}={shown(value)} {lack.why}; {lack.remedy}")
