"""All mutants."""

from __future__ import annotations

from mutants import durable, files, meaning, pains, room, safety
from mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    *safety.MUTANTS,
    *meaning.MUTANTS,
    *pains.MUTANTS,
    *files.MUTANTS,
    *durable.DURABLE,
    *room.TIERS,
]
