"""Chooses the few children that one node serves at a time, so that the chain stays a chain. No threads, no clock."""

from __future__ import annotations

MAX_CHILDREN = 2
"""The most children of a node: one in the chain, and one whose own source is gone."""
STALLED_SECONDS = 1.0
"""A child that takes nothing for this time keeps nobody else out."""


class Children:
    """The children of one node and one version. For use under a lock."""

    def __init__(self) -> None:
        self._moved: dict[bytes, float | None] = {}  # by child: since when it does not take what is sent; None: it does
        self._turn: dict[bytes, int] = {}
        self._turns = 0

    def admit(self, child: bytes, now: float) -> int | None:
        """The number of the child's turn; None: the child is refused. An older turn of the same child ends."""
        others = [each for each, since in self._moved.items() if each != child and not _stalled(since, now)]
        if len(others) >= MAX_CHILDREN:
            return None
        self._turns += 1
        self._turn[child], self._moved[child] = self._turns, None
        return self._turns

    def sends(self, child: bytes, now: float) -> None:
        """Note that bytes are being sent to the child."""
        if child in self._moved:
            self._moved[child] = now

    def took(self, child: bytes) -> None:
        """Note that the child has received the bytes."""
        if child in self._moved:
            self._moved[child] = None

    def has(self, child: bytes, turn: int) -> bool:
        """Whether this turn is still the child's current one."""
        return self._turn.get(child) == turn

    def ends(self, child: bytes, turn: int) -> None:
        """Note that the turn is over."""
        if self.has(child, turn):
            del self._turn[child], self._moved[child]


def _stalled(since: float | None, now: float) -> bool:
    return since is not None and now - since > STALLED_SECONDS
