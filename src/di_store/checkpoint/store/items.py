"""Items of a table in files: first all items, and later only the changes.

A change is found by comparing with the previous checkpoint, so nothing has to be noted while the table is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array

ITEM_WORDS = _core.ITEM_BYTES // 8
BY_PLACE = ("dense", "removed_from")
"""Arrays of which some entries change. Like the items, they are stored by place."""
_OFTEN = ("draws", "ended")
"""Arrays that are written whole each time."""
WHOLE: dict[str, Any] = {
    "items": np.uint64,
    "dense": np.uint32,
    "removed_from": np.uint32,
    "free_first": np.uint32,
    "free_count": np.uint32,
    "draws": np.uint64,
    "ended": np.uint64,
}
CHANGES: dict[str, Any] = {
    "slots": np.uint32,
    "items": np.uint64,
    "sizes": np.uint64,
    **{f"{name}{part}": np.uint32 for name in BY_PLACE for part in ("_at", "_to")},
    "free_first": np.uint32,
    "free_count": np.uint32,
    "draws": np.uint64,
    "ended": np.uint64,
}


def whole(image: dict[str, Any]) -> dict[str, Array]:
    """The arrays of a file with a table's whole image."""
    first, count = _runs(image["free"])
    arrays = {name: image[name] for name in ("items", *BY_PLACE, *_OFTEN)}
    return arrays | {"free_first": first, "free_count": count}


def changes(image: dict[str, Any], before: dict[str, Array]) -> dict[str, Array]:
    """The arrays of a file with the changes from the previous checkpoint's image to this one."""
    items, old = image["items"].reshape(-1, ITEM_WORDS), before["items"].reshape(-1, ITEM_WORDS)
    common = min(len(items), len(old))
    slots = np.flatnonzero((items[:common] != old[:common]).any(axis=1))
    slots = np.concatenate([slots, np.arange(common, len(items))])
    found = {"slots": slots.astype(np.uint32), "items": items[slots].reshape(-1)}
    found |= {name: image[name] for name in _OFTEN}
    found["sizes"] = np.array([len(items), *(len(image[name]) for name in BY_PLACE)], np.uint64)
    for name in BY_PLACE:
        now, then = image[name], before[name]
        common = min(len(now), len(then))
        at = np.concatenate([np.flatnonzero(now[:common] != then[:common]), np.arange(common, len(now))])
        found |= {f"{name}_at": at.astype(np.uint32), f"{name}_to": now[at]}
    found["free_first"], found["free_count"] = _runs(image["free"])
    return found


def applied(before: dict[str, Array], found: dict[str, Array]) -> dict[str, Array]:
    """The image after the changes of a file. ValueError, IndexError: the changes do not belong to the image."""
    sizes = [int(size) for size in found["sizes"]]
    items = _resized(before["items"].reshape(-1, ITEM_WORDS), sizes[0], len(found["slots"]))
    items[found["slots"]] = found["items"].reshape(-1, ITEM_WORDS)
    image = {"items": items.reshape(-1), "free": _listed(found, sizes[0])}
    image |= {name: found[name] for name in _OFTEN}
    for name, size in zip(BY_PLACE, sizes[1:], strict=True):
        image[name] = _resized(before[name], size, len(found[f"{name}_at"]))
        image[name][found[f"{name}_at"]] = found[f"{name}_to"]
    return image


def image_of(found: dict[str, Array]) -> dict[str, Array]:
    """The image of a file that holds a whole one."""
    return {name: found[name] for name in ("items", *BY_PLACE, *_OFTEN)} | {
        "free": _listed(found, len(found["items"]) // ITEM_WORDS)
    }


def _resized(array: Array, rows: int, changed: int) -> Array:
    if rows > len(array) + changed:  # each new one is among those that changed
        raise ValueError("too many")
    made = np.zeros((rows, *array.shape[1:]), array.dtype)
    made[: len(array)] = array[:rows]
    return made


def _runs(slots: Array) -> tuple[Array, Array]:
    """Slots as runs of neighbours: the first of each, and their numbers. Slots that were never used are one run."""
    if not len(slots):
        return slots, slots
    begins = np.concatenate([[0], np.flatnonzero(np.diff(slots.astype(np.int64)) != 1) + 1])
    counts = np.diff(np.append(begins, len(slots)))
    return slots[begins], counts.astype(np.uint32)


def _listed(found: dict[str, Array], slots: int) -> Array:
    first, count = found["free_first"].astype(np.int64), found["free_count"].astype(np.int64)
    if len(first) != len(count) or count.sum() > slots:
        raise ValueError("the list of free slots does not fit the table")
    if not len(first):
        return np.zeros(0, np.uint32)
    begins = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
    listed: Array = (begins + np.arange(count.sum())).astype(np.uint32)
    return listed
