"""Which chunks of a checkpoint share files, and which files of the checkpoint before are written again."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.snapshot.files import SEGMENT_BYTES
from di_store.snapshot.form import Segment

MOST_FILES = 256
"""More are a number that a restore, which holds each open, may not have descriptors for."""


def alike(chunks: dict[str, Any], fresh: list[int]) -> list[list[int]]:
    """Share out the chunks that are written among kinds of files, in the order in which they are written.

    What lies in a file is of one kind, so that `renewed` may count records: heads alone, of bodies that are linked;
    closed chunks; and open ones, of which none is needed any more by the next checkpoint.
    """
    kinds: list[list[int]] = [[], [], []]
    for number in fresh:
        if not chunks["closed"][number]:
            # mutant: open-chunks-share-files
            kinds[2].append(number)
        else:
            kinds[0 if chunks["body_segment"][number] else 1].append(number)
    return [kind for kind in kinds if kind]


def renewed(segments: list[Segment], used: Array) -> set[int]:
    """Files of which the chunks are written again, given the file of each chunk that is still there.

    The emptiest ones, while more than half of all that lies there is of chunks that are gone: no file of a table whose
    rows leave in their order, as its oldest files soon go whole. And of too many files the smallest half.
    """
    counts = np.bincount(used, minlength=len(segments))
    full = {n: counts[n] / segment.records for n, segment in enumerate(segments) if segment.records and counts[n]}
    lying = sum(segments[n].bytes for n in full)
    needed = sum(segments[n].bytes * full[n] for n in full)
    found: set[int] = set()
    for number in sorted(full, key=full.__getitem__):
        # mutant: sparse-files-of-checkpoints-stay
        if lying <= 2 * needed:
            break
        found.add(number)
        lying -= int(segments[number].bytes * (1 - full[number]))
    rest = sorted(full.keys() - found, key=lambda n: segments[n].bytes)
    # mutant: small-files-of-checkpoints-stay
    if len(rest) > MOST_FILES + 2 * lying // SEGMENT_BYTES:
        found.update(rest[: len(rest) // 2])
    return found
