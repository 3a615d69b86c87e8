"""Objects that a client has here by number or name: tables, mixtures, and followers of the keys that leave a table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from di_store.base.errors import DrawsLost, StoreError, TableNotFound
from di_store.replay.keys import GoneKey
from di_store.replay.mixture import Mixture
from di_store.replay.serving import handle_of, identities_of, is_dropped, keep_encoded
from di_store.replay.table import Table
from di_store.store.handle import Store

MOST_DROPPED = 64
"""If so many tables have handles here, those of dropped tables are discarded. Until then such a handle still answers
some calls."""


class Handles:
    """The handles of one client."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tables: dict[tuple[str, str], Table] = {}  # by name and identity
        self._mixtures: dict[int, Mixture] = {}
        self._followers: dict[int, _Follower] = {}

    def __len__(self) -> int:
        return len(self._mixtures) + len(self._followers)

    # -- tables -------------------------------------------------------------------------------------------------

    def open(self, name: str, timeout: float | None) -> Table:
        """The table that now has this name; `TableNotFound` if there is no such table in time."""
        return self.keep(self._store.table(name, timeout))

    def table(self, name: str, identity: str) -> Table:
        """The table of that name and identity; identity "": the table that now has the name.

        Raises:
            TableNotFound: the table was dropped. Another table may have its name by now.
        """
        found = self._tables.get((name, identity))
        if found is not None:
            return found
        try:
            found = self.open(name, 0)
        except TableNotFound:
            if not identity:
                raise
        if found is None or identity not in ("", handle_of(found).identity):
            raise TableNotFound("the table was dropped; create it again with store.create_table()")
        return found

    def keep(self, table: Table) -> Table:
        """Keep a handle for later calls. Returns an already known mixture if there is one."""
        name, identity = table.name, handle_of(table).identity
        known = self._tables.get((name, identity))
        if known is not None:
            return known
        if len(self._tables) >= MOST_DROPPED:
            for key in [key for key, each in list(self._tables.items()) if is_dropped(each)]:
                self._tables.pop(key, None)
        keep_encoded(table)
        self._tables[name, identity] = table
        return table

    # -- mixtures and followers, by the client's numbers ---------------------------------------------------------

    def mix(
        self,
        number: int,
        weights: dict[str, float],
        columns: list[str] | None,
        seed: int | None,
        identities: dict[str, str],
    ) -> None:
        """Make a mixture of these tables.

        Raises:
            TableNotFound: one of them was dropped. ValueError: the tables give different columns.
        """
        for name, identity in identities.items():
            self.table(name, identity)
        made = self._store.mix(weights, columns=columns, seed=seed)
        if any(identities.get(name, "") not in ("", identity) for name, identity in identities_of(made).items()):
            raise TableNotFound("a table of the mixture was dropped; create it again with store.create_table()")
        keep_encoded(made)
        self._mixtures[number] = made

    def mixture(self, number: int) -> Mixture:
        """A mixture by its number.

        Raises:
            DrawsLost: the mixture is no longer known, or was made by another process.
        """
        found = self._mixtures.get(number)
        if found is None:
            raise DrawsLost("the agent no longer knows this mixture", remedy="mix() again")
        return found

    def follow(self, number: int, table: Table, timeout: float | None) -> None:
        """Begin to record the keys that leave a table."""
        if number not in self._followers:  # else the answer was lost
            self._followers[number] = _Follower(table.evicted(timeout=timeout))

    def left(self, number: int, turn: int, reasons: bool) -> list[Any]:
        """The keys that left since the last turn; why some are missing, or None; and, with `reasons`, why each left."""
        found = self._followers.get(number)
        if found is None:
            raise StoreError(
                "the agent was restarted, and the keys of items that left the table meanwhile were lost",
                remedy="compare with table.keys(), and call evicted() again",
            )
        keys, missed = found.read(turn)
        plain = [[int(key) for key in keys], missed]
        return [*plain, [key.reason for key in keys]] if reasons else plain

    def let_go(self, number: int) -> None:
        """Forget a handle that the client has dropped."""
        self._mixtures.pop(number, None)
        self._followers.pop(number, None)


class _Follower:
    """The keys that leave one table.

    A read removes the keys from the list, so its answer is kept until the client asks for the next one.
    """

    def __init__(self, keys: Iterator[GoneKey]) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        self._turn = -1
        self._answer: list[Any] = []

    def read(self, turn: int) -> list[Any]:
        with self._lock:
            if turn != self._turn:
                try:
                    self._answer = [list(self._keys), None]
                except TableNotFound:
                    raise
                except StoreError as error:  # some were missed: it is told once, and so may be asked for again
                    self._answer = [[], [error.message, error.remedy]]
                self._turn = turn
            return self._answer
