"""Vector steps gathered into messages, for the systems whose actors send some: fewer, larger ones are their best way.

A message of "replay" holds arrays [steps, lanes, …] in time order, those of next-step autoreset included: the row after
an ended one holds the final observation. One of "states" holds finished transitions [n, …]; one of "unrolls" what the
learner takes (`sample.py`), a sequence per lane.
"""

from __future__ import annotations

import numpy as np

from bench.bottlenecks.loads import Load
from bench.bottlenecks.sample import Array
from di_store.demo.envs import Stepped

Message = dict[str, Array]


class Fragments:
    """Gathers the steps of one actor."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.rows: list[Message] = []
        # By lane: the row to come belongs to no transition (an environment resets in it), follows such a one.
        self.resetting = np.zeros(load.lanes, np.bool_)
        self.fresh = np.ones(load.lanes, np.bool_)
        self.front: Array | None = None

    def add(self, stepped: Stepped, seen: Array, extra: Message) -> Message | None:
        """Take one vector step; a message every `load.fragment` steps."""
        step = stepped.step
        ended = step["terminated"] | step["truncated"]
        if self.load.kind == "unrolls":
            row = self._of_unroll(stepped, ended, extra)
        elif self.load.kind == "states":
            row = self._of_states(stepped)
        else:
            row = {**step, "ended": ended, "first": self.fresh, "valid": ~self.resetting}
            del row["truncated"]
        self.fresh, self.resetting = self.resetting, ended & ~self.resetting
        self.rows.append(row)
        if len(self.rows) < self.load.fragment:
            return None
        rows, self.rows = self.rows, []
        if self.load.kind == "unrolls":
            return self._unroll(rows, stepped, seen)
        join = np.concatenate if self.load.kind == "states" else np.stack
        return {name: join([row[name] for row in rows]) for name in rows[0]}

    def _of_states(self, stepped: Stepped) -> Message:
        keep = ~self.resetting
        step = stepped.step
        row = {name: step[name] for name in ("obs", "action", "reward")}
        row |= {"next_obs": stepped.next["obs"], "discount": 1 - step["terminated"].astype(np.float32)}
        return {name: values[keep] for name, values in row.items()}

    def _of_unroll(self, stepped: Stepped, ended: Array, extra: Message) -> Message:
        step = stepped.step
        if self.front is None:
            self.front = np.repeat(step["obs"][:, None], (self.load.frame_stack or 1) - 1, axis=1)
        # Same-step autoreset: the row after an ended one is the first of an episode.
        first, self.fresh = self.fresh, ended
        self.resetting = ended
        discount = np.where(ended, np.float32(0), step["discount"])
        kept = {name: step[name] for name in ("obs", "action", "reward")}
        return {**kept, "discount": discount, "is_first": first, **extra}

    def _unroll(self, rows: list[Message], stepped: Stepped, seen: Array) -> Message:
        assert self.front is not None
        last = stepped.next["obs"][:, None]
        frames = np.concatenate([self.front, np.stack([row["obs"] for row in rows], 1), last], 1)
        self.front = seen[:, :-1].copy()
        message = {name: np.stack([row[name] for row in rows], 1) for name in rows[0] if name != "obs"}
        return {"frames": frames, **message}
