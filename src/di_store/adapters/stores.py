"""The store of an adapter: the one that its argument `store=` gives, or one of its own.

Every adapter takes ``store=`` and ``table=`` in this way, and shows `.store` and `.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import di_store

StoreLike: TypeAlias = "di_store.Store | str | Mapping[str, Any] | None"
"""What ``store=`` takes: a store (of this machine, a connected one, one of a cluster), the name of one, or a dict of
`di_store.open`'s options. None: the adapter opens one of its own."""

_LEAST_MEMORY = 8 << 20


def given_store(store: StoreLike) -> di_store.Store | None:
    """The store that ``store=`` names; None: none was given.

    Raises:
        TypeError: what is given names no store. Those of `di_store.open`.
    """
    if store is None or isinstance(store, di_store.Store):
        return store
    if isinstance(store, str):
        return di_store.open(store)
    if isinstance(store, Mapping):
        return di_store.open(**store)
    raise TypeError(
        f"store= is a {type(store).__name__}: give a store, its name, or a dict of di_store.open's options, such "
        'as store={"memory": "4GiB", "disk": "/data/replay"}'
    )


def own_store(needed: int, what: str, lower: str, *, spare: int = 0) -> di_store.Store:
    """A store for one adapter alone, without a disk tier.

    Args:
        needed: bytes that its tables need.
        what: needs them, in the plural: the subject of the error.
        lower: the argument that makes it smaller.
        spare: bytes that it also gets, if the machine has them.

    Raises:
        di_store.CapacityError: the machine has less memory.
    """
    needed = max(needed, _LEAST_MEMORY)
    try:
        return di_store.open(memory=needed + spare)
    except di_store.CapacityError:
        pass
    try:
        return di_store.open(memory=needed)
    except di_store.CapacityError as error:
        raise di_store.CapacityError(
            f"{what} need {needed / 2**30:.1f} GiB, more than this machine has",
            remedy=f'lower {lower}, or give a store with a disk tier: store={{"disk": "/data/replay"}}',
        ) from error
