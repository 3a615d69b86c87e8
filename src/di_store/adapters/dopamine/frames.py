"""The elements that Dopamine's `TransitionAccumulator` makes, with each observation stored once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from dopamine.jax.replay_memory.elements import ReplayElement

import di_store
from di_store.adapters.casts import cast
from di_store.adapters.dopamine.stored import InTable, Values, new_rows
from di_store.adapters.ring import Ring
from di_store.adapters.stored_array import Array

_PIECE_BYTES = 64 << 20
"""The most bytes of one array of a checkpoint."""


class Element(NamedTuple):
    """Places of an element's observations, and the element's other fields.

    Observations are numbered in the order in which they are stored. `last` holds the numbers of the newest observation
    of the state and of the next state. `held` says how many observations these two hold; zeros precede them.
    """

    last: tuple[int, int]
    held: tuple[int, int]
    action: Any
    reward: Any
    is_terminal: Any


class Frames(InTable):
    """Elements by slot, equal to those that `TransitionAccumulator.accumulate` makes.

    Args:
        accumulator: the accumulator whose trajectory this continues.
        slots: number of elements that it holds.
        store: the store of the observations; None: a store of its own.
        table: name of the table.
    """

    def __init__(
        self, accumulator: Any, slots: int, store: di_store.Store | None = None, table: str = "replay"
    ) -> None:
        its = vars(accumulator)
        self._given, self._table = store, table
        self._slots, self._trajectory = slots, its["_trajectory"]
        self._stack: int = its["_stack_size"]
        self._horizon: int = its["_update_horizon"]
        self._powers = [its["_gamma"] ** step for step in range(self._horizon)]
        self._recent = 2 * (self._horizon + 2 * self._stack)  # observations that elements may still begin with
        self._clear()

    def _clear(self) -> None:
        self._stored = 0  # observations stored so far: the number of the next one
        self._known: list[bytes] = []  # the newest ones, while `ReplayElement`s are put
        self._last = np.zeros((self._slots, 2), np.int64)
        self._held = np.zeros((self._slots, 2), np.int16)
        names = ("action", "reward", "is_terminal")
        self._values = {name: Values(self._slots, f"{name} of a transition") for name in names}
        self._oldest: int | None = None  # slot of the oldest element

    def clear(self) -> None:
        """Remove all elements."""
        self._clear()
        if self.rows is not None:
            self.rows.clear()

    # -- writing ------------------------------------------------------------------------------------------------

    def accumulate(self, transition: Any) -> Iterator[Element]:
        """Add a transition to the trajectory, and make the elements that it completes.

        Raises:
            ValueError: the observation does not have the shape and type of the first one; nothing was added.
            di_store.CapacityError: at the first transition: the observations do not fit in the machine's memory.
        """
        self._check(transition.observation)
        trajectory = self._trajectory
        trajectory.append(transition)
        self._store(transition.observation)
        if transition.is_terminal:
            while element := self._made():
                yield element
                trajectory.popleft()
            trajectory.clear()
        else:
            if element := self._made():
                yield element
            if transition.episode_end:
                trajectory.clear()

    def _check(self, observation: Any) -> None:
        if self.rows is None:
            self._begin(np.asarray(observation))
        kind = observation.dtype
        fits = kind == self._dtype or np.can_cast(kind, self._dtype, "same_kind")
        if not fits or observation.shape != self._shape:
            raise ValueError(
                f"an observation is {kind}{list(observation.shape)}, and the first one was "
                f"{self._dtype}{list(self._shape)}"
            )
        if kind != self._dtype:
            cast(observation, self._dtype, "an observation")

    def _begin(self, first: Array) -> None:
        if first.dtype.kind not in "biufc" or 0 in first.shape:
            raise ValueError(
                f"an observation is {first.dtype}{list(first.shape)}, not an array of numbers with at least one element"
            )
        self._shape, self._dtype = first.shape, first.dtype
        try:  # each episode has an observation more than elements, so those of two steps need twice as many
            self.rows = self._ring(2 * self._slots)
        except di_store.CapacityError:
            self.rows = self._ring(self._slots)

    def _ring(self, observations: int) -> Ring:
        spec = di_store.Spec(self._shape, self._dtype)
        slots, name, old = observations + 2 * self._recent, self._table, self.rows
        if self._given is not None and old is not None:  # it moves to a larger table
            number = int(old.table.name.removeprefix(f"{name}-")) if old.table.name != name else 0
            name = f"{name}-{number + 1}"
        return new_rows({"frame": spec}, slots, self._given, name)

    def _made(self) -> Element | None:
        """The element that ends with the newest transition of the trajectory."""
        trajectory = self._trajectory
        length, newest = len(trajectory), trajectory[-1]
        horizon = self._horizon
        if length <= horizon:
            if length < 2 or not newest.is_terminal:
                return None
            horizon = length - 1
        begin = length - horizon - 1
        reward = 0.0
        for power, step in zip(self._powers, islice(trajectory, begin, length), strict=False):
            reward += step.reward * power
        last = self._stored - 1
        count = min(self._stack, begin + 1), min(self._stack, length)
        return Element((last - horizon, last), count, trajectory[begin].action, reward, newest.is_terminal)

    def _store(self, observation: Any) -> None:
        assert self.rows is not None
        if self._oldest is not None and self._stored - self.rows.slots >= self._first_needed():
            self._grow()
        staged, part = self.rows.place(self._stored % self.rows.slots, 1)
        staged["frame"][part] = observation
        self._stored += 1

    def _first_needed(self) -> int:
        """No element needs an observation with a smaller number."""
        oldest = self._oldest
        first: int = self._last[oldest, 0] - self._held[oldest, 0] - self._recent
        return first

    def _grow(self) -> None:
        """Move all observations to a larger table: episodes have many more of them than elements."""
        old = self.rows
        assert old is not None
        try:
            self.rows = new = self._ring(2 * old.slots)
        except di_store.CapacityError as error:
            raise di_store.CapacityError(
                f"the elements of short episodes need more than {old.slots:,} observations, and no more fit in memory",
                remedy="lower max_capacity=",
            ) from error
        number = max(0, self._stored - old.slots)
        for _, data in old.pieces(np.arange(number, self._stored) % old.slots, ("frame",)):
            count = len(data["frame"])
            new.write(np.arange(number, number + count) % new.slots, data)
            number += count
        old.store.drop_table(old.table.name)

    def put(self, slot: int, element: Any) -> None:
        """Set the element of a slot: one that `accumulate` made, or a `ReplayElement`."""
        if type(element) is not Element:
            element = self._found(element)
        self._last[slot] = element.last
        self._held[slot] = element.held
        for name, values in self._values.items():
            values.put(slot, getattr(element, name))
        if self._oldest is None:
            self._oldest = slot

    def drop(self, oldest: int | None) -> None:
        """Mark the elements before the one at this slot as no longer needed; None: all elements."""
        self._oldest = oldest

    # -- elements of Dopamine's own buffer ----------------------------------------------------------------------

    def _found(self, element: Any) -> Element:
        """The element for a `ReplayElement`; its observations are searched among the newest ones."""
        self._check(element.state[..., 0])
        (first, held), (last, held_next) = self._window(element.state), self._window(element.next_state)
        return Element((first, last), (held, held_next), element.action, element.reward, element.is_terminal)

    def _window(self, state: Array) -> tuple[int, int]:
        frames = [np.ascontiguousarray(state[..., index], self._dtype) for index in range(self._stack)]
        while frames and not frames[0].any():
            del frames[0]
        wanted, known = [each.tobytes() for each in frames], self._known
        count = len(wanted)
        for end in range(len(known), count - 1, -1):
            if known[end - count : end] == wanted:
                return self._stored - len(known) + end - 1, count
        overlap = next(n for n in range(min(count, len(known)), -1, -1) if known[len(known) - n :] == wanted[:n])
        for frame in frames[overlap:]:
            self._store(frame)
        self._known = [*known, *wanted[overlap:]][-self._recent :]
        return self._stored - 1, count

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, slots: Array) -> Any:
        """The elements of these slots: arrays ``[n, …]``, states ``[n, …, stack]``."""
        rows, stack, n = self.rows, self._stack, len(slots)
        assert rows is not None
        last, held = self._last[slots].T.reshape(-1), self._held[slots].T.reshape(-1)  # states, then next states
        before = np.arange(stack - 1, -1, -1)[:, None]
        found = rows.read(((last - before) % rows.slots).reshape(-1), ("frame",))["frame"]
        found = found.reshape(stack, 2 * n, *self._shape)
        if held.min() < stack:
            found[before >= held] = 0
        stacks = found[0][..., None] if stack == 1 else np.stack(list(found), axis=-1)
        action, reward, ends = (values.take(slots) for values in self._values.values())
        # Dopamine takes the end of the episode from `is_terminal` too.
        return ReplayElement(stacks[:n], action, reward, stacks[n:], ends, ends.copy())

    def match(self, slots: Array) -> Array:
        """Find the observations in the table again: bool[n], True for elements of these slots that lack some."""
        rows = self.rows
        if rows is None or not len(slots):
            return np.zeros(len(slots), np.bool_)
        changed, last, held = self._changed(), self._last[slots], self._held[slots]
        first = int((last - held).min()) + 1
        lost = np.append(0, np.cumsum(changed[np.arange(first, self._stored) % rows.slots]))
        lacking: Array = (lost[last + 1 - first] > lost[last + 1 - held - first]).any(axis=1)
        return lacking

    # -- checkpoints --------------------------------------------------------------------------------------------

    def state(self, slots: Array) -> dict[str, Any]:
        """The elements of these slots, oldest first, for `restore`. The result holds each observation once."""
        rows = self.rows
        if rows is None or len(slots) == 0:
            return {"last": np.zeros((0, 2), np.int64)}
        last, held = self._last[slots], self._held[slots]
        first, end = int((last - held + 1).min()), int(last.max()) + 1
        size = max(1, _PIECE_BYTES // max(1, int(np.prod(self._shape)) * self._dtype.itemsize))
        frames = [
            rows.read(np.arange(begin, min(begin + size, end)) % rows.slots, ("frame",))["frame"]
            for begin in range(first, end, size)
        ]
        values = {name: each.take(slots) for name, each in self._values.items()}
        return {"frames": frames, "last": last - first, "held": held, **values}

    def restore(self, slots: Array, state: dict[str, Any]) -> None:
        """Add the elements that `state` returned; the buffer must be empty."""
        if len(slots) == 0:
            self._store_trajectory()
            return
        self._check(state["frames"][0][0])
        if self.rows is None or (count := sum(map(len, state["frames"]))) > self.rows.slots - 2 * self._recent:
            self.rows = self._ring(count)
        for frame in chain.from_iterable(state["frames"]):
            self._store(frame)
        self._last[slots], self._held[slots] = state["last"], state["held"]
        for name, values in self._values.items():
            values.restore(slots, state[name])
        self._oldest = int(slots[0])
        self._store_trajectory()

    def restore_elements(self, slots: Array, elements: Iterator[Any]) -> None:
        """Add these `ReplayElement`s, oldest first; the buffer must be empty."""
        for slot, element in zip(slots.tolist(), elements, strict=True):
            self.put(slot, element)
        self._store_trajectory()

    def _store_trajectory(self) -> None:
        """Store the observations of the trajectory, which may have been replaced, for the elements to come."""
        for transition in self._trajectory:
            self._check(transition.observation)
            self._store(transition.observation)
