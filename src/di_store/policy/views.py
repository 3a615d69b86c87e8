"""Views: how a table turns a range of a stream's rows into a training example.

A step is stored once. An item is a range of rows of one lane. The table's view decides which rows an item covers, and
how these become an example when they are copied into the batch. The core copies; these classes describe the view, and
refuse settings that cannot work before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias

from di_store.base import config
from di_store.base.errors import shown
from di_store.base.frozen import dataclass
from di_store.columns.schema import Schema

NEXT = "next_"
"""Prefix of the column that holds the observation after the example."""
FUTURE = "future_"
"""Prefix of the column that holds an observation of a later step."""


@dataclass(frozen=True)
class Step:
    """The row itself: batch leaves ``[n, …]``. An item is one row."""

    def outputs(self, schema: Schema) -> frozenset[str]:
        """Names that this view adds to a batch."""
        return frozenset()

    @property
    def rows_added(self) -> int:
        """Rows of the stream that each further item adds."""
        return 1

    @property
    def rows_spanned(self) -> int:
        """Rows that one item reads, at most."""
        return 1


@dataclass(frozen=True)
class Opaque:
    """Any Python value, encoded as one object. There are no columns. An item is one value.

    If some values of a batch cannot be loaded (their class is missing here, or another machine pickled them), the call
    raises, and `error.keys` holds the keys of their items. These items count as drawn; the other items are given back.
    """

    def outputs(self, schema: Schema) -> frozenset[str]:
        """Names that this view adds to a batch."""
        return frozenset()

    @property
    def rows_added(self) -> int:
        """Rows of the stream that each further item adds."""
        return 1

    @property
    def rows_spanned(self) -> int:
        """Rows that one item reads, at most."""
        return 1


@dataclass(frozen=True)
class Transition:
    """n-step transitions: the columns of step t, and the outcome of up to n steps of the same episode.

    Let k <= n_step be the number of steps that are left in the episode. ``next_<obs>`` is the observation at t+k,
    ``reward`` the sum of gamma^i · r_{t+i} for i < k, ``discount`` gamma^k or 0 after termination, and ``steps`` k.
    `terminated` and `truncated` are those of step t+k-1. The learning target is ``reward + discount * V(next_obs)``. If
    the steps have a column ``discount``, it is multiplied in, and the sum stops where it is 0.

    An episode that ends by `truncated` or ``end_episode()`` needs its final observation (``final=``, or ``next=`` of
    the last step). Without it, the last n_step steps have no ``next_<obs>`` and make no item; a warning is shown once,
    and ``stats()["steps_left_out"]`` counts them. A terminated episode needs none.

    With ``future=``, every draw also returns an observation of a later step of the same episode, to relabel goals in
    hindsight (Andrychowicz et al. 2017, "future"). ``future_<name>`` is the observation at t+j, and ``future_steps`` is
    j, with j uniform in 1 … min(horizon, T-t) in an episode of T steps. A transition then becomes an item once
    `horizon` steps follow, or its episode is over.

    Attributes:
        n_step: number of steps to sum over, >= 1.
        gamma: discount per step, 0 … 1.
        frame_stack: by column, how many rows ending at t become ``[n, stack, …]``, oldest first.
        frame_pad: padding before the episode's start: its "first" frame again (Gymnasium, Tianshou), or "zero" (SB3,
            Acme).
        obs: columns that also come back as ``next_<name>``; an inner node stands for all columns below it.
        reward: the column that is summed.
        future: columns among those of `obs` that also come back as ``future_<name>``; an inner node stands for all
            below it.
        horizon: the largest j; has no effect without `future`.
    """

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: Mapping[str, int] | None = field(default=None, hash=False)
    frame_pad: Literal["first", "zero"] = "first"
    obs: tuple[str, ...] = ("obs",)
    reward: str = "reward"
    future: tuple[str, ...] = field(default=(), kw_only=True, metadata=config.ADDED)
    horizon: int = field(default=1000, kw_only=True, metadata=config.ADDED)

    def __post_init__(self) -> None:
        n_step = config.count("n_step", self.n_step, minimum=1, why="a transition covers at least the step itself")
        gamma = config.real("gamma", self.gamma, maximum=1.0, why="it is the discount per step")
        _set(self, n_step=n_step, gamma=gamma, frame_stack=_stacks(self.frame_stack))
        why = "a later observation is that of the next step at the earliest"
        _set(self, horizon=config.count("horizon", self.horizon, minimum=1, why=why))
        _set(self, obs=config.names("obs", self.obs), future=config.names("future", self.future))
        config.choice("frame_pad", self.frame_pad, ("first", "zero"))
        if len(config.names("reward", self.reward)) != 1 or not isinstance(self.reward, str):
            raise ValueError(f"reward={shown(self.reward)}: name the one column that is summed over n steps")

    def outputs(self, schema: Schema) -> frozenset[str]:
        """Names that this view adds to a batch: ``steps``, ``next_<obs>``, ``future_steps`` and ``future_<name>``.

        ``discount`` is not among them: a column of that name takes part in the product.
        """
        found = {NEXT + name for name in schema.select(self.obs, option="obs")} if self.obs else set()
        if self.future:
            found |= {FUTURE + name for name in schema.select(self.future, option="future")} | {FUTURE + "steps"}
        return frozenset({"steps", *found})

    @property
    def rows_added(self) -> int:
        """Rows of the stream that each further item adds."""
        return 1

    @property
    def rows_spanned(self) -> int:
        """Rows that one item reads, at most: earlier frames, its steps, and the one after."""
        steps = max(self.n_step, self.horizon) if self.future else self.n_step
        return max((self.frame_stack or {}).values(), default=1) - 1 + steps + 1


@dataclass(frozen=True)
class Sequence:
    """Windows of consecutive rows: s … s+burn_in+length-1 for s = 0, period, 2·period, … of an episode.

    Batch leaves are ``[n, burn_in+length, …]`` with ``mask`` 1 on real rows. The first window that reaches the
    episode's end is its last window.

    With ``start="random"``, windows can begin at any row, as DreamerV3 (Hafner et al. 2023) samples them. An item then
    stands for the `period` windows that start at s, s+1, …, s+period-1. Every draw of the item returns one of them,
    each with the same probability. A priority belongs to an item, and so to `period` windows.

    Attributes:
        length: rows to learn from, >= 1.
        period: rows from one window's start to the next one's; None: `length`. Windows with a smaller period overlap
            and share bytes.
        burn_in: real rows before the `length` rows, to warm up a recurrent state.
        tail: treatment of a window that passes the episode's end: "pad" with zeros and mask 0, "drop" it, or "shift" it
            back to the end.
        frame_stack: by column, rows per stack; its leaves get stack-1 more rows in front, each frame once.
        first: columns kept once per window, ``[n, …]``, such as the recurrent state at its start.
        bootstrap: columns with one more row: the row after the window, or the final observation.
        cross_episodes: windows continue over episode ends, which ``is_first`` marks.
        start: "grid": every item is one window. "random": every draw of an item chooses among `period` windows.
        stride: take only every `stride`-th row: s, s+stride, …. `burn_in` and `length` count the rows taken; `period`
            counts all rows, and is length · stride if None.
        last: by column, how many rows at the end of the window are kept, ``[n, rows, …]``.
    """

    length: int
    period: int | None = None
    burn_in: int = 0
    tail: Literal["pad", "drop", "shift"] = field(default="pad", kw_only=True)
    frame_stack: Mapping[str, int] | None = field(default=None, kw_only=True, hash=False)
    first: tuple[str, ...] = field(default=(), kw_only=True)
    bootstrap: tuple[str, ...] = field(default=(), kw_only=True)
    cross_episodes: bool = field(default=False, kw_only=True)
    start: Literal["grid", "random"] = field(default="grid", kw_only=True, metadata=config.ADDED)
    stride: int = field(default=1, kw_only=True, metadata=config.ADDED)
    last: Mapping[str, int] | None = field(default=None, kw_only=True, hash=False, metadata=config.ADDED)

    def __post_init__(self) -> None:
        length = config.count("length", self.length, minimum=1, why="a sequence without rows teaches nothing")
        burn_in = config.count("burn_in", self.burn_in, minimum=0, why="it counts rows before the learned ones")
        _set(self, length=length, burn_in=burn_in, frame_stack=_stacks(self.frame_stack))
        if self.period is not None:
            why = "every window must start after the one before; period=None starts one each `length` rows"
            _set(self, period=config.count("period", self.period, minimum=1, why=why))
        config.choice("tail", self.tail, ("pad", "drop", "shift"))
        _set(self, first=config.names("first", self.first), bootstrap=config.names("bootstrap", self.bootstrap))
        _set(self, cross_episodes=config.flag("cross_episodes", self.cross_episodes))
        why = "1 takes every row of the window"
        _set(self, stride=config.count("stride", self.stride, minimum=1, why=why))
        why = "first= and columns= say which columns have no time axis, or do not come at all"
        _set(self, last=_counts("last", self.last, '{"action": 1}', "rows", why, most=burn_in + length))
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        config.choice("start", self.start, ("grid", "random"))
        if self.start == "random" and self.cross_episodes and self.bootstrap:
            raise ValueError(
                f"bootstrap={self.bootstrap!r} with start='random' and cross_episodes=True: a window can end in the "
                "middle of an item with a truncated episode whose final observation is unknown; leave one of them out"
            )
        options = {"bootstrap": self.bootstrap, "frame_stack": self.frame_stack, "cross_episodes": self.cross_episodes}
        for name, value in options.items():
            if self.stride > 1 and value:
                raise ValueError(
                    f"{name}={shown(value)} with stride={self.stride}: {name} needs rows that the stride "
                    "leaves out; leave one of the two out"
                )

    def outputs(self, schema: Schema) -> frozenset[str]:
        """Names that this view adds to a batch."""
        return frozenset({"mask", "lengths", "is_first"})

    @property
    def rows_added(self) -> int:
        """Rows of the stream that each further item adds."""
        return self.length * self.stride if self.period is None else self.period

    @property
    def rows_spanned(self) -> int:
        """Rows that one item reads, at most: earlier frames, its steps, and the one after."""
        stack = max((self.frame_stack or {}).values(), default=1)
        return stack - 1 + self.steps_spanned + (1 if self.bootstrap else 0)

    @property
    def steps_spanned(self) -> int:
        """The most steps of an item: those of all its windows, including steps between the rows taken."""
        starts = self.rows_added if self.start == "random" else 1
        return (self.burn_in + self.length - 1) * self.stride + starts


@dataclass(frozen=True)
class Episode:
    """Whole episodes: leaves ``[n, max_length, …]``, padded with zeros, with ``lengths`` and ``mask``.

    Attributes:
        max_length: rows kept, >= 1. Longer episodes are cut, and counted.
        bootstrap: columns with one more row, the final observation.
    """

    max_length: int
    bootstrap: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        why = "an episode has at least one row"
        _set(self, max_length=config.count("max_length", self.max_length, minimum=1, why=why))
        _set(self, bootstrap=config.names("bootstrap", self.bootstrap))

    def outputs(self, schema: Schema) -> frozenset[str]:
        """Names that this view adds to a batch."""
        return frozenset({"mask", "lengths"})

    @property
    def rows_added(self) -> int:
        """Rows of the stream that each further item adds, at most."""
        return self.max_length

    @property
    def rows_spanned(self) -> int:
        """Rows that one item reads, at most."""
        return self.max_length + (1 if self.bootstrap else 0)


@dataclass(frozen=True)
class Group:
    """All answers to one prompt together: an item is `size` rows with the same value in one column.

    The rows may come from several lanes, writers and processes. Batch leaves are ``[n, size, …]``, and ragged columns a
    `Ragged` with ``lead == (n, size)``; rows lie in order of arrival. `capacity`, `sample` and the limiter count
    groups.

    A group can be drawn once it is complete: it has `size` rows, with the late columns that the table's batches hold.
    Until then it takes a place of the capacity. Incomplete groups leave in the order in which they began. An answer's
    key stands for its group, except in `Table.update`, where it means that answer.

    A group ends when it has all its answers, or when it leaves the table. The table remembers the values of the newest
    16,384 ended groups. Another answer with the value of an ended group is late, and counts in
    ``stats()["late_answers"]``. It begins a new group with this value; with `unique` it is refused and makes no item.
    `Table.incomplete` lists the groups that cannot be drawn yet.

    With `deadline`, a group that is not complete so many seconds after its first answer ends. It is dropped; its key
    comes from `Table.evicted`, and ``stats()["groups_dropped"]`` counts it. With ``short=True`` it can be drawn with
    the answers that have all their late columns by then, and is dropped if it has none. Batches get a column ``mask``,
    bool ``[n, size]``: False where an answer is missing. All columns are zero there, and ragged values empty. After
    `Table.finish`, a group that only lacks answers is short at once.

    Attributes:
        size: rows of a group, 1 to 256.
        by: the column that names the group, one whole number per row, such as a prompt's number.
        unique: a value names one group only. Use True if every prompt gets a new number each time it is given out.
        deadline: seconds from a group's first answer, up to 1e7; None: groups wait for ever.
        short: deliver groups short at their deadline, with a mask, in place of dropping them.
    """

    size: int
    by: str = "group"
    unique: bool = False
    deadline: float | None = field(default=None, kw_only=True, metadata=config.ADDED)
    short: bool = field(default=False, kw_only=True, metadata=config.ADDED)

    def __post_init__(self) -> None:
        why = "a group has at least one answer, and the core changes at most 256 of them at once"
        _set(self, size=config.count("size", self.size, minimum=1, maximum=MOST_ANSWERS, why=why))
        if not isinstance(self.by, str) or len(config.names("by", self.by)) != 1:
            raise ValueError(f"by={shown(self.by)}: name the one column whose value the rows of a group share")
        config.flag("unique", self.unique)
        if self.deadline is not None:
            deadline = config.real("deadline", self.deadline, maximum=1e7, why="it is seconds from the first answer")
            _set(self, deadline=deadline)
        if config.flag("short", self.short) and self.deadline is None:
            raise ValueError("short=True: a group is short at its deadline; give deadline=, seconds, too")

    def outputs(self, schema: Schema) -> frozenset[str]:
        """Names that this view adds to a batch."""
        return frozenset({"mask"} if self.short else ())

    @property
    def rows_added(self) -> int:
        """Rows of the stream that each further item adds."""
        return self.size

    @property
    def rows_spanned(self) -> int:
        """Consecutive rows that one item reads, at most: its rows may lie anywhere."""
        return 1


View: TypeAlias = Step | Opaque | Transition | Sequence | Episode | Group

VIEWS: tuple[type[View], ...] = (Step, Opaque, Transition, Sequence, Episode, Group)
MOST_ANSWERS = 256
"""Rows of a `Group`, at most."""
NEED_ENDS = (Transition, Sequence, Episode)
"""Views whose items depend on where episodes end."""


def _set(view: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(view, name, value)


def _stacks(value: object) -> dict[str, int] | None:
    return _counts("frame_stack", value, '{"obs": 4}', "frames", "a stack holds at least the newest frame")


def _counts(
    option: str, value: object, example: str, what: str, why: str, most: int = config.MAX_COUNT
) -> dict[str, int] | None:
    """An option that gives a number, 1 to `most`, for some columns; None: for no column."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"{option}={shown(value)} is a {type(value).__name__}: give {example}, {what} by column")
    columns = config.names(option, tuple(value))
    counts = {
        name: config.count(f"{option}[{name!r}]", value[name], minimum=1, maximum=most, why=why) for name in columns
    }
    return counts or None


def check_view(value: object) -> View:
    """`value` if it is a view; otherwise TypeError, which lists the views."""
    return config.instance("view", value, VIEWS)


def view_to_plain(view: View) -> dict[str, Any]:
    """`view` as plain data."""
    return config.to_plain(view)


def view_from_plain(plain: Any) -> View:
    """The view that `view_to_plain` described; `CorruptData` if the data describe none."""
    return config.from_plain(plain, VIEWS, "view")


def answers_of(view: View) -> int:
    """Rows of one item that have slots of their own: `Group.size`, or 1 for other views."""
    return view.size if isinstance(view, Group) else 1
