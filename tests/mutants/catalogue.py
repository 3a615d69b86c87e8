"""All mutants."""

from __future__ import annotations

from mutants import (
    backups,
    bad_input,
    broadcast,
    checkpoints,
    deaths,
    disk,
    durable,
    groups,
    laws,
    leases,
    limits,
    meaning,
    pace,
    pains,
    remote,
    room,
    shards,
    wire,
)
from mutants.mutant import Mutant

_FILES = (
    *(deaths, groups, laws, leases, limits, meaning, pace, pains, bad_input, checkpoints, disk, durable, room),
    *(wire, remote, broadcast, shards, backups),
)
MUTANTS: list[Mutant] = [mutant for file in _FILES for mutant in file.MUTANTS]
