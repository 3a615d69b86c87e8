"""A replay buffer of one process, as users write it with numpy; its limiter, and the messages that fill it.

Each frame is stored once. Stacks and n-step returns are computed on sampling. Priorities are in a sum tree, which is
searched level by level for a whole batch at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.bottlenecks.planes import ALPHA, BETA, TOLERANCE, Array, Sample
from di_store.demo.config import Recipe
from di_store.demo.envs import Stepped

MESSAGE_STEPS = 10
Message = dict[str, Array]


class Messages:
    """Collects the vector steps of one actor into messages of several steps, which are cheaper to send.

    A message has arrays [steps, lanes, …] in time order. It includes the rows of next-step autoreset: the row after
    the end of an episode has its final observation.
    """

    def __init__(self, lanes: int) -> None:
        self.rows: list[Message] = []
        self.resetting = np.zeros(lanes, np.bool_)  # the next row only resets: no transition begins there
        self.fresh = np.ones(lanes, np.bool_)  # the next row is the first of an episode

    def add(self, stepped: Stepped) -> Message | None:
        """Add one vector step; returns a message after every `MESSAGE_STEPS` of them, else None."""
        step = {name: values for name, values in stepped.step.items() if name != "truncated"}
        ended = step["terminated"] | stepped.step["truncated"]
        self.rows.append({**step, "ended": ended, "first": self.fresh, "valid": ~self.resetting})
        self.fresh, self.resetting = self.resetting, ended & ~self.resetting
        if len(self.rows) < MESSAGE_STEPS:
            return None
        rows, self.rows = self.rows, []
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


class Ratio:
    """A limiter of samples per insert, with the rule of Reverb and Di-store."""

    def __init__(self, job: Recipe) -> None:
        self.ratio, self.min_size, self.inserts, self.samples = job.samples_per_insert, job.min_size, 0, 0
        self.middle = self.ratio * self.min_size
        self.buffer = max(self.middle * TOLERANCE, self.ratio, 1.0)

    @property
    def may_insert(self) -> bool:
        """Whether one more item may be inserted; if so, a whole message is."""
        below = self.inserts < self.min_size
        return below or (self.inserts + 1) * self.ratio - self.samples <= self.middle + self.buffer

    def may_sample(self, n: int) -> bool:
        """Whether `n` items may be drawn."""
        return (
            self.inserts >= self.min_size and self.inserts * self.ratio - self.samples - n >= self.middle - self.buffer
        )


class SumTree:
    """Priorities as the leaves of a binary tree of sums (Schaul et al. 2016, appendix B.2.1)."""

    def __init__(self, leaves: int) -> None:
        self.first = 1 << max(1, (leaves - 1).bit_length())
        self.sums = np.zeros(2 * self.first)

    def __getitem__(self, leaves: Array) -> Array:
        return self.sums[leaves + self.first]

    def set(self, leaves: Array, values: Any) -> None:
        """Set leaves; if one is repeated, its last value is set."""
        nodes = leaves + self.first
        self.sums[nodes] = values
        while nodes[0] > 1:
            nodes >>= 1
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """`n` leaves with probabilities proportional to their values, one from each of `n` equal parts of the sum."""
        left = (np.arange(n) + rng.random(n)) * (self.sums[1] / n)
        nodes = np.ones(n, np.int64)
        while nodes[0] < self.first:
            nodes *= 2
            here = self.sums[nodes]
            right = left >= here
            left -= np.where(right, here, 0)
            nodes += right
        return nodes - self.first


def stack_places(first: Array, at: Array, stack: int) -> Array:
    """Positions [n, stack] in windows of the frames stacked for row `at` [n]; `first` [n, window]: episode begins."""
    rows, place = np.arange(len(at)), at.copy()
    places, blocked = [place], np.zeros(len(at), np.bool_)
    for back in range(1, stack):
        blocked = blocked | first[rows, at - back + 1]
        place = np.where(blocked, place, place - 1)
        places.append(place)
    return np.stack(places[::-1], 1)


def look(window: Message, job: Recipe) -> tuple[Array, Array, Array, Array]:
    """From windows around a step: positions of its stack and of the next stack [n, stack], reward, discount [n].

    A window has `stack - 1` rows before the step and `n_step` after it.
    """
    stack = job.frame_stack or 1
    n, at = len(window["reward"]), stack - 1
    reward, discount = np.zeros(n, np.float32), np.ones(n, np.float32)
    hops, goes_on = np.full(n, at), np.ones(n, np.bool_)
    for t in range(at, at + job.n_step):
        reward += np.where(goes_on, discount * window["reward"][:, t], 0)
        factor = np.float32(job.gamma) * ~window["terminated"][:, t]
        if "discount" in window:
            factor = factor * window["discount"][:, t]
        discount = np.where(goes_on, discount * factor, discount)
        hops += goes_on
        goes_on = goes_on & ~window["ended"][:, t]
    seen = stack_places(window["first"], np.full(n, at), stack)
    return seen, stack_places(window["first"], hops, stack), reward, discount


def importance(probabilities: Array, size: int, beta: float) -> Array:
    """Weights (N P)^-beta divided by the largest of the batch, float32 [n] (Schaul et al. 2016, section 3.4)."""
    weights: Array = (size * probabilities) ** -beta
    return (weights / weights.max()).astype(np.float32)


class ReplayRing:
    """Prioritized n-step transitions over rows [actors, length, lanes]."""

    SMALL = ("reward", "terminated", "ended", "first", "discount")

    def __init__(self, job: Recipe, actors: int, lanes: int) -> None:
        self.job, self.stack, self.lanes = job, job.frame_stack or 1, lanes
        self.length = job.capacity // (actors * lanes)
        self.columns: Message = {}
        self.rows = [0] * actors
        self.tree = SumTree(actors * self.length * lanes)
        self.largest, self.size = 1.0, 0
        self.rng = np.random.default_rng(0)

    def add(self, actor: int, message: Message) -> int:
        """Add rows of one actor; returns how many transitions they complete."""
        if not self.columns:
            lead = (len(self.rows), self.length)
            self.columns = {name: np.zeros((*lead, *v.shape[1:]), v.dtype) for name, v in message.items()}
        begin, count = self.rows[actor], len(message["reward"])
        place = np.arange(begin, begin + count) % self.length
        for name, values in message.items():
            self.columns[name][actor, place] = values
        self.rows[actor] = begin + count
        # Rows that are overwritten, whose stack needs overwritten rows, or without a next step must not be drawn.
        gone = self._leaves(actor, np.arange(begin, begin + count + self.stack - 1))
        self.size -= int(np.count_nonzero(self.tree[gone]))
        self.tree.set(gone, 0.0)
        done = np.arange(max(0, begin - self.job.n_step), begin + count - self.job.n_step)
        if not len(done):
            return 0
        valid = self.columns["valid"][actor, done % self.length].reshape(-1)
        self.tree.set(self._leaves(actor, done), np.where(valid, self.largest**ALPHA, 0.0))
        fresh = int(np.count_nonzero(valid))
        self.size += fresh
        return fresh

    def _leaves(self, actor: int, rows: Array) -> Array:
        """The leaves of all lanes of some rows, in the order of rows, then lanes."""
        first = (actor * self.length + rows % self.length)[:, None] * self.lanes
        return (first + np.arange(self.lanes)).reshape(-1)

    def sample(self, n: int) -> Sample:
        """A batch drawn with probabilities proportional to priority^alpha, with importance weights."""
        leaves = self.tree.draw(n, self.rng)
        lane, row = leaves % self.lanes, leaves // self.lanes
        actor, row = row // self.length, row % self.length
        window = (row[:, None] + np.arange(1 - self.stack, self.job.n_step + 1)) % self.length
        one, lanes = actor[:, None], lane[:, None]
        columns = self.columns
        small = {name: columns[name][one, window, lanes] for name in self.SMALL if name in columns}
        seen, following, reward, discount = look(small, self.job)
        obs = columns["obs"]
        data = {
            "obs": obs[one, np.take_along_axis(window, seen, 1), lanes],
            "next_obs": obs[one, np.take_along_axis(window, following, 1), lanes],
            "action": columns["action"][actor, row, lane],
            "reward": reward,
            "discount": discount,
        }
        weights = importance(self.tree[leaves] / self.tree.sums[1], self.size, BETA)
        return Sample(data, leaves, weights)

    def update(self, leaves: Array, priorities: Array) -> None:
        """Set priorities; rows that were overwritten meanwhile are skipped."""
        alive = self.tree[leaves] > 0
        if alive.any():
            self.tree.set(leaves[alive], priorities[alive] ** ALPHA)
            self.largest = max(self.largest, float(priorities.max()))

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.columns.values()) + int(self.tree.sums.nbytes)
