"""The processes of a store, as pages show them."""

from __future__ import annotations

from di_store import observe
from di_store.dashboard.watch import Seen
from di_store.observe import PinReport, ProcessReport, WaiterReport

FEW_PINS = 8


class Processes:
    """The processes that have a store open: what each runs, reads and waits for."""

    def __init__(self, seen: Seen, most: int | None = None) -> None:
        """Look at the processes of a store: the first `most` and all agents, or all."""
        clients = seen.report["clients"]
        rest = [] if most is None else [each for each in clients[most:] if each["listens"]]
        self.all = observe.processes({**seen.report, "clients": clients[:most] + rest}, seen.pins)
        self._waits: dict[int, list[WaiterReport]] = {}
        for waiter in seen.report["waiters"]:
            self._waits.setdefault(waiter["slot"], []).append(waiter)

    @property
    def agents(self) -> list[ProcessReport]:
        """Those that serve the store to other machines."""
        return [each for each in self.all if each["listens"] or each["connected"]]

    def waits(self, process: ProcessReport) -> list[WaiterReport]:
        """The waiting threads of a process."""
        return self._waits.get(process["slot"], [])

    @staticmethod
    def largest_pins(process: ProcessReport) -> list[PinReport]:
        """The largest objects that a process reads."""
        return process["pins"][:FEW_PINS]
