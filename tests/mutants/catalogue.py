"""All mutants."""

from __future__ import annotations

import meaning
import pains
import safety
from mutant import Mutant

MUTANTS: list[Mutant] = [*safety.MUTANTS, *meaning.MUTANTS, *pains.MUTANTS]
