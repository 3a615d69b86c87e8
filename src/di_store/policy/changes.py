"""Changes of `Table.configure` while the table is in use, checked together."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from di_store.base import config
from di_store.policy.limiters import Limiter, Pace, Queue, Stack, check_limiter, lasting_kind
from di_store.policy.samplers import Prioritized
from di_store.policy.settings import Settings


class Unchanged(Enum):
    """The type of `UNCHANGED`, for options that may be None."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged.UNCHANGED


class Changes(msgspec.Struct, frozen=True):
    """Checked changes of one table.

    Attributes:
        limiter: a new limiter of the same kind; None: unchanged.
        alpha: exponent of priorities; None: unchanged.
        beta: exponent of the importance weights; None: weights are 1.
        max_staleness: versions; None: no limit.
    """

    limiter: Limiter | None
    alpha: float | None
    beta: float | Unchanged | None
    max_staleness: int | Unchanged | None


def check_changes(
    settings: Settings, capacity: int, *, limiter: Any, alpha: Any, beta: Any, max_staleness: Any
) -> Changes:
    """The changes, if they agree with the table's settings.

    Args:
        settings: settings with which the table was made.
        capacity: current capacity.
        limiter: as in `Table.configure`; None: unchanged.
        alpha: likewise.
        beta: as given, or `UNCHANGED`.
        max_staleness: likewise.

    Raises:
        ValueError, TypeError: as in `Table.configure`.
    """
    if limiter is not None:
        _check_limiter(settings, capacity, check_limiter(limiter))
    if (alpha is not None or beta is not UNCHANGED) and not isinstance(settings.sampler, Prioritized):
        raise ValueError(f"alpha= and beta= belong to Prioritized, and this table has sampler={settings.sampler!r}")
    if alpha is not None:
        alpha = config.real("alpha", alpha, why="it is the exponent on priorities")
    if beta is not UNCHANGED and beta is not None:
        beta = config.real("beta", beta, why="it is the exponent of the importance weights")
    if max_staleness is not UNCHANGED and max_staleness is not None:
        if settings.weights is None:
            raise ValueError('max_staleness needs the table to be created with weights="policy"')
        max_staleness = config.count("max_staleness", max_staleness, minimum=0)
    return Changes(limiter, alpha, beta, max_staleness)


def _check_limiter(settings: Settings, capacity: int, limiter: Limiter) -> None:
    if lasting_kind(limiter) != lasting_kind(settings.limiter):
        keeps = "what its draws wait for" if Pace in (type(limiter), type(settings.limiter)) else "its order of drawing"
        raise ValueError(
            f"limiter={limiter!r}: a table with {settings.limiter!r} cannot change {keeps}; create a new table"
        )
    least = limiter.size if isinstance(limiter, (Queue, Stack)) else limiter.bounds.min_size
    if least > capacity:
        raise ValueError(f"limiter={limiter!r} needs {least} items, and capacity={capacity} holds fewer")
