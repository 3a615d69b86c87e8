"""What a plane gives the learner: one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """One batch, the same in every system.

    data of "replay" and "states": obs, next_obs [n, …] (stacked frames uint8 [n, 4, 84, 84]), action, reward, discount
    [n]. Of "unrolls" of t steps: frames uint8 [n, 3 + t + 1, 84, 84] (three earlier ones in front, the one after the
    last step at the end), action, reward, discount, logp, is_first [n, t].
    keys, weights: of "replay", for new priorities and the loss.
    """

    data: dict[str, Array]
    keys: Any = None
    weights: Array = field(default_factory=lambda: np.ones(0, np.float32))
