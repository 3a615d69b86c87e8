"""Some seconds of a store's reports, and questions to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from di_store.observe.report import ClientReport, StoreReport, TableReport, WaiterReport
from di_store.observe.threads import Threads


class Waits(NamedTuple):
    """The waits of one kind."""

    share: float  # of the time, mean over the processes that were seen to wait
    pids: tuple[int, ...]
    reason: str  # of the last one
    culprits: tuple[str, ...]


NO_WAITS = Waits(0.0, (), "", ())


class Change(NamedTuple):
    """A table, at the first and at the last report."""

    first: TableReport
    last: TableReport

    @property
    def name(self) -> str:
        """The table's name."""
        return self.last["name"]

    @property
    def lacks(self) -> int:
        """Groups that lack answers, now."""
        return self.last["waiting"] - self.last["gathered"] if self.is_grouped else 0

    @property
    def is_grouped(self) -> bool:
        """Whether the table's view is `Group`."""
        return self.last["view"].startswith("Group(")

    @property
    def unjudged(self) -> int:
        """Items that only late columns are missing of, now."""
        return self.last["gathered" if self.is_grouped else "waiting"]

    @property
    def inserts(self) -> int:
        """Items that became ready in the window."""
        return max(0, self.last["inserts"] - self.first["inserts"])

    def grew(self, of: Callable[[Change], int]) -> int:
        """How much larger a number is at the end."""
        return of(self) - of(Change(self.first, self.first))


class Lookback:
    """The reports of some seconds, and questions to them."""

    def __init__(self, seconds: float, reports: list[StoreReport], threads: Threads) -> None:
        self.seconds = seconds
        self.reports = reports
        self.first, self.last = reports[0], reports[-1]
        self.threads = threads

    def tables(self) -> Iterator[Change]:
        """The tables that were there all the time."""
        before = {table["name"]: table for table in self.first["tables"]}
        for table in self.last["tables"]:
            first = before.get(table["name"])
            if first is not None and first["inserts"] <= table["inserts"]:
                yield Change(first, table)

    def waits(self, kind: str, table: str | None = None) -> Waits:
        """The waits of a kind; `table`: for this one, None: for any."""
        seen: dict[int, set[int]] = {}
        last: dict[int, WaiterReport] = {}
        for number, report in enumerate(self.reports):
            for waiter in report["waiters"]:
                if waiter["kind"] == kind and table in (None, waiter["table"]):
                    seen.setdefault(waiter["slot"], set()).add(number)
                    last[waiter["slot"]] = waiter
        if not seen:
            return NO_WAITS
        share = sum(map(len, seen.values())) / len(seen) / len(self.reports)
        pids = tuple(sorted({waiter["pid"] for waiter in last.values()}))
        culprits = tuple(sorted({waiter["culprit"] for waiter in last.values() if waiter["culprit"]}))
        reason = next(reversed(last.values()))["reason"]
        return Waits(share, pids, reason.removeprefix(f"table {table!r}: "), culprits)

    def others(self, table: Change, pids: Iterable[int]) -> tuple[int, ...]:
        """The processes that use a table, but for these."""
        slots = set(table.last["users"])
        found = {client["pid"] for client in self.last["clients"] if client["slot"] in slots}
        return tuple(sorted(found - set(pids)))

    def state_share(self, client: ClientReport, state: str) -> float:
        """Share of the reports in which a process was in a state."""
        same = [
            each["state"].startswith(state)
            for report in self.reports
            for each in report["clients"]
            if each["slot"] == client["slot"] and each["pid"] == client["pid"]
        ]
        return sum(same) / len(self.reports)


def is_near(client: ClientReport) -> bool:
    """Whether the pid of a client is of this pid namespace."""
    return client["process"] == str(client["pid"])
