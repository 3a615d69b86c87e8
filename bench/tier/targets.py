"""The eight rows of the target table (2021): their elements, counts and rates, as steps that are stored once.

The table counts elements as stacks of float32 frames, by value. Here a frame is stored once, views stack it, `next_*`
is a later step, and `done` is `terminated`. Content is random bytes, or frames of a game, that carry the number of
their step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import di_store

Array = Any
POOL, STAMP = 4_096, 8
"""Frames there are before they repeat, and bytes at the start of each that say which step it is."""
MB, GB = 10**6, 10**9
FRAME, UNITS = (84, 84), (3, 200, 31)
AGENTS = {"agent_state": (8, 150), "global_state": (8, 295), "action_mask": (8, 14)}


@dataclass(frozen=True)
class Target:
    """One row of the table.

    Attributes:
        elements, size: it wants, and bytes of one as it counts them.
        inserts, samples: elements a second; batch: of one draw.
        steps: of an element that are its own; episode: steps of an episode.
        columns: of a step, float32 but the first one where that is a frame; the first carries the step's number.
        action: shape of the action, int64 where `columns` has none.
        ahead: batches drawn ahead (`prefetch`).
    """

    name: str
    elements: int
    size: int
    inserts: float
    samples: float
    batch: int
    columns: dict[str, tuple[int, ...]]
    view: Any
    steps: int = 1
    episode: int = 1_000
    sampler: Any = field(default_factory=di_store.Uniform)
    ahead: int = 1
    action: tuple[int, ...] = ()
    max_times_sampled: int = 0

    @property
    def first(self) -> str:
        return next(iter(self.columns))

    @property
    def frames(self) -> bool:
        return self.columns[self.first] == FRAME

    def dtype(self, name: str, frame: str) -> np.dtype[Any]:
        return np.dtype(frame if name == self.first and self.frames else "f4")

    def schema(self, frame: str) -> dict[str, Any]:
        columns = {name: di_store.Spec(shape, self.dtype(name, frame)) for name, shape in self.columns.items()}
        flags = {name: di_store.Spec((), "?") for name in ("terminated", "truncated")}
        rest = {"action": di_store.Spec(self.action, "i8"), "reward": di_store.Spec((), "f4")}
        return rest | columns | flags

    def element_bytes(self, frame: str) -> int:
        """Bytes that an element's own steps take."""
        step = sum(spec.dtype.itemsize * int(np.prod(spec.shape)) for spec in self.schema(frame).values())
        return self.steps * step

    def create(self, store: di_store.Store, elements: int, frame: str) -> di_store.Table:
        return store.create_table(
            self.name,
            capacity=elements,
            schema=self.schema(frame),
            view=self.view,
            sampler=self.sampler,
            limiter=di_store.MinSize(min(self.batch, elements)),
            max_times_sampled=self.max_times_sampled,
            lanes=1,
        )


def priority() -> di_store.Prioritized:
    return di_store.Prioritized(alpha=0.6, beta=0.4)


STACK: dict[str, int] = {"obs": 4}
TARGETS = (
    Target(
        "DQN Qbert",
        400_000,
        110_000,
        400,
        1_650,
        32,
        {"obs": FRAME},
        di_store.Transition(n_step=3, gamma=0.99, frame_stack=STACK),
        sampler=priority(),
        ahead=2,
    ),
    Target(
        "PPO Qbert",
        100_000,
        120_000,
        50,
        87,
        128,
        {"obs": FRAME, "logit": (6,), "value": (), "adv": ()},
        di_store.Sequence(length=1, frame_stack=STACK),
        max_times_sampled=3,
    ),
    Target(
        "R2D2 Qbert",
        10_000,
        10 * MB,
        3,
        45,
        64,
        {"obs": FRAME, "state": (2, 512)},
        di_store.Sequence(length=80, burn_in=20, period=100, frame_stack=STACK, first=("state",)),
        steps=100,
        sampler=priority(),
        ahead=2,
    ),
    Target(
        "IMPALA Qbert",
        100_000,
        3 * MB,
        4,
        253,
        128,
        {"obs": FRAME, "logit": (6,)},
        di_store.Sequence(length=32, frame_stack=STACK, bootstrap=("obs",)),
        steps=32,
        episode=960,
        ahead=2,
        max_times_sampled=100,
    ),
    Target(
        "SAC Hopper",
        1_000_000,
        3_000,
        71,
        138,
        256,
        {"obs": (11,), "action": (3,)},
        di_store.Transition(n_step=1, gamma=0.99),
        ahead=4,
    ),
    Target(
        "QMIX 3s5z",
        50_000,
        290_000,
        19,
        60,
        64,
        AGENTS | {"global_state": (216,), "prev_state": (8, 64)},
        di_store.Sequence(length=10, bootstrap=tuple(AGENTS)),
        steps=10,
        action=(8,),
    ),
    Target(
        "MASAC 3s5z",
        1_000_000,
        29_000,
        116,
        63,
        320,
        AGENTS | {"logit": (8, 14)},
        di_store.Transition(n_step=1, gamma=0.99, obs=tuple(AGENTS)),
        action=(8,),
    ),
    Target(
        "DQN GoBigger",
        100_000,
        400_000,
        30,
        83,
        128,
        {"unit_obs": UNITS, "scalar_obs": (3, 50), "unit_num": (3,)},
        di_store.Transition(n_step=3, gamma=0.99, obs=("unit_obs", "scalar_obs", "unit_num")),
        sampler=priority(),
        action=(3,),
    ),
)


class Content:
    """Steps of one row's stream, and what a learner compares batches with.

    Args:
        frame: dtype of frames.
        shown: frames uint8[n, 84, 84] that rows with frames repeat; None: random bytes, as all other rows.
    """

    def __init__(self, target: Target, frame: str, shown: Array | None) -> None:
        self._target, self._done, rng = target, 0, np.random.default_rng(len(target.name))
        self._pools: dict[str, Array] = {}
        for name, shape in target.columns.items():
            dtype = target.dtype(name, frame)
            if name == target.first and target.frames and shown is not None:
                pool = (shown if dtype == np.uint8 else shown / np.float32(255)).astype(dtype)
            else:
                count = max(64, min(POOL, (64 * MB) // (int(np.prod(shape)) * dtype.itemsize)))
                bits = rng.integers(0, 256, (count, int(np.prod(shape)) * dtype.itemsize), np.uint8)
                pool = bits.view(dtype).reshape(count, *shape)
            self._pools[name] = pool
        self._sums = self._sum(self._pools[target.first])

    def rows(self, count: int) -> dict[str, Array]:
        """The next steps, `[count, …]`."""
        numbers = np.arange(self._done, self._done + count)
        self._done += count
        made = {name: pool[numbers % len(pool)] for name, pool in self._pools.items()}
        made[self._target.first].reshape(count, -1).view(np.uint8)[:, :STAMP] = numbers[:, None].view(np.uint8)
        made["terminated"] = numbers % self._target.episode == self._target.episode - 1
        made["truncated"] = np.zeros(count, bool)
        made["reward"] = np.zeros(count, np.float32)
        if "action" not in made:
            made["action"] = np.broadcast_to(numbers % 6, (*self._target.action, count)).T.copy()
        return made

    def wrong(self, batch: di_store.Batch) -> int:
        """Items of a batch whose steps are not what was written, or don't follow each other."""
        bad = np.zeros(len(batch), bool)
        for name in (self._target.first, "next_" + self._target.first):
            if name in batch.data:
                bad |= self._wrong(batch.data[name], len(batch))
        return int(bad.sum())

    def _wrong(self, data: Array, n: int) -> Array:
        row = self._pools[self._target.first][0].nbytes
        rows = np.ascontiguousarray(data).reshape(n, -1).view(np.uint8).reshape(n, -1, row)
        numbers = rows[..., :STAMP].copy().view(np.int64)[..., 0]
        apart = np.diff(numbers, axis=1)
        found = ((apart < 0) | (apart > 1)).any(axis=1)
        found |= (
            (self._sum(rows.reshape(-1, row)) != self._sums[numbers.ravel() % len(self._sums)])
            .reshape(n, -1)
            .any(axis=1)
        )
        return found

    @staticmethod
    def _sum(rows: Array) -> Array:
        """uint32[n]: the bytes of each row after the stamp, added up as words."""
        words = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint32)[:, STAMP // 4 :]
        found: Array = words.sum(axis=1, dtype=np.uint32)
        return found


def blocks(content: Content, steps: int, most: int) -> Iterator[dict[str, Array]]:
    """So many steps, in blocks of up to `most`."""
    for begin in range(0, steps, most):
        yield content.rows(min(most, steps - begin))
