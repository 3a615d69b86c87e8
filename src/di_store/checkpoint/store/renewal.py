"""Decides which chunks of a checkpoint share files, and which files of the previous checkpoint are written again."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.checkpoint.store.files import SEGMENT_BYTES
from di_store.checkpoint.store.manifest import Segment

SMALL_BYTES = SEGMENT_BYTES // 8
"""A file of fewer bytes counts as small."""
MOST_SMALL = 256
"""If there are more small files, some are merged, because a restore holds each file open."""
MOST_BYTES = 4 * SEGMENT_BYTES
"""The most bytes of small files that are merged at once."""


def by_kind(chunks: dict[str, Any], fresh: list[int]) -> list[list[int]]:
    """Divide the chunks to write among kinds of files, in writing order.

    A file holds one kind of chunks, mostly of one size, so that `renewed` may count records. The kinds are: heads
    alone, whose bodies are linked; closed chunks; and open chunks, which the next checkpoint no longer needs.
    """
    kinds: list[list[int]] = [[], [], []]
    for number in fresh:
        if not chunks["closed"][number]:
            kinds[2].append(number)
        else:
            kinds[0 if chunks["body_segment"][number] else 1].append(number)
    return [kind for kind in kinds if kind]


def renewed(segments: list[Segment], used: Array) -> set[int]:
    """Files whose chunks are written again, given the file of each chunk that still exists.

    While more than half of the data belongs to freed chunks, these are the emptiest files. Files of a table that evicts
    rows in order are left out, because its oldest files are soon removed whole. If there are too many small files, the
    smaller half is added.
    """
    counts = np.bincount(used, minlength=len(segments))
    full = {n: counts[n] / segment.records for n, segment in enumerate(segments) if segment.records and counts[n]}
    lying = sum(segments[n].bytes for n in full)
    needed = sum(segments[n].bytes * full[n] for n in full)
    found: set[int] = set()
    for number in sorted(full, key=full.__getitem__):
        if lying <= 2 * needed:
            break
        found.add(number)
        lying -= int(segments[number].bytes * (1 - full[number]))
    sizes = {n: segments[n].bytes for n in full.keys() - found if segments[n].bytes < SMALL_BYTES}
    if len(sizes) > MOST_SMALL:
        smaller = sorted(sizes, key=sizes.__getitem__)[: len(sizes) // 2]
        total = itertools.accumulate(sizes[number] for number in smaller)
        found.update(number for number, size in zip(smaller, total, strict=True) if size <= MOST_BYTES)
    return found
