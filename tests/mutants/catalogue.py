"""All mutants."""

from __future__ import annotations

from mutants import backups, durable, files, machines, meaning, pains, room, safety, shards
from mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    *safety.MUTANTS,
    *meaning.MUTANTS,
    *pains.MUTANTS,
    *files.MUTANTS,
    *durable.DURABLE,
    *room.TIERS,
    *machines.MUTANTS,
    *shards.MUTANTS,
    *backups.MUTANTS,
]
